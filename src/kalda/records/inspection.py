"""Checks the records of one client's batch against its header and the topic's rules, in bounded memory.

The records are decompressed piece by piece and checked by a compiled scan, which makes no object for a record. Where
the topic has another codec, the pieces are compressed again on the way. Kafka's LogValidator refuses the same batches,
with one exception: uncompressed records whose offset deltas are not 0, 1, 2 … are refused here and stored by Kafka.
Consumers and compaction fail on such a batch.

An inspection can be interrupted after some bytes and continued on another thread. Its outcome does not depend on that.
"""

from __future__ import annotations

from array import array
from typing import Final

from kalda.base.errors import CorruptRecord, ErrorCode, Portable
from kalda.records import values
from kalda.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    read_header,
    write_header,
)
from kalda.records.builder import read_records, seal
from kalda.records.compression import Buffer, Compression, PackedTooLarge, Packer, decompress_pieces
from kalda.records.rules import LARGEST_INT64, LEAST_INT64, Invalid, RecordError, RecordRules, RecordsRefused, too_large
from kalda.records.scan import RecordScan

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


class Inspection:
    """One pass over the records of one batch. No two threads may run it at the same time.

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
        self._pieces = decompress_pieces(Compression(codec_id), section, rules.max_decompressed_bytes)
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
        header, rules = self._header, self.rules
        if misplaced >= 0:
            raise _misplaced(misplaced)
        noted = [(self._faults[2 * at], self._faults[2 * at + 1]) for at in range(min(faulty, MAX_RECORD_ERRORS))]
        errors = [_fault(index, timestamp, rules, self._now_ms) for index, timestamp in noted]
        late = any(timestamp != NO_TIMESTAMP for _, timestamp in noted)
        without_key = sum(timestamp == NO_TIMESTAMP for _, timestamp in noted) if late else faulty
        if header.attributes & TIMESTAMP_TYPE_BIT and (why := _stamped_wrongly(header, rules, self._now_ms)):
            keyless = {error.batch_index: error for error in errors}
            late, faulty = faulty < header.records_count, header.records_count
            errors = [keyless.get(at) or RecordError(at, why) for at in range(min(faulty, MAX_RECORD_ERRORS))]
        if errors:
            raise _records_refused(errors, faulty, late, without_key)
        self.largest_timestamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else largest

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


def _records_refused(errors: list[RecordError], count: int, late: bool, without_key: int) -> RecordsRefused:
    """`errors` are the first of `count` refused records, of which `without_key` have none."""
    invalid = (Invalid.NO_KEY, without_key) if without_key else None
    if late:
        message = "One or more records have been rejected due to invalid timestamp"
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, errors, invalid)
    shown = "; ".join(f"record {e.batch_index}: {e.message}" for e in errors[:_SHOWN_ERRORS])
    message = f"{count} records are refused, the first: {shown}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message, errors, invalid)
