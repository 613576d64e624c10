# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The whole Produce request of one record, written in one piece: size, header, body, batch and record.

For `express`, whose record has no headers and is not compressed; the bytes are those that `lone_batches` and `seal` of
a batch make together. lone_request.pxd has the C types. Compiled, a request of 100 B takes less than a microsecond.

The literals are C constants: a batch's header has 61 bytes, its CRC is at 17 and of the bytes from 21 on; the request
ends with three bytes, no tagged fields of the partition, the topic, and the request.

Invariant: `encode` writes nothing beyond the memory, whose size it compares first.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _varlong_size
    from cython.cimports.kalda.records.native_crc import kalda_crc32c, kalda_crc_init

    kalda_crc_init()
else:
    from crc32c import crc32c

    from kalda.records.codec import _copy, _put_varlong, _varlong_size


class LoneRequest:
    """The requests of one partition, in one version."""

    def __init__(self, prefix: bytes, memory: bytearray) -> None:
        """`prefix` is the request up to the length of the records, with any size and correlation id. `memory` may be
        that of other partitions too; a request that is larger does not fit."""
        self.prefix = prefix
        self.memory = memory
        self.batch_size = 0
        self.record_bound = 0

    def encode(self, correlation_id, producer_id, epoch, sequence, timestamp, key, value):
        """The request; None where it does not fit. `batch_size` is the size of its batch then, and
        `record_bound` what `Records.largest_record` would be."""
        key_length: cython.Py_ssize_t = -1 if key is None else len(key)
        value_length: cython.Py_ssize_t = -1 if value is None else len(value)
        size: cython.Py_ssize_t
        start: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        left: cython.Py_ssize_t
        crc: cython.uint
        # Attributes, timestamp delta, offset delta, and the count of headers have a byte each.
        size = 4 + _varlong_size(key_length) + (key_length if key_length > 0 else 0)
        size += _varlong_size(value_length) + (value_length if value_length > 0 else 0)
        pos = len(self.prefix)
        if pos + 5 + 61 + _varlong_size(size) + size + 3 > len(self.memory):
            return None
        if cython.compiled:
            p: cython.pointer[cython.uchar] = cython.cast(
                cython.pointer[cython.uchar], PyByteArray_AS_STRING(self.memory)
            )
        else:
            p = self.memory
        self.batch_size = 61 + _varlong_size(size) + size
        self.record_bound = 61 + 21 + size - 3
        _put_bytes(p, 0, self.prefix)
        left = self.batch_size + 1  # a compact length is one more
        while left >= 0x80:
            p[pos] = (left & 0x7F) | 0x80
            left >>= 7
            pos += 1
        p[pos] = left
        start = pos + 1
        pos = _put(p, start, 0, 8)  # base offset
        pos = _put(p, pos, self.batch_size - 12, 4)
        pos = _put(p, pos, -1, 4)  # leader epoch
        pos = _put(p, pos, 2, 1)  # magic
        pos = _put(p, start + 21, 0, 2)  # attributes
        pos = _put(p, pos, 0, 4)  # last offset delta
        pos = _put(p, pos, timestamp, 8)
        pos = _put(p, pos, timestamp, 8)
        pos = _put(p, pos, producer_id, 8)
        pos = _put(p, pos, epoch, 2)
        pos = _put(p, pos, sequence, 4)
        pos = _put(p, pos, 1, 4)  # records
        pos = _put_varlong(p, pos, size)
        pos = _put(p, pos, 0, 3)
        pos = _put_varlong(p, pos, key_length)
        if key_length > 0:
            pos = _put_bytes(p, pos, key)
        pos = _put_varlong(p, pos, value_length)
        if value_length > 0:
            pos = _put_bytes(p, pos, value)
        pos = _put(p, pos, 0, 1)
        if cython.compiled:
            crc = kalda_crc32c(p + start + 21, pos - start - 21)
        else:
            crc = crc32c(bytes(p[start + 21 : pos]))
        _put(p, start + 17, crc, 4)
        pos = _put(p, pos, 0, 3)
        _put(p, 0, pos - 4, 4)
        _put(p, 8, correlation_id, 4)
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.pointer[cython.char], p), pos)
        else:
            return bytes(p[:pos])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    p: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, number: cython.longlong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a number of so many bytes, and return the position after it."""
    at: cython.Py_ssize_t
    for at in range(size):
        p[pos + at] = (number >> (8 * (size - 1 - at))) & 0xFF
    return pos + size


@cython.cfunc
@cython.inline
def _put_bytes(p: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, value: bytes) -> cython.Py_ssize_t:
    if cython.compiled:
        return _copy(p, pos, cython.cast(cython.pointer[cython.const[cython.uchar]], value), 0, len(value))
    else:
        return _copy(p, pos, value, 0, len(value))
