"""The listeners of a replica's metadata log: state machines that receive what is committed, in order.

A listener receives the newest snapshot, where the log begins after the offset that the listener is at; then committed
batches; and changes of the leader. That this replica leads it receives only once it has every batch that was committed
when the leadership began. A listener that raises stops the replica: the state that it makes would lack a record.

The work is cut: a pass delivers at most one step of a snapshot or `MAX_BYTES_PER_PASS` of batches to each listener, and
where more is due the next pass is a step of the background. A listener that lags far behind may be suspended: it
receives nothing until `resume`, which says from where on it lacks batches.

Re-entrancy: `deliver` runs in a `Reentrancy`, and a registration is changed before its listener is called. So a
listener may call the driver, and what becomes due by that is delivered before the outermost `deliver` returns.

Not obvious:

- "This replica leads" is delivered to a listener only after all that was committed by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from kalda.base.background import Background, Steps
from kalda.base.scheduling import Reentrancy
from kalda.raft.metadata_log import MetadataLog
from kalda.raft.snapshots import CommittedBatch, SnapshotReader
from kalda.raft.voters import BOOTSTRAP_SNAPSHOT

MAX_BATCHES_PER_PASS = 256
MAX_BYTES_PER_PASS = 128 * 1024
"""Replaying so much takes some 20 ms, in which the event loop does nothing else."""


class Listener(Protocol):
    """A state machine on the metadata log."""

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        """Committed batches, each once and in the order of their offsets; control batches have no records."""
        ...

    def on_load_snapshot(self, reader: SnapshotReader) -> Iterator[None] | None:
        """Replace the whole state by the snapshot's; the next batch begins at `reader.offset`. May return an iterator
        that does the work in steps: each pass takes one, and `on_commit` is not called before the last."""
        ...

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """Each leader and epoch once; leaders in between may be left out."""
        ...


class LeaderAndEpoch(NamedTuple):
    leader_id: int | None
    epoch: int


NO_LEADER_YET = LeaderAndEpoch(None, 0)


class Registration:
    """What one listener has received."""

    __slots__ = (
        "due_leader",
        "due_leader_offset",
        "is_suspended",
        "last_leader",
        "listener",
        "next_offset",
        "snapshot_steps",
        "suspend_beyond_lag",
    )

    def __init__(self, listener: Listener, suspend_beyond_lag: Callable[[], int] | None) -> None:
        self.listener = listener
        self.suspend_beyond_lag = suspend_beyond_lag
        """More records than this behind, the listener is suspended; None for never."""
        self.is_suspended = False
        """Whether it receives no batches and no snapshot until `resume`."""
        self.next_offset = 0
        """Everything before it has been handed to the listener; of a snapshot that ends there, perhaps only a part."""
        self.snapshot_steps: Iterator[None] | None = None
        """The remaining steps of the snapshot that ends at `next_offset`. No batch and no leader is due until they are
        taken."""
        self.due_leader: LeaderAndEpoch | None = None
        """The leader that the listener has to receive."""
        self.due_leader_offset = 0
        """`due_leader` waits until `next_offset` has reached this."""
        self.last_leader: LeaderAndEpoch | None = None
        """The leader that the listener received last."""


class AppendedBatches:
    """Batches that this replica has appended as the leader, decoded, until all listeners have received them: they are
    delivered from memory and not read back from the log. Invariant: each batch begins where the one before it ends."""

    __slots__ = ("_batches", "size_bytes")

    def __init__(self) -> None:
        self._batches: deque[CommittedBatch] = deque()
        self.size_bytes = 0

    def add(self, batch: CommittedBatch) -> None:
        if self._batches and self._batches[-1].last_offset + 1 != batch.base_offset:
            self.clear()
        self._batches.append(batch)
        self.size_bytes += batch.size_bytes

    def clear(self) -> None:
        self._batches.clear()
        self.size_bytes = 0

    def drop_before(self, offset: int) -> None:
        while self._batches and self._batches[0].last_offset < offset:
            self.size_bytes -= self._batches.popleft().size_bytes

    def reach_back_to(self, offset: int) -> bool:
        return bool(self._batches) and self._batches[0].base_offset <= offset

    def __iter__(self) -> Iterator[CommittedBatch]:
        return iter(self._batches)


class RaftListeners:
    """Registers listeners and delivers to them."""

    def __init__(
        self,
        log: MetadataLog,
        local_id: int,
        *,
        background: Background,
        leader_high_watermark: Callable[[], int | None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`leader_high_watermark` may be past the end of the log: what a listener lacks counts up to there. `on_fatal`
        is called with what a listener, or the reading of the log, has raised."""
        self._log = log
        self._local_id = local_id
        self._background = background
        self._leader_high_watermark = leader_high_watermark
        self._on_fatal = on_fatal
        self._registrations: list[Registration] = []
        self._reentrancy = Reentrancy(self._deliver_pass)
        self._has_more = False
        """Whether more was due after the last pass."""
        self._is_passing = False
        """Whether `_further_passes` is in the background: always while there is more."""
        self._is_stopped = False
        self.appended = AppendedBatches()
        self.high_watermark = 0
        """Everything before it may be delivered. Never decreases; at most the machine's."""
        self.leader = NO_LEADER_YET

    # The listeners' side.

    def register(self, listener: Listener, *, suspend_beyond_lag: Callable[[], int] | None = None) -> Registration:
        """Deliver everything to `listener`, from the newest snapshot on. Whenever it lags more than
        `suspend_beyond_lag()` records behind what is committed, it is suspended."""
        registration = Registration(listener, suspend_beyond_lag)
        registration.due_leader = self.leader
        registration.due_leader_offset = self._leader_offset()
        self._registrations.append(registration)
        self.deliver()
        return registration

    def resume(self, registration: Registration, next_offset: int | None) -> None:
        """End the suspension: the listener has the effect of every record before `next_offset`. With None it has got
        nothing meanwhile, receives all that it lacks, and is not suspended again."""
        registration.is_suspended = False
        if next_offset is None:
            registration.suspend_beyond_lag = None
        else:
            registration.next_offset = next_offset
        self._continue()

    # The driver's side.

    def commit(self, high_watermark: int) -> None:
        """Everything before `high_watermark` is due; `deliver` delivers it."""
        self.high_watermark = high_watermark

    def change_leader(self, leader: LeaderAndEpoch) -> None:
        """`leader` is due, in the place of one that was not delivered yet; `deliver` delivers it."""
        self.leader = leader
        for registration in self._registrations:
            registration.due_leader = leader
            registration.due_leader_offset = self._leader_offset()

    def deliver(self) -> None:
        """One pass over all listeners, now or as soon as the pass that is under way ends."""
        if not self._is_stopped:
            self._reentrancy.run()

    def stop(self) -> None:
        """Call no listener any more."""
        self._is_stopped = True

    @property
    def is_local_leader(self) -> bool:
        return self.leader.leader_id == self._local_id

    def _leader_offset(self) -> int:
        return self.high_watermark if self.is_local_leader else 0

    # A pass.

    def _continue(self) -> None:
        """More is due."""
        self._has_more = True
        if not self._is_passing:
            self._is_passing = True
            self._background.run(self._further_passes())

    def _further_passes(self) -> Steps[None]:
        try:
            while self._has_more and not self._is_stopped:
                self.deliver()
                yield
        except Exception as error:
            self._on_fatal(error)
        finally:
            self._is_passing = False

    def _deliver_pass(self) -> None:
        self._has_more = has_more = False
        batches_by_offset: dict[int, list[CommittedBatch]] = {}
        for registration in list(self._registrations):
            if self._is_stopped:
                return
            try:
                has_more = self._deliver_to(registration, batches_by_offset) or has_more
            except Exception as error:
                self._on_fatal(error)
                return
        receiving = (r.next_offset for r in self._registrations if not r.is_suspended)
        self.appended.drop_before(min(receiving, default=self.high_watermark))
        if has_more:
            self._continue()

    def _deliver_to(self, registration: Registration, batches_by_offset: dict[int, list[CommittedBatch]]) -> bool:
        """Whether more is due. `batches_by_offset` are the batches of this pass: listeners at the same offset, as all
        are when a node starts, share what is read and decoded."""
        has_more = False
        if not self._suspends(registration):
            if not self._take_snapshot_step(registration):
                start = registration.next_offset
                batches = batches_by_offset.get(start)
                if batches is None:
                    batches = batches_by_offset[start] = self._committed_from(start)
                if batches:
                    registration.next_offset = batches[-1].last_offset + 1
                    registration.listener.on_commit(batches)
            has_more = registration.snapshot_steps is not None or registration.next_offset < self.high_watermark
        leader = registration.due_leader
        is_leader_due = (
            registration.snapshot_steps is None and registration.next_offset >= registration.due_leader_offset
        )
        if leader is not None and is_leader_due:
            registration.due_leader = None
            if leader not in (registration.last_leader, NO_LEADER_YET):
                registration.last_leader = leader
                registration.listener.on_leader_change(*leader)
        return has_more

    def _suspends(self, registration: Registration) -> bool:
        """Suspend that listener where it lags too far behind; whether it is suspended. The controller of the leader
        never is, since it writes what is committed; nor is a listener in the middle of a snapshot."""
        if (
            registration.is_suspended
            or registration.suspend_beyond_lag is None
            or registration.snapshot_steps is not None
            or (registration.last_leader is not None and registration.last_leader.leader_id == self._local_id)
        ):
            return registration.is_suspended
        latest = self._log.latest_snapshot
        snapshot_end = latest.offset if latest is not None else 0
        end = max(self.high_watermark, self._leader_high_watermark() or 0, snapshot_end)
        registration.is_suspended = end - registration.next_offset > registration.suspend_beyond_lag()
        return registration.is_suspended

    def _take_snapshot_step(self, registration: Registration) -> bool:
        """Where the log does not have what the listener lacks: a step of the newest snapshot. Whether one was taken."""
        if registration.snapshot_steps is None:
            snapshot, start = self._log.latest_snapshot, registration.next_offset
            lacks_prefix = start == 0 or start < self._log.log.log_start_offset
            if snapshot is None or snapshot == BOOTSTRAP_SNAPSHOT or not lacks_prefix:
                return False
            registration.next_offset = snapshot.offset
            registration.snapshot_steps = registration.listener.on_load_snapshot(self._log.reader(snapshot))
            if registration.snapshot_steps is None:
                return False
        try:
            next(registration.snapshot_steps)
        except StopIteration:
            registration.snapshot_steps = None
        return True

    def _committed_from(self, offset: int) -> list[CommittedBatch]:
        """Committed batches from `offset` on, at most `MAX_BATCHES_PER_PASS`, and about `MAX_BYTES_PER_PASS`."""
        limit = self.high_watermark
        if offset >= limit:
            return []
        batches: list[CommittedBatch] = []
        size = 0
        appended = self.appended
        for batch in appended if appended.reach_back_to(offset) else self._log.read_batches(offset, limit):
            if batch.last_offset >= limit:
                break
            if batch.base_offset >= offset:
                batches.append(batch)
                size += batch.size_bytes
                if len(batches) == MAX_BATCHES_PER_PASS or size >= MAX_BYTES_PER_PASS:
                    break  # before the next one is decoded
        return batches
