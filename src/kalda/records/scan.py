# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""Checks the records of a batch as they come out of a decompressor, piece by piece, and makes no object for a record.

`RecordScan` is fed the records' section in pieces of any size; a piece may end in the middle of a number. It proves
that the section holds exactly the records that the header counts, each as long as its length says, and collects what
validation needs: the smallest and the largest timestamp, whether the offset deltas are 0, 1, 2 …, and which records
lack a key or have a timestamp out of bounds. Its memory is the same whatever is in the section, and the interpreter's
lock is released while a long piece is checked.

A record that lies in one piece is checked by `codec._record`. One that is cut by the end of a piece is checked field by
field: `_field` is the field that comes next, `_left` the bytes of the record that are still to come, `_skip` those of
the key, value, header name or header value that is being passed over. A number that is cut is kept in `_number` and
`_shift`.

Compiled like `codec`, whose safety rules hold here too.
"""

from __future__ import annotations

from kalda.base.errors import CorruptRecord

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.codec import _record, _sum
else:
    from kalda.records.codec import _record, _sum

COMPILED = cython.compiled

# The fields of a record in their order: literals below, as C constants.
#   0 length          1 attributes    2 timestamp delta   3 offset delta
#   4 key length      5 key           6 value length      7 value
#   8 header count    9 name length  10 name             11 header value length   12 header value


@cython.cclass
class RecordScan:
    """One pass over one section. `feed` it in order, then `finish`, then ask for `result`."""

    _count: cython.Py_ssize_t
    _base_timestamp: cython.longlong
    _earliest: cython.longlong
    _latest: cython.longlong
    _keys_required: cython.bint
    _faults: cython.longlong[::1]
    """Pairs of a faulty record's index and its timestamp (of a record without a key: -1), as many as fit."""
    _room: cython.Py_ssize_t

    _index: cython.Py_ssize_t
    """Records that are complete."""
    _largest: cython.longlong
    _smallest: cython.longlong
    _misplaced: cython.Py_ssize_t
    """The first record whose offset delta is not its index; -1: none."""
    _faulty: cython.Py_ssize_t

    _field: cython.int
    _left: cython.longlong
    _skip: cython.longlong
    _number: cython.ulonglong
    _shift: cython.int
    _timestamp_delta: cython.longlong
    _offset_delta: cython.longlong
    _key_length: cython.longlong
    _headers_left: cython.longlong

    def __init__(
        self,
        count: cython.Py_ssize_t,
        base_timestamp: cython.longlong,
        earliest: cython.longlong,
        latest: cython.longlong,
        keys_required: cython.bint,
        faults: object,
    ) -> None:
        """`count` and `base_timestamp` are the header's. A timestamp other than -1 below `earliest` or above `latest`
        is a fault, and so is a record without a key where `keys_required`. `faults` is an `array("q")` of two numbers
        for each fault that is to be noted; an empty one counts them only."""
        self._count = count
        self._base_timestamp = base_timestamp
        self._earliest = earliest
        self._latest = latest
        self._keys_required = keys_required
        self._faults = faults
        self._room = len(faults) // 2
        self._index = 0
        self._largest = -1
        self._smallest = -1
        self._misplaced = -1
        self._faulty = 0
        self._field = 0
        self._left = 0
        self._skip = 0
        self._number = 0
        self._shift = 0
        self._timestamp_delta = 0
        self._offset_delta = 0
        self._key_length = 0
        self._headers_left = 0

    def feed(self, piece: cython.const[cython.uchar][::1]) -> None:
        """Check the next bytes of the section. Raises `CorruptRecord`."""
        size: cython.Py_ssize_t = len(piece)
        intact: cython.bint
        if size == 0:
            return
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(piece[0])
        else:
            p = piece
        if size >= 16_384:  # from here on it pays to release the lock
            with cython.nogil:
                intact = self._check(p, size)
        else:
            intact = self._check(p, size)
        if not intact:
            if self._index == self._count:
                raise CorruptRecord(f"bytes are left behind the {self._count} records that the header counts")
            raise CorruptRecord(f"record {self._index} of {self._count} is cut off, or a length in it is wrong")

    def finish(self) -> None:
        """The section has ended. Raises `CorruptRecord` where it lacks records."""
        if self._index != self._count or self._field or self._shift:
            raise CorruptRecord(f"the section ends in record {self._index} of {self._count}")

    def result(self) -> tuple:
        """(largest timestamp, smallest timestamp, the first record whose offset delta is not its index or -1, how many
        records are faulty). The timestamps of no record at all are -1."""
        return self._largest, self._smallest, self._misplaced, self._faulty

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _check(self, p: cython.pointer[cython.const[cython.uchar]], size: cython.Py_ssize_t) -> cython.bint:
        """Whether the piece is intact as far as it goes. With `_index == _count`, what is not intact is surplus."""
        pos: cython.Py_ssize_t = 0
        stop: cython.Py_ssize_t
        timestamp_delta: cython.longlong
        offset_delta: cython.longlong
        _key_at: cython.Py_ssize_t
        key_length: cython.Py_ssize_t
        _value_at: cython.Py_ssize_t
        _value_length: cython.Py_ssize_t
        _header_count: cython.Py_ssize_t
        _headers_at: cython.Py_ssize_t
        while pos < size:
            if self._field == 0 and self._shift == 0:
                if self._index == self._count:
                    return False
                (
                    stop,
                    timestamp_delta,
                    offset_delta,
                    _key_at,
                    key_length,
                    _value_at,
                    _value_length,
                    _header_count,
                    _headers_at,
                ) = _record(p, pos, size)
                if stop >= 0:
                    self._note(timestamp_delta, offset_delta, key_length)
                    pos = stop
                    continue
            # The record is broken, or only a part of it is in this piece: field by field tells which.
            pos = self._step(p, pos, size)
            if pos < 0:
                return False
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _note(
        self, timestamp_delta: cython.longlong, offset_delta: cython.longlong, key_length: cython.longlong
    ) -> cython.void:
        """One record is complete."""
        timestamp: cython.longlong = _sum(self._base_timestamp, timestamp_delta)
        index: cython.Py_ssize_t = self._index
        if index == 0:
            self._largest = self._smallest = timestamp
        elif timestamp > self._largest:
            self._largest = timestamp
        elif timestamp < self._smallest:
            self._smallest = timestamp
        if offset_delta != index and self._misplaced < 0:
            self._misplaced = index
        if self._keys_required and key_length < 0:
            self._blame(index, -1)
        elif timestamp != -1 and (timestamp < self._earliest or timestamp > self._latest):
            self._blame(index, timestamp)
        self._index = index + 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _blame(self, index: cython.Py_ssize_t, timestamp: cython.longlong) -> cython.void:
        if self._faulty < self._room:
            self._faults[2 * self._faulty] = index
            self._faults[2 * self._faulty + 1] = timestamp
        self._faulty += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _step(
        self, p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Go on field by field, to the end of the record or of the piece: the position behind it, -1 where a field is
        wrong."""
        byte: cython.uint
        number: cython.longlong
        span: cython.longlong
        while pos < size:
            if self._field == 5 or self._field == 7 or self._field == 10 or self._field == 12:
                span = size - pos
                if self._skip < span:
                    span = self._skip
                pos += cython.cast(cython.Py_ssize_t, span)
                self._skip -= span
                self._left -= span
                if self._skip > 0:
                    return pos
                if self._field == 12:
                    self._headers_left -= 1
                    self._field = 9
                    if self._headers_left == 0:
                        return pos if self._end() else -1
                else:
                    self._field += 1
                continue
            byte = p[pos]
            pos += 1
            if self._field != 0:
                if self._left == 0:
                    return -1
                self._left -= 1
            if self._field == 1:
                self._field = 2
                continue
            self._number |= cython.cast(cython.ulonglong, byte & 0x7F) << self._shift
            self._shift += 7
            if byte >= 0x80:
                if self._shift >= (70 if self._field == 2 else 35):
                    return -1
                continue
            number = self._whole()
            if not self._take(number):
                return -1
            if self._field == 0:
                return pos
        return pos

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _whole(self) -> cython.longlong:
        """The number whose last byte has come, as `codec._varlong` reads it: zig-zag, surplus bits dropped."""
        value: cython.ulonglong = self._number
        number: cython.longlong
        if cython.compiled:
            if self._field != 2:
                value = cython.cast(cython.uint, value)
        else:
            value &= 0xFFFFFFFFFFFFFFFF if self._field == 2 else 0xFFFFFFFF
        self._number = 0
        self._shift = 0
        number = cython.cast(cython.longlong, value >> 1)
        if value & 1:
            number = -number - 1
        return number

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _take(self, number: cython.longlong) -> cython.bint:
        """Go on behind a number; False where it cannot be."""
        if self._field == 0:
            self._left = number
            self._field = 1
            return number >= 1
        if self._field == 2:
            self._timestamp_delta = number
            self._field = 3
            return True
        if self._field == 3:
            self._offset_delta = number
            self._field = 4
            return True
        if number > self._left:
            return False
        if self._field == 8:
            self._headers_left = number
            self._field = 9
            if number == 0:
                return self._end()
            return number > 0
        if self._field == 9 and number < 0:
            return False
        if self._field == 4:
            self._key_length = number
        if number > 0:
            self._skip = number
            self._field += 1
        elif self._field == 11:
            self._headers_left -= 1
            self._field = 9
            if self._headers_left == 0:
                return self._end()
        else:
            self._field += 2
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _end(self) -> cython.bint:
        """The last field is complete: whether the record ends here."""
        self._field = 0
        if self._left != 0:
            return False
        self._note(self._timestamp_delta, self._offset_delta, self._key_length)
        return True
