"""Batches from records and records from batches, as Python values.

Used where records are few: coordinators, the metadata log, markers, tools, tests. Columns use `arrow`; the data path of
the broker uses neither.

Batches of magic 0 and 1, the message formats before Kafka 0.11, are read, and never written. A message: CRC32, magic,
attributes, in magic 1 a timestamp, then key and value, each with an int32 length (-1: null). A compressed batch is a
message whose value is a compressed row of messages, each after its offset and length:

| magic | offsets of the messages inside | their timestamps |
| --- | --- | --- |
| 0 | absolute | none |
| 1 | relative: the outer message has the absolute offset of the last | their own, or the outer one's time of append |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, overload

from kalda.base.errors import CorruptRecord
from kalda.records import values
from kalda.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_INT32,
    MIN_BATCH_LENGTH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    read_header,
    write_header,
)
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress, decompress

Headers = Sequence[tuple[str, bytes | None]]
NewRecord = tuple[int, Buffer | None, Buffer | None, Headers]
"""(timestamp, key, value, headers)"""


class Record(NamedTuple):
    """A decoded record: absolute offset, timestamp in ms (-1: none)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def attributes_of(
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    is_transactional: bool = False,
    is_control: bool = False,
    has_delete_horizon: bool = False,
) -> int:
    """The attributes field of a header."""
    return (
        compression
        | (TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if has_delete_horizon else 0)
    )


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE,
    append_time_ms: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """One batch of (timestamp, key, value, headers) at consecutive offsets.

    With `TimestampType.LOG_APPEND` readers get `append_time_ms` as the timestamp of every record. Raises `ValueError`
    for no records, and for more bytes than a batch can hold.
    """
    rows = list(records)
    if not rows:
        raise ValueError("a batch needs at least one record")
    base_timestamp = rows[0][0]
    buf, max_timestamp = values.encode_records(rows, HEADER_SIZE, 0, base_timestamp, False)
    if timestamp_type is TimestampType.LOG_APPEND:
        max_timestamp = append_time_ms
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(compression, timestamp_type, is_transactional, is_control),
        last_offset_delta=len(rows) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(rows),
    )
    return seal(buf, header, compression_level)


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    delete_horizon_ms: int | None = None,
    compression_level: int | None = None,
) -> bytearray:
    """The batch of `header` with only `records` in it, as compaction writes it.

    Base offset, last offset, sequence and producer stay the same, so offsets and sequence numbers have no gaps between
    batches. Without records the batch is a bare header, which keeps the producer's last sequence number. A delete
    horizon replaces the base timestamp (KIP-534).
    """
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    if records:
        buf, max_timestamp = values.encode_records(records, HEADER_SIZE, header.base_offset, base_timestamp, True)
    else:
        buf, max_timestamp = bytearray(HEADER_SIZE), header.max_timestamp
    if header.timestamp_type is TimestampType.LOG_APPEND:
        max_timestamp = header.max_timestamp
    rebuilt = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, records_count=len(records)
    )
    return seal(buf, rebuilt, compression_level)


@overload
def seal(buf: bytearray, header: BatchHeader, compression_level: int | None = None) -> bytearray: ...
@overload
def seal(buf: memoryview, header: BatchHeader, compression_level: int | None = None) -> bytearray | memoryview: ...
def seal(
    buf: bytearray | memoryview, header: BatchHeader, compression_level: int | None = None
) -> bytearray | memoryview:
    """Compress the records in `buf`, which begin after `HEADER_SIZE` bytes for the header, with the codec of `header`;
    then write `header` with the right length and CRC. Returns `buf`, or a new buffer where it was compressed."""
    if header.compression is not Compression.NONE and len(buf) > HEADER_SIZE:
        with memoryview(buf) as view:
            packed = compress(header.compression, view[HEADER_SIZE:], compression_level)
        buf = bytearray(HEADER_SIZE) + packed
    write_header(buf, 0, header._replace(batch_length=len(buf) - LOG_OVERHEAD))
    return buf


def rebuild_legacy_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    delete_horizon_ms: int | None = None,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """Some records of a batch of magic 0 or 1, with their offsets and timestamps, as a batch of magic 2. It begins with
    the first of them and ends with the last, as where Kafka compacts such a batch."""
    current = header._replace(
        magic=MAGIC,
        base_offset=records[0].offset,
        last_offset_delta=records[-1].offset - records[0].offset,
        attributes=header.attributes & ~COMPRESSION_MASK | compression,
    )
    return rebuild_batch(current, records, delete_horizon_ms=delete_horizon_ms)


def in_current_format(
    header: BatchHeader, buf: Buffer, pos: int = 0, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[BatchHeader, bytearray]:
    """The batch of magic 0 or 1 at `pos` as one of magic 2, not compressed: its header and its bytes. Raises
    `CorruptRecord`."""
    rebuilt = rebuild_legacy_batch(header, read_records(buf, pos, header, max_bytes=max_bytes))
    return read_header(rebuilt), rebuilt


def with_range(header: BatchHeader, buf: Buffer, pos: int = 0, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> BatchHeader:
    """The header of the batch at `pos` with base offset, last offset and number of records, which only the records of a
    compressed batch of magic 0 or 1 say. Raises `CorruptRecord`."""
    if header.records_count >= 0:
        return header
    rows = read_rows(buf, pos, header, max_bytes)
    first, last = rows[0][0], rows[-1][0]
    return header._replace(base_offset=first, last_offset_delta=last - first, records_count=len(rows))


def records_section(
    buf: Buffer, pos: int, header: BatchHeader, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[Buffer, int, int]:
    """(buffer, start, end) of the records of a batch of magic 2, decompressed. Raises `CorruptRecord`."""
    end = pos + header.size_bytes
    if end > len(buf):
        raise CorruptRecord(f"the batch of {header.size_bytes} bytes at position {pos} is cut off at {len(buf) - pos}")
    compression = header.compression
    if compression is Compression.NONE or pos + HEADER_SIZE == end:
        return buf, pos + HEADER_SIZE, end
    section = decompress(compression, memoryview(buf)[pos + HEADER_SIZE : end], max_bytes)
    return section, 0, len(section)


def read_records(
    buf: Buffer, pos: int = 0, header: BatchHeader | None = None, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the batch at `pos`, decompressed to at most `max_bytes`.

    The CRC is not checked here: the code that reads batches from a connection or a disk checks it. Raises
    `CorruptRecord`.
    """
    if header is None:
        header = read_header(buf, pos)
    if header.is_legacy:
        rows = read_rows(buf, pos, header, max_bytes)
        return [Record(offset, timestamp, key, value, ()) for offset, timestamp, key, value in rows]
    section, start, end = records_section(buf, pos, header, max_bytes)
    return decode_section(memoryview(section)[start:end], header)


def decode_section(section: memoryview, header: BatchHeader) -> list[Record]:
    """The records of an uncompressed section. Raises `CorruptRecord`."""
    append_timestamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    return values.decode_records(
        Record,
        section,
        0,
        len(section),
        header.records_count,
        header.base_offset,
        header.base_timestamp,
        append_timestamp,
    )


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
    """The records of the batch of magic 0 or 1 at `pos`, by rising offset, decompressed to at most `max_bytes`. Raises
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
    """An LZ4 frame of magic 0 with the checksum of its header made anew. The first clients computed it over too many
    bytes, and all later ones for magic 0 had to do the same. It is not checked, as in Kafka."""
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
