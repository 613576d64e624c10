"""One share partition: a partition of a topic as one share group consumes it, where that partition is led.

Life: INITIALIZING, while the state is read from the share coordinator; ACTIVE; FAILED where it could not be read, or
FENCED where another leader or a later state of the group has taken over. Both ends are final: the next request makes a
new object.

A member acquires records that it has fetched, for the group's lock duration. An acknowledgement that changes a state is
written to the share coordinator, and counts when it is written; where the write fails the member still has the
records. A lock that ends releases its records at once, and that is written without anybody waiting for it: after a
change of leaders acquired records are available anyway.

A record that is rejected, or was delivered as often as the limit, is archived. Where the group has a dead letter topic
(KIP-1191) it is ARCHIVING first, which is written like any other change; then its dead letter is written, and it is
archived only when that letter has been acknowledged by the in-sync replicas of its topic. Until then the record counts
against the records in flight, and the start offset does not pass it. The next leader writes the letter again: each
record gets at least one.

Records that were delivered half as often as the limit are delivered in smaller and smaller portions, and alone for the
last time: one record that no member can process takes no others with it.

A driver: it calls the persister, timers and waiting fetches, and may be called back by each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.base.share_states import (
    NO_OFFSET,
    AcknowledgeType,
    AcquireMode,
    RecordState,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateWrite,
)
from kalda.replication.share.dead_letters import Cause, DeadLetterQueue, DeadRecords
from kalda.replication.share.in_flight import NO_MEMBER, InFlight, Run
from kalda.replication.waiters import Waiter

log = logging.getLogger(__name__)

T = TypeVar("T")
_AFTER_FAULT_MS = 1_000
READ_BYTES = 128 * 1024
"""The least that a fetch reads of a partition, where it may read so much."""
_FIRST_THROTTLED = 2
"""Deliveries after which portions may become smaller, whatever the limit is."""


_STATE_AFTER = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
}
"""Of the types that say so alone."""


class ShareSettings(NamedTuple):
    """The configs of a group, as they are now."""

    lock_duration_ms: int = 30_000  # share.record.lock.duration.ms
    delivery_count_limit: int = 5  # share.delivery.count.limit
    max_record_locks: int = 2_000  # share.partition.max.record.locks
    renew_enabled: bool = True  # share.renew.acknowledge.enable
    read_committed: bool = False  # share.isolation.level
    dead_letter_topic: str = ""
    """errors.deadletterqueue.topic.name, in a cluster with share.version 2; empty where there is none."""
    copies_dead_letters: bool = False  # errors.deadletterqueue.copy.record.enable

    @property
    def given_up(self) -> RecordState:
        """The state of a record that is not delivered again although no member has processed it."""
        return RecordState.ARCHIVING if self.dead_letter_topic else RecordState.ARCHIVED

    def after_release(self, delivery_count: int) -> RecordState:
        """The state of a record that was delivered so often and comes back."""
        return self.given_up if delivery_count >= self.delivery_count_limit else RecordState.AVAILABLE

    @property
    def throttled_from(self) -> int:
        """Deliveries after which portions become smaller."""
        return max(_FIRST_THROTTLED, -(-self.delivery_count_limit // 2))


class Acquired(NamedTuple):
    """Records that a member got: the offsets, both included, and how often they were delivered."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """What a member says of the records from `first_offset` to `last_offset`: one type for all, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Persister(Protocol):
    """The share coordinator, wherever it is."""

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[StateRead]:
        """What was written; fences former leaders."""
        ...

    def write(self, key: SharePartitionKey, write: StateWrite) -> Pending[None]:
        """Add to what was written."""
        ...


class Phase(Enum):
    """How far a share partition is in its life."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class SharePartition:
    """See the module's docstring."""

    def __init__(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        settings: Callable[[], ShareSettings],
        persister: Persister,
        dead_letters: DeadLetterQueue,
        timers: Timers,
        now_ms: Callable[[], int],
        is_led: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_led()`: whether this broker leads the partition in that epoch still."""
        self.key = key
        self.leader_epoch = leader_epoch
        """The epoch in which this broker leads the partition; a later one gets another object."""
        self.phase = Phase.INITIALIZING
        self.failure: ApiError | None = None
        """Why the share partition is FAILED or FENCED."""
        self.in_flight = InFlight(0)
        self.waiters: dict[Waiter, None] = {}
        """Fetches that wait for records, the first of which is completed when there are some."""
        self.read_bytes = READ_BYTES
        """What a fetch reads of the log: enough for what it may hand out, as far as the size of records is known."""
        self._settings = settings
        self._persister = persister
        self._dead_letters = dead_letters
        self._timers = timers
        self._now_ms = now_ms
        self._is_led = is_led
        self._state_epoch = 0
        self._archived: list[StateBatch] = []
        """Records whose dead letters are written, before that is written of them."""
        self._timer: Timer | None = None
        """For the first lock that ends."""
        self._timer_at_ms = 0

    # -- the beginning and the end -------------------------------------------------------------------------------

    def initialize(self, first_offset: Callable[[], Pending[int]]) -> Pending[None]:
        """Read what was persisted. `first_offset()` is where a group begins that has consumed nothing yet. Fails where
        either does, and the share partition is FAILED then."""

        def begin(state: StateRead) -> Pending[None]:
            if state.start_offset != NO_OFFSET:
                self._begin(state, state.start_offset)
                ready: Pending[None] = Pending()
                ready.complete(None)
                return ready
            return first_offset().and_then(lambda offset: self._begin(state, offset))

        initialized = self._unless_fenced(self._persister.read(self.key, self.leader_epoch)).and_then(begin)
        initialized.then(self._on_initialized)
        return initialized

    def _on_initialized(self, _: None, error: ApiError | None) -> None:
        if error is not None:
            self._end(Phase.FAILED, error)
            return
        self.wake_all()
        self._begin_dead_letters()

    def _begin(self, state: StateRead, start_offset: int) -> None:
        """Take over what was persisted. Between its batches are records that were not acknowledged, or never
        delivered."""
        if self.phase is not Phase.INITIALIZING:
            return
        self._state_epoch = state.state_epoch
        self.in_flight = InFlight(start_offset)
        for first, last, delivery_state, count in state.batches:
            if last < start_offset:
                continue
            first = max(first, start_offset)
            if first < self.in_flight.end or last < first:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the state of {self.name} has overlapping batches")
            if first > self.in_flight.end:
                self.in_flight.runs.append(Run(self.in_flight.end, first - 1, RecordState.AVAILABLE, 0))
            run = Run(first, last, RecordState(delivery_state), count)
            if run.state is RecordState.ARCHIVING:  # a former leader has not come to archive it
                often = count >= self._settings().delivery_count_limit
                run.cause = Cause.DELIVERED_TOO_OFTEN if often else Cause.REJECTED
            self.in_flight.runs.append(run)
        self.in_flight.tidy()
        self.phase = Phase.ACTIVE

    def end_as_fenced(self, error: ApiError) -> None:
        """Another leader, or a later state of the group, has taken over."""
        self._end(Phase.FENCED, error)

    def _end(self, phase: Phase, error: ApiError) -> None:
        if self.phase in (Phase.FAILED, Phase.FENCED):
            return
        self.phase, self.failure = phase, error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake_all()

    @property
    def name(self) -> str:
        """For messages."""
        return f"share partition {self.key.coordinator_key}"

    def note_read(self, size_bytes: int, offsets: int, wanted: int) -> None:
        """A fetch has read so many bytes and offsets, and may hand out `wanted` records: the next one reads twice what
        these have."""
        self.read_bytes = max(READ_BYTES, 2 * size_bytes * wanted // offsets)

    # -- acquiring -----------------------------------------------------------------------------------------------

    @property
    def can_acquire(self) -> bool:
        """Whether there may be records for a member: some have come back, or more may be delivered."""
        if self.phase is not Phase.ACTIVE:
            return False
        in_flight = self.in_flight
        return in_flight.next_fetch_offset < in_flight.end or in_flight.count_open() < self._settings().max_record_locks

    def acquire(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        fetch_offset: int,
        max_records: int,
        batch_size: int,
        mode: AcquireMode,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        """Acquire records that were read from `fetch_offset` on, for a member: at most `max_records`, by `mode`.

        `batches` are the first and last offsets of the record batches. Records that were never delivered come in
        portions of `batch_size`, or of one batch where that has more. `aborted` are ranges of records of aborted
        transactions, which are not delivered.
        """
        if self.phase is not Phase.ACTIVE or not batches or max_records <= 0:
            return []
        in_flight, settings = self.in_flight, self._settings()
        base, last = batches[0][0], batches[-1][1]
        if in_flight.archive_free(fetch_offset, base - 1):  # compaction has removed them
            in_flight.tidy()
        end = in_flight.end
        for first_aborted, last_aborted in aborted:
            in_flight.archive_free(first_aborted, min(last_aborted, end - 1))
        free_places = settings.max_record_locks - in_flight.count_open()
        deadline_ms = self._now_ms() + settings.lock_duration_ms
        limits = _Limits(batches, max_records, mode)
        found, is_throttled = self._acquire_again(member, base, min(last, end - 1), limits, settings, deadline_ms)
        limits.left = min(limits.left, free_places)
        if not is_throttled and last >= end and limits.left > 0:
            for new in self._pass_over(max(base, end), last, limits, aborted):
                portions = [new] if mode is AcquireMode.RECORD_LIMIT else _portions(batches, *new, batch_size)
                for portion in portions:
                    in_flight.append(Run(*portion, RecordState.ACQUIRED, 1, member, deadline_ms))
                    found.append(Acquired(*portion, 1))
        in_flight.tidy()
        if found:
            self._arm(deadline_ms)
        return found

    def _acquire_again(
        self, member: str, first: int, last: int, limits: _Limits, settings: ShareSettings, deadline_ms: int
    ) -> tuple[list[Acquired], bool]:
        """Acquire what has come back of these offsets; and whether nothing more may be acquired with it."""
        found: list[Acquired] = []
        if first > last:
            return found, False
        for run in list(self.in_flight.overlapping(first, last)):
            if limits.left <= 0:
                break
            if not run.is_free:
                continue
            is_throttled = run.count >= settings.throttled_from
            if is_throttled and found:
                return found, True
            begin = max(first, run.first)
            end = min(last, run.last, limits.last_from(begin))
            if is_throttled:
                end = min(end, begin + _throttled_size(run, settings) - 1)
            taken = self.in_flight.cut(run, begin, end)
            taken.state, taken.member, taken.deadline_ms = RecordState.ACQUIRED, member, deadline_ms
            taken.count += 1
            limits.left -= len(taken)
            _accumulate(found, Acquired(taken.first, taken.last, taken.count))
            if is_throttled:
                return found, True
        return found, False

    def _pass_over(
        self, first: int, last: int, limits: _Limits, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """The ranges of these offsets to be delivered for the first time. What lies between them is archived, when
        the next one is asked for: each has been added by then."""
        for first_aborted, last_aborted in [*aborted, (last + 1, last)]:
            if first > last or limits.left <= 0:
                return
            if first < first_aborted:
                end = min(first_aborted - 1, last, limits.last_from(first))
                limits.left -= end - first + 1
                yield first, end
                first = end + 1
                if first < first_aborted:
                    return
            end = min(last_aborted, last)
            if first <= end:
                self.in_flight.append(Run(first, end, RecordState.ARCHIVED, 0))
                first = end + 1

    # -- acknowledging -------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement]) -> Pending[None]:
        """Change the state of records that the member has; all of them or none. Settles when that is written. Fails
        with INVALID_RECORD_STATE, INVALID_REQUEST, and what the persister fails with."""
        outcome: Pending[None] = Pending()
        if self.phase is not Phase.ACTIVE:
            outcome.fail(self.failure or ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return outcome
        settings = self._settings()
        changed: list[Run] = []
        try:
            for acknowledgement in acknowledgements:
                for first, last, kind in _ranges(acknowledgement):
                    self._acknowledge(member, first, last, kind, settings, changed)
        except ApiError as error:
            for run in changed:
                self._roll_back(run)
            self._after_change()
            outcome.fail(error)
            return outcome
        return self._persist(changed)

    def _acknowledge(
        self, member: str, first: int, last: int, kind: AcknowledgeType, settings: ShareSettings, changed: list[Run]
    ) -> None:
        """One range of one type; adds the runs that are changed."""
        in_flight = self.in_flight
        if last < in_flight.start:
            return  # archived since, or acknowledged before the answer was lost
        if not in_flight.runs:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"the records {first} to {last} are not acquired")
        if last >= in_flight.end:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"the record {last} was never delivered, the last one is {in_flight.end - 1}"
            )
        first = max(first, in_flight.start)
        if kind is AcknowledgeType.RENEW and not settings.renew_enabled:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, "renewing acquisition locks is not enabled for the group")
        for run in list(in_flight.overlapping(first, last)):
            if run.state is not RecordState.ACQUIRED or run.former is not None:
                raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"the record {max(first, run.first)} is not acquired")
            if run.member != member:
                raise ApiError(
                    ErrorCode.INVALID_RECORD_STATE, f"the record {max(first, run.first)} is acquired by another member"
                )
            part = in_flight.cut(run, first, last)
            if kind is AcknowledgeType.RENEW:
                part.deadline_ms = self._now_ms() + settings.lock_duration_ms
                self._arm(part.deadline_ms)
                continue
            if kind is AcknowledgeType.RELEASE:
                part.begin(settings.after_release(part.count))
            elif kind is AcknowledgeType.REJECT:
                part.begin(settings.given_up, Cause.REJECTED)
            else:
                part.begin(_STATE_AFTER[kind])
            changed.append(part)

    def release(self, member: str) -> Pending[None]:
        """Release all that a member has: its session has ended. Settles as `acknowledge`."""
        settings = self._settings()
        changed = []
        for run in self.in_flight.runs:
            if run.member == member and run.state is RecordState.ACQUIRED and member != NO_MEMBER:
                run.begin(settings.after_release(run.count))
                changed.append(run)
        return self._persist(changed)

    def _persist(self, changed: list[Run]) -> Pending[None]:
        """Write these changes, and let them count or not."""
        outcome: Pending[None] = Pending()
        if not changed:
            outcome.complete(None)
            return outcome

        def on_written(_: None, error: ApiError | None) -> None:
            for run in changed:
                if error is None:
                    run.commit()
                elif run.former is not None:
                    self._roll_back(run)
                    if run.state is RecordState.ACQUIRED:
                        self._arm(run.deadline_ms)
            self._after_change()
            outcome.settle(None, error)

        self._write([run.as_batch() for run in changed]).then(on_written)
        return outcome

    def _write(self, batches: list[StateBatch]) -> Pending[None]:
        in_flight = self.in_flight
        write = StateWrite(
            self._state_epoch, self.leader_epoch, in_flight.start, in_flight.count_terminal(), _joined(batches)
        )
        return self._unless_fenced(self._persister.write(self.key, write))

    def _unless_fenced(self, persisted: Pending[T]) -> Pending[T]:
        """The same; where the share coordinator has fenced this leader, the share partition ends."""
        outcome: Pending[T] = Pending()

        def settled(value: T | None, error: ApiError | None) -> None:
            if error is not None and error.code in _FENCED_BY:
                error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
                self.end_as_fenced(error)
            outcome.settle(value, error)

        persisted.then(settled)
        return outcome

    def _roll_back(self, run: Run) -> None:
        """A change was not written: the member holds the records as before, unless its lock has ended since."""
        run.roll_back()
        if run.state is RecordState.ACQUIRED and run.deadline_ms <= self._now_ms():
            run.begin(self._settings().after_release(run.count))
            run.commit()

    def _after_change(self) -> None:
        if self.in_flight.tidy() or self.can_acquire:
            self.wake_one()
        self._begin_dead_letters()

    # -- dead letters --------------------------------------------------------------------------------------------

    def _begin_dead_letters(self) -> None:
        """Have the dead letters written of runs whose state ARCHIVING counts since the latest change."""
        if self.phase is not Phase.ACTIVE:
            return
        begun: list[DeadRecords] = []
        for run in self.in_flight.runs:
            if run.cause is not None and run.former is None:
                begun.append(DeadRecords(run.first, run.last, run.count, run.cause))
                run.cause = None
        for records in begun:
            written = self._dead_letters.write(self.key, records, lambda: self.phase is Phase.ACTIVE)
            written.then(partial(self._archive, records))

    def _archive(self, records: DeadRecords, _: None, error: ApiError | None) -> None:
        """The dead letters are written. Many are at once, so the state that follows is written for all of them; where
        that is lost, the next leader writes them again."""
        if error is not None or self.phase is not Phase.ACTIVE:
            return
        is_first = not self._archived
        for run in list(self.in_flight.overlapping(records.first_offset, records.last_offset)):
            if run.state is RecordState.ARCHIVING and run.former is None:
                part = self.in_flight.cut(run, records.first_offset, records.last_offset)
                part.archive()
                self._archived.append(part.as_batch())
        if is_first and self._archived:
            self._timers.call_soon(self._write_archived)

    def _write_archived(self) -> None:
        archived, self._archived = self._archived, []
        if self._may_write():
            self._write(sorted(archived)).then(self._log_lost_write)
            self._after_change()

    # -- time ----------------------------------------------------------------------------------------------------

    def _arm(self, deadline_ms: int) -> None:
        if self.phase is not Phase.ACTIVE:
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._timers.call_later_ms(max(0, deadline_ms - self._now_ms()), self._end_locks)

    def _may_write(self) -> bool:
        """Whether this is the leader's state still: of what no request causes, nothing may be written by a former
        leader."""
        if self.phase is Phase.ACTIVE and not self._is_led():
            self.end_as_fenced(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return self.phase is Phase.ACTIVE

    def _end_locks(self) -> None:
        """Release what was not acknowledged in time; after a fault again, so that no lock lasts for ever."""
        self._timer = None
        if not self._may_write():
            return
        try:
            self._release_ended()
        except Exception:
            self._arm(self._now_ms() + _AFTER_FAULT_MS)
            raise

    def _release_ended(self) -> None:
        now_ms, settings = self._now_ms(), self._settings()
        ended = [
            run
            for run in self.in_flight.runs
            if run.state is RecordState.ACQUIRED and run.former is None and run.deadline_ms <= now_ms
        ]
        given_up: list[Run] = []
        for run in ended:
            state = settings.after_release(run.count)
            if state is RecordState.AVAILABLE:
                run.make_available()
            elif state is RecordState.ARCHIVED:
                run.archive()
            else:
                run.begin(state)
                given_up.append(run)
        held = [run.deadline_ms for run in self.in_flight.runs if run.state is RecordState.ACQUIRED]
        if held:
            self._arm(max(min(held), now_ms + 1))
        if ended:
            self._write([run.as_batch() for run in ended]).then(partial(self._commit, given_up))
            self._after_change()

    def _commit(self, given_up: list[Run], _: None, error: ApiError | None) -> None:
        """The end of locks is written, or could not be, and counts in either case."""
        self._log_lost_write(None, error)
        for run in given_up:
            run.commit()
        self._after_change()

    def _log_lost_write(self, _: None, error: ApiError | None) -> None:
        if error is not None:
            log.warning("%s: a state could not be written: %s", self.name, error)

    def move_start(self, log_start_offset: int) -> None:
        """The log begins at this offset now."""
        self.in_flight.move_start(log_start_offset)
        self.in_flight.tidy()

    # -- waiting fetches -----------------------------------------------------------------------------------------

    def wake_one(self) -> None:
        """Complete the fetch that has waited longest: there are records, or room for more."""
        for waiter in list(self.waiters):
            del self.waiters[waiter]
            if not waiter.done:
                waiter.complete()
                return

    def wake_all(self) -> None:
        """Complete all fetches that wait: what they wait for has become something else."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter.complete()


_FENCED_BY = frozenset((ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH))


class _Limits:
    """How many records an acquisition may still take."""

    __slots__ = ("_batches", "_mode", "left")

    def __init__(self, batches: Sequence[tuple[int, int]], max_records: int, mode: AcquireMode) -> None:
        self._batches = batches
        self._mode = mode
        self.left = max_records

    def last_from(self, first: int) -> int:
        """The last offset that may be taken with `first`."""
        last = first + self.left - 1
        if self._mode is AcquireMode.RECORD_LIMIT:
            return last
        return next((end for _, end in self._batches if end >= last), last)


def _throttled_size(run: Run, settings: ShareSettings) -> int:
    """How many records of a run that was delivered often are delivered at once."""
    if run.count >= settings.delivery_count_limit - 1:
        return 1
    return max(1, len(run) >> (run.count - settings.throttled_from + 1))


def _portions(batches: Sequence[tuple[int, int]], first: int, last: int, batch_size: int) -> list[tuple[int, int]]:
    """Whole batches, so many that each portion has `batch_size` records or one batch."""
    portions = []
    begin = first
    for base, _ in batches:
        if begin < base <= last and base - begin >= max(1, batch_size):
            portions.append((begin, base - 1))
            begin = base
    portions.append((begin, last))
    return portions


def _accumulate(found: list[Acquired], more: Acquired) -> None:
    """Add records to those before, as one range where they follow and were delivered as often."""
    if found and found[-1].last_offset + 1 == more.first_offset and found[-1].delivery_count == more.delivery_count:
        found[-1] = found[-1]._replace(last_offset=more.last_offset)
    else:
        found.append(more)


def _joined(batches: list[StateBatch]) -> list[StateBatch]:
    """The same as few batches as can be; they are in the order of their offsets."""
    joined: list[StateBatch] = []
    for batch in batches:
        if joined and joined[-1].last_offset + 1 == batch.first_offset and joined[-1][2:] == batch[2:]:
            joined[-1] = joined[-1]._replace(last_offset=batch.last_offset)
        else:
            joined.append(batch)
    return joined


def _ranges(acknowledgement: Acknowledgement) -> list[tuple[int, int, AcknowledgeType]]:
    """Ranges of records with one type each. Raises INVALID_REQUEST."""
    first, last, types = acknowledgement
    try:
        kinds = [AcknowledgeType(each) for each in types]
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(types)[:20]}") from None
    if len(kinds) == 1:
        return [(first, last, kinds[0])]
    ranges: list[tuple[int, int, AcknowledgeType]] = []
    for offset, kind in enumerate(kinds, first):
        if ranges and ranges[-1][2] is kind:
            ranges[-1] = (ranges[-1][0], offset, kind)
        else:
            ranges.append((offset, offset, kind))
    return ranges
