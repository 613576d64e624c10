"""The runtime of a replayed state: write, read, commit, claim, renounce.

Life of a write:

1. the handler reads the state and computes records and a response; it changes nothing;
2. the records are appended to the log, which gives them their offsets;
3. each record is replayed at its offset: the only way in which the state ever changes, here and on every other node;
4. the response is parked at the last record's offset, and is given when the log is stable up to there.

The next handler sees the state with the uncommitted records applied, so writes need not wait for one another. Where
leadership is lost between 2 and 4, the state is reverted to what is committed and the parked answers fail: the client
sends its request to the new leader, and never sees a write that did not last.

An append that fails changes nothing and fails that write alone. A replay that fails is a fault of the program: the
state no longer is that of the log, so the exception leaves the runtime and must stop the node.

The append may call back: an owner whose log moves the commit point inside an append must not call `on_commit` before
the write is complete (`kalda.base.turn`), since the records of an answer's callback would be replayed before those of
the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.statemachine.deferred import DeferredQueue
from kalda.statemachine.offsets import OffsetControl
from kalda.statemachine.timeline import SnapshotRegistry

R = TypeVar("R")
Rec = TypeVar("Rec")

MAX_RECORDS_PER_BATCH = 10_000


@dataclass(slots=True)
class Result(Generic[Rec, R]):
    """What a handler computed."""

    records: Sequence[Rec]
    response: R
    atomic: bool = False
    """Whether all records are to be one batch, so that they are committed together or not at all. Otherwise a long
    list is cut into several batches."""

    def without_records(self) -> Result[Rec, R]:
        """The same answer with nothing written: for `validate_only` requests."""
        return Result([], self.response, self.atomic)


class Appended(NamedTuple):
    """The place of a batch. It is committed once the commit point given to `on_commit` reaches `commit_offset`."""

    first_offset: int
    commit_offset: int


class ReplicatedRuntime(Generic[Rec]):
    """One replayed state over one log. It is used by one thread."""

    __slots__ = (
        "_append",
        "_claimed_epoch",
        "_deferred",
        "_max_records_per_batch",
        "_not_leader",
        "_replay",
        "offsets",
        "registry",
    )

    def __init__(
        self,
        registry: SnapshotRegistry,
        append: Callable[[int, Sequence[Rec]], Appended],
        replay: Callable[[Rec, int], None],
        *,
        not_leader: ErrorCode,
        max_records_per_batch: int = MAX_RECORDS_PER_BATCH,
    ) -> None:
        """`append(epoch, records)` writes one batch as the leader of `epoch`, and raises `ApiError` where it cannot.
        `replay(record, offset)` applies one record. `not_leader` is the error of a write on a node that does not
        lead."""
        self.registry = registry
        self.offsets = OffsetControl(registry)
        self._append = append
        self._replay = replay
        self._not_leader = not_leader
        self._max_records_per_batch = max_records_per_batch
        self._deferred = DeferredQueue()
        """Answers that wait for their commit."""
        self._claimed_epoch: int | None = None
        """The leader epoch under which this node writes."""

    @property
    def active(self) -> bool:
        """Whether this node leads."""
        return self._claimed_epoch is not None

    @property
    def claimed_epoch(self) -> int | None:
        """The leader epoch under which this node writes, None where it does not."""
        return self._claimed_epoch

    @property
    def parked(self) -> int:
        """How many answers wait for their commit."""
        return len(self._deferred)

    def write(self, operation: Callable[[], Result[Rec, R]]) -> Pending[R]:
        """Run `operation` on the live state, append and apply its records, answer when they are committed.

        An `ApiError` out of the operation or the append fails the answer. Without records the answer still waits for
        the writes before it, since the state that it was computed from may be reverted."""
        pending: Pending[R] = Pending()
        if self._claimed_epoch is None:
            pending.fail(self._wrong_leader())
            return pending
        try:
            result = operation()
            if result.records:
                self._write_records(self._claimed_epoch, result)
        except ApiError as error:
            pending.fail(error)
            return pending
        self._park(pending, result.response)
        return pending

    def read(self, operation: Callable[[int], R]) -> Pending[R]:
        """Run `operation(epoch)` at once. It reads the collections at that epoch, the last stable one, so it sees
        committed state only. Any node may read."""
        pending: Pending[R] = Pending()
        try:
            response = operation(self.offsets.stable_epoch)
        except ApiError as error:
            pending.fail(error)
        else:
            pending.complete(response)
        return pending

    def replay_some(self, records: Sequence[Rec], first_offset: int) -> None:
        """Apply records that another node wrote, between `offsets.begin_replay` and `on_commit`. They may be of several
        batches; only the end of the last one has a snapshot. A leader has applied its own records when it appended
        them: for those `on_commit` is called alone."""
        assert not self.active, "a leader has applied its records already"
        replay = self._replay
        for offset, record in enumerate(records, first_offset):
            replay(record, offset)

    def on_commit(self, offset: int) -> None:
        """Everything up to `offset` is committed: give the answers that waited for it."""
        self.offsets.on_commit(offset)
        self._deferred.complete_up_to(self.offsets.last_stable_offset)

    def claim(self, epoch: int, next_write_offset: int) -> None:
        """This node leads from now on. Everything committed has been replayed."""
        assert self._claimed_epoch is None, f"epoch {self._claimed_epoch} was not renounced"
        self.offsets.activate(next_write_offset)
        self._claimed_epoch = epoch

    def renounce(self, error: ApiError | None = None) -> None:
        """This node no longer leads: revert what is not committed, then fail every parked answer. In this order, so
        that the callbacks of the answers see the reverted state."""
        if self._claimed_epoch is None:
            return
        self._claimed_epoch = None
        self.offsets.deactivate()
        self._deferred.fail_all(error or self._wrong_leader())

    def _write_records(self, epoch: int, result: Result[Rec, R]) -> None:
        records, limit = result.records, self._max_records_per_batch
        if len(records) <= limit:
            self._write_batch(epoch, records)
            return
        if result.atomic:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{len(records)} records must be written at once, but a batch holds {limit} at most",
            )
        for start in range(0, len(records), limit):
            self._write_batch(epoch, records[start : start + limit])

    def _write_batch(self, epoch: int, records: Sequence[Rec]) -> None:
        appended = self._append(epoch, records)
        for at, record in enumerate(records):
            self._replay(record, appended.first_offset + at)
        self.offsets.on_append(appended.first_offset, len(records), appended.commit_offset)

    def _park(self, pending: Pending[R], response: R) -> None:
        offset = self._deferred.highest_offset
        newest = self.registry.newest
        if newest is not None and newest > self.offsets.last_stable_offset:
            offset = newest if offset is None else max(offset, newest)
        if offset is None or offset <= self.offsets.last_stable_offset:
            pending.complete(response)
            return

        def settle(error: ApiError | None) -> None:
            if error is None:
                pending.complete(response)
            else:
                pending.fail(error)

        self._deferred.park(offset, settle)

    def _wrong_leader(self) -> ApiError:
        return ApiError(self._not_leader)
