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

from array import array
from dataclasses import dataclass, field
from enum import Enum
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
    write_header,
)
from kalda.records.builder import read_records, seal
from kalda.records.checksum import crc32c
from kalda.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Buffer,
    Compression,
    PackedTooLarge,
    Packer,
    unfold,
    unfold_small,
)
from kalda.records.scan import RecordScan

UNBOUNDED_MS: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms`: as old as one likes."""

PRODUCER_COMPRESSION: Final = "producer"
"""The default of a topic's `compression.type`: keep the producer's codec."""

_CODEC_OF_CONFIG: Final = {codec.config_name: codec for codec in Compression} | {"none": Compression.NONE}
_LENGTH = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_SHOWN_ERRORS: Final = 3
_LEAST_INT64: Final = -(2**63)
_LARGEST_INT64: Final = 2**63 - 1
_MAX_REBUILT: Final = 10_000
_LEAST_COST_BYTES: Final = 4096
"""What the smallest piece counts in a budget: pieces of a few bytes take their time too."""

_SMALL_BYTES: Final = 32 * 1024
_SMALL_UNFOLDED_BYTES: Final = 128 * 1024
MAX_RECORD_ERRORS: Final = 100
"""So many refused records are named in an answer, however many a batch has."""

READ_AT_ONCE_BYTES: Final = 1024 * 1024
"""Records of so many bytes are read where the request is handled, in some 3 ms at most; more of them on a thread."""
_LAST_CODEC: Final = int(Compression.ZSTD)
_new_tuple = tuple.__new__


class ReadRecords(Enum):
    """The values of `kalda.validate.records`."""

    ALL = "all"
    UNCOMPRESSED = "uncompressed"
    NONE = "none"


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
    last_offset: int
    """Also what the time index notes for `max_timestamp`: the header does not say which record has it."""
    log_append_time_ms: int
    """-1 where timestamps are the producer's."""


@dataclass(frozen=True, slots=True)
class RecordRules:
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
    read: ReadRecords = ReadRecords.ALL
    """`kalda.validate.records`: which batches of clients are read even where their headers would suffice."""
    reads: tuple[bool, ...] = field(init=False)
    """By codec id: whether the records of clients are read, because of `read` or because of a rule that no header can
    answer for: keys in a compacted topic, and a bound on old timestamps."""

    def time_bounds(self, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest timestamp that a record may have."""
        return max(_LEAST_INT64, now_ms - self.timestamp_before_max_ms), min(
            _LARGEST_INT64, now_ms + self.timestamp_after_max_ms
        )

    def __post_init__(self) -> None:
        demanded = self.compacted or self.timestamp_before_max_ms != UNBOUNDED_MS
        packed = demanded or self.read is ReadRecords.ALL
        plain = demanded or self.read is not ReadRecords.NONE
        object.__setattr__(self, "reads", (plain, *[packed] * COMPRESSION_MASK))


def compression_of_config(compression_type: str) -> Compression | None:
    """The codec that a topic's `compression.type` demands, None for `producer`."""
    return None if compression_type == PRODUCER_COMPRESSION else _CODEC_OF_CONFIG[compression_type]


def check_single_batch(buf: bytes | bytearray | memoryview) -> int:
    """The size of the one batch in `buf`; what follows it is not a batch and is to be cut off.

    Raises `RecordsRefused` with INVALID_RECORD for none, several, or an older magic (Produce 3 and later carry exactly
    one of magic 2 in each partition); `CorruptRecord` for a length or magic that no batch has.
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
    """The size of the batch at `pos`, -1 where there is no whole one."""
    left = len(buf) - pos
    if left < LOG_OVERHEAD:
        return -1
    (length,) = _LENGTH.unpack_from(buf, pos + 8)
    if length < MIN_BATCH_LENGTH:
        raise CorruptRecord(f"a record batch says it is {length} bytes long")
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
    reading: Reading | None = None,
) -> ValidatedRecords:
    """Check the batch in `records`, give it `first_offset` and `leader_epoch`, and return it.

    `records` is written to, and is the result's buffer unless the batch was recompressed. `from_client` is false for
    the broker's own coordinators, whose control batches and offsets are trusted. Raises `RecordsRefused`, or
    `CorruptRecord` for bad bytes; `Unfinished` for a batch that takes long to read, which is to be given again with
    that `reading` when it is done.
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
        or rules.timestamp_type
        or codec_id > _LAST_CODEC
        or attributes & TIMESTAMP_TYPE_BIT
        or not base_timestamp <= max_timestamp <= now_ms + rules.timestamp_after_max_ms
        or (rules.reads[codec_id] and from_client and not _is_sound(buf, header, rules, now_ms))
    ):
        buf, header = _adapt(buf, BatchHeader(*header), rules, now_ms, recompress, reading)
        length, max_timestamp = header.batch_length, header.max_timestamp
        if rules.timestamp_type is TimestampType.LOG_APPEND:
            append_time_ms = now_ms
    stamp_known(buf, 0, first_offset, length, leader_epoch)
    stamped = _new_tuple(BatchHeader, (first_offset, length, leader_epoch, *header[3:]))
    last_offset = first_offset + delta
    return _new_tuple(ValidatedRecords, (buf, stamped, max_timestamp, last_offset, append_time_ms))


def _is_sound(buf: memoryview, header: tuple[int, ...], rules: RecordRules, now_ms: int) -> bool:
    """The common case in few calls: a batch of moderate size with CreateTime, and all is as its header and the rules
    say. Where it is not, `Reading` finds out why; also where the records are so many that a thread should read them."""
    _, length, _, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = header
    codec_id = attributes & COMPRESSION_MASK
    try:
        if codec_id:
            if length > _SMALL_BYTES:
                return False
            section = unfold_small(Compression(codec_id), buf[HEADER_SIZE:], _SMALL_UNFOLDED_BYTES)
            if section is None:
                return False
            found = codec.survey(section, 0, len(section), count, base_timestamp)
        elif length > READ_AT_ONCE_BYTES:
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


def _too_large(size: int, allowed: int) -> RecordsRefused:
    return RecordsRefused(
        ErrorCode.MESSAGE_TOO_LARGE, f"the record batch has {size} bytes, max.message.bytes allows {allowed}"
    )


def _header_refused(header: BatchHeader) -> RecordsRefused:
    """Says what is wrong with a client's header: its counts, the control bit, or no sequence for a producer id."""
    offsets = header.last_offset_delta + 1
    if offsets != header.records_count or offsets <= 0:
        message = f"the record batch spans {offsets} offsets and counts {header.records_count} records"
    elif header.is_control:
        message = "clients may not write control records"
    else:
        message = f"the batch of producer id {header.producer_id} has the sequence number {header.base_sequence}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message)


def _adapt(
    buf: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int, recompress: bool, reading: Reading | None
) -> tuple[memoryview, BatchHeader]:
    """Read the records where the rules ask for it, recompress them and rewrite timestamps as the topic has it."""
    codec_id = header.attributes & COMPRESSION_MASK
    if codec_id > _LAST_CODEC:
        raise RecordsRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec_id} is unknown")
    appends_time = rules.timestamp_type is TimestampType.LOG_APPEND
    largest = header.max_timestamp
    if recompress or rules.reads[codec_id] or not appends_time or header.attributes & TIMESTAMP_TYPE_BIT:
        if reading is None:
            reading = Reading(buf, header, rules, now_ms, recompress)
        if not reading.run(READ_AT_ONCE_BYTES):
            raise Unfinished(reading)
        largest = reading.largest_timestamp
        if reading.packed is not None:
            buf, header = reading.packed
    return buf, _set_timestamps(buf, header, rules.timestamp_type, now_ms if appends_time else largest)


class Unfinished(Exception):
    """The batch takes long to read: nothing was appended. `reading.run()` belongs on a thread; then the batch is
    validated again, with the reading."""

    def __init__(self, reading: Reading) -> None:
        super().__init__("the batch takes long to read")
        self.reading = reading


class Reading:
    """One pass over the records of one batch of a client: decompressed piece by piece, checked by a compiled scan and,
    where the topic has another codec, compressed again. It may be continued on another thread, but not by two at once.

    What is refused is kept and raised by each later `run`: an outcome does not depend on where it was found.
    """

    __slots__ = (
        "_buf",
        "_faults",
        "_header",
        "_now_ms",
        "_packer",
        "_pieces",
        "_refusal",
        "_rules",
        "_scan",
        "done",
        "largest_timestamp",
        "packed",
    )

    def __init__(self, buf: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int, recompress: bool) -> None:
        self._buf = buf
        self._header = header
        self._rules = rules
        self._now_ms = now_ms
        self._refusal: RecordsRefused | None = None
        self._faults = array("q", bytes(16 * MAX_RECORD_ERRORS))
        own_times = rules.timestamp_type is TimestampType.CREATE and not header.attributes & TIMESTAMP_TYPE_BIT
        earliest, latest = rules.time_bounds(now_ms) if own_times else (_LEAST_INT64, _LARGEST_INT64)
        self._scan = RecordScan(
            header.records_count, header.base_timestamp, earliest, latest, rules.compacted, self._faults
        )
        section = buf[HEADER_SIZE : header.size_bytes]
        codec_id = header.attributes & COMPRESSION_MASK
        self._pieces = unfold(Compression(codec_id), section, rules.max_decompressed_bytes)
        self._packer: Packer | None = None
        if recompress:
            assert rules.compression is not None
            allowed = rules.max_message_bytes - HEADER_SIZE
            self._packer = Packer(rules.compression, rules.compression_level, allowed)
        self.done = False
        self.largest_timestamp = NO_TIMESTAMP
        """Set when done: the largest timestamp of a record, or the header's where that is every record's."""
        self.packed: tuple[memoryview, BatchHeader] | None = None
        """Set when done: the batch in the topic's codec, where it had another one."""

    def run(self, budget_bytes: int | None = None) -> bool:
        """Go on until some `budget_bytes` of records have been read, or to the end; whether it is the end. Raises
        `RecordsRefused`."""
        if self._refusal is not None:
            raise self._refusal
        if self.done:
            return True
        try:
            return self._run(_LARGEST_INT64 if budget_bytes is None else budget_bytes)
        except CorruptRecord as error:
            # What cannot be read is the client's fault and not the disk's.
            self._refusal = RecordsRefused(ErrorCode.INVALID_RECORD, error.message)
        except PackedTooLarge:
            self._refusal = _too_large(self._rules.max_message_bytes + 1, self._rules.max_message_bytes)
        except RecordsRefused as error:
            self._refusal = error
        raise self._refusal

    def _run(self, left: int) -> bool:
        scan, packer = self._scan, self._packer
        for piece in self._pieces:
            scan.feed(piece)
            if packer is not None:
                packer.feed(piece)
            left -= max(len(piece), _LEAST_COST_BYTES)
            if left <= 0:
                return False
        scan.finish()
        self._judge(*scan.result())
        if packer is not None:
            has_own_times = not self._header.attributes & TIMESTAMP_TYPE_BIT
            self.packed = self._sealed(packer.finish()) if has_own_times else self._rebuilt()
        self.done = True
        return True

    def _judge(self, largest: int, smallest: int, misplaced: int, faulty: int) -> None:
        header, rules = self._header, self._rules
        if misplaced >= 0:
            raise _misplaced(misplaced)
        noted = [(self._faults[2 * at], self._faults[2 * at + 1]) for at in range(min(faulty, MAX_RECORD_ERRORS))]
        errors = [_fault(index, timestamp, rules, self._now_ms) for index, timestamp in noted]
        late = any(timestamp != NO_TIMESTAMP for _, timestamp in noted)
        if header.attributes & TIMESTAMP_TYPE_BIT and (why := _stamped_wrongly(header, rules, self._now_ms)):
            keyless = {error.batch_index: error for error in errors}
            late, faulty = faulty < header.records_count, header.records_count
            errors = [keyless.get(at) or RecordError(at, why) for at in range(min(faulty, MAX_RECORD_ERRORS))]
        if errors:
            raise _records_refused(errors, faulty, late)
        self.largest_timestamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else largest

    def _sealed(self, pieces: list[Buffer]) -> tuple[memoryview, BatchHeader]:
        """The batch in the topic's codec; base timestamp and deltas stay."""
        size = HEADER_SIZE + sum(map(len, pieces))
        if size > self._rules.max_message_bytes:
            raise _too_large(size, self._rules.max_message_bytes)
        assert self._rules.compression is not None
        attributes = self._header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | self._rules.compression
        out = bytearray(HEADER_SIZE)
        for piece in pieces:
            out += piece
        write_header(out, 0, self._header._replace(attributes=attributes, batch_length=size - LOG_OVERHEAD))
        return memoryview(out), read_header(out)

    def _rebuilt(self) -> tuple[memoryview, BatchHeader]:
        """As `_sealed`, of a batch by whose header all records have its largest timestamp: as in Kafka, that becomes
        their own. No client is known to write such batches, so their size is bounded."""
        header, rules = self._header, self._rules
        assert rules.compression is not None
        if header.records_count > _MAX_REBUILT:
            raise RecordsRefused(
                ErrorCode.INVALID_RECORD,
                f"a batch with LogAppendTime is compressed anew only up to {_MAX_REBUILT} records, not "
                f"{header.records_count}",
            )
        attributes = header.attributes & ~(COMPRESSION_MASK | TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)
        rows = read_records(self._buf, 0, header, max_bytes=rules.max_decompressed_bytes)
        plain, _ = values.encode_records(
            [(row.timestamp, row.key, row.value, row.headers) for row in rows], HEADER_SIZE, 0, rows[0].timestamp, False
        )
        sealed = seal(
            plain,
            header._replace(attributes=attributes | rules.compression, base_timestamp=rows[0].timestamp),
            rules.compression_level,
        )
        if len(sealed) > rules.max_message_bytes:
            raise _too_large(len(sealed), rules.max_message_bytes)
        return memoryview(sealed), read_header(sealed)


def _misplaced(index: int) -> RecordsRefused:
    return RecordsRefused(ErrorCode.INVALID_RECORD, f"the offset delta of record {index} is not {index}")


def _fault(index: int, timestamp: int, rules: RecordRules, now_ms: int) -> RecordError:
    if timestamp == NO_TIMESTAMP:
        return RecordError(index, "a compacted topic takes no record without a key")
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    return RecordError(index, f"timestamp {timestamp} is not within [{earliest}, {latest}]")


def _stamped_wrongly(header: BatchHeader, rules: RecordRules, now_ms: int) -> str:
    """Why a client's batch may not say LogAppendTime, by which `max_timestamp` is every record's; "" where it may."""
    timestamp = header.max_timestamp
    if rules.timestamp_type is TimestampType.LOG_APPEND or timestamp == NO_TIMESTAMP:
        return "only the broker may set the timestamp type LogAppendTime"
    earliest, latest = rules.time_bounds(now_ms)
    return "" if earliest <= timestamp <= latest else _fault(0, timestamp, rules, now_ms).message


def _records_refused(errors: list[RecordError], count: int, late: bool) -> RecordsRefused:
    """`errors` are the first of `count` refused records."""
    if late:
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, "one or more records have an invalid timestamp", errors)
    shown = "; ".join(f"record {e.batch_index}: {e.message}" for e in errors[:_SHOWN_ERRORS])
    return RecordsRefused(ErrorCode.INVALID_RECORD, f"{count} records are refused, the first: {shown}", errors)


def _set_timestamps(
    buf: memoryview, header: BatchHeader, timestamp_type: TimestampType, max_timestamp: int
) -> BatchHeader:
    """Write timestamp type and largest timestamp, and the CRC that covers them, if they are not there already."""
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
