# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The section of records in a batch: parsing it, and converting it to and from columns without an object for a record.

Written in Cython's pure-Python mode: the same file runs uncompiled, and compiles to C, where bytes are accessed through
pointers. The types for mypy are in `codec.pyi`; the functions that `values` calls in C are in `codec.pxd`.

One record: its length as a varint, attributes (one byte, unused), timestamp delta (varlong), offset delta, key length
(-1: null), key, value length (-1: null), value, header count, then for each header key length, key, value length,
value. All varints are zig-zag. The deltas are against the batch's base timestamp and base offset.

Columns of bytes are `columns.Column`, and sections to decode `columns.Section`.

Safety: compiled code checks no index. So every read is preceded by a comparison with `end`, the first position behind
the section (one comparison covers several numbers where enough bytes for the longest of them remain), and every length
is compared with the bytes that remain before it is used. `_record` verifies that a record, headers included, lies
within the section and has the length that it begins with. All violations raise `CorruptRecord`.
"""

from __future__ import annotations

import warnings

from kalda.base.errors import CorruptRecord

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    warnings.warn(
        "kalda.records.codec runs uncompiled: records are encoded and decoded some 50 times slower. "
        "Install a C compiler and Python's headers, then Kalda with pip install --force-reinstall --no-cache-dir.",
        RuntimeWarning,
        stacklevel=2,
    )

COMPILED = cython.compiled
MIN_RECORD_SIZE = 7
"""The shortest record: length, attributes, two deltas, two null lengths, header count; a byte each."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _readable(data: cython.const[cython.uchar][::1]) -> cython.pointer[cython.const[cython.uchar]]:
    """A pointer to a buffer's bytes. Nothing may be read through the pointer of an empty buffer."""
    if cython.compiled:
        return cython.address(data[0])
    else:
        return data


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _writable(data: cython.uchar[::1]) -> cython.pointer[cython.uchar]:
    """A pointer to a buffer's bytes that allows writes."""
    if cython.compiled:
        return cython.address(data[0])
    else:
        return data


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _longs(data: cython.longlong[::1]) -> cython.pointer[cython.longlong]:
    if cython.compiled:
        return cython.address(data[0])
    else:
        return data


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _ints(data: cython.int[::1]) -> cython.pointer[cython.int]:
    if cython.compiled:
        return cython.address(data[0])
    else:
        return data


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sum(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """64-bit addition that wraps, as Java's does: hostile deltas must not cause undefined behaviour."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b))
    else:
        return ((a + b + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _varlong(
    p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, end: cython.Py_ssize_t, max_bits: cython.uint
):
    """A zig-zag number and the position after it, which is -1 where the number is cut off or too long.

    Bits beyond 64 (`max_bits` 70) or 32 (`max_bits` 35) are dropped, as Kafka's reader drops them.
    """
    value: cython.ulonglong = 0
    shift: cython.uint = 0
    byte: cython.uint
    number: cython.longlong
    while pos < end and shift < max_bits:
        byte = p[pos]
        pos += 1
        value |= cython.cast(cython.ulonglong, byte & 0x7F) << shift
        if byte < 0x80:
            if cython.compiled:
                if max_bits == 35:
                    value = cython.cast(cython.uint, value)
            else:
                value &= 0xFFFFFFFF if max_bits == 35 else 0xFFFFFFFFFFFFFFFF
            number = cython.cast(cython.longlong, value >> 1)
            if value & 1:
                number = -number - 1
            return number, pos
        shift += 7
    return 0, -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _varint(p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """A 32-bit zig-zag number, as `_varlong`. Most have one byte or two."""
    byte: cython.int
    if pos < end:
        byte = p[pos]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), pos + 1
        if pos + 1 < end and p[pos + 1] < 0x80:
            byte = (byte & 0x7F) | (p[pos + 1] << 7)
            return (byte >> 1) ^ -(byte & 1), pos + 2
    return _varlong(p, pos, end, 35)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _number(
    p: cython.pointer[cython.const[cython.uchar]],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_bits: cython.uint,
    ten_bytes_readable: cython.bint,
):
    """`_varlong`, without a comparison for each byte where the caller guarantees that ten bytes from `pos` on can be
    read. It may then read beyond `end`: the caller compares the returned position with `end`.

    Within a batch, most numbers have one byte, two or three.
    """
    low: cython.int
    if not ten_bytes_readable:
        return _varlong(p, pos, end, max_bits)
    low = p[pos]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), pos + 1
    low = (low & 0x7F) | (p[pos + 1] << 7)
    if low < 0x4000:
        return (low >> 1) ^ -(low & 1), pos + 2
    low = (low & 0x3FFF) | (p[pos + 2] << 14)
    if low < 0x200000:
        return (low >> 1) ^ -(low & 1), pos + 3
    return _varlong(p, pos, pos + 10, max_bits)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(
    p: cython.pointer[cython.const[cython.uchar]],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The position after `count` headers, -1 where they do not end before `end`."""
    length: cython.longlong
    for _ in range(count):
        length, pos = _varint(p, pos, end)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        pos += length
        length, pos = _varint(p, pos, end)
        if pos < 0 or length > end - pos:
            return -1
        if length > 0:
            pos += length
    return pos


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(
    (
        cython.Py_ssize_t,
        cython.longlong,
        cython.longlong,
        cython.Py_ssize_t,
        cython.Py_ssize_t,
        cython.Py_ssize_t,
        cython.Py_ssize_t,
        cython.Py_ssize_t,
        cython.Py_ssize_t,
    )
)
def _record(p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """One record, verified to end at or before `end`:

    (position after it, timestamp delta, offset delta, position of the key, key length or -1, position of the value,
    value length or -1, header count, position of the headers). The first is -1 for a malformed record.
    """
    stop: cython.Py_ssize_t
    number: cython.longlong
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    # The numbers up to the key's length have at most 26 bytes. Where the section has 26 more, they are read without
    # comparisons with `stop`, the end of the record. One comparison after the last suffices: positions only grow.
    unchecked: cython.bint = end - pos >= 26

    number, pos = _number(p, pos, end, 35, unchecked)
    if pos < 0 or number < 1 or number > end - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    stop = pos + number
    timestamp_delta, pos = _number(p, pos + 1, stop, 70, unchecked)
    if pos < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, pos = _number(p, pos, stop, 35, unchecked)
    if pos < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    number, pos = _number(p, pos, stop, 35, unchecked)
    if pos < 0 or pos > stop or number > stop - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    key_at, key_length = pos, -1
    if number >= 0:
        key_length = number
        pos += key_length
    number, pos = _number(p, pos, stop, 35, end - pos >= 10)
    if pos < 0 or pos > stop or number > stop - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    value_at, value_length = pos, -1
    if number >= 0:
        value_length = number
        pos += value_length
    if stop - pos == 1 and p[pos] == 0:
        return stop, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, 0, stop
    number, pos = _varint(p, pos, stop)
    if pos < 0 or number < 0 or number > stop - pos or _skip_headers(p, pos, stop, number) != stop:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    return stop, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, number, pos


def _check_section(size: cython.Py_ssize_t, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.Py_ssize_t):
    """Checks before the first byte is read: the section lies in the buffer and is long enough for `count` records."""
    if pos < 0 or end < pos or end > size:
        raise ValueError(f"section {pos}:{end} lies outside of a buffer of {size} bytes")
    if count < 0 or count > (end - pos) // MIN_RECORD_SIZE:
        raise CorruptRecord(f"{end - pos} bytes cannot hold the {count} records of the header")


def _malformed(index: cython.Py_ssize_t, count: cython.Py_ssize_t):
    return CorruptRecord(f"record {index} of {count} is cut off, or has a wrong length")


def _left_over(size: cython.Py_ssize_t, count: cython.Py_ssize_t):
    return CorruptRecord(f"{size} bytes follow the {count} records of the header")


def survey(
    data: cython.const[cython.uchar][::1],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
) -> tuple:
    """What validation needs of a section, without an object for each record: (max timestamp, min timestamp, index of
    the first record without a key or -1, index of the first record whose offset delta is not its index or -1).
    """
    i: cython.Py_ssize_t
    timestamp_delta: cython.longlong
    timestamp: cython.longlong
    offset_delta: cython.longlong
    _key_at: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    _value_at: cython.Py_ssize_t
    _value_length: cython.Py_ssize_t
    _header_count: cython.Py_ssize_t
    _headers_at: cython.Py_ssize_t
    largest: cython.longlong = -1
    smallest: cython.longlong = -1
    keyless: cython.Py_ssize_t = -1
    misplaced: cython.Py_ssize_t = -1
    _check_section(len(data), pos, end, count)
    p: cython.pointer[cython.const[cython.uchar]] = _readable(data)
    for i in range(count):
        (
            pos,
            timestamp_delta,
            offset_delta,
            _key_at,
            key_length,
            _value_at,
            _value_length,
            _header_count,
            _headers_at,
        ) = _record(p, pos, end)
        if pos < 0:
            raise _malformed(i, count)
        timestamp = _sum(base_timestamp, timestamp_delta)
        if i == 0 or timestamp > largest:
            largest = timestamp
        if i == 0 or timestamp < smallest:
            smallest = timestamp
        if key_length < 0 and keyless < 0:
            keyless = i
        if offset_delta != i and misplaced < 0:
            misplaced = i
    if pos != end:
        raise _left_over(end - pos, count)
    return largest, smallest, keyless, misplaced


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong_size(number: cython.longlong) -> cython.Py_ssize_t:
    value: cython.ulonglong
    size: cython.Py_ssize_t = 1
    if cython.compiled:
        value = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(cython.ulonglong, number >> 63)
    else:
        value = ((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varlong(p: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, number: cython.longlong) -> cython.Py_ssize_t:
    """Write a zig-zag number and return the position after it. A 32-bit number has the same bytes."""
    value: cython.ulonglong
    if cython.compiled:
        value = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(cython.ulonglong, number >> 63)
    else:
        value = ((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF
    while value >= 0x80:
        p[pos] = (value & 0x7F) | 0x80
        value >>= 7
        pos += 1
    p[pos] = value
    return pos + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    out: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if length > 0:
        if cython.compiled:
            memcpy(out + at, data + start, length)
        else:
            out[at : at + length] = data[start : start + length]
    return at + length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _append(
    out: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """`_copy` at the end of a column. Most keys are short: where buffers allow, 16 bytes are copied at once, which is
    one move instead of a call. The bytes after the value are overwritten by the next value."""
    if length <= 0:
        return at
    if cython.compiled and length <= 16 and at + 16 <= room and start + 16 <= end:
        memcpy(out + at, data + start, 16)
        return at + length
    return _copy(out, at, data, start, length)


def to_micros(millis: cython.const[cython.longlong][::1], micros: cython.longlong[::1]) -> cython.bint:
    """Convert all timestamps to microseconds. False where one of them does not fit 64 bits as microseconds."""
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(millis)
    limit: cython.longlong = 9223372036854775  # a literal of this size would be a Python object in the comparison
    if len(micros) < count:
        return False
    for i in range(count):
        if millis[i] > limit or millis[i] < -limit:
            return False
        micros[i] = millis[i] * 1000
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.longlong))
def _measure_headers(
    p: cython.pointer[cython.const[cython.uchar]],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
):
    """The bytes of all keys, and those of all values, in headers that `_record` has verified."""
    length: cython.longlong
    names: cython.longlong = 0
    contents: cython.longlong = 0
    for _ in range(count):
        length, pos = _varint(p, pos, end)
        names += length
        pos += length
        length, pos = _varint(p, pos, end)
        if length > 0:
            contents += length
            pos += length
    return names, contents


@cython.final
@cython.cclass
class _Filling:
    """The columns that `decode_columns` fills, and how far it has come."""

    row: cython.Py_ssize_t
    room: cython.Py_ssize_t
    offsets: cython.pointer[cython.longlong]
    timestamps: cython.pointer[cython.longlong]
    key_ends: cython.pointer[cython.int]
    keys: cython.pointer[cython.uchar]
    key_valid: cython.pointer[cython.uchar]
    value_ends: cython.pointer[cython.int]
    values: cython.pointer[cython.uchar]
    value_valid: cython.pointer[cython.uchar]
    header_ends: cython.pointer[cython.int]
    null_keys: cython.longlong
    null_values: cython.longlong
    name_bytes: cython.longlong
    content_bytes: cython.longlong

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def add(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        end: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        base_offset: cython.longlong,
        base_timestamp: cython.longlong,
        append_timestamp: cython.longlong,
        stamped: cython.bint,
    ) -> cython.Py_ssize_t:
        """Decode the `count` records of `p[:end]` into the next rows. Returns the position after the last record, or
        -1 - i where record i is malformed."""
        i: cython.Py_ssize_t
        pos: cython.Py_ssize_t = 0
        time_delta: cython.longlong
        delta: cython.longlong
        key_at: cython.Py_ssize_t
        key_length: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        value_length: cython.Py_ssize_t
        header_count: cython.Py_ssize_t
        tail_at: cython.Py_ssize_t
        names: cython.longlong
        contents: cython.longlong
        # In variables of the function: the compiler takes it that a written byte may be one of the object's.
        row: cython.Py_ssize_t = self.row
        room: cython.Py_ssize_t = self.room
        offsets: cython.pointer[cython.longlong] = self.offsets
        timestamps: cython.pointer[cython.longlong] = self.timestamps
        key_ends: cython.pointer[cython.int] = self.key_ends
        keys: cython.pointer[cython.uchar] = self.keys
        value_ends: cython.pointer[cython.int] = self.value_ends
        values: cython.pointer[cython.uchar] = self.values
        header_ends: cython.pointer[cython.int] = self.header_ends
        key_pos: cython.Py_ssize_t = key_ends[row]
        value_pos: cython.Py_ssize_t = value_ends[row]
        headers: cython.Py_ssize_t = header_ends[row]
        for i in range(count):
            pos, time_delta, delta, key_at, key_length, value_at, value_length, header_count, tail_at = _record(
                p, pos, end
            )
            if pos < 0:
                return -1 - i
            offsets[row] = _sum(base_offset, delta)
            timestamps[row] = append_timestamp if stamped else _sum(base_timestamp, time_delta)
            if key_length < 0:
                self.null_keys += 1
                self.key_valid[row >> 3] &= ~(1 << (row & 7))
            else:
                key_pos = _append(keys, key_pos, room, p, key_at, end, key_length)
            if value_length < 0:
                self.null_values += 1
                self.value_valid[row >> 3] &= ~(1 << (row & 7))
            else:
                value_pos = _append(values, value_pos, room, p, value_at, end, value_length)
            if header_count > 0:
                headers += header_count
                names, contents = _measure_headers(p, tail_at, pos, header_count)
                self.name_bytes += names
                self.content_bytes += contents
            row += 1
            key_ends[row] = key_pos
            value_ends[row] = value_pos
            header_ends[row] = headers
        self.row = row
        return pos


def decode_columns(
    sections: list,
    offsets: cython.longlong[::1],
    timestamps: cython.longlong[::1],
    keys: object,
    values: object,
    header_ends: cython.int[::1],
) -> tuple:
    """Decode sections into columns. Returns (null keys, null values, bytes of header keys, bytes of header values). The
    bytes of all keys and values, and the number of headers, are the last items of the `ends`.

    The columns must have rows for the sum of the counts (`ends`: one more, the first is 0; `valid`: one bit for each
    row, all set), the data must have the sum of the buffers' sizes. This is checked here: no record can overrun them.
    Headers are counted only: `header_ends` has the index after each record's last header, and `decode_header_columns`
    decodes them.
    """
    row: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = len(offsets)
    room: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    count: cython.Py_ssize_t
    data: cython.const[cython.uchar][::1]
    key_ends: cython.int[::1] = keys.ends
    key_data: cython.uchar[::1] = keys.data
    key_valid: cython.uchar[::1] = keys.valid
    value_ends: cython.int[::1] = values.ends
    value_data: cython.uchar[::1] = values.data
    value_valid: cython.uchar[::1] = values.valid
    for section in sections:
        room += len(section.data)
        row += section.records
    if row != rows or len(timestamps) < rows or min(len(key_ends), len(value_ends), len(header_ends)) < rows + 1:
        raise ValueError("the columns are too small for the sections")
    if min(len(key_valid), len(value_valid)) * 8 < rows or min(len(key_data), len(value_data)) < room:
        raise ValueError("the columns are too small for the sections")
    key_ends[0] = value_ends[0] = header_ends[0] = 0
    filling: _Filling = _Filling()
    filling.row = filling.null_keys = filling.null_values = filling.name_bytes = filling.content_bytes = 0
    filling.room = room
    filling.offsets = _longs(offsets)
    filling.timestamps = _longs(timestamps)
    filling.key_ends = _ints(key_ends)
    filling.keys = _writable(key_data)
    filling.key_valid = _writable(key_valid)
    filling.value_ends = _ints(value_ends)
    filling.values = _writable(value_data)
    filling.value_valid = _writable(value_valid)
    filling.header_ends = _ints(header_ends)
    for section in sections:
        data, count, stamp = section.data, section.records, section.append_timestamp
        first, time, end = section.base_offset, section.base_timestamp, len(data)
        _check_section(end, 0, end, count)
        pos = filling.add(_readable(data), end, count, first, time, stamp or 0, stamp is not None)
        if pos < 0:
            raise _malformed(-1 - pos, count)
        if pos != end:
            raise _left_over(end - pos, count)
    return filling.null_keys, filling.null_values, filling.name_bytes, filling.content_bytes


def decode_header_columns(sections: list, header_names: object, header_contents: object) -> cython.Py_ssize_t:
    """Decode the headers of sections that `decode_columns` has decoded, into columns of the sizes that it returned.
    Returns the number of null contents; no bit of `valid` may be set.
    """
    name_ends: cython.int[::1] = header_names.ends
    name_data: cython.uchar[::1] = header_names.data
    content_ends: cython.int[::1] = header_contents.ends
    content_data: cython.uchar[::1] = header_contents.data
    content_valid: cython.uchar[::1] = header_contents.valid
    length: cython.longlong
    at: cython.Py_ssize_t = 0
    name_pos: cython.Py_ssize_t = 0
    content_pos: cython.Py_ssize_t = 0
    nulls: cython.Py_ssize_t = 0
    pos: cython.Py_ssize_t
    end: cython.Py_ssize_t
    header_count: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    count: cython.Py_ssize_t
    data: cython.const[cython.uchar][::1]
    room: cython.Py_ssize_t = min(len(name_ends), len(content_ends), 8 * len(content_valid) + 1) - 1
    names: cython.pointer[cython.uchar] = _writable(name_data)
    contents: cython.pointer[cython.uchar] = _writable(content_data)
    name_ends[0] = content_ends[0] = 0
    for section in sections:
        data = section.data
        count = section.records
        pos, end = 0, len(data)
        p: cython.pointer[cython.const[cython.uchar]] = _readable(data)
        for i in range(count):
            pos, _time, _offset, _key_at, _key, _value_at, _value, header_count, headers_at = _record(p, pos, end)
            if pos < 0:
                raise _malformed(i, count)
            for _ in range(header_count):
                length, headers_at = _varint(p, headers_at, end)
                if at >= room or length > len(name_data) - name_pos:
                    raise ValueError("the columns are too small for the headers")
                name_pos = _copy(names, name_pos, p, headers_at, length)
                headers_at += length
                length, headers_at = _varint(p, headers_at, end)
                if length > len(content_data) - content_pos:
                    raise ValueError("the columns are too small for the headers")
                if length < 0:
                    nulls += 1
                else:
                    content_pos = _copy(contents, content_pos, p, headers_at, length)
                    content_valid[at >> 3] |= 1 << (at & 7)
                    headers_at += length
                at += 1
                name_ends[at] = name_pos
                content_ends[at] = content_pos
    return nulls


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_set(bits: cython.const[cython.uchar][::1], bit: cython.Py_ssize_t) -> cython.bint:
    return (bits[bit >> 3] >> (bit & 7)) & 1


def check_columns(size: cython.Py_ssize_t, ends: cython.const[cython.int][::1], rows: cython.Py_ssize_t) -> None:
    """Raises `ValueError` unless `ends` has `rows` + 1 positions in `size` bytes, in ascending order."""
    i: cython.Py_ssize_t
    previous: cython.int = 0
    if len(ends) < rows + 1:
        raise ValueError(f"{len(ends)} ends are too few for {rows} rows")
    for i in range(rows + 1):
        if ends[i] < previous or ends[i] > size:
            raise ValueError(f"end {i} of a column of {size} bytes is {ends[i]}, the one before it {previous}")
        previous = ends[i]


def encode_columns(
    out: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    timestamps: cython.const[cython.longlong][::1],
    key_column: object,
    value_column: object,
    tail_column: object,
) -> tuple:
    """Write the rows `first` to `last` - 1 into `out` from `pos` on, as many as fit: (end, next row, max timestamp).

    The ends have passed `check_columns`. A tail has a record's headers as on the wire, count included; the column of
    tails has no ends where no record has headers.
    """
    key_ends: cython.const[cython.int][::1] = key_column.ends
    key_data: cython.const[cython.uchar][::1] = key_column.data
    key_valid: cython.const[cython.uchar][::1] = key_column.valid
    key_bit: cython.Py_ssize_t = key_column.bit
    value_ends: cython.const[cython.int][::1] = value_column.ends
    value_data: cython.const[cython.uchar][::1] = value_column.data
    value_valid: cython.const[cython.uchar][::1] = value_column.valid
    value_bit: cython.Py_ssize_t = value_column.bit
    tail_ends: cython.const[cython.int][::1] = tail_column.ends
    tail_data: cython.const[cython.uchar][::1] = tail_column.data
    row: cython.Py_ssize_t = first
    room: cython.Py_ssize_t = len(out)
    base: cython.longlong = timestamps[first]
    largest: cython.longlong = base
    delta: cython.longlong
    key_length: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    tail_length: cython.Py_ssize_t
    size: cython.Py_ssize_t
    p: cython.pointer[cython.uchar] = _writable(out)
    keys: cython.pointer[cython.const[cython.uchar]] = _readable(key_data)
    values: cython.pointer[cython.const[cython.uchar]] = _readable(value_data)
    tails: cython.pointer[cython.const[cython.uchar]] = _readable(tail_data)
    while row < last:
        delta = _sum(timestamps[row], -base)
        key_length = key_ends[row + 1] - key_ends[row]
        if len(key_valid) > 0 and not _is_set(key_valid, key_bit + row):
            key_length = -1
        value_length = value_ends[row + 1] - value_ends[row]
        if len(value_valid) > 0 and not _is_set(value_valid, value_bit + row):
            value_length = -1
        tail_length = tail_ends[row + 1] - tail_ends[row] if len(tail_ends) > 0 else 0
        size = 1 + _varlong_size(delta) + _varlong_size(row - first)
        size += _varlong_size(key_length) + _varlong_size(value_length)
        size += (key_length if key_length > 0 else 0) + (value_length if value_length > 0 else 0)
        size += tail_length if tail_length > 0 else 1
        if size + _varlong_size(size) > room - pos:
            break
        pos = _put_varlong(p, pos, size)
        p[pos] = 0
        pos = _put_varlong(p, pos + 1, delta)
        pos = _put_varlong(p, pos, row - first)
        pos = _put_varlong(p, pos, key_length)
        pos = _append(p, pos, room, keys, key_ends[row], len(key_data), key_length)
        pos = _put_varlong(p, pos, value_length)
        pos = _append(p, pos, room, values, value_ends[row], len(value_data), value_length)
        if tail_length > 0:
            pos = _copy(p, pos, tails, tail_ends[row], tail_length)
        else:
            p[pos] = 0
            pos += 1
        if timestamps[row] > largest:
            largest = timestamps[row]
        row += 1
    return pos, row, largest


def encode_headers(
    header_ends: cython.const[cython.int][::1], header_names: object, header_contents: object, tail_column: object
) -> cython.Py_ssize_t:
    """Write each record's headers as they are on the wire, the tails of `encode_columns`. Returns their total size.

    `header_ends` has passed `check_columns` against the number of headers, which are the rows of the name and content
    columns. The tails' data has space for 5 bytes a record, 10 a header, and the names and contents.
    """
    name_ends: cython.const[cython.int][::1] = header_names.ends
    name_data: cython.const[cython.uchar][::1] = header_names.data
    content_ends: cython.const[cython.int][::1] = header_contents.ends
    content_data: cython.const[cython.uchar][::1] = header_contents.data
    content_valid: cython.const[cython.uchar][::1] = header_contents.valid
    content_bit: cython.Py_ssize_t = header_contents.bit
    tail_ends: cython.int[::1] = tail_column.ends
    tail_data: cython.uchar[::1] = tail_column.data
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    pos: cython.Py_ssize_t = 0
    any_null: cython.bint = len(content_valid) > 0
    p: cython.pointer[cython.uchar] = _writable(tail_data)
    names: cython.pointer[cython.const[cython.uchar]] = _readable(name_data)
    contents: cython.pointer[cython.const[cython.uchar]] = _readable(content_data)
    tail_ends[0] = 0
    for row in range(len(header_ends) - 1):
        pos = _put_varlong(p, pos, header_ends[row + 1] - header_ends[row])
        for i in range(header_ends[row], header_ends[row + 1]):
            pos = _put_varlong(p, pos, name_ends[i + 1] - name_ends[i])
            pos = _copy(p, pos, names, name_ends[i], name_ends[i + 1] - name_ends[i])
            if any_null and not _is_set(content_valid, content_bit + i):
                pos = _put_varlong(p, pos, -1)
            else:
                pos = _put_varlong(p, pos, content_ends[i + 1] - content_ends[i])
                pos = _copy(p, pos, contents, content_ends[i], content_ends[i + 1] - content_ends[i])
        tail_ends[row + 1] = pos
    return pos
