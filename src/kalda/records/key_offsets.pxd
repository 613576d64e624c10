# What `compaction` uses of `key_offsets` in C. The methods are in key_offsets.py.

cimport cython

@cython.final
cdef class _Hash:
    # The state before the first byte.
    cdef unsigned long long _first0, _first1, _first2, _first3
    cdef unsigned long long _v0, _v1, _v2, _v3
    # The hash, after `_of`.
    cdef unsigned long long low, high

    cdef void _rounds(self, int count) noexcept nogil
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

    cdef void _prefetch(self, unsigned long long high) noexcept nogil
    cdef Py_ssize_t _find(self, unsigned long long low, unsigned long long high) noexcept nogil
    cdef long long _offset(self, Py_ssize_t at) noexcept nogil
    cdef bint _put(self, unsigned long long low, unsigned long long high, long long offset) noexcept nogil

@cython.final
cdef class _Lookups:
    cdef KeyOffsets _offsets
    # How many records wait, and which number in its batch the first of them has.
    cdef int _waiting
    cdef Py_ssize_t _index
    # Of the records that wait. `_kinds`: 0 is dropped, 1 is kept, 2 depends on the map.
    cdef unsigned long long _lows[32]
    cdef unsigned long long _highs[32]
    cdef long long _at[32]
    cdef long long _timestamps[32]
    cdef int _kinds[32]
    cdef bint _have_value[32]
    # A bit for each record of the batch: whether it is kept.
    cdef unsigned char[::1] bits
    # Of those that are kept: how many, how many without a value, and timestamps, -1 for none.
    cdef Py_ssize_t kept, tombstones
    cdef long long first_timestamp, largest_timestamp

    cdef void _begin(self) noexcept nogil
    cdef bint _put(self, _Hash key, long long offset) noexcept nogil
    cdef bint _put_waiting(self) noexcept nogil
    cdef void _decide(
        self, _Hash key, bint has_key, long long offset, long long timestamp, bint has_value, bint keeps_tombstones
    ) noexcept nogil
    cdef void _decide_waiting(self) noexcept nogil
