# What `compacting` and `compacting_runs` use of `key_offsets` in C. The methods are in key_offsets.py.

cimport cython

@cython.final
cdef class _Hash:
    # The state before the first byte.
    cdef unsigned long long _first0, _first1, _first2, _first3
    cdef unsigned long long _v0, _v1, _v2, _v3
    # The bytes that do not fill a word yet.
    cdef unsigned long long _tail
    cdef unsigned long long _length
    # The hash, after `_end`.
    cdef unsigned long long low, high

    cdef void _begin(self) noexcept nogil
    cdef void _rounds(self, int count) noexcept nogil
    cdef void _add(self, const unsigned char* p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil
    cdef void _end(self) noexcept nogil
    cdef void _of(self, const unsigned char* p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil

@cython.final
cdef class KeyOffsets:
    # Three words an entry: the hash, and the offset plus one, which is 0 where the entry is free.
    cdef unsigned long long* _table
    # How many entries there is room for; 0 once the table has been released.
    cdef Py_ssize_t _slots
    # How many keys there are, and how many there may be.
    cdef Py_ssize_t _size, _room
    # The last offset up to which the map is complete; -1: none.
    cdef long long _latest
    cdef unsigned long long _k0, _k1

    cdef Py_ssize_t _find(self, unsigned long long low, unsigned long long high) noexcept nogil
    cdef long long _offset(self, Py_ssize_t at) noexcept nogil
    cdef bint _put(self, unsigned long long low, unsigned long long high, long long offset) noexcept nogil
