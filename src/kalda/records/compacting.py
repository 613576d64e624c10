# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""Log compaction's work on single records: the last offset of each key, and which records of a batch are kept.

Three steps over a batch's section, each fed in pieces of any size as they come out of a decompressor, each without an
object for a record, with the interpreter's lock released while a long piece is worked on:

1. `KeyScan` over the dirty part: `KeyOffsets` holds the last offset of each key afterwards.
2. `KeyScan` with `decide`: a bit for each record says whether it is kept; `kept`, `tombstones` and timestamps say what
   is left of the batch.
3. `Rewriting`: the records whose bit is set, with their timestamp deltas against the new base timestamp. The other
   bytes of a record stay as they are.

Memory: `KeyOffsets` has a fixed size, and the bits take an eighth of a byte for each record; no key, value or record
is kept, however long it is. The table is returned to the operating system by `release`, without the interpreter's
lock: for 128 MiB that takes 15 ms, which no other thread of the process waits for.

`KeyOffsets` holds no keys: 128 bits of SipHash-2-4, keyed by a secret of each cleaning, so that nobody can make two
keys that are taken for one. One entry is 24 bytes: the hash and the offset. Probing is linear; the table is never
filled beyond nine tenths.

Compiled like `codec`, whose safety rules hold here too. SipHash: Aumasson and Bernstein, 2012, with the 128-bit output
of its reference implementation.
"""

from __future__ import annotations

from kalda.base.errors import CorruptRecord

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _sum, _varlong_size
    from cython.cimports.libc.stdlib import calloc, free
else:
    from kalda.records.codec import _copy, _put_varlong, _sum, _varlong_size

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


@cython.cclass
class _Hash:
    """SipHash-2-4 with 128 bits of output, fed in pieces."""

    _first0: cython.ulonglong
    _first1: cython.ulonglong
    _first2: cython.ulonglong
    _first3: cython.ulonglong
    """The state before the first byte."""
    _v0: cython.ulonglong
    _v1: cython.ulonglong
    _v2: cython.ulonglong
    _v3: cython.ulonglong
    _tail: cython.ulonglong
    """The bytes that do not fill a word yet."""
    _length: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong

    def __init__(self, k0: object, k1: object) -> None:
        self._first0 = k0 ^ 0x736F6D6570736575
        self._first1 = k1 ^ 0x646F72616E646F6D ^ 0xEE
        self._first2 = k0 ^ 0x6C7967656E657261
        self._first3 = k1 ^ 0x7465646279746573
        self._begin()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _begin(self) -> cython.void:
        self._v0 = self._first0
        self._v1 = self._first1
        self._v2 = self._first2
        self._v3 = self._first3
        self._tail = 0
        self._length = 0

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
    def _add(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        pos: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.void:
        """Add the bytes `p[pos:end]`."""
        word: cython.ulonglong = self._tail
        filled: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, 8 * (self._length & 7))
        self._length += cython.cast(cython.ulonglong, end - pos)
        while pos < end:
            word |= cython.cast(cython.ulonglong, p[pos]) << filled
            filled += 8
            pos += 1
            if filled == 64:
                self._v3 ^= word
                self._rounds(2)
                self._v0 ^= word
                word = 0
                filled = 0
        self._tail = word

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _end(self) -> cython.void:
        """Set `low` and `high`."""
        if cython.compiled:
            self._tail |= self._length << 56
        else:
            self._tail |= (self._length & 0xFF) << 56
        self._v3 ^= self._tail
        self._rounds(2)
        self._v0 ^= self._tail
        self._v2 ^= 0xEE
        self._rounds(4)
        self.low = self._v0 ^ self._v1 ^ self._v2 ^ self._v3
        self._v1 ^= 0xDD
        self._rounds(4)
        self.high = self._v0 ^ self._v1 ^ self._v2 ^ self._v3


def siphash128(data: cython.const[cython.uchar][::1], k0: cython.ulonglong, k1: cython.ulonglong) -> bytes:
    """The hash of `data` under the key of two little-endian words."""
    one: _Hash = _Hash(k0, k1)
    if len(data):
        if cython.compiled:
            one._add(cython.address(data[0]), 0, len(data))
        else:
            one._add(data, 0, len(data))
    one._end()
    return one.low.to_bytes(8, "little") + one.high.to_bytes(8, "little")


@cython.cclass
class KeyOffsets:
    """The last offset of each key. `latest_offset` is the last offset up to which the map is complete; -1: none."""

    _table: cython.pointer[cython.ulonglong]
    """Three words an entry: the hash, and the offset plus one, which is 0 where the entry is free."""
    _slots: cython.Py_ssize_t
    """How many entries there is room for; 0 once the table has been released."""
    _size: cython.Py_ssize_t
    _room: cython.Py_ssize_t
    _latest: cython.longlong
    _k0: cython.ulonglong
    _k1: cython.ulonglong

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
    def max_size(self) -> int:
        """How many keys there may be."""
        return self._room

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
class KeyScan:
    """One pass over one section: `feed` it in order, then `finish`.

    It puts the keys of records from offset `start` on into the map, until that is `full`. With `bits`, it changes
    nothing in the map, and decides: a record is kept where the map is not complete up to it, or where it has a key, is
    the last of that key as far as the map goes, and has a value or `keeps_tombstones` holds.
    """

    _offsets: KeyOffsets
    _hash: _Hash
    _count: cython.Py_ssize_t
    _base_offset: cython.longlong
    _last_delta: cython.longlong
    _base_timestamp: cython.longlong
    _start: cython.longlong
    _decides: cython.bint
    _keeps_tombstones: cython.bint
    _bits: cython.uchar[::1]

    _index: cython.Py_ssize_t
    _state: cython.int
    """The field that comes next: 0 length, 1 attributes, 2 timestamp delta, 3 offset delta, 4 key length, 5 key,
    6 value length, 7 the rest of the record."""
    _left: cython.longlong
    _skip: cython.longlong
    _number: cython.ulonglong
    _shift: cython.int
    _timestamp: cython.longlong
    _offset: cython.longlong
    _has_key: cython.bint
    _has_value: cython.bint

    _full: cython.bint
    _kept: cython.Py_ssize_t
    _tombstones: cython.Py_ssize_t
    _first_timestamp: cython.longlong
    _largest_timestamp: cython.longlong

    def __init__(
        self,
        offsets: KeyOffsets,
        count: cython.Py_ssize_t,
        base_offset: cython.longlong,
        last_delta: cython.longlong,
        base_timestamp: cython.longlong,
        start: cython.longlong,
        bits: object,
        keeps_tombstones: cython.bint,
    ) -> None:
        """The first numbers are the header's. `bits` is a zeroed bytearray of a bit for each record, or None. Raises
        `CorruptRecord` where the header's count of records cannot be right."""
        if count < 0 or count > last_delta + cython.cast(cython.longlong, 1):
            raise CorruptRecord(f"the batch at offset {base_offset} claims {count} records in {last_delta + 1} offsets")
        if offsets._slots == 0 or (bits is not None and 8 * len(bits) < count):  # type: ignore[arg-type]
            raise ValueError("the map has been released, or there are fewer bits than records")
        self._offsets = offsets
        self._hash = _Hash(offsets._k0, offsets._k1)
        self._count = count
        self._base_offset = base_offset
        self._last_delta = last_delta
        self._base_timestamp = base_timestamp
        self._start = start
        self._decides = bits is not None
        self._bits = bits if bits is not None else bytearray(1)
        self._keeps_tombstones = keeps_tombstones
        self._index = 0
        self._state = 0
        self._left = 0
        self._skip = 0
        self._number = 0
        self._shift = 0
        self._timestamp = 0
        self._offset = base_offset - 1
        self._has_key = False
        self._has_value = False
        self._full = False
        self._kept = 0
        self._tombstones = 0
        self._first_timestamp = -1
        self._largest_timestamp = -1

    @property
    def full(self) -> bool:
        """Whether a key found no room in the map: the map is complete up to the batch before."""
        return bool(self._full)

    @property
    def kept(self) -> int:
        """How many records are kept."""
        return self._kept

    @property
    def tombstones(self) -> int:
        """How many of those that are kept have no value."""
        return self._tombstones

    @property
    def first_timestamp(self) -> int:
        """Of those that are kept; -1 for none."""
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Of those that are kept; -1 for none."""
        return self._largest_timestamp

    def feed(self, piece: cython.const[cython.uchar][::1]) -> None:
        """Work on the next bytes of the section. Raises `CorruptRecord`."""
        size: cython.Py_ssize_t = len(piece)
        intact: cython.bint
        if size == 0 or self._full:
            return
        if self._offsets._slots == 0:
            raise ValueError("the map has been released")
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(piece[0])
        else:
            p = piece
        if size >= 2_048:
            with cython.nogil:
                intact = self._run(p, size)
        else:
            intact = self._run(p, size)
        if not intact:
            raise CorruptRecord(f"record {self._index} of {self._count} at offset {self._base_offset} is malformed")

    def finish(self) -> None:
        """The section has ended. Raises `CorruptRecord` where it lacks records."""
        if not self._full and (self._index != self._count or self._state or self._shift):
            raise CorruptRecord(f"the batch at offset {self._base_offset} ends in record {self._index}")

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _run(self, p: cython.pointer[cython.const[cython.uchar]], size: cython.Py_ssize_t) -> cython.bint:
        pos: cython.Py_ssize_t = 0
        stop: cython.Py_ssize_t
        byte: cython.uint
        number: cython.longlong
        value: cython.ulonglong
        while pos < size:
            if self._state == 5 or self._state == 7:
                stop = pos + cython.cast(cython.Py_ssize_t, self._skip if self._skip < size - pos else size - pos)
                if self._state == 5:
                    self._hash._add(p, pos, stop)
                self._skip -= stop - pos
                self._left -= stop - pos
                pos = stop
                if self._skip > 0:
                    return True
                if self._state == 5:
                    self._state = 6
                    continue
                self._state = 0
                if not self._record():
                    return True  # full: what follows is not looked at
                continue
            byte = p[pos]
            pos += 1
            if self._state == 0:
                if self._index == self._count:
                    return False
            else:
                if self._left == 0:
                    return False
                self._left -= 1
            if self._state == 1:
                self._state = 2
                continue
            self._number |= cython.cast(cython.ulonglong, byte & 0x7F) << self._shift
            self._shift += 7
            if byte >= 0x80:
                if self._shift >= (70 if self._state == 2 else 35):
                    return False
                continue
            value = self._number
            if cython.compiled:
                if self._state != 2:
                    value = cython.cast(cython.uint, value)
            else:
                value &= 0xFFFFFFFFFFFFFFFF if self._state == 2 else 0xFFFFFFFF
            self._number = 0
            self._shift = 0
            number = cython.cast(cython.longlong, value >> 1)
            if value & 1:
                number = -number - 1
            if not self._take(number):
                return False
            if self._state == 7 and self._left == 0:
                return False  # the header count is missing
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _take(self, number: cython.longlong) -> cython.bint:
        """Go on behind a number; False where it cannot be."""
        offset: cython.longlong
        if self._state == 0:
            self._left = number
            self._state = 1
            return number >= 1
        if self._state == 2:
            if cython.compiled:
                self._timestamp = cython.cast(
                    cython.longlong,
                    cython.cast(cython.ulonglong, self._base_timestamp) + cython.cast(cython.ulonglong, number),
                )
            else:
                self._timestamp = ((self._base_timestamp + number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
            self._state = 3
            return True
        if self._state == 3:
            # Offsets rise from record to record, and end where the header says.
            offset = self._base_offset + number
            if number < 0 or number > self._last_delta or offset <= self._offset:
                return False
            self._offset = offset
            self._state = 4
            return True
        if number > self._left:
            return False
        if self._state == 4:
            self._has_key = number >= 0
            self._hash._begin()
            self._skip = number
            self._state = 5 if number > 0 else 6
            return True
        self._has_value = number >= 0
        self._skip = self._left
        self._state = 7
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _record(self) -> cython.bint:
        """One record is complete. False where the map has no room for its key."""
        index: cython.Py_ssize_t = self._index
        keep: cython.bint
        self._index = index + 1
        if self._has_key:
            self._hash._end()
        if not self._decides:
            if self._has_key and self._offset >= self._start:
                self._full = not self._offsets._put(self._hash.low, self._hash.high, self._offset)
            return not self._full
        if self._offset > self._offsets._latest:
            keep = True
        elif not self._has_key:
            keep = False
        else:
            keep = self._offset >= self._offsets._offset(self._offsets._find(self._hash.low, self._hash.high))
            keep = keep and (self._has_value or self._keeps_tombstones)
        if keep:
            self._bits[index >> 3] |= 1 << (index & 7)
            if self._kept == 0:
                self._first_timestamp = self._timestamp
                self._largest_timestamp = self._timestamp
            elif self._timestamp > self._largest_timestamp:
                self._largest_timestamp = self._timestamp
            self._kept += 1
            if not self._has_value:
                self._tombstones += 1
        return True


@cython.cclass
class Rewriting:
    """The records of a section whose bit is set, piece by piece, for a batch with another base timestamp.

    The section has passed a `KeyScan`. Offset deltas stay: a compacted batch keeps its base offset.
    """

    _bits: cython.const[cython.uchar][::1]
    _shift_ms: cython.longlong
    """What is added to each timestamp delta."""
    _keeps_deltas: cython.bint
    """False: each timestamp delta counts as 0."""
    _index: cython.Py_ssize_t
    _state: cython.int
    """The field that comes next: 0 length, 1 attributes, 2 timestamp delta, 3 the rest of the record."""
    _left: cython.longlong
    _number: cython.ulonglong
    _shift: cython.int

    def __init__(
        self,
        bits: object,
        base_timestamp: cython.longlong,
        new_base_timestamp: cython.longlong,
        keeps_deltas: cython.bint,
    ) -> None:
        """`keeps_deltas` false: all records have the timestamp `base_timestamp`, as where it is the time of append."""
        self._bits = bits
        self._keeps_deltas = keeps_deltas
        if cython.compiled:
            self._shift_ms = cython.cast(
                cython.longlong,
                cython.cast(cython.ulonglong, base_timestamp) - cython.cast(cython.ulonglong, new_base_timestamp),
            )
        else:
            self._shift_ms = base_timestamp - new_base_timestamp
        self._index = 0
        self._state = 0
        self._left = 0
        self._number = 0
        self._shift = 0

    def feed(self, piece: cython.const[cython.uchar][::1]) -> bytearray:
        """What is left of the next bytes of the section."""
        size: cython.Py_ssize_t = len(piece)
        # A record of 7 bytes may become one of 16: its length stays one byte, its delta takes up to ten.
        out = bytearray(3 * size + 32)
        written: cython.Py_ssize_t
        if size == 0:
            return bytearray()
        room: cython.uchar[::1] = out
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(piece[0])
            to: cython.pointer[cython.uchar] = cython.address(room[0])
        else:
            p = piece
            to = out
        if size >= 2_048:
            with cython.nogil:
                written = self._run(p, size, to)
        else:
            written = self._run(p, size, to)
        room = None  # type: ignore[assignment]  # a bytearray that is looked at cannot be cut
        del out[written:]
        return out

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _run(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        size: cython.Py_ssize_t,
        out: cython.pointer[cython.uchar],
    ) -> cython.Py_ssize_t:
        pos: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t = 0
        span: cython.Py_ssize_t
        byte: cython.uint
        number: cython.longlong
        value: cython.ulonglong
        while pos < size:
            if self._state == 3:
                span = cython.cast(cython.Py_ssize_t, self._left if self._left < size - pos else size - pos)
                if self._is_kept():
                    at = _copy(out, at, p, pos, span)
                pos += span
                self._left -= span
                if self._left == 0:
                    self._state = 0
                    self._index += 1
                continue
            byte = p[pos]
            pos += 1
            if self._state != 0:
                self._left -= 1
            if self._state == 1:
                self._state = 2
                continue
            self._number |= cython.cast(cython.ulonglong, byte & 0x7F) << self._shift
            self._shift += 7
            if byte >= 0x80:
                continue
            value = self._number
            if not cython.compiled:
                value &= 0xFFFFFFFFFFFFFFFF
            self._number = 0
            self._shift = 0
            number = cython.cast(cython.longlong, value >> 1)
            if value & 1:
                number = -number - 1
            if self._state == 0:
                self._left = number
                self._state = 1
                continue
            if self._is_kept():
                number = _sum(number if self._keeps_deltas else 0, self._shift_ms)
                at = _put_varlong(out, at, 1 + _varlong_size(number) + cython.cast(cython.Py_ssize_t, self._left))
                out[at] = 0
                at = _put_varlong(out, at + 1, number)
            self._state = 3
        return at

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_kept(self) -> cython.bint:
        return (self._bits[self._index >> 3] >> (self._index & 7)) & 1
