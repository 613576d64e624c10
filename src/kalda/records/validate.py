"""What a leader demands of a batch before it appends it, and what it writes into it.

The common path reads the header, checks the CRC, and stamps offset and leader epoch in place: no record is looked at.
Records are decoded only where the header cannot answer: a compacted topic (every record needs a key), a bound on old
timestamps (the header has no minimum), a batch whose timestamps seem out of range (the client is told which records),
and a topic whose `compression.type` differs from the producer's.

The checks, their order and their error codes are those of Kafka's produce path for magic 2. A client's batch:
exactly one in the partition's bytes, base offset 0, as many records as offsets, no control batch, and a sequence
number where there is a producer id. Bytes behind the batch that cannot be a batch of their own are cut off.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.records import codec
from kalda.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    check_crc,
    read_header,
    stamp,
    write_crc,
)
from kalda.records.builder import Record, decode_section, records_section, seal
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression

UNBOUNDED_MS: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms`: as old as one likes."""

PRODUCER_COMPRESSION: Final = "producer"
"""The default of a topic's `compression.type`: keep the producer's codec."""

_CODEC_OF_CONFIG: Final = {codec.config_name: codec for codec in Compression} | {"none": Compression.NONE}
_LENGTH = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_MIN_BATCH_LENGTH: Final = 14
_SHOWN_ERRORS: Final = 3


class RecordError(NamedTuple):
    """One record that was refused, by its index in the batch, for `ProduceResponse.record_errors`."""

    batch_index: int
    message: str


class RecordsRefused(ApiError):
    """A batch that is not appended. `record_errors` names the records where single ones are to blame (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError] | None = None) -> None:
        super().__init__(code, message)
        self.record_errors: list[RecordError] = record_errors or []


class ValidatedRecords(NamedTuple):
    """A batch ready to be appended: offset, leader epoch and, where it had to be, timestamps and codec are in place."""

    records: memoryview
    header: BatchHeader
    max_timestamp: int
    offset_of_max_timestamp: int
    """What the time index notes: the batch's last offset, since the header does not say which record it was."""
    log_append_time_ms: int
    """-1 where timestamps are the producer's."""
    recompressed: bool


class RecordRules(NamedTuple):
    """A topic's configuration, as far as it bears on a produced batch. Made once a configuration, not a request."""

    compression: Compression | None = None
    """The codec that the topic demands; None: the producer's."""
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    max_message_bytes: int = 1_048_588
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


def compression_of_config(compression_type: str) -> Compression | None:
    """The codec that a topic's `compression.type` demands, None for `producer`."""
    return None if compression_type == PRODUCER_COMPRESSION else _CODEC_OF_CONFIG[compression_type]


def check_single_batch(buf: bytes | bytearray | memoryview, *, zstd_allowed: bool = True) -> int:
    """The size of the one batch in `buf`; what follows it is not a batch and is to be cut off.

    Raises `RecordsRefused` with INVALID_RECORD for none, several, or an older magic (Produce 3 and later carry exactly
    one of magic 2 in each partition), UNSUPPORTED_COMPRESSION_TYPE for zstd in a Produce request before version 7
    (KIP-110); `CorruptRecord` for a length or magic that no batch has.
    """
    size = _whole_batch(buf, 0)
    if size < 0:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, "a produce request needs one record batch in each partition")
    magic = buf[MAGIC_POSITION]
    if magic != MAGIC:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, f"the record batch has magic {magic}, {MAGIC} is needed")
    if not zstd_allowed and buf[ATTRIBUTES_POSITION + 1] & COMPRESSION_MASK == Compression.ZSTD:
        raise RecordsRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 or later of the produce request"
        )
    if size != len(buf) and _whole_batch(buf, size) >= 0:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD, "a produce request takes one record batch in each partition, this has several"
        )
    return size


def _whole_batch(buf: bytes | bytearray | memoryview, pos: int) -> int:
    """The size of the batch at `pos`, -1 where there is no whole one."""
    left = len(buf) - pos
    if left <= MAGIC_POSITION:
        return -1
    (length,) = _LENGTH.unpack_from(buf, pos + 8)
    if length < _MIN_BATCH_LENGTH:
        raise CorruptRecord(f"a record batch says it is {length} bytes long")
    if buf[pos + MAGIC_POSITION] > MAGIC:
        raise CorruptRecord(f"a record batch has magic {buf[pos + MAGIC_POSITION]}")
    size: int = length + LOG_OVERHEAD
    return size if size <= left else -1


def validate_produced(
    records: bytearray | memoryview,
    rules: RecordRules,
    *,
    first_offset: int,
    leader_epoch: int,
    now_ms: int,
    from_client: bool = True,
    zstd_allowed: bool = True,
) -> ValidatedRecords:
    """Check the batch in `records`, give it `first_offset` and `leader_epoch`, and return it.

    `records` is written to, and is the result's buffer unless the batch was recompressed. `from_client` is false for
    the broker's own coordinators, whose control batches and offsets are trusted. Raises `RecordsRefused`, or
    `CorruptRecord` for bad bytes.
    """
    size = check_single_batch(records, zstd_allowed=zstd_allowed)
    buf = memoryview(records)
    if size != len(buf):
        buf = buf[:size]
    header = read_header(buf)
    if from_client and header.base_offset != 0:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD, f"the base offset of a produced batch is 0, this one has {header.base_offset}"
        )
    if size > rules.max_message_bytes:
        raise _too_large(size, rules.max_message_bytes)
    check_crc(buf, 0, header)
    if from_client:
        _check_client_header(header)
    codec_id = header.attributes & COMPRESSION_MASK
    if codec_id > Compression.ZSTD:
        raise RecordsRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec_id} is unknown")

    recompressed = rules.compression is not None and rules.compression != codec_id and not header.is_control
    max_timestamp = header.max_timestamp
    if recompressed:
        section = _section(buf, header, rules)
        max_timestamp, regular = _inspect(section, header, rules, now_ms)
        buf, header = _recompress(section, regular, header, rules)
    elif _needs_inspection(header, rules, now_ms):
        max_timestamp, _ = _inspect(_section(buf, header, rules), header, rules, now_ms)
    append_time_ms = NO_TIMESTAMP
    if rules.timestamp_type is TimestampType.LOG_APPEND:
        max_timestamp = append_time_ms = now_ms
    header = _set_timestamps(buf, header, rules.timestamp_type, max_timestamp)
    stamp(buf, 0, first_offset, leader_epoch)
    header = header._replace(base_offset=first_offset, partition_leader_epoch=leader_epoch)
    return ValidatedRecords(buf, header, max_timestamp, header.last_offset, append_time_ms, recompressed)


def _too_large(size: int, allowed: int) -> RecordsRefused:
    return RecordsRefused(
        ErrorCode.MESSAGE_TOO_LARGE, f"the record batch has {size} bytes, max.message.bytes allows {allowed}"
    )


def _check_client_header(header: BatchHeader) -> None:
    """Counts that agree, no control batch, a sequence number beside a producer id."""
    offsets = header.last_offset_delta + 1
    if offsets <= 0 or header.records_count <= 0 or offsets != header.records_count:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"the record batch spans {offsets} offsets and counts {header.records_count} records",
        )
    if header.is_control:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch of producer id {header.producer_id} has the sequence number {header.base_sequence}",
        )


def _needs_inspection(header: BatchHeader, rules: RecordRules, now_ms: int) -> bool:
    """True where the header cannot vouch for its records."""
    if rules.compacted:
        return True
    if rules.timestamp_type is TimestampType.LOG_APPEND:
        return header.attributes & TIMESTAMP_TYPE_BIT != 0
    return (
        rules.timestamp_before_max_ms != UNBOUNDED_MS
        or header.max_timestamp - now_ms > rules.timestamp_after_max_ms
        or header.max_timestamp < NO_TIMESTAMP
    )


def _section(buf: memoryview, header: BatchHeader, rules: RecordRules) -> memoryview:
    """The records, decompressed. What cannot be is the client's fault, not the disk's: INVALID_RECORD."""
    try:
        section, start, end = records_section(buf, 0, header, rules.max_decompressed_bytes)
    except CorruptRecord as e:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, e.message) from e
    return memoryview(section)[start:end]


def _inspect(section: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int) -> tuple[int, bool]:
    """Check each record; returns the true largest timestamp, and whether the deltas are those of a fresh batch."""
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
    """A quick answer that may err towards True; `_refuse_records` then looks at each record."""
    if rules.timestamp_type is TimestampType.LOG_APPEND:
        return header.attributes & TIMESTAMP_TYPE_BIT != 0
    if largest == NO_TIMESTAMP and header.attributes & TIMESTAMP_TYPE_BIT:
        return True
    return _out_of_range(rules, now_ms, smallest) or _out_of_range(rules, now_ms, largest)


def _refuse_records(records: list[Record], header: BatchHeader, rules: RecordRules, now_ms: int) -> None:
    """Raise `RecordsRefused` if any record is at fault. A record without a key is told that before its timestamp."""
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
    """The batch in the topic's codec. Its records keep their bytes where their deltas are the ones to be written."""
    assert rules.compression is not None
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | rules.compression
    changed = header._replace(attributes=attributes)
    if regular:
        plain = bytearray(HEADER_SIZE) + section
    else:
        rows = [(r.timestamp, r.key, r.value, r.headers) for r in decode_section(section, header)]
        changed = changed._replace(base_timestamp=rows[0][0])
        plain, _ = codec.encode_records(rows, HEADER_SIZE, 0, rows[0][0], False)
    packed = seal(plain, changed, rules.compression_level)
    if len(packed) > rules.max_message_bytes:
        raise _too_large(len(packed), rules.max_message_bytes)
    return memoryview(packed), read_header(packed)


def _set_timestamps(
    buf: memoryview, header: BatchHeader, timestamp_type: TimestampType, max_timestamp: int
) -> BatchHeader:
    """Write timestamp type and largest timestamp, and the CRC that covers them, if they are not there already."""
    attributes = header.attributes & ~TIMESTAMP_TYPE_BIT
    if timestamp_type is TimestampType.LOG_APPEND:
        attributes |= TIMESTAMP_TYPE_BIT
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return header
    _INT16.pack_into(buf, ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(buf, MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = write_crc(buf, 0, header.size_bytes)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)
