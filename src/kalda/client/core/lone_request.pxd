# The C types of the class in lone_request.py.

cdef class LoneRequest:
    cdef bytes prefix
    cdef bytearray memory
    cdef public Py_ssize_t batch_size
    cdef public Py_ssize_t record_bound

    cpdef bytes encode(
        self, int correlation_id, long long producer_id, int epoch, int sequence, long long timestamp, bytes key,
        bytes value
    )
