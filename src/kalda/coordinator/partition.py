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

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending, Reentrancy
from kalda.coordinator.answers import write_error
from kalda.coordinator.shard import Rec, Shard
from kalda.statemachine.runtime import Prepared, ReplayFault, ReplicatedRuntime, Result
from kalda.statemachine.timeline import LATEST, SnapshotRegistry
from kalda.storage.log.producer_state import Verification
from kalda.storage.values import TransactionEnd

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
