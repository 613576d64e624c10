"""The checks of a leader on a produced batch before the append, and the fields that it writes into the batch.

The checks, their order and their error codes are those of Kafka's produce path for magic 2. The rules for a client's
batch: exactly one in the partition's bytes, base offset 0, as many records as offsets, no control batch, and a sequence
number where there is a producer id. Bytes after the batch that are too few for another batch are cut off.

Then the records are checked, as `kalda.validate.records` says: a batch is stored only if its records are those that its
header describes. The common case is one pass of a compiled function; everything else is the work of an `Inspection`.
After that the offset and the leader epoch are stamped in place.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from kalda.base.errors import CorruptRecord, ErrorCode
from kalda.records import codec
from kalda.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    check_crc,
    peek_header,
    read_header,
    stamp_known,
    write_crc,
)
from kalda.records.checksum import crc32c
from kalda.records.compression import Compression, decompress_small
from kalda.records.inspection import CHECKED_AT_ONCE_BYTES, Inspection, InspectionUnfinished
from kalda.records.rules import UNBOUNDED_MS, Invalid, RecordRules, RecordsRefused, too_large

_LENGTH = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_SMALL_BYTES: Final = 32 * 1024
_SMALL_DECOMPRESSED_BYTES: Final = 128 * 1024
_LAST_CODEC: Final = int(Compression.ZSTD)
_new_tuple = tuple.__new__


class ValidatedRecords(NamedTuple):
    """A batch ready for the append: offset and leader epoch are stamped, timestamps and codec are the topic's."""

    records: memoryview
    header: BatchHeader
    max_timestamp: int
    last_offset: int
    """The time index has it as the offset of `max_timestamp`: the header does not contain the offset of that record."""
    log_append_time_ms: int
    """-1 where the timestamps are the producer's."""


def check_single_batch(buf: bytes | bytearray | memoryview) -> int:
    """The size of the one batch in `buf`. Bytes after it are not a batch and are to be cut off.

    Raises `RecordsRefused` with INVALID_RECORD for none, several, or an older magic (Produce 3 and later carry exactly
    one of magic 2 in each partition); `CorruptRecord` for an invalid length or magic.
    """
    size = _whole_batch(buf, 0)
    if size < 0:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, "a produce request needs one record batch in each partition")
    magic = buf[MAGIC_POSITION]
    if magic != MAGIC:
        message = f"the record batch has magic {magic}, {MAGIC} is needed"
        raise RecordsRefused(ErrorCode.INVALID_RECORD, message, invalid=(Invalid.MAGIC, 1))
    if size != len(buf) and _whole_batch(buf, size) >= 0:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD, "a produce request takes one record batch in each partition, this has several"
        )
    return size


def _whole_batch(buf: bytes | bytearray | memoryview, pos: int) -> int:
    """The size of the batch at `pos`, -1 where there is no complete one."""
    left = len(buf) - pos
    if left < LOG_OVERHEAD:
        return -1
    (length,) = _LENGTH.unpack_from(buf, pos + 8)
    if length < MIN_BATCH_LENGTH:
        raise CorruptRecord(f"a record batch has a length of {length} bytes")
    if left <= MAGIC_POSITION:
        return -1
    if buf[pos + MAGIC_POSITION] > MAGIC:
        raise CorruptRecord(f"a record batch has magic {buf[pos + MAGIC_POSITION]}")
    size: int = length + LOG_OVERHEAD
    return size if size <= left else -1


def validate_produced(
    records: bytearray | memoryview,
    rules: RecordRules,
    first_offset: int,
    leader_epoch: int,
    now_ms: int,
    from_client: bool = True,
    inspection: Inspection | None = None,
) -> ValidatedRecords:
    """Check the batch in `records`, give it `first_offset` and `leader_epoch`, and return it.

    `records` is modified, and is the result's buffer unless the batch was recompressed. `from_client` is false for
    batches of the broker's own coordinators: their control bit, offsets, counts, sequences and records are not checked.
    Raises `RecordsRefused`, or `CorruptRecord` for malformed bytes; `InspectionUnfinished` for a batch with many
    records, which is to be passed again with that `inspection` when it is done.
    """
    buf = records if type(records) is memoryview else memoryview(records)
    header = peek_header(buf) if len(buf) >= HEADER_SIZE else None
    if header is None or header[1] + LOG_OVERHEAD != len(buf) or header[3] != MAGIC:
        buf = buf[: check_single_batch(buf)]
        header = read_header(buf)
    (
        base_offset,
        length,
        _,
        _,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        sequence,
        count,
    ) = header
    if base_offset != 0 and from_client:
        message = f"the base offset of a produced batch is 0, this one has {base_offset}"
        raise RecordsRefused(ErrorCode.INVALID_RECORD, message, invalid=(Invalid.OFFSET_OR_SEQUENCE, 1))
    if length + LOG_OVERHEAD > rules.max_message_bytes:
        raise too_large(length + LOG_OVERHEAD, rules.max_message_bytes)
    if crc32c(buf[ATTRIBUTES_POSITION:]) != crc:
        check_crc(buf, 0, BatchHeader(*header))
    if from_client and (
        delta + 1 != count or count <= 0 or attributes & CONTROL_BIT or (producer_id >= 0 and sequence < 0)
    ):
        raise _header_refused(BatchHeader(*header))

    codec_id = attributes & COMPRESSION_MASK
    recompress = rules.compression is not None and rules.compression != codec_id and not attributes & CONTROL_BIT
    append_time_ms = NO_TIMESTAMP
    if (
        recompress
        or rules.timestamp_type
        or codec_id > _LAST_CODEC
        or attributes & TIMESTAMP_TYPE_BIT
        or not base_timestamp <= max_timestamp <= now_ms + rules.timestamp_after_max_ms
        or (rules.reads[codec_id] and from_client and not _is_sound(buf, header, rules, now_ms))
    ):
        buf, header = _adapt(buf, BatchHeader(*header), rules, now_ms, recompress, inspection)
        length, max_timestamp = header.batch_length, header.max_timestamp
        if rules.timestamp_type is TimestampType.LOG_APPEND:
            append_time_ms = now_ms
    stamp_known(buf, 0, first_offset, length, leader_epoch)
    stamped = _new_tuple(BatchHeader, (first_offset, length, leader_epoch, *header[3:]))
    last_offset = first_offset + delta
    return _new_tuple(ValidatedRecords, (buf, stamped, max_timestamp, last_offset, append_time_ms))


def _is_sound(buf: memoryview, header: tuple[int, ...], rules: RecordRules, now_ms: int) -> bool:
    """Whether the records are as header and rules demand, for the common case in few calls: a batch with CreateTime of
    moderate size. False does not mean that they are not: an `Inspection` finds out."""
    _, length, _, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = header
    codec_id = attributes & COMPRESSION_MASK
    try:
        if codec_id:
            if length > _SMALL_BYTES:
                return False
            section = decompress_small(Compression(codec_id), buf[HEADER_SIZE:], _SMALL_DECOMPRESSED_BYTES)
            if section is None:
                return False
            found = codec.survey(section, 0, len(section), count, base_timestamp)
        elif length > CHECKED_AT_ONCE_BYTES:
            return False
        else:
            found = codec.survey(buf, HEADER_SIZE, length + LOG_OVERHEAD, count, base_timestamp)
    except CorruptRecord:
        return False
    largest, smallest, keyless, misplaced = found
    if largest != max_timestamp or misplaced >= 0 or (keyless >= 0 and rules.compacted):
        return False
    if rules.timestamp_before_max_ms == UNBOUNDED_MS:
        return True
    return now_ms - smallest <= rules.timestamp_before_max_ms


def _header_refused(header: BatchHeader) -> RecordsRefused:
    """The error for an invalid header from a client: its counts, the control bit, or a missing sequence number."""
    offsets = header.last_offset_delta + 1
    if offsets != header.records_count or offsets <= 0:
        message = f"the record batch spans {offsets} offsets and counts {header.records_count} records"
    elif header.is_control:
        message = "clients may not write control records"
    else:
        message = f"the batch of producer id {header.producer_id} has the sequence number {header.base_sequence}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message, invalid=(Invalid.OFFSET_OR_SEQUENCE, 1))


def _adapt(
    buf: memoryview,
    header: BatchHeader,
    rules: RecordRules,
    now_ms: int,
    recompress: bool,
    inspection: Inspection | None,
) -> tuple[memoryview, BatchHeader]:
    """The uncommon path: check the records, then apply the topic's codec and its timestamp type."""
    codec_id = header.attributes & COMPRESSION_MASK
    if codec_id > _LAST_CODEC:
        raise RecordsRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec_id} is unknown")
    appends_time = rules.timestamp_type is TimestampType.LOG_APPEND
    largest = header.max_timestamp
    if recompress or rules.reads[codec_id] or not appends_time or header.attributes & TIMESTAMP_TYPE_BIT:
        # An inspection by rules that have been altered since begins anew.
        if inspection is None or inspection.rules is not rules:
            inspection = Inspection(buf, header, rules, now_ms, recompress)
        if not inspection.run(CHECKED_AT_ONCE_BYTES):
            raise InspectionUnfinished(inspection)
        largest = inspection.largest_timestamp
        if inspection.packed is not None:
            buf, header = inspection.packed
            rules.conversions.value += header.records_count
    return buf, _set_timestamps(buf, header, rules.timestamp_type, now_ms if appends_time else largest)


def _set_timestamps(
    buf: memoryview, header: BatchHeader, timestamp_type: TimestampType, max_timestamp: int
) -> BatchHeader:
    """Write timestamp type and largest timestamp, and the CRC that covers them, unless the header has them already."""
    attributes = header.attributes & ~TIMESTAMP_TYPE_BIT
    if timestamp_type is TimestampType.LOG_APPEND:
        attributes |= TIMESTAMP_TYPE_BIT
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return header
    attributes &= KNOWN_ATTRIBUTES
    _INT16.pack_into(buf, ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(buf, MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = write_crc(buf, 0, header.size_bytes)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)
