"""The checks of a leader on a produced batch before the append, and the fields that it writes into the batch.

The checks, their order and their error codes are those of Kafka's produce path for magic 2. The rules for a client's
batch: exactly one in the partition's bytes, base offset 0, as many records as offsets, no control batch, and a sequence
number where there is a producer id. Bytes after the batch that are too few for another batch are cut off.

Then the records are checked, as `kalda.validate.records` says: a batch is stored only if its records are those that its
header describes. The common case is one pass of a compiled function; everything else is the work of an `Inspection`.
After that the offset and the leader epoch are stamped in place.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode, Portable
from kalda.base.sensors import Counter
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
    crc32c,
    peek_header,
    read_header,
    stamp_known,
    write_crc,
    write_header,
)
from kalda.records.builder import read_records, seal
from kalda.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Buffer,
    Compression,
    PackedTooLarge,
    Packer,
    decompress_pieces,
    decompress_small,
)
from kalda.records.scan import RecordScan

MAX_RECORD_BYTES: Final = 2_147_483_639
"""The largest array of Java: a record of a compressed batch is not bounded further by default."""
MAX_RECORD_ERRORS: Final = 100
"""A response lists so many invalid records of a batch at most."""

CHECKED_AT_ONCE_BYTES: Final = 1024 * 1024
"""Records of so many bytes, decompressed, are checked on the event loop, which takes some 3 ms at most."""

_LEAST_COST_BYTES: Final = 4096
"""What a piece counts at least against the budget of `run`: a section may consist of pieces of a few bytes."""

_MAX_REBUILT: Final = 10_000
_SHOWN_ERRORS: Final = 3


class InspectionUnfinished(Portable, Exception):
    """The batch has too many records to check them at once, and was not appended. The caller runs `inspection.run()` on
    a thread, and then appends the batch again, with the inspection."""

    def __init__(self, inspection: Inspection) -> None:
        super().__init__("the records of the batch are not all checked")
        self.inspection = inspection


class _RecordSizes:
    """Compares the lengths of records with a bound, as the pieces of their section come, each of which has been checked
    before: only topics that set the bound pay for this loop."""

    __slots__ = ("_left", "_most", "_number", "_shift")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = 0
        """Bytes of the record that are still to come."""
        self._number = 0
        self._shift = 0

    def feed(self, piece: Buffer) -> None:
        """Raises `RecordsRefused` for a record of more bytes than the bound."""
        view, at, end = memoryview(piece), 0, len(piece)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                at += step
                self._left -= step
                continue
            byte = view[at]
            at += 1
            self._number |= (byte & 0x7F) << self._shift
            self._shift += 7
            if byte < 0x80:
                self._left = self._number >> 1  # zigzag; a negative length is malformed
                self._number = self._shift = 0
                if self._left > self._most:
                    limit = f"max.decompressed.message.bytes allows {self._most}"
                    raise RecordsRefused(
                        ErrorCode.INVALID_RECORD, f"a record has {self._left} bytes, decompressed: {limit}"
                    )


class Inspection:
    """One pass over the records of one client's batch, against its header and the topic's rules, in bounded memory.

    The records are decompressed piece by piece and checked by a compiled scan, which makes no object for a record.
    Where the topic has another codec, the pieces are compressed again on the way. Kafka's LogValidator refuses the same
    batches, with one exception: uncompressed records whose offset deltas are not 0, 1, 2 … are refused here and stored
    by Kafka. Consumers and compaction fail on such a batch.

    It can be interrupted after some bytes and continued on another thread, though no two may run it at the same time.
    Its outcome does not depend on that.

    A refusal is kept, and raised again by each later `run`.
    """

    __slots__ = (
        "_buf",
        "_faults",
        "_header",
        "_now_ms",
        "_packer",
        "_pieces",
        "_refusal",
        "_scan",
        "_sizes",
        "done",
        "largest_timestamp",
        "packed",
        "rules",
    )

    def __init__(self, buf: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int, recompress: bool) -> None:
        self._buf = buf
        self._header = header
        self.rules = rules
        self._now_ms = now_ms
        self._refusal: RecordsRefused | None = None
        self._faults = array("q", bytes(16 * MAX_RECORD_ERRORS))
        own_times = rules.timestamp_type is TimestampType.CREATE and not header.attributes & TIMESTAMP_TYPE_BIT
        earliest, latest = rules.time_bounds(now_ms) if own_times else (LEAST_INT64, LARGEST_INT64)
        self._scan = RecordScan(
            header.records_count, header.base_timestamp, earliest, latest, rules.compacted, self._faults
        )
        section = buf[HEADER_SIZE : header.size_bytes]
        codec_id = header.attributes & COMPRESSION_MASK
        self._pieces = decompress_pieces(Compression(codec_id), section, rules.max_batch_decompressed_bytes)
        bounds_records = codec_id and rules.max_record_bytes < MAX_RECORD_BYTES
        self._sizes = _RecordSizes(rules.max_record_bytes) if bounds_records else None
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
            return self._run(LARGEST_INT64 if budget_bytes is None else budget_bytes)
        except CorruptRecord as error:
            # Malformed bytes are the client's error here, not the disk's.
            self._refusal = RecordsRefused(ErrorCode.INVALID_RECORD, error.message)
        except PackedTooLarge:
            self._refusal = too_large(self.rules.max_message_bytes + 1, self.rules.max_message_bytes)
        except RecordsRefused as error:
            self._refusal = error
        raise self._refusal

    def _run(self, left: int) -> bool:
        scan, packer = self._scan, self._packer
        for piece in self._pieces:
            scan.feed(piece)
            if self._sizes is not None:
                self._sizes.feed(piece)
            if packer is not None:
                packer.feed(piece)
            left -= max(len(piece), _LEAST_COST_BYTES)
            if left <= 0:
                return False
        scan.finish()
        largest, _, misplaced, faulty = scan.result()
        self._refuse_faults(misplaced, faulty)
        self.largest_timestamp = self._header.max_timestamp if self._all_have_one_time else largest
        if packer is not None:
            self.packed = self._rebuilt() if self._all_have_one_time else self._sealed(packer.finish())
        self.done = True
        return True

    @property
    def _all_have_one_time(self) -> bool:
        """Whether `max_timestamp` of the header is every record's."""
        return bool(self._header.attributes & TIMESTAMP_TYPE_BIT)

    def _refuse_faults(self, misplaced: int, faulty: int) -> None:
        """Raise where records are refused: `misplaced` is the index of the first with a wrong offset delta, or -1;
        `faulty` counts those without a key or out of the range of timestamps, the first of which are in `_faults`."""
        header, rules = self._header, self.rules
        if misplaced >= 0:
            raise _misplaced(misplaced)
        noted = [(self._faults[2 * at], self._faults[2 * at + 1]) for at in range(min(faulty, MAX_RECORD_ERRORS))]
        errors = [_fault(index, timestamp, rules, self._now_ms) for index, timestamp in noted]
        if self._all_have_one_time and (why := _stamped_wrongly(header, rules, self._now_ms)):
            # Records without a key are listed for that, all others for the timestamp.
            keyless = {error.batch_index: error for error in errors}
            count = header.records_count
            errors = [keyless.get(at) or RecordError(at, why) for at in range(min(count, MAX_RECORD_ERRORS))]
            raise _records_refused(errors, count, has_wrong_times=faulty < count, without_key=faulty)
        if errors:
            wrong_times = sum(timestamp != NO_TIMESTAMP for _, timestamp in noted)
            without_key = len(noted) - wrong_times if wrong_times else faulty
            raise _records_refused(errors, faulty, has_wrong_times=wrong_times > 0, without_key=without_key)

    def _sealed(self, pieces: list[Buffer]) -> tuple[memoryview, BatchHeader]:
        """The batch in the topic's codec; base timestamp and deltas stay."""
        size = HEADER_SIZE + sum(map(len, pieces))
        if size > self.rules.max_message_bytes:
            raise too_large(size, self.rules.max_message_bytes)
        assert self.rules.compression is not None
        attributes = self._header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | self.rules.compression
        out = bytearray(HEADER_SIZE)
        for piece in pieces:
            out += piece
        write_header(out, 0, self._header._replace(attributes=attributes, batch_length=size - LOG_OVERHEAD))
        return memoryview(out), read_header(out)

    def _rebuilt(self) -> tuple[memoryview, BatchHeader]:
        """As `_sealed`, of a batch by whose header all records have its largest timestamp: as in Kafka, that becomes
        their own. No client is known to write such batches, so their size is bounded."""
        header, rules = self._header, self.rules
        assert rules.compression is not None
        if header.records_count > _MAX_REBUILT:
            raise RecordsRefused(
                ErrorCode.INVALID_RECORD,
                f"a batch with LogAppendTime is compressed anew only up to {_MAX_REBUILT} records, not "
                f"{header.records_count}",
            )
        attributes = header.attributes & ~(COMPRESSION_MASK | TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)
        rows = read_records(self._buf, 0, header, max_bytes=rules.max_batch_decompressed_bytes)
        plain, _ = values.encode_records(
            [(row.timestamp, row.key, row.value, row.headers) for row in rows], HEADER_SIZE, 0, rows[0].timestamp, False
        )
        sealed = seal(
            plain,
            header._replace(attributes=attributes | rules.compression, base_timestamp=rows[0].timestamp),
            rules.compression_level,
        )
        if len(sealed) > rules.max_message_bytes:
            raise too_large(len(sealed), rules.max_message_bytes)
        return memoryview(sealed), read_header(sealed)


def _misplaced(index: int) -> RecordsRefused:
    message = f"the offset delta of record {index} is not {index}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message, invalid=(Invalid.OFFSET_OR_SEQUENCE, 1))


def _fault(index: int, timestamp: int, rules: RecordRules, now_ms: int) -> RecordError:
    if timestamp == NO_TIMESTAMP:
        return RecordError(index, "a compacted topic takes no record without a key")
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    where = f"Timestamp {timestamp} of message with offset {index} is out of range"
    return RecordError(index, f"{where}. The timestamp should be within [{earliest}, {latest}]")


def _stamped_wrongly(header: BatchHeader, rules: RecordRules, now_ms: int) -> str:
    """Why a client's batch may not say LogAppendTime, by which `max_timestamp` is every record's; "" where it may."""
    timestamp = header.max_timestamp
    if rules.timestamp_type is TimestampType.LOG_APPEND or timestamp == NO_TIMESTAMP:
        return "only the broker may set the timestamp type LogAppendTime"
    earliest, latest = rules.time_bounds(now_ms)
    return "" if earliest <= timestamp <= latest else _fault(0, timestamp, rules, now_ms).message


def _records_refused(
    errors: list[RecordError], count: int, *, has_wrong_times: bool, without_key: int
) -> RecordsRefused:
    """`errors` are the first of `count` refused records, of which `without_key` have no key."""
    invalid = (Invalid.NO_KEY, without_key) if without_key else None
    if has_wrong_times:
        message = "One or more records have been rejected due to invalid timestamp"
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, errors, invalid)
    shown = "; ".join(f"record {e.batch_index}: {e.message}" for e in errors[:_SHOWN_ERRORS])
    message = f"{count} records are refused, the first: {shown}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message, errors, invalid)


UNBOUNDED_MS: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms`: no bound."""

PRODUCER_COMPRESSION: Final = "producer"
"""The default of a topic's `compression.type`: keep the producer's codec."""

LEAST_INT64: Final = -(2**63)
LARGEST_INT64: Final = 2**63 - 1
_CODEC_OF_CONFIG: Final = {codec.config_name: codec for codec in Compression} | {"none": Compression.NONE}


class ReadRecords(Enum):
    """The values of `kalda.validate.records`."""

    ALL = "all"
    UNCOMPRESSED = "uncompressed"
    NONE = "none"


class RecordError(NamedTuple):
    """One record that was refused, by its index in the batch, for `ProduceResponse.record_errors`."""

    batch_index: int
    message: str


class Invalid(Enum):
    """What is counted of refused batches, by Kafka's names of the counters."""

    MAGIC = "InvalidMagicNumberRecordsPerSec"
    CRC = "InvalidMessageCrcRecordsPerSec"
    OFFSET_OR_SEQUENCE = "InvalidOffsetOrSequenceRecordsPerSec"
    NO_KEY = "NoKeyCompactedTopicRecordsPerSec"


class RecordsRefused(ApiError):
    """A batch that is not appended. `record_errors` lists the invalid records, where single records are (KIP-467);
    `invalid` says what is counted, and how often."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        record_errors: list[RecordError] | None = None,
        invalid: tuple[Invalid, int] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.record_errors: list[RecordError] = record_errors or []
        self.invalid = invalid


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
    max_record_bytes: int = MAX_RECORD_BYTES
    """Of one record in a compressed batch, without its length (`max.decompressed.message.bytes`)."""
    max_batch_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    """Of all records of a batch. No config: 64 times `max.message.bytes`, from 64 to 256 MiB (`storage/config.py`)."""
    checks_config: ReadRecords = ReadRecords.ALL
    """`kalda.validate.records`: the batches of clients whose records are checked even where the header suffices."""
    conversions: Counter = field(default_factory=Counter, compare=False)
    """Counts the records of batches that are compressed anew."""
    checks_codec: tuple[bool, ...] = field(init=False)
    """By codec id: whether the records of a client's batch are checked, because of `checks_config`, or because of a
    rule that needs each record: keys in a compacted topic, a bound on old timestamps."""

    def time_bounds(self, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest timestamp that a record may have."""
        return max(LEAST_INT64, now_ms - self.timestamp_before_max_ms), min(
            LARGEST_INT64, now_ms + self.timestamp_after_max_ms
        )

    def __post_init__(self) -> None:
        demanded = self.compacted or self.timestamp_before_max_ms != UNBOUNDED_MS
        packed = demanded or self.checks_config is ReadRecords.ALL or self.max_record_bytes < MAX_RECORD_BYTES
        plain = demanded or self.checks_config is not ReadRecords.NONE
        object.__setattr__(self, "checks_codec", (plain, *[packed] * COMPRESSION_MASK))


def compression_of_config(compression_type: str) -> Compression | None:
    """The codec of a topic's `compression.type`, None for `producer`."""
    return None if compression_type == PRODUCER_COMPRESSION else _CODEC_OF_CONFIG[compression_type]


def too_large(size_bytes: int, allowed_bytes: int) -> RecordsRefused:
    """The refusal of a batch of more than `max.message.bytes`."""
    return RecordsRefused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the record batch has {size_bytes} bytes, max.message.bytes allows {allowed_bytes}",
    )


_LENGTH = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_SMALL_BYTES: Final = 32 * 1024
_SMALL_DECOMPRESSED_BYTES: Final = 128 * 1024
_LAST_CODEC: Final = int(Compression.ZSTD)


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
        or (rules.checks_codec[codec_id] and from_client and not _is_sound(buf, header, rules, now_ms))
    ):
        buf, header = _adapt(buf, BatchHeader(*header), rules, now_ms, recompress, inspection)
        length, max_timestamp = header.batch_length, header.max_timestamp
        if rules.timestamp_type is TimestampType.LOG_APPEND:
            append_time_ms = now_ms
    stamp_known(buf, 0, first_offset, length, leader_epoch)
    stamped = new_tuple(BatchHeader, (first_offset, length, leader_epoch, *header[3:]))
    last_offset = first_offset + delta
    return new_tuple(ValidatedRecords, (buf, stamped, max_timestamp, last_offset, append_time_ms))


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
            if section is None or len(section) > rules.max_record_bytes:
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
    if recompress or rules.checks_codec[codec_id] or not appends_time or header.attributes & TIMESTAMP_TYPE_BIT:
        # The topic's config may have been altered while a thread checked the records: then they are checked again.
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
