# The fields of `stopwatch` in C. What they mean is in stopwatch.py.

cimport cython

@cython.final
@cython.freelist(8)
cdef class Stopwatch:
    cdef object _now_ns
    cdef long long _since_ns, _sum_ns
