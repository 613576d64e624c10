# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The records' section of a batch: the only code of the house that looks at single records in bulk.

Written in Cython's pure-Python mode: the same file runs as it is and compiles to C, where bytes are touched through
pointers and nothing is allocated for each record but what the caller asked for. The types for mypy are in `codec.pyi`.

One record: its length as a varint, attributes (one byte, unused), timestamp delta (varlong), offset delta, key length
(-1: null), key, value length (-1: null), value, header count, then for each header key length, key, value length,
value. All varints are zig-zag. The deltas are against the batch's base timestamp and base offset.

Safety: compiled code checks no index, so every read is preceded by a comparison with `end`, the first byte that is not
the section's. A length is compared with the bytes that remain before it is used. `_record_ends` and the walk over
headers prove that a record ends where its length says. What fails is a `CorruptRecord`, whatever the bytes were.
"""

from __future__ import annotations

import warnings

from kalda.base.errors import CorruptRecord

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
else:
    warnings.warn(
        "kalda.records.codec runs uncompiled: records are encoded and decoded some 50 times slower. "
        "Reinstall Kalda where a C compiler is at hand.",
        RuntimeWarning,
        stacklevel=2,
    )

COMPILED = cython.compiled
MIN_RECORD_SIZE = 7
"""The shortest record: length, attributes, two deltas, two null lengths, header count; a byte each."""

_MAX_INT32 = 2147483647


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _sum(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """64-bit addition that wraps, as Java's does: hostile deltas must not be undefined behaviour."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b))
    return ((a + b + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _varlong(
    p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, end: cython.Py_ssize_t, max_bits: cython.uint
):
    """A zig-zag number and the position behind it, which is -1 where it is cut off or too long.

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
    """A 32-bit zig-zag number; most are one byte."""
    byte: cython.int
    if pos < end and p[pos] < 0x80:
        byte = p[pos]
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _varlong(p, pos, end, 35)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(
    p: cython.pointer[cython.const[cython.uchar]],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The position behind `count` headers, -1 where they do not fit before `end`."""
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
    """One record, proven to lie within `end`, as

    (position behind it or -1, timestamp delta, offset delta, key at, key length or -1, value at, value length or -1,
    header count, headers at).
    """
    stop: cython.Py_ssize_t
    number: cython.longlong
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t

    number, pos = _varint(p, pos, end)
    if pos < 0 or number < 1 or number > end - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    stop = pos + number
    timestamp_delta, pos = _varlong(p, pos + 1, stop, 70)
    if pos < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, pos = _varint(p, pos, stop)
    if pos < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    number, pos = _varint(p, pos, stop)
    if pos < 0 or number > stop - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    key_at, key_length = pos, -1
    if number >= 0:
        key_length = number
        pos += key_length
    number, pos = _varint(p, pos, stop)
    if pos < 0 or number > stop - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    value_at, value_length = pos, -1
    if number >= 0:
        value_length = number
        pos += value_length
    number, pos = _varint(p, pos, stop)
    if pos < 0 or number < 0 or number > stop - pos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    if number == 0:
        if pos != stop:
            return -1, 0, 0, 0, 0, 0, 0, 0, 0
    elif _skip_headers(p, pos, stop, number) != stop:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    return stop, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, number, pos


def _check_section(size: cython.Py_ssize_t, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.Py_ssize_t):
    """What must hold before the first byte is read. Fewer bytes than `count` shortest records refute the count."""
    if pos < 0 or end < pos or end > size:
        raise ValueError(f"section {pos}:{end} lies outside of a buffer of {size} bytes")
    if count < 0 or count > (end - pos) // MIN_RECORD_SIZE:
        raise CorruptRecord(f"{end - pos} bytes cannot hold the {count} records that the header counts")


def _broken(index: cython.Py_ssize_t, count: cython.Py_ssize_t):
    return CorruptRecord(f"record {index} of {count} is cut off, or a length in it is wrong")


def _left_over(size: cython.Py_ssize_t, count: cython.Py_ssize_t):
    return CorruptRecord(f"{size} bytes are left behind the {count} records that the header counts")


@cython.cfunc
@cython.inline
def _slice(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return cython.cast(cython.p_char, p)[at : at + length]
    return bytes(p[at : at + length])


@cython.cfunc
def _read_headers(
    p: cython.pointer[cython.const[cython.uchar]],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> tuple:
    """Headers that `_record` has already walked over. A key that is not UTF-8 is read with replacement characters."""
    length: cython.longlong
    headers: list = []
    for _ in range(count):
        length, pos = _varint(p, pos, end)
        key = _slice(p, pos, length).decode("utf-8", "replace")
        pos += length
        length, pos = _varint(p, pos, end)
        if length < 0:
            headers.append((key, None))
        else:
            headers.append((key, _slice(p, pos, length)))
            pos += length
    return tuple(headers)


def decode_records(
    record_type: type,
    data: cython.const[cython.uchar][::1],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    append_timestamp: object,
) -> list:
    """The `count` records of `data[pos:end]` as tuples of `record_type`: offset, timestamp, key, value, headers.

    `append_timestamp` is every record's timestamp where the batch has LogAppendTime, otherwise None.
    """
    i: cython.Py_ssize_t
    following: cython.Py_ssize_t
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    header_count: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    _check_section(len(data), pos, end, count)
    out: list = []
    if end > pos:
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(data[0])
        else:
            p = data
    new = tuple.__new__
    for i in range(count):
        (
            following,
            timestamp_delta,
            offset_delta,
            key_at,
            key_length,
            value_at,
            value_length,
            header_count,
            headers_at,
        ) = _record(p, pos, end)
        if following < 0:
            raise _broken(i, count)
        row = (
            _sum(base_offset, offset_delta),
            _sum(base_timestamp, timestamp_delta) if append_timestamp is None else append_timestamp,
            None if key_length < 0 else _slice(p, key_at, key_length),
            None if value_length < 0 else _slice(p, value_at, value_length),
            () if header_count == 0 else _read_headers(p, headers_at, following, header_count),
        )
        out.append(new(record_type, row))
        pos = following
    if pos != end:
        raise _left_over(end - pos, count)
    return out


def survey(
    data: cython.const[cython.uchar][::1],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
) -> tuple:
    """What validation asks of a section, without an object for each record: (max timestamp, min timestamp, index of
    the first record without a key or -1, True where offset deltas are 0, 1, 2… and the first timestamp delta is 0).
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
    regular: cython.bint = True
    _check_section(len(data), pos, end, count)
    if end > pos:
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(data[0])
        else:
            p = data
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
            raise _broken(i, count)
        timestamp = _sum(base_timestamp, timestamp_delta)
        if i == 0 or timestamp > largest:
            largest = timestamp
        if i == 0 or timestamp < smallest:
            smallest = timestamp
        if key_length < 0 and keyless < 0:
            keyless = i
        if offset_delta != i or (i == 0 and timestamp_delta != 0):
            regular = False
    if pos != end:
        raise _left_over(end - pos, count)
    return largest, smallest, keyless, bool(regular)


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
    """Write a zig-zag number; the position behind it. A 32-bit number has the same bytes."""
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
def _put_bytes(out: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, value: bytes) -> cython.Py_ssize_t:
    if cython.compiled:
        return _copy(out, pos, cython.cast(cython.pointer[cython.const[cython.uchar]], value), 0, len(value))
    return _copy(out, pos, value, 0, len(value))


@cython.cfunc
def _as_bytes(value: object) -> bytes:
    """Any buffer as bytes. A number or text is refused: `bytes(5)` would be five zeros."""
    return bytes(memoryview(value))


@cython.cfunc
def _encode_headers(headers: object) -> bytes:
    """The header part of a record: the count and each key and value."""
    parts: list = []
    size: cython.Py_ssize_t = 10
    for key, value in headers:
        key_bytes = key.encode("utf-8")
        value_bytes = None if value is None else _as_bytes(value)
        parts.append((key_bytes, value_bytes))
        size += 10 + len(key_bytes) + (0 if value_bytes is None else len(value_bytes))
    out = bytearray(size)
    if cython.compiled:
        p: cython.pointer[cython.uchar] = cython.cast(cython.pointer[cython.uchar], PyByteArray_AS_STRING(out))
    else:
        p = out
    pos: cython.Py_ssize_t = _put_varlong(p, 0, len(parts))
    for key_bytes, value_bytes in parts:
        pos = _put_varlong(p, pos, len(key_bytes))
        pos = _put_bytes(p, pos, key_bytes)
        if value_bytes is None:
            pos = _put_varlong(p, pos, -1)
        else:
            pos = _put_varlong(p, pos, len(value_bytes))
            pos = _put_bytes(p, pos, value_bytes)
    return bytes(out[:pos])


_NO_HEADERS = b"\x00"


def encode_records(
    rows: list,
    reserve: cython.Py_ssize_t,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    with_offsets: cython.bint,
) -> tuple:
    """(buffer, max timestamp): `reserve` bytes for the caller's header, then the records.

    `rows` are (timestamp, key, value, headers), at consecutive offsets from 0; or, `with_offsets`, (offset, timestamp,
    key, value, headers) with absolute offsets. Raises `ValueError` for an offset that is out of a batch's reach.
    """
    first: cython.Py_ssize_t = 1 if with_offsets else 0
    bound: cython.Py_ssize_t = reserve
    plain: list = []
    for row in rows:
        key, value, headers = row[first + 1], row[first + 2], row[first + 3]
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes(key)
            bound += len(key)
        if value is not None:
            if type(value) is not bytes:
                value = _as_bytes(value)
            bound += len(value)
        tail = _encode_headers(headers) if headers else _NO_HEADERS
        bound += 36 + len(tail)
        plain.append((key, value, tail))
    if bound > _MAX_INT32:
        raise ValueError(f"{bound} bytes of records are more than a batch can hold")

    out = bytearray(bound)
    if cython.compiled:
        p: cython.pointer[cython.uchar] = cython.cast(cython.pointer[cython.uchar], PyByteArray_AS_STRING(out))
    else:
        p = out
    i: cython.Py_ssize_t
    pos: cython.Py_ssize_t = reserve
    delta: cython.longlong
    timestamp: cython.longlong
    timestamp_delta: cython.longlong
    size: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    largest: cython.longlong = -1
    for i in range(len(rows)):
        row = rows[i]
        key, value, tail = plain[i]
        timestamp = row[first]
        delta = i
        if with_offsets:
            delta = row[0] - base_offset
            if delta < 0 or delta > _MAX_INT32:
                raise ValueError(f"offset {row[0]} is out of reach of a batch that starts at {base_offset}")
        timestamp_delta = _sum(timestamp, -base_timestamp)
        if i == 0 or timestamp > largest:
            largest = timestamp
        key_length = -1 if key is None else len(key)
        value_length = -1 if value is None else len(value)
        size = 1 + _varlong_size(timestamp_delta) + _varlong_size(delta) + _varlong_size(key_length)
        size += _varlong_size(value_length) + len(tail)
        size += (key_length if key_length > 0 else 0) + (value_length if value_length > 0 else 0)
        pos = _put_varlong(p, pos, size)
        p[pos] = 0
        pos = _put_varlong(p, pos + 1, timestamp_delta)
        pos = _put_varlong(p, pos, delta)
        pos = _put_varlong(p, pos, key_length)
        if key_length > 0:
            pos = _put_bytes(p, pos, key)
        pos = _put_varlong(p, pos, value_length)
        if value_length > 0:
            pos = _put_bytes(p, pos, value)
        pos = _put_bytes(p, pos, tail)
    del out[pos:]
    return out, largest
