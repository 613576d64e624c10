"""The runtime of a replayed state: write, read, commit, claim, renounce.

Life of a write:

1. the handler reads the state and computes records and a response; it changes nothing;
2. the log prepares a batch of the records, which fixes their offsets, or refuses it;
3. each record is replayed at its offset: the only way in which the state ever changes, here and on every other node;
4. the batch is scheduled: the log may now write and replicate it;
5. the response is parked at the last record's offset, and is given when the log is stable up to there.

The next handler sees the state with the uncommitted records applied, so writes need not wait for one another. Where
leadership is lost between 4 and 5, the state is reverted to what is committed and the parked answers fail: the client
sends its request to the new leader, and never sees a write that did not last.

A handler that raises, and a batch that the log refuses or that cannot be encoded, change nothing and fail that write
alone. A replay that fails is a fault of the program:
every node would fail at that record, and no node could read the log any more. So it happens before the batch is
scheduled: the state is reverted to that before the batch, nothing of the batch is written, and `ReplayFault` leaves the
runtime. Of a result that is cut into several batches, those that were scheduled before stay: state and log agree.

Preparing may call back: an owner whose log moves the commit point while it prepares must not call `on_commit` before
the write is complete (`kalda.base.scheduling`), since the records of an answer's callback would be replayed before
those of the write.

Answers are parked in the order of their offsets, which rise with each append: a FIFO, completed from its head once the
log is stable. What a callback raises is logged and goes no further: the records of an answer are committed, or lost,
whether or not its client can be answered, and the other answers must not wait for it.

Not obvious:

- `replay_run` leaves a record that it cannot apply to `replay`, or a fault names the wrong offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.statemachine.offsets import OffsetControl
from kalda.statemachine.timeline import SnapshotRegistry

Settle = Callable[[ApiError | None], None]

log = logging.getLogger(__name__)


class DeferredQueue:
    """Callbacks by offset. Each is called exactly once: with None when its offset is stable, or with the error that
    ended the wait."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: deque[tuple[int, Settle]] = deque()
        """By rising offset."""

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def highest_offset(self) -> int | None:
        """The offset that the last one waits for; None where none waits. A read that must see every write before it
        waits for this offset too."""
        return self._parked[-1][0] if self._parked else None

    def park(self, offset: int, settle: Settle) -> None:
        """Call `settle` when the log is stable up to `offset`, which is not below the last one parked."""
        assert not self._parked or self._parked[-1][0] <= offset, "offsets are parked in rising order"
        self._parked.append((offset, settle))

    def complete_up_to(self, offset: int) -> None:
        """Settle everything parked at `offset` or before. A callback may park again, for a later offset."""
        while self._parked and self._parked[0][0] <= offset:
            _call(self._parked.popleft()[1], None)

    def fail_all(self, error: ApiError) -> None:
        """Settle everything with `error`, but not what the callbacks park meanwhile."""
        parked, self._parked = self._parked, deque()
        for _, settle in parked:
            _call(settle, error)


def _call(settle: Settle, error: ApiError | None) -> None:
    try:
        settle(error)
    except Exception:
        log.exception("An answer that waited for its records to be committed could not be given.")


R = TypeVar("R")
Rec = TypeVar("Rec")

MAX_RECORDS_PER_BATCH = 10_000
_MANY = 100
"""Records; shorter batches are replayed one record at a time."""


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


class Prepared(NamedTuple):
    """The place of a batch. It is committed once the commit point given to `on_commit` reaches `commit_offset`."""

    first_offset: int
    commit_offset: int


class ReplayFault(Exception):
    """A record cannot be applied, or a batch that was prepared and applied cannot be appended. The message names it and
    its offset; `__cause__` is what was raised."""


class ReplicatedRuntime(Generic[Rec]):
    """One replayed state over one log. It is used by one thread."""

    __slots__ = (
        "_claimed_epoch",
        "_deferred",
        "_max_records_per_batch",
        "_not_leader",
        "_on_fault",
        "_prepare",
        "_replay",
        "_replay_run",
        "_schedule",
        "offsets",
        "registry",
    )

    def __init__(
        self,
        registry: SnapshotRegistry,
        prepare: Callable[[int, Sequence[Rec]], Prepared],
        replay: Callable[[Rec, int], None],
        *,
        replay_run: Callable[[Sequence[Rec], int], int] | None = None,
        schedule: Callable[[], None] | None = None,
        on_fault: Callable[[ReplayFault], None] | None = None,
        not_leader: ErrorCode,
        max_records_per_batch: int = MAX_RECORDS_PER_BATCH,
    ) -> None:
        """`prepare(epoch, records)` fixes the offsets of one batch as the leader of `epoch`, and raises `ApiError`
        where the batch cannot be appended. `schedule()` hands the batch prepared last to the log; None for a log that
        fixes offsets only by appending, and so has appended in `prepare`: a replay that fails then leaves records in
        the log that the state lacks. `on_fault(fault)` is called where a record of a write cannot be applied, and must
        end the leadership; with None, the write raises the fault. `replay(record, offset)` applies one record.
        `replay_run(records, first)` may apply several of a long batch at once, from that index on, and returns how
        many; 0 leaves the record to `replay`, as it must one that cannot be applied. `not_leader` is the error of a
        write on a node that does not lead."""
        self.registry = registry
        self.offsets = OffsetControl(registry)
        self._prepare = prepare
        self._schedule = schedule
        self._replay = replay
        self._replay_run = replay_run
        self._on_fault = on_fault
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

    def write(self, operation: Callable[[], Result[Rec, R]]) -> Pending[R]:
        """Run `operation` on the live state, apply and append its records, answer when they are committed.

        An `ApiError` out of the operation or the log fails the answer. Raises `ReplayFault`, and what else the
        operation or `prepare` raises: of the batch at which they do, nothing is in the state or the log. Without
        records the answer still waits for the writes before it, since the state that it was computed from may be
        reverted."""
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
        except ReplayFault as fault:
            if self._on_fault is None:
                raise
            self._on_fault(fault)
            assert not self.active, "the state lacks what is in the log, so it must not be used"
            pending.fail(self._wrong_leader())
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
        batches; only the end of the last one has a snapshot. A leader has applied its own records when it wrote them:
        for those `on_commit` is called alone. Raises `ReplayFault`, after which the state cannot be used any more."""
        assert not self.active, "a leader has applied its records already"
        self._apply(records, first_offset)

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
        first_offset, commit_offset = self._prepare(epoch, records)
        before = self.registry.newest
        assert before is not None, "while this node leads there is a snapshot of everything appended"
        try:
            self._apply(records, first_offset)
            self._append(first_offset)
        except ReplayFault:
            self.registry.revert_to(before)
            raise
        self.offsets.on_append(first_offset, len(records), commit_offset)

    def _append(self, first_offset: int) -> None:
        if self._schedule is None:
            return
        try:
            self._schedule()
        except Exception as error:
            raise ReplayFault(f"the batch at offset {first_offset} cannot be appended") from error

    def _apply(self, records: Sequence[Rec], first_offset: int) -> None:
        replay, offset = self._replay, first_offset
        run = self._replay_run if len(records) >= _MANY else None
        try:
            if run is None:
                for offset, record in enumerate(records, first_offset):
                    replay(record, offset)
                return
            index = 0
            while index < len(records):
                offset = first_offset + index
                applied = run(records, index)
                if not applied:
                    replay(records[index], offset)
                index += applied or 1
        except Exception as error:
            raise _replay_fault(records, offset, first_offset) from error

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


def _replay_fault(records: Sequence[object], offset: int, first_offset: int) -> ReplayFault:
    record = records[offset - first_offset]
    name = type(getattr(record, "record", record)).__name__
    return ReplayFault(f"the {name} at offset {offset} cannot be applied (its batch begins at offset {first_offset})")
