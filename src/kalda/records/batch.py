"""The header of a record batch, magic 2.

Layout, big-endian: base offset, length of the bytes after it, partition leader epoch, magic, CRC32C, attributes, last
offset delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record count; 61 bytes. The
CRC covers everything from the attributes to the batch's end. Base offset and leader epoch precede it, so a leader
stamps them without a new checksum.

Invariants of a header that `read_header` returned: magic is 2 and the length covers at least the header. Counts,
offsets and timestamps may have any value until the CRC was checked and the batch validated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from kalda.base.errors import CorruptRecord, CrcMismatch
from kalda.records.checksum import crc32c
from kalda.records.compression import Compression

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""The bytes that the length field does not count: base offset and the length itself."""

MIN_BATCH_LENGTH = 14
"""The smallest valid length field: that of a message of magic 0 without key and value."""

MAGIC = 2
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 21
CRC_POSITION = 17
MAX_TIMESTAMP_POSITION = 35

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
MAX_INT32 = 2**31 - 1

COMPRESSION_MASK = 0x07
_COMPRESSIONS = tuple(Compression)
"""By codec id."""
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
KNOWN_ATTRIBUTES = 0x7F

Buffer = bytes | bytearray | memoryview

_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH = Struct(">i")
_BASE_OFFSET = Struct(">q")
_UINT32 = Struct(">I")


class TimestampType(IntEnum):
    """Who set the records' timestamps: the producer, or the leader at the append."""

    CREATE = 0
    LOG_APPEND = 1


def advance_sequence(sequence: int, by: int) -> int:
    """Sequence numbers are non-negative int32 and wrap to 0 after the largest."""
    if sequence > MAX_INT32 - by:
        return by - (MAX_INT32 - sequence) - 1
    return sequence + by


class BatchHeader(NamedTuple):
    """A batch's header, field by field as on the wire."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """-1 where the producer is not idempotent."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        """Raises `CorruptRecord` for the three codec ids that Kafka has not assigned."""
        codec = self.attributes & COMPRESSION_MASK
        if codec >= len(_COMPRESSIONS):
            raise CorruptRecord(f"compression codec {codec} is unknown")
        return _COMPRESSIONS[codec]

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """True where the base timestamp is the time from which tombstones and markers may be removed (KIP-534)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.has_delete_horizon else None


_new_header = tuple.__new__


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`; only its 61 bytes need to be in `buf`. Raises `CorruptRecord`."""
    if pos < 0 or len(buf) - pos < HEADER_SIZE:
        raise CorruptRecord(f"{max(len(buf) - pos, 0)} bytes at position {pos} are too few for a batch header")
    header = _new_header(BatchHeader, _HEADER.unpack_from(buf, pos))
    if header.magic != MAGIC:
        raise CorruptRecord(f"the batch at position {pos} has magic {header.magic}, only {MAGIC} is supported")
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecord(f"the batch at position {pos} has a size of {header.size_bytes} bytes, less than a header")
    return header


peek_header: Callable[[Buffer], tuple[int, ...]] = _HEADER.unpack_from
"""The fields of the header at the start of a buffer of at least 61 bytes. Nothing is checked, not even the magic."""


write_fields: Callable[..., None] = _HEADER.pack_into
"""The fields of a header, one by one, into a buffer at a position; `write_crc` has to follow."""


def write_header(buf: bytearray | memoryview, pos: int, header: BatchHeader) -> None:
    """Write `header` at `pos`, with the CRC of the batch's bytes in `buf`."""
    _HEADER.pack_into(buf, pos, *header)
    write_crc(buf, pos, header.size_bytes)


def write_crc(buf: bytearray | memoryview, pos: int, size_bytes: int) -> int:
    """Compute the CRC of the batch at `pos`, write it into the header, and return it."""
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_POSITION : pos + size_bytes])
    _UINT32.pack_into(buf, pos + CRC_POSITION, crc)
    return crc


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Raises `CorruptRecord` unless the whole batch is in `buf` and its CRC32C is right."""
    end = pos + header.size_bytes
    if end > len(buf):
        raise CorruptRecord(f"the batch of {header.size_bytes} bytes at position {pos} is cut off at {len(buf) - pos}")
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_POSITION : end])
    if crc != header.crc:
        raise CrcMismatch(
            f"the batch at position {pos} (offset {header.base_offset}) has CRC {crc}, its header has {header.crc}"
        )


def iter_batches(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch.

    A fetch response may end at any byte, so an incomplete batch at the end is left out. A length below the smallest
    valid one or a wrong magic raises `CorruptRecord`: the position of the next batch is unknown then.
    """
    size = len(buf)
    while size - pos >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(buf, pos + 8)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecord(f"the batch at position {pos} has a length of {length} bytes")
        if size - pos <= MAGIC_POSITION:
            return
        if buf[pos + MAGIC_POSITION] != MAGIC:
            raise CorruptRecord(f"the batch at position {pos} has magic {buf[pos + MAGIC_POSITION]}")
        if pos + LOG_OVERHEAD + length > size:
            return
        header = read_header(buf, pos)
        yield pos, header
        pos += header.size_bytes


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch of the batch at `pos`. The CRC does not cover these fields."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LENGTH.pack_into(buf, pos + LOG_OVERHEAD, leader_epoch)


stamp_known: Callable[[bytearray | memoryview, int, int, int, int], None] = Struct(">qii").pack_into
"""`stamp` in one call, for a caller that has the length field: buffer, position, base offset, length, leader epoch."""
