"""One partition of an internal topic: its shard, on the runtime of replayed state.

Epochs of the timeline are ends of the log: the state at an epoch holds everything below that offset, and a high
watermark commits the epoch of the same number.

The partition's log calls back: an append may move the high watermark before it returns, that is before the appended
records are replayed. So commits are applied by a `Reentrancy`, which waits until the write under way is complete.

Life of a partition: loading → active → closed. It is never reopened: a load that is tried again, and a partition that
this node leads again, get a new one.

Not obvious:

- An append may raise the high watermark before its records are replayed; therefore a write holds the partition's
  turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from kalda.base.background import Steps
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode, InvalidRequest
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Reentrancy
from kalda.coordinator.answers import write_error
from kalda.protocol.notation import Buffer
from kalda.protocol.record_framing import UnknownRecordType, UnknownRecordVersion
from kalda.records.batch import BatchHeader, check_crc, iter_batches
from kalda.records.builder import Record, read_records, with_range
from kalda.records.control import ControlType, read_control_type
from kalda.statemachine.runtime import Prepared, ReplayFault, ReplicatedRuntime, Result
from kalda.statemachine.timeline import LATEST, SnapshotRegistry
from kalda.storage.log.producer_state import Verification
from kalda.storage.values import TransactionEnd

# What is common to every coordinator's state: the shard, one for each partition of the internal topic.
#
# A shard holds replayed state. Records of its partition are decoded and replayed in the order of the log, both when
# the partition is loaded and when this node has just appended them; nothing else changes what is replayed. What a
# shard keeps besides (sessions, requests that wait, timers) it rebuilds in `on_loaded` and ends in `on_unloaded`.
#
# Not obvious:
#
# - `replay` calls nothing out: a response that a record makes due is sent by a timer without delay.

Rec = TypeVar("Rec")


class Shard(Protocol[Rec]):
    """The state of one partition, of whichever kind of coordinator."""

    def encode(self, record: Rec) -> tuple[bytes, bytes | None]:
        """Key and value as they are appended; no value is a tombstone."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Rec:
        """The record that these bytes hold. Raises `UnknownRecordType` for a type or version of a later release, and
        `InvalidRequest` where the bytes are malformed; while a partition is loaded, either is skipped."""
        ...

    def replay(self, record: Rec, offset: int, producer_id: int) -> None:
        """Apply one record of the log. `producer_id` is that of the transaction it belongs to, -1 outside of one.

        Called in the middle of a write: it must not call out. An answer that the record makes due is given later, by
        a timer.
        """
        ...

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker that ends the producer's transaction in this partition."""
        ...

    def on_loaded(self) -> None:
        """Every record has been replayed, and requests come from now on. Called once, before any request."""
        ...

    def on_unloaded(self) -> None:
        """This node no longer leads the partition: disarm the timers, and answer with NOT_COORDINATOR what waits for
        anything but a write. Called once, after `on_loaded`. The runtime fails the writes that wait."""
        ...

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics of the cluster were deleted, by name and id."""
        ...


R = TypeVar("R")
NO_PRODUCER = -1
_RECORDS_A_PART = 1_000
"""As many tombstones fit into a batch of max.message.bytes, even with the longest names of topics."""


class TransactionalProducer(NamedTuple):
    """The producer of a write that belongs to its transaction."""

    producer_id: int
    epoch: int
    verification: Verification | None = None
    """The guard of the verification; None where the log asked for none."""


class PartitionLog(Protocol):
    """The log of one partition that this node leads. The high watermark may move, and be reported, before a method
    returns."""

    def append(self, records: list[tuple[bytes, bytes | None]], producer: TransactionalProducer | None) -> int:
        """Append one batch of (key, value), transactional where it has a producer; the offset after the last. Raises
        `ApiError`."""
        ...

    def append_marker(self, end: TransactionEnd) -> int:
        """Append a control batch; the offset after it. Raises `ApiError`."""
        ...


class CoordinatorPartition(Generic[Rec]):
    """One partition that this node leads, and what its shard writes with."""

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        log: PartitionLog,
        make_shard: Callable[[CoordinatorPartition[Rec]], Shard[Rec]],
        on_fault: Callable[[ReplayFault], None] | None = None,
    ) -> None:
        """`on_fault` is called where a record that was appended to the log cannot be applied, and must close the
        partition: its log has what its shard lacks. With None, the write raises the fault."""
        self.index = index
        """The partition's number in its topic."""
        self.leader_epoch = leader_epoch
        """The epoch in which this node leads the partition; a later one gets another object."""
        self.is_active = False
        """Whether the partition is loaded and not closed."""
        self.load_end = 0
        """The offset after the last batch that was loaded; later ones were appended by this node."""
        self.high_watermark = 0
        """The highest that was reported. During a write it may be ahead of what the runtime has committed."""
        self.registry = SnapshotRegistry()
        """Of every timeline collection of the shard."""
        self.runtime: ReplicatedRuntime[Rec | TransactionEnd] = ReplicatedRuntime(
            self.registry, self._append, self._replay, on_fault=on_fault, not_leader=ErrorCode.NOT_COORDINATOR
        )
        self._log = log
        self._producer: TransactionalProducer | None = None
        """Of the write under way; None where it belongs to no transaction."""
        self._commits = Reentrancy(self._commit)
        self.shard = make_shard(self)

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, records: Sequence[Rec]) -> Pending[None]:
        """Append and replay; the answer comes with the commit. An append that fails has changed nothing."""
        return self.write_with(records, None)

    def write_with(self, records: Sequence[Rec], response: R) -> Pending[R]:
        """As `write`, answered with `response`. Without records it waits for the writes before it."""
        with self._commits.held():
            return self.runtime.write(lambda: Result(records, response))

    def write_now(self, records: Sequence[Rec]) -> None:
        """As `write`, whose result is not waited for. Raises `ApiError`, with the error of a client."""
        error = self.write(records).error
        if error is not None:
            raise ApiError(write_error(error.code), error.message)

    def after_commit(self, response: R) -> R | Pending[R]:
        """The response, once all that was written is committed."""
        return response if self.is_committed else self.write_with([], response)

    def write_in_transaction(self, records: Sequence[Rec], response: R, producer: TransactionalProducer) -> Pending[R]:
        """As `write_with`, as one batch of the producer's transaction."""
        outer, self._producer = self._producer, producer
        try:
            with self._commits.held():
                return self.runtime.write(lambda: Result(records, response, atomic=True))
        finally:
            self._producer = outer

    def end_transaction(self, end: TransactionEnd) -> Pending[None]:
        """Append the marker that ends a transaction here, and apply it; settles as `write` does."""
        with self._commits.held():
            return self.runtime.write(lambda: Result([end], None))

    def write_in_parts(self, records: Sequence[Rec]) -> Pending[None]:
        """As `write`, for tombstones in any number: batch after batch, so some may last without the others."""
        outcome = self.write(records[:_RECORDS_A_PART])
        for start in range(_RECORDS_A_PART, len(records), _RECORDS_A_PART):
            if outcome.error is not None:
                break
            outcome = self.write(records[start : start + _RECORDS_A_PART])
        return outcome

    def _append(self, epoch: int, records: Sequence[Rec | TransactionEnd]) -> Prepared:
        if isinstance(records[0], TransactionEnd):
            end = self._log.append_marker(records[0])
        else:
            encode = self.shard.encode
            end = self._log.append([encode(cast(Rec, record)) for record in records], self._producer)
        return Prepared(end - len(records), end)

    def _replay(self, record: Rec | TransactionEnd, offset: int) -> None:
        if isinstance(record, TransactionEnd):
            self.shard.on_transaction_end(record.producer_id, committed=record.is_commit)
        else:
            producer = self._producer
            self.shard.replay(record, offset, NO_PRODUCER if producer is None else producer.producer_id)

    # -- commits -------------------------------------------------------------------------------------------------

    def on_high_watermark(self, high_watermark: int) -> None:
        """All below `high_watermark` is committed: answer the writes that waited for it."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        self._commits.run()

    def _commit(self) -> None:
        if self.is_active and self.high_watermark > self.runtime.offsets.last_committed_offset:
            self.runtime.on_commit(self.high_watermark)

    def committed_epoch(self) -> int:
        """The epoch at which a read sees committed state only; LATEST where everything is committed."""
        return LATEST if self.is_committed else self.runtime.offsets.stable_epoch

    @property
    def is_committed(self) -> bool:
        """Whether all that was written is committed, so that nothing waits for an answer about the present state."""
        newest = self.registry.newest
        return newest is None or newest <= self.runtime.offsets.last_stable_offset

    @property
    def predecessor_hw_unknown(self) -> bool:
        """True until this node's high watermark covers all that was loaded. The former leader's may have been higher
        than this node's, so its clients may have seen any of the records loaded."""
        return self.runtime.offsets.last_stable_offset < self.load_end

    # -- the two ends --------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Everything is loaded: serve."""
        assert self.runtime.active, "the load claims the partition before it ends"
        self.is_active = True
        self._commits.run()
        self.shard.on_loaded()

    def close(self) -> None:
        """This node no longer leads: everything that waits is answered, the shard is of no use any more."""
        try:
            if self.is_active:
                self.is_active = False
                self.shard.on_unloaded()
        finally:
            self.runtime.renounce()


log = logging.getLogger(__name__)

_COMMIT_EVERY = 10_000
"""Records between two commits of the timeline, which otherwise keeps the old values of all that the load changes."""

_SKIPS_LOGGED = 100
"""Records of one load whose skipping has a log line each; of the others the number is logged at the end."""


class Load(Generic[Rec]):
    """One attempt to load a partition: its batches, from the log's start to its end, replayed into a new shard.

    The reader of the log passes the batches in slices (`replay`), then calls `finish` at the log's end, or `fail` where
    it cannot read on. The load ends exactly once, and reports it; a call after the end does nothing, so a slice that
    arrives late is never replayed into a newer shard.

    What cannot be decoded is handled by how much of the log it puts in doubt:

    - a record of an unknown type was written by a later release: it is skipped, as in Kafka;
    - a record of a known type whose value is of an unknown version fails the load, as in Kafka: it replaces an older
      value, which must not come back;
    - a record whose key or value is malformed is skipped too, with a warning. It would fail the load in Kafka. But the
      CRC proves that its batch is as it was written, and one bad record must not make a partition unloadable for ever;
    - a batch whose CRC is wrong, that cannot be parsed, or that does not follow the one before it fails the load: any
      number of records may be missing, so the state of the others would be wrong.

    Drives one partition from its creation to `activate`, or to a failure that leaves it unused.
    """

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
