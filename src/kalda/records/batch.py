"""The header of a record batch: of magic 2, and what the two older message formats have in its place.

Layout of magic 2, big-endian: base offset, length of the bytes after it, partition leader epoch, magic, CRC32C,
attributes, last offset delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record count;
61 bytes. The CRC covers everything from the attributes to the batch's end. Base offset and leader epoch precede it, so
a leader stamps them without a new checksum.

Magic 0 and 1, which Kafka wrote before 0.11 and reads to this day: offset, length, CRC32 of all that follows it, magic,
attributes, in magic 1 a timestamp, key and value. Such a message is a batch of one record, or, where it is compressed,
of the messages in its value, of which it has the last offset and the largest timestamp. `read_header`
returns that as `base_offset` with a delta of 0: where the first of several records is, only their bytes say.

Invariants of a header that `read_header` returned: magic is 0, 1 or 2 and the length covers at least the header.
Counts, offsets and timestamps may have any value until the CRC was checked and the batch validated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from struct import Struct
from typing import NamedTuple, cast

from kalda.base.allocation import new_tuple
from kalda.base.errors import CorruptRecord, CrcMismatch, UnsupportedFormat
from kalda.records.compression import Compression


def _load() -> Callable[..., int]:
    """CRC32C of the wheel `crc32c`, which computes it in hardware, without copying, and releases the GIL for large
    buffers. At import its package looks up its own version, which imports `importlib.metadata`, `email` and `zipfile`:
    some 20 ms, a tenth of the time that a node may take to start. So only its extension module is loaded."""
    package = PathFinder.find_spec("crc32c")
    folders = package.submodule_search_locations if isinstance(package, ModuleSpec) else None
    spec = PathFinder.find_spec("crc32c._crc32c", folders) if folders else None
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, "crc32c", None)
        if function is not None:
            return cast(Callable[..., int], function)
    from crc32c import crc32c as of_package

    return cast(Callable[..., int], of_package)


crc32c: Callable[..., int] = _load()
"""`crc32c(data, value=0)`: the CRC32C of a buffer, or of one that continues a buffer whose CRC32C is `value`."""


HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""The bytes that the length field does not count: base offset and the length itself."""

MIN_BATCH_LENGTH = 14
"""The smallest valid length field: that of a message of magic 0 without key and value."""
MIN_BATCH_SIZE = LOG_OVERHEAD + MIN_BATCH_LENGTH

MAGIC = 2
"""The format in which batches are written. 0 and 1 are read."""
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 21
CRC_POSITION = 17
MAX_TIMESTAMP_POSITION = 35

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
UNKNOWN_COUNT = -1
"""The number of records of a compressed message of magic 0 or 1: only its bytes say."""
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
_LEGACY = Struct(">qiIbb")  # offset, length, CRC, magic, attributes
_LEGACY_TIMESTAMP = Struct(">18xq")
_LEAST_LENGTHS = (MIN_BATCH_LENGTH, MIN_BATCH_LENGTH + 8, HEADER_SIZE - LOG_OVERHEAD)
"""The smallest length field by magic."""


class TimestampType(IntEnum):
    """Who set the records' timestamps: the producer, or the leader at the append. Records of magic 0 have none."""

    NONE = -1
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
    def is_legacy(self) -> bool:
        """Whether the batch is of magic 0 or 1: then it has one record, or a compressed set of messages."""
        return self.magic < MAGIC

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return TimestampType.LOG_APPEND
        return TimestampType.CREATE if self.magic else TimestampType.NONE

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


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`; only its 61 bytes need to be in `buf`, fewer of a batch of magic 0 or 1. Raises
    `CorruptRecord`, `UnsupportedFormat` for a magic above 2."""
    if pos < 0 or len(buf) - pos < HEADER_SIZE:
        if pos >= 0 and len(buf) - pos >= MIN_BATCH_SIZE and buf[pos + MAGIC_POSITION] < MAGIC:
            return _read_legacy_header(buf, pos)
        raise CorruptRecord(f"{max(len(buf) - pos, 0)} bytes at position {pos} are too few for a batch header")
    header = new_tuple(BatchHeader, _HEADER.unpack_from(buf, pos))
    if header.magic != MAGIC:
        return _read_legacy_header(buf, pos)
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecord(f"the batch at position {pos} has a size of {header.size_bytes} bytes, less than a header")
    return header


def _read_legacy_header(buf: Buffer, pos: int) -> BatchHeader:
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(buf, pos)
    if not 0 <= magic < MAGIC:
        raise UnsupportedFormat(f"the batch at position {pos} has magic {magic}, only 0 to {MAGIC} are supported")
    if length < least_length(magic) or len(buf) - pos < least_length(magic) + LOG_OVERHEAD:
        raise CorruptRecord(f"the batch at position {pos} has a length of {length} bytes, too few for magic {magic}")
    timestamp = _LEGACY_TIMESTAMP.unpack_from(buf, pos)[0] if magic else NO_TIMESTAMP
    return BatchHeader(
        base_offset=offset,
        batch_length=length,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes & (COMPRESSION_MASK | TIMESTAMP_TYPE_BIT if magic else COMPRESSION_MASK),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        records_count=UNKNOWN_COUNT if attributes & COMPRESSION_MASK else 1,
    )


def least_length(magic: int) -> int:
    """The smallest valid length field of a batch of this magic."""
    return _LEAST_LENGTHS[magic] if 0 <= magic < MAGIC else _LEAST_LENGTHS[MAGIC]


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
    """Raises `CorruptRecord` unless the whole batch is in `buf` and its checksum is right."""
    end = pos + header.size_bytes
    if end > len(buf):
        raise CorruptRecord(f"the batch of {header.size_bytes} bytes at position {pos} is cut off at {len(buf) - pos}")
    if header.magic == MAGIC:
        crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_POSITION : end])
    else:
        crc = zlib.crc32(memoryview(buf)[pos + MAGIC_POSITION : end])
    if crc != header.crc:
        raise CrcMismatch(
            f"the batch at position {pos} (offset {header.base_offset}) has CRC {crc}, its header has {header.crc}"
        )


def iter_batches(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch.

    A fetch response may end at any byte, so an incomplete batch at the end is left out. A length below the smallest
    valid one or a wrong magic raises `CorruptRecord`: the position of the next batch is unknown then. Batches of magic
    0 and 1 come too: `is_legacy` says so.
    """
    size = len(buf)
    while size - pos >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(buf, pos + 8)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecord(f"the batch at position {pos} has a length of {length} bytes")
        if size - pos <= MAGIC_POSITION:
            return
        if buf[pos + MAGIC_POSITION] > MAGIC:
            raise UnsupportedFormat(f"the batch at position {pos} has magic {buf[pos + MAGIC_POSITION]}")
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
