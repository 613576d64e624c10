"""The records of batches of magic 0 and 1, the message formats before Kafka 0.11. They are read, and never written.

A message: CRC32, magic, attributes, in magic 1 a timestamp, then key and value, each with an int32 length (-1: null).
A compressed batch is a message whose value is a compressed row of messages, each after its offset and length:

| magic | offsets of the messages inside | their timestamps |
| --- | --- | --- |
| 0 | absolute | none |
| 1 | relative: the outer message has the absolute offset of the last | their own, or the outer one's time of append |

LZ4 of magic 0 is a frame whose header has a wrong checksum: the first clients computed it over too many bytes, and all
later ones for magic 0 had to do the same. It is not checked, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import Final

from kalda.base.errors import CorruptRecord
from kalda.records.batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_INT32,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
)
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression, decompress

Row = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp or -1, key, value)"""

_MESSAGE: Final = Struct(">qi4xbb")  # offset, length, magic, attributes
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_TIMESTAMP_POSITION: Final = MAGIC_POSITION + 2
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_MASK: Final = 0xFFFFFFFF
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
"""Of xxHash32."""


def read_rows(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Row]:
    """The records of the batch at `pos`, by rising offset, decompressed to at most `max_bytes`. Raises
    `CorruptRecord`."""
    message = memoryview(buf)[pos : pos + header.size_bytes]
    if len(message) < header.size_bytes:
        raise CorruptRecord(f"the batch of {header.size_bytes} bytes at position {pos} is cut off at {len(message)}")
    timestamp, key, value = _fields(message, header.magic)
    codec, last = header.compression, header.last_offset
    if codec is Compression.NONE:
        return [(last, timestamp, key, value)]
    if codec is Compression.ZSTD or value is None:
        raise CorruptRecord(f"the batch that ends at offset {last} of magic {header.magic} has no compressed value")
    if codec is Compression.LZ4 and not header.magic:
        value = _with_right_checksum(value)
    rows = list(_messages(memoryview(decompress(codec, value, max_bytes))))
    if not rows:
        raise CorruptRecord(f"the compressed batch that ends at offset {last} has no record")
    base = 0
    if header.magic and last:  # 0: as some producers wrote it, which did not set it
        base = last - rows[-1][0]
        if base < 0:
            raise CorruptRecord(f"the batch that ends at offset {last} has a record {rows[-1][0]}")
    stamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    rows = [(base + offset, own if stamp is None else stamp, key, value) for offset, own, key, value in rows]
    if any(row[0] >= following[0] for row, following in pairwise(rows)) or rows[0][0] < 0:
        raise CorruptRecord(f"the records of the batch that ends at offset {last} are not in order")
    first, end = rows[0][0], rows[-1][0]
    if (end != last and not header.magic) or end - first > MAX_INT32:
        raise CorruptRecord(f"the batch that ends at offset {last} holds offsets {first} to {end}")
    return rows


def _messages(data: memoryview) -> Iterator[Row]:
    """Those of a decompressed value, with the offsets that they have there. A part of one at the end is left out."""
    pos = 0
    while len(data) - pos >= LOG_OVERHEAD:
        (length,) = _INT32.unpack_from(data, pos + 8)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecord(f"a message within a compressed batch has a length of {length} bytes")
        end = pos + LOG_OVERHEAD + length
        if end > len(data):
            return
        offset, _, magic, attributes = _MESSAGE.unpack_from(data, pos)
        if not 0 <= magic < MAGIC or attributes & COMPRESSION_MASK:
            raise CorruptRecord(f"a compressed batch holds a message of magic {magic} and attributes {attributes}")
        yield (offset, *_fields(data[pos:end], magic))
        pos = end


def _fields(message: memoryview, magic: int) -> tuple[int, bytes | None, bytes | None]:
    """(timestamp, key, value) of one whole message."""
    timestamp, at = NO_TIMESTAMP, _TIMESTAMP_POSITION
    if magic:
        if len(message) < at + 8:
            raise CorruptRecord(f"a message of magic 1 has {len(message)} bytes")
        (timestamp,) = _INT64.unpack_from(message, at)
        at += 8
    key, at = _sized(message, at)
    value, _ = _sized(message, at)
    return timestamp, key, value


def _sized(message: memoryview, at: int) -> tuple[bytes | None, int]:
    if len(message) - at < 4:
        raise CorruptRecord("a message ends before its key or value")
    (size,) = _INT32.unpack_from(message, at)
    at += 4
    if size < 0:
        return None, at
    if size > len(message) - at:
        raise CorruptRecord(f"a message has {len(message) - at} bytes for a key or value of {size}")
    return bytes(message[at : at + size]), at + size


def _with_right_checksum(frame: bytes) -> bytes:
    """An LZ4 frame with the checksum of its header made anew."""
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        raise CorruptRecord("lz4 data does not begin with a frame")
    flags = frame[4]
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    return frame[:end] + bytes((_xxhash32(frame[4:end]) >> 8 & 0xFF,)) + frame[end + 1 :]


def _xxhash32(data: bytes) -> int:
    """xxHash32 with seed 0 of less than 16 bytes: no frame header has more."""
    first, second, third, fourth, fifth = _PRIMES
    value = (fifth + len(data)) & _MASK
    at = 0
    while len(data) - at >= 4:
        value = (value + int.from_bytes(data[at : at + 4], "little") * third) & _MASK
        value = (value << 17 | value >> 15) * fourth & _MASK
        at += 4
    for byte in data[at:]:
        value = (value + byte * fifth) & _MASK
        value = (value << 11 | value >> 21) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16
