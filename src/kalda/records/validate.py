"""The checks of a leader on a produced batch before the append, and the fields that it writes into the batch.

The common path reads the header, checks the CRC, and stamps offset and leader epoch in place; no record is decoded.
Records are decoded only where the header does not suffice: for a compacted topic (every record needs a key), a bound on
old timestamps (the header has no minimum), a batch whose timestamps may be out of range (the response lists the
records), and a topic whose `compression.type` differs from the producer's.

The checks, their order and their error codes are those of Kafka's produce path for magic 2. The rules for a client's
batch: exactly one in the partition's bytes, base offset 0, as many records as offsets, no control batch, and a sequence
number where there is a producer id. Bytes after the batch that are too few for another batch are cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.records import codec, values
from kalda.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
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
from kalda.records.builder import Record, decode_section, records_section, seal
from kalda.records.checksum import crc32c
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression

UNBOUNDED_MS: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms`: no bound."""

PRODUCER_COMPRESSION: Final = "producer"
"""The default of a topic's `compression.type`: keep the producer's codec."""

_CODEC_OF_CONFIG: Final = {codec.config_name: codec for codec in Compression} | {"none": Compression.NONE}
_LENGTH = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_SHOWN_ERRORS: Final = 3
_LAST_CODEC: Final = int(Compression.ZSTD)
_new_tuple = tuple.__new__


class RecordError(NamedTuple):
    """One record that was refused, by its index in the batch, for `ProduceResponse.record_errors`."""

    batch_index: int
    message: str


class RecordsRefused(ApiError):
    """A batch that is not appended. `record_errors` lists the invalid records, where single records are (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError] | None = None) -> None:
        super().__init__(code, message)
        self.record_errors: list[RecordError] = record_errors or []


class ValidatedRecords(NamedTuple):
    """A batch ready for the append: offset and leader epoch are stamped, timestamps and codec are the topic's."""

    records: memoryview
    header: BatchHeader
    max_timestamp: int
    last_offset: int
    """The time index has it as the offset of `max_timestamp`: the header does not contain the offset of that record."""
    log_append_time_ms: int
    """-1 where the timestamps are the producer's."""


@dataclass(frozen=True, slots=True)
class RecordRules:
    """The part of a topic's configuration that applies to produced batches. Made once for each configuration."""

    compression: Compression | None = None
    """The codec of the topic; None where batches keep the producer's."""
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    max_message_bytes: int = 1_048_588
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    headers_suffice: bool = field(init=False)
    """True where no record of a batch with CreateTime, and a largest timestamp that is in range, has to be decoded."""

    def __post_init__(self) -> None:
        suffice = (
            not self.compacted
            and self.timestamp_type is TimestampType.CREATE
            and self.timestamp_before_max_ms == UNBOUNDED_MS
        )
        object.__setattr__(self, "headers_suffice", suffice)


def compression_of_config(compression_type: str) -> Compression | None:
    """The codec of a topic's `compression.type`, None for `producer`."""
    return None if compression_type == PRODUCER_COMPRESSION else _CODEC_OF_CONFIG[compression_type]


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
        raise RecordsRefused(ErrorCode.INVALID_RECORD, f"the record batch has magic {magic}, {MAGIC} is needed")
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
) -> ValidatedRecords:
    """Check the batch in `records`, give it `first_offset` and `leader_epoch`, and return it.

    `records` is modified, and is the result's buffer unless the batch was recompressed. `from_client` is false for
    batches of the broker's own coordinators: their control bit, offsets, counts and sequences are not checked. Raises
    `RecordsRefused`, or `CorruptRecord` for malformed bytes.
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
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD, f"the base offset of a produced batch is 0, this one has {base_offset}"
        )
    if length + LOG_OVERHEAD > rules.max_message_bytes:
        raise _too_large(length + LOG_OVERHEAD, rules.max_message_bytes)
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
        or not rules.headers_suffice
        or codec_id > _LAST_CODEC
        or attributes & TIMESTAMP_TYPE_BIT
        or not base_timestamp <= max_timestamp <= now_ms + rules.timestamp_after_max_ms
    ):
        buf, header = _adapt(buf, BatchHeader(*header), rules, now_ms, recompress)
        length, max_timestamp = header.batch_length, header.max_timestamp
        if rules.timestamp_type is TimestampType.LOG_APPEND:
            append_time_ms = now_ms
    stamp_known(buf, 0, first_offset, length, leader_epoch)
    stamped = _new_tuple(BatchHeader, (first_offset, length, leader_epoch, *header[3:]))
    last_offset = first_offset + delta
    return _new_tuple(ValidatedRecords, (buf, stamped, max_timestamp, last_offset, append_time_ms))


def _too_large(size: int, allowed: int) -> RecordsRefused:
    return RecordsRefused(
        ErrorCode.MESSAGE_TOO_LARGE, f"the record batch has {size} bytes, max.message.bytes allows {allowed}"
    )


def _header_refused(header: BatchHeader) -> RecordsRefused:
    """The error for an invalid header from a client: its counts, the control bit, or a missing sequence number."""
    offsets = header.last_offset_delta + 1
    if offsets != header.records_count or offsets <= 0:
        message = f"the record batch spans {offsets} offsets and counts {header.records_count} records"
    elif header.is_control:
        message = "clients may not write control records"
    else:
        message = f"the batch of producer id {header.producer_id} has the sequence number {header.base_sequence}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message)


def _adapt(
    buf: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int, recompress: bool
) -> tuple[memoryview, BatchHeader]:
    """The uncommon path: check the records where the header does not suffice, then apply the topic's codec and its
    timestamp type."""
    codec_id = header.attributes & COMPRESSION_MASK
    if codec_id > _LAST_CODEC:
        raise RecordsRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec_id} is unknown")
    stamps_append_time = rules.timestamp_type is TimestampType.LOG_APPEND
    max_timestamp = header.max_timestamp
    if recompress or rules.compacted or not stamps_append_time or header.attributes & TIMESTAMP_TYPE_BIT:
        section = _section(buf, header, rules)
        max_timestamp, regular = _inspect(section, header, rules, now_ms)
        if recompress:
            buf, header = _recompress(section, regular, header, rules)
    return buf, _set_timestamps(buf, header, rules.timestamp_type, now_ms if stamps_append_time else max_timestamp)


def _section(buf: memoryview, header: BatchHeader, rules: RecordRules) -> memoryview:
    """The records, decompressed. Malformed bytes are the client's error here, not the disk's: INVALID_RECORD."""
    try:
        section, start, end = records_section(buf, 0, header, rules.max_decompressed_bytes)
    except CorruptRecord as e:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, e.message) from e
    return memoryview(section)[start:end]


def _inspect(section: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int) -> tuple[int, bool]:
    """Check each record. Returns the largest timestamp of the records, and whether the deltas are those that
    `values.encode_records` would write."""
    try:
        largest, smallest, keyless, regular = codec.survey(
            section, 0, len(section), header.records_count, header.base_timestamp
        )
    except CorruptRecord as e:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, e.message) from e
    if header.attributes & TIMESTAMP_TYPE_BIT or header.records_count == 0:
        largest = smallest = header.max_timestamp
    if (rules.compacted and keyless >= 0) or _timestamps_refused(header, rules, now_ms, smallest, largest):
        _refuse_records(decode_section(section, header), header, rules, now_ms)
    return largest, regular


def _out_of_range(rules: RecordRules, now_ms: int, timestamp: int) -> bool:
    return now_ms - timestamp > rules.timestamp_before_max_ms or timestamp - now_ms > rules.timestamp_after_max_ms


def _timestamps_refused(header: BatchHeader, rules: RecordRules, now_ms: int, smallest: int, largest: int) -> bool:
    """Whether a timestamp may be invalid. May be true without an invalid one; `_refuse_records` checks each record."""
    if rules.timestamp_type is TimestampType.LOG_APPEND:
        return header.attributes & TIMESTAMP_TYPE_BIT != 0
    if largest == NO_TIMESTAMP and header.attributes & TIMESTAMP_TYPE_BIT:
        return True
    return _out_of_range(rules, now_ms, smallest) or _out_of_range(rules, now_ms, largest)


def _refuse_records(records: list[Record], header: BatchHeader, rules: RecordRules, now_ms: int) -> None:
    """Raise `RecordsRefused` if any record is invalid. A missing key comes before an invalid timestamp."""
    errors = []
    code = ErrorCode.INVALID_RECORD
    claims_append_time = header.attributes & TIMESTAMP_TYPE_BIT != 0
    for index, record in enumerate(records):
        if rules.compacted and record.key is None:
            errors.append(RecordError(index, "a compacted topic takes no record without a key"))
        elif rules.timestamp_type is TimestampType.CREATE and record.timestamp != NO_TIMESTAMP:
            if _out_of_range(rules, now_ms, record.timestamp):
                code = ErrorCode.INVALID_TIMESTAMP
                earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
                errors.append(RecordError(index, f"timestamp {record.timestamp} is not within [{earliest}, {latest}]"))
        elif claims_append_time:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append(RecordError(index, "only the broker may set the timestamp type LogAppendTime"))
    if not errors:
        return
    if code is ErrorCode.INVALID_TIMESTAMP:
        message = "one or more records have an invalid timestamp"
    else:
        shown = "; ".join(f"record {e.batch_index}: {e.message}" for e in errors[:_SHOWN_ERRORS])
        message = f"{len(errors)} records are refused, the first: {shown}"
    raise RecordsRefused(code, message, errors)


def _recompress(
    section: memoryview, regular: bool, header: BatchHeader, rules: RecordRules
) -> tuple[memoryview, BatchHeader]:
    """The batch in the topic's codec. With `regular` deltas the records are not encoded again."""
    assert rules.compression is not None
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | rules.compression
    changed = header._replace(attributes=attributes)
    if regular and not header.attributes & TIMESTAMP_TYPE_BIT:
        plain = bytearray(HEADER_SIZE) + section
    else:
        rows = [(r.timestamp, r.key, r.value, r.headers) for r in decode_section(section, header)]
        changed = changed._replace(base_timestamp=rows[0][0])
        plain, _ = values.encode_records(rows, HEADER_SIZE, 0, rows[0][0], False)
    packed = seal(plain, changed, rules.compression_level)
    if len(packed) > rules.max_message_bytes:
        raise _too_large(len(packed), rules.max_message_bytes)
    return memoryview(packed), read_header(packed)


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
