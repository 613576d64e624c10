# What other modules call of `codec` in C. The functions themselves are in codec.py.

cdef long long _sum(long long a, long long b) noexcept nogil
cdef (long long, Py_ssize_t) _varint(const unsigned char* p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil
cdef (
    Py_ssize_t, long long, long long, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t
) _record(const unsigned char* p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil
cdef Py_ssize_t _varlong_size(long long number) noexcept nogil
cdef Py_ssize_t _put_varlong(unsigned char* p, Py_ssize_t pos, long long number) noexcept nogil
cdef Py_ssize_t _copy(
    unsigned char* out, Py_ssize_t at, const unsigned char* data, Py_ssize_t start, Py_ssize_t length
) noexcept nogil
