# The fields and methods of `stopwatch` in C. What they mean is in stopwatch.py.

cimport cython
from kalda.base.samples cimport FreeUse

cdef class RequestTimer:
    cdef public double percent
    cdef object _decode, _now_ns, _now_ms
    cdef bint _is_machine
    cdef long long _began_ns
    cdef double _percent_of_ns

    cdef long long _now(self)
    @cython.locals(now_ns=cython.longlong)
    cpdef bint take(self, FreeUse quota)

@cython.final
@cython.freelist(8)
cdef class Stopwatch:
    cdef RequestTimer _clock
    cdef long long _since_ns, _sum_ns
