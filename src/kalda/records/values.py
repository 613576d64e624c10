# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The section of records in a batch as Python values: a tuple for a record, `bytes` for its key and value; or the
messages in the values.

Compiled like `codec`. The functions of `codec` parse and write the format; those here create and read Python objects.
"""

from __future__ import annotations

from kalda.records.codec import _check_section, _left_over, _malformed

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _record, _sum, _varint, _varlong_size
else:
    from kalda.records.codec import _copy, _put_varlong, _record, _sum, _varint, _varlong_size

_MAX_INT32 = 2147483647


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
    """Headers that `_record` has verified. A key that is not UTF-8 is decoded with replacement characters."""
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


@cython.cfunc
@cython.inline
def _make(record_type: type, offset: object, timestamp: object, key: object, value: object, headers: object) -> object:
    """`record_type((offset, timestamp, key, value, headers))`, without the intermediate tuple."""
    # The garbage collector must not run before the last item is set. Incrementing reference counts cannot trigger it.
    if cython.compiled:
        record: object = PyType_GenericAlloc(record_type, 5)  # noqa: F821  (in values.pxd)
        Py_INCREF(offset)
        PyTuple_SET_ITEM(record, 0, offset)
        Py_INCREF(timestamp)
        PyTuple_SET_ITEM(record, 1, timestamp)
        Py_INCREF(key)
        PyTuple_SET_ITEM(record, 2, key)
        Py_INCREF(value)
        PyTuple_SET_ITEM(record, 3, value)
        Py_INCREF(headers)
        PyTuple_SET_ITEM(record, 4, headers)
        return record
    return tuple.__new__(record_type, (offset, timestamp, key, value, headers))


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
    stamped: cython.bint = append_timestamp is not None
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
            raise _malformed(i, count)
        offset = _sum(base_offset, offset_delta)
        timestamp = append_timestamp if stamped else _sum(base_timestamp, timestamp_delta)
        key = None if key_length < 0 else _slice(p, key_at, key_length)
        value = None if value_length < 0 else _slice(p, value_at, value_length)
        headers = () if header_count == 0 else _read_headers(p, headers_at, following, header_count)
        out.append(_make(record_type, offset, timestamp, key, value, headers))
        pos = following
    if pos != end:
        raise _left_over(end - pos, count)
    return out


INT8, INT16, INT32, INT64, BOOL, UUID, STRING, INT32S, UUIDS = range(9)
"""The kinds of fields that `decode_flat` decodes: those of fixed size, a compact string, compact lists."""


@cython.cfunc
def _flat_value(
    kind: cython.int,
    nullable: cython.bint,
    p: cython.pointer[cython.const[cython.uchar]],
    at: cython.pointer[cython.Py_ssize_t],
    end: cython.Py_ssize_t,
) -> object:
    """The value at position `at[0]`, which is set to the position after it, or to -1 for a value that is malformed or
    longer than 126 bytes or items."""
    pos: cython.Py_ssize_t = at[0]
    size: cython.Py_ssize_t
    number: cython.ulonglong = 0
    values: list
    i: cython.Py_ssize_t
    at[0] = -1
    if kind <= 5:  # of fixed size
        size = 16 if kind == 5 else 8 if kind == 3 else 4 if kind == 2 else 2 if kind == 1 else 1
        if end - pos < size:
            return None
        at[0] = pos + size
        if kind == 5:
            return _slice(p, pos, 16)
        for i in range(size):
            number = (number << 8) | p[pos + i]
        if kind == 2:
            return cython.cast(cython.int, number)
        if kind == 3:
            return cython.cast(cython.longlong, number)
        if kind == 1:
            return cython.cast(cython.short, number)
        if kind == 0:
            return cython.cast(cython.schar, number)
        return number != 0
    if pos >= end or p[pos] > 0x7F:
        return None
    size = p[pos]
    size -= 1
    pos += 1
    if size < 0:
        if nullable:
            at[0] = pos
        return None
    if kind == 6:
        if size > end - pos:
            return None
        try:
            text = _slice(p, pos, size).decode("utf-8")
        except UnicodeDecodeError:
            return None
        at[0] = pos + size
        return text
    values = []
    if kind == 7:
        if size * 4 > end - pos:
            return None
        for _ in range(size):
            number = (cython.cast(cython.ulonglong, p[pos]) << 24) | (p[pos + 1] << 16) | (p[pos + 2] << 8) | p[pos + 3]
            values.append(cython.cast(cython.int, number))
            pos += 4
    else:
        if size * 16 > end - pos:
            return None
        for _ in range(size):
            values.append(_slice(p, pos, 16))
            pos += 16
    at[0] = pos
    return values


@cython.cfunc
def _flat(
    program: tuple, p: cython.pointer[cython.const[cython.uchar]], pos: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> object:
    """The message at `pos`; None where the program cannot decode it.

    A program is (class, defaults, fields, tagged fields, version). Defaults are (name, value), and a list is created
    anew each time; fields are (name, kind, nullable); the index of a tagged field is its tag, tags have no gaps."""
    defaults: tuple = program[1]
    fields: tuple = program[2]
    tagged: tuple = program[3]
    field: tuple
    count: cython.int
    tag: cython.int
    last: cython.int = -1
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t = pos
    message: object = PyType_GenericAlloc(cython.cast(type, program[0]), 0)  # noqa: F821  (in values.pxd)
    for field in defaults:
        setattr(message, field[0], [] if type(field[1]) is list else field[1])
    for field in fields:
        value = _flat_value(field[1], field[2], p, cython.address(at), end)
        if at < 0:
            return None
        setattr(message, field[0], value)
    if at >= end or p[at] > 0x7F:
        return None
    count = p[at]
    at += 1
    while count > 0:
        count -= 1
        if end - at < 2 or p[at] > 0x7F or p[at + 1] > 0x7F:
            return None
        tag = p[at]
        size = p[at + 1]
        at += 2
        if tag <= last or tag >= len(tagged) or size > end - at:
            return None
        last = tag
        pos = at + size
        field = tagged[tag]
        value = _flat_value(field[1], field[2], p, cython.address(at), end)
        if at != pos:
            return None
        setattr(message, field[0], value)
    return message


def decode_flat(
    data: cython.const[cython.uchar][::1],
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    programs: dict,
    record_type: type,
) -> tuple:
    """([message or value], number of values): the messages in the values of the `count` records of `data[pos:end]`, as
    tuples of `record_type`: message, version.

    A program is looked up by a value's first three bytes as one number. A value without a program, or one that its
    program cannot decode (long strings, unknown tags, malformed bytes), is returned itself: a decoder of the whole
    format decodes or refuses it. Uncompiled, all values are returned themselves.
    """
    i: cython.Py_ssize_t
    following: cython.Py_ssize_t
    _timestamp_delta: cython.longlong
    _offset_delta: cython.longlong
    _key_at: cython.Py_ssize_t
    _key_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    _header_count: cython.Py_ssize_t
    _headers_at: cython.Py_ssize_t
    kind: cython.int
    last_kind: cython.int = -1
    values: cython.Py_ssize_t = 0
    program: object = None
    _check_section(len(data), pos, end, count)
    out: list = []
    if end > pos:
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(data[0])
        else:
            p = data
    for i in range(count):
        (
            following,
            _timestamp_delta,
            _offset_delta,
            _key_at,
            _key_length,
            value_at,
            value_length,
            _header_count,
            _headers_at,
        ) = _record(p, pos, end)
        if following < 0:
            raise _malformed(i, count)
        pos = following
        message: object = None
        if cython.compiled and value_length > 3:
            kind = (p[value_at] << 16) | (p[value_at + 1] << 8) | p[value_at + 2]
            if kind != last_kind:
                program, last_kind = programs.get(kind), kind
            if program is not None:
                message = _flat(program, p, value_at + 3, value_at + value_length)
        if message is not None:
            out.append(_pair(record_type, message, cython.cast(tuple, program)[4]))
        else:
            values += 1
            out.append(None if value_length < 0 else _slice(p, value_at, value_length))
    if pos != end:
        raise _left_over(end - pos, count)
    return out, values


@cython.cfunc
@cython.inline
def _pair(record_type: type, first: object, second: object) -> object:
    """`record_type((first, second))`, made as `_make` makes its tuple."""
    if cython.compiled:
        pair: object = PyType_GenericAlloc(record_type, 2)  # noqa: F821  (in values.pxd)
        Py_INCREF(first)
        PyTuple_SET_ITEM(pair, 0, first)
        Py_INCREF(second)
        PyTuple_SET_ITEM(pair, 1, second)
        return pair
    return tuple.__new__(record_type, (first, second))


@cython.cfunc
@cython.inline
def _put_bytes(out: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, value: bytes) -> cython.Py_ssize_t:
    if cython.compiled:
        return _copy(out, pos, cython.cast(cython.pointer[cython.const[cython.uchar]], value), 0, len(value))
    return _copy(out, pos, value, 0, len(value))


@cython.cfunc
def _as_bytes(value: object) -> bytes:
    """Any buffer as bytes. Raises `TypeError` for a number or text: `bytes(5)` would be five zeros."""
    return bytes(memoryview(value))


@cython.cfunc
def _encode_headers(headers: object) -> bytes:
    """The headers of a record as they are on the wire: the count, then each key and value."""
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


@cython.cfunc
def _plain(rows: list, first: cython.Py_ssize_t) -> tuple:
    """([(key, value, headers as they are on the wire)], all as bytes; an upper bound of the size of all records)."""
    bound: cython.Py_ssize_t = 0
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
    return plain, bound


def encode_records(
    rows: list,
    reserve: cython.Py_ssize_t,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    with_offsets: cython.bint,
) -> tuple:
    """(buffer, max timestamp). The buffer has `reserve` bytes for the caller's header, then the records.

    `rows` are (timestamp, key, value, headers), at consecutive offsets from 0; or, `with_offsets`, (offset, timestamp,
    key, value, headers) with absolute offsets. Raises `ValueError` for an offset whose delta is negative or no int32.
    """
    first: cython.Py_ssize_t = 1 if with_offsets else 0
    plain: list
    bound: cython.Py_ssize_t
    plain, bound = _plain(rows, first)
    bound += reserve
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
                raise ValueError(f"offset {row[0]} cannot be in a batch with base offset {base_offset}")
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
