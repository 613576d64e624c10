# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The last offset of each key, for compaction.

`KeyOffsets` holds no keys: 128 bits of SipHash-2-4, keyed by a secret of each cleaning, so that nobody can make two
keys that are taken for one. One entry is 24 bytes: the hash and the offset. Probing is linear; the table is never
filled beyond nine tenths. Its size is fixed. It is returned to the operating system by `release`, without the
interpreter's lock: for 128 MiB that takes 15 ms, which no other thread of the process waits for.

An entry of a large table is in no cache of the processor, so that a key would cost a wait for memory. `_Lookups`
prefetches the entries of up to 32 records before it uses the first of them: the waits overlap.

The fields of the classes are declared in key_offsets.pxd. Compiled like `codec`, whose safety rules hold here too.
SipHash: Aumasson and Bernstein, 2012, with the 128-bit output of its reference implementation.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.native_prefetch import kalda_prefetch
    from cython.cimports.libc.stdlib import calloc, free

COMPILED = cython.compiled
ENTRY_BYTES = 24
LOAD_FACTOR = 0.9


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _plus(a: cython.ulonglong, b: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return a + b
    else:
        return (a + b) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(value: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (value << bits) | (value >> (64 - bits))
    else:
        return ((value << bits) | (value >> (64 - bits))) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.ulonglong:
    """Eight bytes, the lowest first. Compilers make one load of it."""
    if cython.compiled:
        return (
            cython.cast(cython.ulonglong, p[at])
            | (cython.cast(cython.ulonglong, p[at + 1]) << 8)
            | (cython.cast(cython.ulonglong, p[at + 2]) << 16)
            | (cython.cast(cython.ulonglong, p[at + 3]) << 24)
            | (cython.cast(cython.ulonglong, p[at + 4]) << 32)
            | (cython.cast(cython.ulonglong, p[at + 5]) << 40)
            | (cython.cast(cython.ulonglong, p[at + 6]) << 48)
            | (cython.cast(cython.ulonglong, p[at + 7]) << 56)
        )
    else:
        return int.from_bytes(p[at : at + 8], "little")


@cython.cclass
class _Hash:
    """SipHash-2-4 with 128 bits of output."""

    def __init__(self, k0: object, k1: object) -> None:
        self._first0 = k0 ^ 0x736F6D6570736575
        self._first1 = k1 ^ 0x646F72616E646F6D ^ 0xEE
        self._first2 = k0 ^ 0x6C7967656E657261
        self._first3 = k1 ^ 0x7465646279746573

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _rounds(self, count: cython.int) -> cython.void:
        v0: cython.ulonglong = self._v0
        v1: cython.ulonglong = self._v1
        v2: cython.ulonglong = self._v2
        v3: cython.ulonglong = self._v3
        for _ in range(count):
            v0 = _plus(v0, v1)
            v1 = _rotated(v1, 13) ^ v0
            v0 = _rotated(v0, 32)
            v2 = _plus(v2, v3)
            v3 = _rotated(v3, 16) ^ v2
            v0 = _plus(v0, v3)
            v3 = _rotated(v3, 21) ^ v0
            v2 = _plus(v2, v1)
            v1 = _rotated(v1, 17) ^ v2
            v2 = _rotated(v2, 32)
        self._v0 = v0
        self._v1 = v1
        self._v2 = v2
        self._v3 = v3

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _of(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        pos: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.void:
        """Set `low` and `high` to the hash of `p[pos:end]`."""
        word: cython.ulonglong = 0
        shift: cython.int = 0
        length: cython.ulonglong = cython.cast(cython.ulonglong, end - pos) & 0xFF
        self._v0 = self._first0
        self._v1 = self._first1
        self._v2 = self._first2
        self._v3 = self._first3
        while end - pos >= 8:
            word = _word(p, pos)
            pos += 8
            self._v3 ^= word
            self._rounds(2)
            self._v0 ^= word
        word = length << 56
        while pos < end:
            word |= cython.cast(cython.ulonglong, p[pos]) << shift
            shift += 8
            pos += 1
        self._v3 ^= word
        self._rounds(2)
        self._v0 ^= word
        self._v2 ^= 0xEE
        self._rounds(4)
        self.low = self._v0 ^ self._v1 ^ self._v2 ^ self._v3
        self._v1 ^= 0xDD
        self._rounds(4)
        self.high = self._v0 ^ self._v1 ^ self._v2 ^ self._v3


def siphash128(data: cython.const[cython.uchar][::1], k0: cython.ulonglong, k1: cython.ulonglong) -> bytes:
    """The hash of `data` under the key of two little-endian words."""
    one: _Hash = _Hash(k0, k1)
    if cython.compiled:
        p: cython.pointer[cython.const[cython.uchar]] = cython.NULL
        if len(data):
            p = cython.address(data[0])
        one._of(p, 0, len(data))
    else:
        one._of(data, 0, len(data))
    return one.low.to_bytes(8, "little") + one.high.to_bytes(8, "little")


@cython.cclass
class KeyOffsets:
    """The last offset of each key. `latest_offset` is the last offset up to which the map is complete; -1: none."""

    def __init__(self, memory_bytes: cython.Py_ssize_t, secret: bytes) -> None:
        """A table of at most `memory_bytes`; `secret` has 16 bytes."""
        slots: cython.Py_ssize_t = max(2, memory_bytes // 24)
        if cython.compiled:
            # Zeros that no page is made for until an entry is written there.
            self._table = cython.cast(cython.pointer[cython.ulonglong], calloc(slots, 24))
            if self._table is cython.NULL:
                raise MemoryError(f"there is no memory for {slots} keys")
        else:
            self._table = memoryview(bytearray(24 * slots)).cast("Q")
        self._slots = slots
        self._size = 0
        self._room = int(slots * LOAD_FACTOR)
        self._latest = -1
        self._k0 = int.from_bytes(secret[:8], "little")
        self._k1 = int.from_bytes(secret[8:16], "little")

    def __dealloc__(self) -> None:
        if cython.compiled:
            with cython.nogil:
                free(self._table)

    def release(self) -> None:
        """Free the table. No scan and no `get` may follow. To be called on the thread of a job."""
        self._slots = 0
        if cython.compiled:
            with cython.nogil:
                free(self._table)
            self._table = cython.NULL

    @property
    def size(self) -> int:
        """How many keys there are."""
        return self._size

    @property
    def latest_offset(self) -> int:
        return self._latest

    @latest_offset.setter
    def latest_offset(self, offset: int) -> None:
        self._latest = offset

    def get(self, key: cython.const[cython.uchar][::1]) -> int:
        """The key's last offset; -1 where it is not in the map."""
        if self._slots == 0:
            raise ValueError("the map has been released")
        digest = siphash128(key, self._k0, self._k1)
        low: cython.ulonglong = int.from_bytes(digest[:8], "little")
        high: cython.ulonglong = int.from_bytes(digest[8:], "little")
        at: cython.Py_ssize_t = self._find(low, high)
        return self._offset(at)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _prefetch(self, high: cython.ulonglong) -> cython.void:
        """Let the processor load the entry of a key. It may lie in two cache lines."""
        if cython.compiled:
            at: cython.Py_ssize_t = 3 * cython.cast(
                cython.Py_ssize_t, high % cython.cast(cython.ulonglong, self._slots)
            )
            kalda_prefetch(self._table + at)
            kalda_prefetch(self._table + at + 2)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _find(self, low: cython.ulonglong, high: cython.ulonglong) -> cython.Py_ssize_t:
        """Where the key's entry is, or the free one where it would go."""
        slot: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, high % cython.cast(cython.ulonglong, self._slots))
        at: cython.Py_ssize_t = 3 * slot
        while self._table[at + 2] != 0:
            if self._table[at] == low and self._table[at + 1] == high:
                return at
            slot += 1
            if slot == self._slots:
                slot = 0
            at = 3 * slot
        return at

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _offset(self, at: cython.Py_ssize_t) -> cython.longlong:
        return cython.cast(cython.longlong, self._table[at + 2]) - 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self, low: cython.ulonglong, high: cython.ulonglong, offset: cython.longlong) -> cython.bint:
        """Offsets are put in rising order. False where there is no room for one more key."""
        at: cython.Py_ssize_t = self._find(low, high)
        if self._table[at + 2] == 0:
            if self._size >= self._room:
                return False
            self._size += 1
            self._table[at] = low
            self._table[at + 1] = high
        self._table[at + 2] = cython.cast(cython.ulonglong, offset + 1)
        return True


@cython.cclass
class _Lookups:
    """Records of a batch whose entries the processor loads meanwhile: at most 32, in the order of their offsets.

    Either `_put` is called for each, and `_put_waiting` behind the last of the batch, or `_decide` and
    `_decide_waiting`. What `bits` and the counters say is complete then.
    """

    def __init__(self, offsets: KeyOffsets, bits: object) -> None:
        """`bits`: a zeroed bytearray with a bit for each record, if they are decided."""
        self._offsets = offsets
        self.bits = bits
        if not cython.compiled:
            self._lows, self._highs, self._at = [0] * 32, [0] * 32, [0] * 32
            self._timestamps, self._kinds, self._have_value = [0] * 32, [0] * 32, [False] * 32
        self._begin()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _begin(self) -> cython.void:
        """A batch begins, of which no record is kept yet."""
        self._waiting = 0
        self._index = 0
        self.kept = 0
        self.tombstones = 0
        self.first_timestamp = -1
        self.largest_timestamp = -1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self, key: _Hash, offset: cython.longlong) -> cython.bint:
        """Put a key into the map, now or later. False where it has no room for one that waited."""
        self._offsets._prefetch(key.high)
        self._lows[self._waiting] = key.low
        self._highs[self._waiting] = key.high
        self._at[self._waiting] = offset
        self._waiting += 1
        return self._waiting < 32 or self._put_waiting()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_waiting(self) -> cython.bint:
        """False where the map has no room for a key: those behind it are left out."""
        i: cython.int = 0
        waiting: cython.int = self._waiting
        self._waiting = 0
        while i < waiting and self._offsets._put(self._lows[i], self._highs[i], self._at[i]):
            i += 1
        return i == waiting

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _decide(
        self,
        key: _Hash,
        has_key: cython.bint,
        offset: cython.longlong,
        timestamp: cython.longlong,
        has_value: cython.bint,
        keeps_tombstones: cython.bint,
    ) -> cython.void:
        """Decide on the next record, now or later. It is kept where the map is not complete up to it, or where it has a
        key, is the last of that key as far as the map goes, and has a value or `keeps_tombstones` holds."""
        i: cython.int = self._waiting
        self._at[i] = offset
        self._timestamps[i] = timestamp
        self._have_value[i] = has_value
        if offset > self._offsets._latest:
            self._kinds[i] = 1
        elif not has_key or not (has_value or keeps_tombstones):
            self._kinds[i] = 0
        else:
            self._kinds[i] = 2
            self._lows[i] = key.low
            self._highs[i] = key.high
            self._offsets._prefetch(key.high)
        self._waiting = i + 1
        if self._waiting == 32:
            self._decide_waiting()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _decide_waiting(self) -> cython.void:
        i: cython.int
        keep: cython.bint
        for i in range(self._waiting):
            keep = self._kinds[i] == 1
            if self._kinds[i] == 2:
                keep = self._at[i] >= self._offsets._offset(self._offsets._find(self._lows[i], self._highs[i]))
            if keep:
                self.bits[self._index >> 3] |= 1 << (self._index & 7)
                if self.kept == 0:
                    self.first_timestamp = self._timestamps[i]
                    self.largest_timestamp = self._timestamps[i]
                elif self._timestamps[i] > self.largest_timestamp:
                    self.largest_timestamp = self._timestamps[i]
                self.kept += 1
                if not self._have_value[i]:
                    self.tombstones += 1
            self._index += 1
        self._waiting = 0
