# The fields and locals of `samples` in C. What they mean is in samples.py.

cimport cython

@cython.final
cdef class Sample:
    cdef public double value
    cdef public long long events, last_event_ms, start_ms
    cdef public list bins

    cpdef restart(self, long long now_ms, double initial)

cdef class FreeUse:
    cdef public Sample sample
    cdef public double most
    cdef public long long last_ms, requests, until_ms

    cpdef grant(self, Sample sample, double most, long long until_ms)
    cpdef withdraw(self)
    @cython.locals(sample=Sample, total=double)
    cpdef bint take(self, double value, long long now_ms)
