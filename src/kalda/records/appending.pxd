# The C types of the classes in appending.py.

cdef class Ticket:
    cdef public object batch
    cdef public Py_ssize_t index
    cdef public long long timestamp
    cdef public object callback
    cdef public Py_ssize_t key_size
    cdef public Py_ssize_t value_size

cdef class Records:
    cdef public bytearray data
    cdef public Py_ssize_t position
    cdef public Py_ssize_t limit
    cdef public Py_ssize_t switch_at
    cdef public Py_ssize_t count
    cdef public Py_ssize_t largest_record
    cdef public long long base_timestamp
    cdef public long long max_timestamp
    cdef public bint is_open
    cdef public list tickets

    cpdef bint put(self, long long timestamp, bytes key, bytes value, bytes tail, Ticket ticket)

cdef class TopicAppender:
    cdef public type ticket_type
    cdef public list open
    cdef public Records sticky
    cdef public bint ignore_keys
