# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""Log compaction's work on single records: the last offset of each key, and which records of a batch are kept.

Three steps over a batch's section, each fed in pieces of any size as they come out of a decompressor, each without an
object for a record, with the interpreter's lock released while a piece is worked on:

1. `KeyScan` over the dirty part: `KeyOffsets` holds the last offset of each key afterwards.
2. `KeyScan` with `decide`: a bit for each record says whether it is kept; `kept`, `tombstones` and timestamps say what
   is left of the batch.
3. `Rewriting`: the records whose bit is set, with their timestamp deltas against the new base timestamp. The other
   bytes of a record stay as they are.

Memory: `KeyOffsets` has a fixed size, and the bits take an eighth of a byte for each record; no key, value or record
is kept, however long it is.

Compiled like `codec`, whose safety rules hold here too.
"""

from __future__ import annotations

from kalda.base.errors import CorruptRecord
from kalda.base.memory import unfilled

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _record, _sum, _varlong_size
    from cython.cimports.kalda.records.key_offsets import KeyOffsets, _Hash, _Lookups
else:
    from kalda.records.codec import _copy, _put_varlong, _record, _sum, _varlong_size
    from kalda.records.key_offsets import KeyOffsets, _Hash, _Lookups

COMPILED = cython.compiled


@cython.cclass
class KeyScan:
    """One pass over one section: `feed` it in order, then `finish`.

    It puts the keys of records from offset `start` on into the map, until that is `full`. With `bits`, it changes
    nothing in the map, and decides (`_Lookups._decide`). Map, bits and properties are complete after `finish`.
    """

    _offsets: KeyOffsets
    _lookups: _Lookups
    _hash: _Hash
    _count: cython.Py_ssize_t
    _base_offset: cython.longlong
    _last_delta: cython.longlong
    _base_timestamp: cython.longlong
    _start: cython.longlong
    _decides: cython.bint
    _keeps_tombstones: cython.bint

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
        self._lookups = _Lookups(offsets, bits)
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

    @property
    def full(self) -> bool:
        """Whether a key found no room in the map: the map is complete up to the batch before."""
        return bool(self._full)

    @property
    def kept(self) -> int:
        """How many records are kept."""
        return self._lookups.kept

    @property
    def tombstones(self) -> int:
        """How many of those that are kept have no value."""
        return self._lookups.tombstones

    @property
    def first_timestamp(self) -> int:
        """Of those that are kept; -1 for none."""
        return self._lookups.first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Of those that are kept; -1 for none."""
        return self._lookups.largest_timestamp

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
        with cython.nogil:
            intact = self._run(p, size)
        if not intact:
            raise CorruptRecord(f"record {self._index} of {self._count} at offset {self._base_offset} is malformed")

    def finish(self) -> None:
        """The section has ended. Raises `CorruptRecord` where it lacks records."""
        if self._full:
            return
        if self._index != self._count or self._state or self._shift:
            raise CorruptRecord(f"the batch at offset {self._base_offset} ends in record {self._index}")
        if self._decides:
            self._lookups._decide_waiting()
        else:
            self._full = not self._lookups._put_waiting()

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
            if self._state == 0 and self._shift == 0 and self._index < self._count:
                stop = self._whole(p, pos, size)
                if stop > 0:
                    pos = stop
                    if not self._record():
                        return True  # full: what follows is not looked at
                    continue
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
    def _whole(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        pos: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """The position after a record that lies in this piece as a whole. -1, and nothing has changed, where it does
        not, or may be damaged: it is read field by field then."""
        stop: cython.Py_ssize_t
        timestamp: cython.longlong
        delta: cython.longlong
        key_at: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        stop, timestamp, delta, key_at, key_size, _at, value_size, _headers, _headers_at = _record(p, pos, size)
        if stop < 0 or delta < 0 or delta > self._last_delta or self._base_offset + delta <= self._offset:
            return -1
        self._offset = self._base_offset + delta
        self._timestamp = _sum(self._base_timestamp, timestamp)
        self._has_key = key_size >= 0
        self._has_value = value_size >= 0
        if key_size >= 0:
            self._hash._begin()
            self._hash._add(p, key_at, key_at + key_size)
        return stop

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
        """One record is complete. False where the map has no room for a key."""
        self._index += 1
        if self._has_key:
            self._hash._end()
        if self._decides:
            self._lookups._decide(
                self._hash, self._has_key, self._offset, self._timestamp, self._has_value, self._keeps_tombstones
            )
        elif self._has_key and self._offset >= self._start:
            self._full = not self._lookups._put(self._hash, self._offset)
        return not self._full


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
        out = unfilled(3 * size + 32)
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
        with cython.nogil:
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
        stop: cython.Py_ssize_t
        rest: cython.Py_ssize_t
        while pos < size:
            if self._state == 0 and self._shift == 0:
                stop, number, _1, _2, _3, _4, _5, _6, _7 = _record(p, pos, size)
                if stop > 0:
                    if self._is_kept():
                        rest = _behind_number(p, _behind_number(p, pos) + 1)
                        at = self._put(out, at, number, stop - rest)
                        at = _copy(out, at, p, rest, stop - rest)
                    self._index += 1
                    pos = stop
                    continue
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
                at = self._put(out, at, number, cython.cast(cython.Py_ssize_t, self._left))
            self._state = 3
        return at

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(
        self,
        out: cython.pointer[cython.uchar],
        at: cython.Py_ssize_t,
        number: cython.longlong,
        left: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write a record up to its timestamp delta, which was `number`, and is followed by `left` bytes."""
        number = _sum(number if self._keeps_deltas else 0, self._shift_ms)
        at = _put_varlong(out, at, 1 + _varlong_size(number) + left)
        out[at] = 0
        return _put_varlong(out, at + 1, number)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_kept(self) -> cython.bint:
        return (self._bits[self._index >> 3] >> (self._index & 7)) & 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _behind_number(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position behind a number that is known to be whole."""
    while p[at] >= 0x80:
        at += 1
    return at + 1
