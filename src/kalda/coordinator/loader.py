"""One attempt to load a partition: its batches, from the log's start to its end, replayed into a new shard.

The reader of the log passes the batches in slices (`replay`), then calls `finish` at the log's end, or `fail` where it
cannot read on. The load ends exactly once, and reports it; a call after the end does nothing, so a slice that arrives
late is never replayed into a newer shard.

What cannot be decoded is handled by how much of the log it puts in doubt:

- a record of an unknown type was written by a later release: it is skipped, as in Kafka;
- a record of a known type whose value is of an unknown version fails the load, as in Kafka: it replaces an older value,
  which must not come back;
- a record whose key or value is malformed is skipped too, with a warning. It would fail the load in Kafka. But the CRC
  proves that its batch is as it was written, and one bad record must not make a partition unloadable for ever;
- a batch whose CRC is wrong, that cannot be parsed, or that does not follow the one before it fails the load: any
  number of records may be missing, so the state of the others would be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic

from kalda.base.background import Steps
from kalda.base.errors import CorruptRecord, InvalidRequest
from kalda.coordinator.partition import NO_PRODUCER, CoordinatorPartition
from kalda.coordinator.shard import Rec
from kalda.protocol.notation import Buffer
from kalda.protocol.record_framing import UnknownRecordType, UnknownRecordVersion
from kalda.records.batch import BatchHeader, check_crc, iter_batches
from kalda.records.builder import Record, read_records, with_range
from kalda.records.control import ControlType, read_control_type

log = logging.getLogger(__name__)

_COMMIT_EVERY = 10_000
"""Records between two commits of the timeline, which otherwise keeps the old values of all that the load changes."""

_SKIPS_LOGGED = 100
"""Records of one load whose skipping has a log line each; of the others the number is logged at the end."""


class Load(Generic[Rec]):
    """Drives one partition from its creation to `activate`, or to a failure that leaves it unused."""

    def __init__(
        self, topic: str, partition: CoordinatorPartition[Rec], on_end: Callable[[Load[Rec], str | None, int], None]
    ) -> None:
        """`on_end(load, failure, now_ms)` is called once the load ends by itself; `failure` is None where it has
        succeeded. It is not called where `cancel` ends it."""
        self.partition = partition.index
        """Which partition of the topic is to be read."""
        self.leader_epoch = partition.leader_epoch
        self.has_ended = False
        self._name = f"{topic}-{partition.index}"
        self._loaded = partition
        self._on_end = on_end
        self._since_commit = 0
        """Records replayed since the timeline was last committed."""
        self._skipped = 0

    # -- what the reader of the log calls ------------------------------------------------------------------------

    def replay(self, batches: Buffer, high_watermark: int, now_ms: int) -> Steps[bool]:
        """Replay the batches of a slice, which follow those of the slice before it; one in each step. False where the
        load has ended, by this slice or meanwhile: nothing more is to be read."""
        end = 0
        try:
            for position, header in iter_batches(batches):
                if self.has_ended:
                    return False
                self._replay_batch(batches, position, header, high_watermark)
                end = position + header.size_bytes
                yield
            if end != len(batches):
                raise CorruptRecord(f"no whole batch follows offset {self._loaded.load_end - 1}")
        except (CorruptRecord, InvalidRequest) as error:
            self.fail(error.message, now_ms)
        except Exception as error:  # a fault of the shard: no one else would end this load
            log.exception("%s: a batch that begins after offset %d", self._name, self._loaded.load_end - 1)
            self.fail(f"a record cannot be applied: {error!r}", now_ms)
        return not self.has_ended

    def finish(self, high_watermark: int, now_ms: int) -> None:
        """The slices have reached the end of the log."""
        if self.has_ended:
            return
        self.has_ended = True
        if not self._loaded.runtime.active:
            self._claim()
        if self._skipped > _SKIPS_LOGGED:
            log.warning("%s: %d records in all were skipped", self._name, self._skipped)
        self._loaded.high_watermark = max(self._loaded.high_watermark, high_watermark)
        self._on_end(self, None, now_ms)

    def fail(self, reason: str, now_ms: int) -> None:
        """The log cannot be read any further."""
        if not self.has_ended:
            self.has_ended = True
            self._on_end(self, reason, now_ms)

    def cancel(self) -> None:
        """This node no longer leads the partition."""
        self.has_ended = True

    # -- batches and records -------------------------------------------------------------------------------------

    def _replay_batch(self, batches: Buffer, position: int, header: BatchHeader, high_watermark: int) -> None:
        check_crc(batches, position, header)
        header = with_range(header, batches, position)
        loaded = self._loaded
        if header.base_offset < loaded.load_end or header.last_offset_delta < 0:
            raise CorruptRecord(
                f"offsets {header.base_offset} to {header.last_offset} follow offset {loaded.load_end - 1}"
            )
        records = read_records(batches, position, header)
        if header.base_offset >= high_watermark and not loaded.runtime.active:
            # From here on the log may be taken back, so each batch has a snapshot of its own.
            self._claim()
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        replay = self._replay_control if header.is_control else self._replay_record
        for record in records:
            replay(record, producer_id)
        loaded.load_end = header.next_offset
        if loaded.runtime.active:
            span = header.next_offset - header.base_offset
            loaded.runtime.offsets.on_append(header.base_offset, span, header.next_offset)
            return
        self._since_commit += len(records)
        if self._since_commit >= _COMMIT_EVERY:
            self._commit_timeline()

    def _replay_record(self, record: Record, producer_id: int) -> None:
        shard = self._loaded.shard
        try:
            if record.key is None:
                raise InvalidRequest("it has no key")
            decoded = shard.decode(record.key, record.value)
        except UnknownRecordVersion as error:
            raise UnknownRecordVersion(f"the record at offset {record.offset}: {error.message}") from error
        except UnknownRecordType as error:
            self._skip(record.offset, f"{error.message}: it may be left over from an aborted upgrade")
        except (InvalidRequest, CorruptRecord) as error:
            self._skip(record.offset, f"it is malformed: {error.message}")
        else:
            shard.replay(decoded, record.offset, producer_id)

    def _replay_control(self, record: Record, producer_id: int) -> None:
        """The end of a transaction; control records of other types change nothing here."""
        try:
            kind = read_control_type(record.key)
        except CorruptRecord as error:
            self._skip(record.offset, f"it is malformed: {error.message}")
            return
        if producer_id >= 0 and kind in (ControlType.ABORT, ControlType.COMMIT):
            self._loaded.shard.on_transaction_end(producer_id, committed=kind is ControlType.COMMIT)

    def _skip(self, offset: int, why: str) -> None:
        self._skipped += 1
        if self._skipped <= _SKIPS_LOGGED:
            log.warning("%s: the record at offset %d is skipped: %s", self._name, offset, why)

    # -- the timeline --------------------------------------------------------------------------------------------

    def _commit_timeline(self) -> None:
        self._since_commit = 0
        if self._loaded.load_end:
            self._loaded.runtime.on_commit(self._loaded.load_end)

    def _claim(self) -> None:
        self._commit_timeline()
        self._loaded.runtime.claim(self.leader_epoch, self._loaded.load_end)
