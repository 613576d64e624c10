"""The events of the active controller: one at a time, in the order in which they came, as on Kafka's one thread.

An event decides, and its records are written. Where nothing else is under way both happen inside `run`. An event about
many things decides in `Steps`, in the background of the event loop: what comes meanwhile waits behind it. So nothing
changes between two of its steps, and what it has decided holds when it is written. Writing is never cut.

The periodic tasks are polled by the shell, with the time. While an event is under way or waits, a poll waits behind it:
`poll_later` puts one there, and `on_poll` is called when its turn comes. So a heartbeat that has come before a poll
counts in it.

Not obvious:

- An operation of the controller on many things is one event, which is decided in steps and written whole: it names
  10,000 things at most, so that what waits behind it waits a second at most.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from kalda.base.background import Background, Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.sensors import Durations
from kalda.controller.configs import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS
from kalda.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION, MetadataVersion, from_level
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

log = logging.getLogger(__name__)


class EventTimes:
    """The events since the last periodic message.

    How long the events of the active controller take.

    All events run one after the other, on one thread. So one slow event delays every request behind it: it is logged
    when it happens, and a periodic message names the slowest one of the last period.
    """

    def __init__(self, period_ms: int, always_log_threshold_ms: int) -> None:
        """`controller.performance.sample.period.ms` and `controller.performance.always.log.threshold.ms`."""
        self._period_ms = period_ms
        self._threshold_ms = always_log_threshold_ms
        self._count = 0
        self._total_ms = 0
        self.started = 0
        """Events that have begun, since the start."""
        self.timed_out = 0
        """Requests whose time was over before they could be handled, since the start."""
        self.durations = Durations()
        """Of all events so far."""
        self.queued = Durations()
        """For how long events that were due at a time have waited for the thread."""
        self._slowest: tuple[str, int] | None = None
        """Name and duration in ms; None before the first event."""

    def observe(self, name: str, duration_ms: int) -> None:
        """An event has ended. It is logged where it took as long as the threshold."""
        self.started += 1
        self._count += 1
        self._total_ms += duration_ms
        self.durations.add_us(duration_ms * 1000)
        if self._slowest is None or self._slowest[1] < duration_ms:
            self._slowest = (name, duration_ms)
        if duration_ms >= self._threshold_ms:
            log.error("Exceptionally slow controller event %s took %d ms.", name, duration_ms)

    def log_period(self) -> None:
        """Log the periodic message, and begin a new period."""
        log.info("%s", self.message())
        self._count = self._total_ms = 0
        self._slowest = None

    def message(self) -> str:
        """The periodic message, in Kafka's words. Durations are measured in whole milliseconds, so the average is exact
        for many events only."""
        begin = f"In the last {self._period_ms} ms period, "
        if self._slowest is None:
            return begin + "there were no controller events completed."
        name, duration_ms = self._slowest
        return (
            f"{begin}{self._count} controller events were completed, which took an average of "
            f"{self._total_ms / self._count:.2f} ms each. The slowest event was {name}, which took "
            f"{duration_ms:.2f} ms."
        )


R = TypeVar("R")
Decision: TypeAlias = Result[VersionedRecord, R] | Pending[R]
"""What an event has decided: records to write, or the answer itself where it has read or written already."""
Decide: TypeAlias = Callable[[], Decision[R] | Steps[Decision[R]]]


class Event(Generic[R]):
    """An event that waits or is under way."""

    __slots__ = ("answer", "deadline_ms", "decide", "name")

    def __init__(self, name: str, decide: Decide[R], deadline_ms: int | None) -> None:
        self.name = name
        """Its name in Apache Kafka."""
        self.decide = decide
        self.answer: Pending[R] = Pending()
        self.deadline_ms = deadline_ms
        """When its request times out, unless it has begun."""


class EventQueue:
    """Runs events. Invariant: no event begins while another one is under way, but for those that a poll or an event
    runs inside itself (`run_inside`)."""

    def __init__(
        self,
        background: Background,
        elapsed_ms: Callable[[], int],
        times: EventTimes,
        *,
        write: Callable[[Result[VersionedRecord, Any]], Pending[Any]],
        refusal: Callable[[], ApiError | None],
        failure: Callable[[str, Exception], ApiError],
        on_poll: Callable[[], None],
    ) -> None:
        """`refusal()` is why no event may begin now. `failure(name, error)` is called with what an event has raised,
        and returns the error of its answer. None of them raises."""
        self._background = background
        self._elapsed_ms = elapsed_ms
        self._times = times
        self._write = write
        self._refusal = refusal
        self._failure = failure
        self._on_poll = on_poll
        self._waiting: deque[Event[Any] | None] = deque()
        """None for a poll; there is one at most."""
        self._is_running = False
        """Whether `_run_all` is under way."""
        self._is_polling = False
        self._under_way: Event[Any] | None = None
        """The event that decides in steps."""
        self._steps: Steps[Any] | None = None
        """Its remaining steps."""

    def __str__(self) -> str:
        """What the log calls the owner of a step."""
        return "an event of the controller" if self._under_way is None else f"controller event {self._under_way.name}"

    @property
    def is_busy(self) -> bool:
        """Whether a poll has to wait."""
        return self._is_running and not self._is_polling

    def run(self, name: str, decide: Decide[R], timeout_ms: int = 0) -> Pending[R]:
        """Run an event; now, where no other is under way or waits. Never raises. With a positive `timeout_ms` it is
        not begun after so long."""
        deadline_ms = self._elapsed_ms() + timeout_ms if timeout_ms > 0 else None
        event = Event(name, decide, deadline_ms)
        self._waiting.append(event)
        if not self._is_running:
            self._is_running = True
            steps = self._run_all()
            try:
                next(steps)
            except StopIteration:
                pass
            else:
                self._background.run(steps, owner=self)
        return event.answer

    def run_inside(self, name: str, decide: Callable[[], Result[VersionedRecord, R]]) -> Pending[R]:
        """Run an event of the poll or of the event that is under way. It waits for nothing."""
        event = Event(name, decide, None)
        run_to_end(self._run_one(event))
        return event.answer

    def poll_later(self) -> None:
        """Call `on_poll` behind what waits now."""
        if None not in self._waiting:
            self._waiting.append(None)

    def drop_all(self, error: ApiError) -> None:
        """The leadership is lost: what has not been written fails."""
        under_way, steps = self._under_way, self._steps
        self._under_way = self._steps = None
        dropped = [] if under_way is None else [under_way]
        dropped += [event for event in self._waiting if event is not None]
        self._waiting.clear()
        if steps is not None:
            steps.close()
        for event in dropped:
            event.answer.fail(error)

    def _run_all(self) -> Steps[None]:
        try:
            while self._waiting:
                event = self._waiting.popleft()
                if event is not None:
                    yield from self._run_one(event)
                else:
                    self._poll()
                if self._waiting:
                    yield
        finally:
            self._is_running = False

    def _poll(self) -> None:
        self._is_polling = True
        try:
            self._on_poll()
        finally:
            self._is_polling = False

    def _run_one(self, event: Event[Any]) -> Steps[None]:
        error = self._refusal() or self._timeout(event)
        if error is not None:
            event.answer.fail(error)
            return
        took_ms = -self._elapsed_ms()
        try:
            decided = event.decide()
            if not isinstance(decided, Result | Pending):
                self._under_way, self._steps = event, decided
                while (ended := _step(decided)) is None:
                    took_ms += self._elapsed_ms()
                    yield
                    if self._under_way is not event:
                        return  # it was dropped, and has failed
                    took_ms -= self._elapsed_ms()
                self._under_way = self._steps = None
                decided = ended
            answer = self._write(decided) if isinstance(decided, Result) else decided
        except Exception as raised:
            self._under_way = self._steps = None
            answer = Pending()
            answer.fail(self._failure(event.name, raised))
        self._times.observe(event.name, took_ms + self._elapsed_ms())
        answer.then(event.answer.settle)

    def _timeout(self, event: Event[Any]) -> ApiError | None:
        if event.deadline_ms is None or self._elapsed_ms() < event.deadline_ms:
            return None
        self._times.timed_out += 1
        return ApiError(ErrorCode.REQUEST_TIMED_OUT)


def _step(steps: Steps[Decision[R]]) -> Decision[R] | None:
    """Take one step. What was decided, where it was the last one."""
    try:
        next(steps)
    except StopIteration as finished:
        decision: Decision[R] = finished.value
        return decision
    return None


# What follows from an exception that the program did not foresee.
#
# There are two kinds of faults, each with a handler, as in Apache Kafka:
#
# - *fatal*: the state can no longer follow the metadata log. The node stops.
# - *non-fatal*: one event of the controller failed before it had records, and has changed nothing. The controller goes
#   on. In Apache Kafka it gives up its leadership; then a client that sends the same request again and again leaves the
#   cluster without a controller.
#
# Either is logged with its cause. An expected failure is an `ApiError`, and no fault.

QUIET_MS = 1_000
"""Of the non-fatal faults in this time after one that was logged, the next line has the number: a client may cause them
in a loop."""


class Faults:
    """Handles the faults of one controller."""

    def __init__(self, on_fatal: Callable[[BaseException], None], elapsed_ms: Callable[[], int]) -> None:
        """`on_fatal(error)` stops the node. `elapsed_ms()` is any clock."""
        self._on_fatal = on_fatal
        self._elapsed_ms = elapsed_ms
        self._logged_ms: int | None = None
        """When a non-fatal fault was logged last."""
        self._unlogged = 0
        """Non-fatal faults since then."""
        self.count = 0
        """The number of faults of both kinds since the start; Kafka's metric MetadataErrorCount."""

    def fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault, and stop the node."""
        self.count += 1
        log.critical("Encountered fatal fault: %s", what, exc_info=cause)
        self._on_fatal(cause)

    def non_fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault, unless one was logged just before."""
        self.count += 1
        now_ms = self._elapsed_ms()
        if self._logged_ms is not None and now_ms - self._logged_ms < QUIET_MS:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
        self._logged_ms, self._unlogged = now_ms, 0
        log.error("Encountered non-fatal fault: %s%s", what, more, exc_info=cause)

    def on_failure(self, event: str, error: Exception) -> None:
        """An event failed with an exception that was not foreseen, before it had records."""
        self.non_fatal(f"{event}: event failed with {type(error).__name__}, and has changed nothing.", error)

    @contextmanager
    def contained(self, event: str) -> Iterator[None]:
        """What is raised inside goes no further."""
        try:
            yield
        except Exception as error:
            self.on_failure(event, error)


# The first records of a new active controller.
#
# On an empty log these are the bootstrap records, which finalize the metadata.version that the cluster was formatted
# for. They are one metadata transaction where that version has transactions (KIP-868), so no log has only a part of
# them. On any other log there is a record only where the previous controller stopped inside a transaction: one that
# aborts it.

_BOOTSTRAP_TRANSACTION = "Bootstrap records"
_ABORT_REASON = "Controller failover"


def activation_records(
    *,
    is_transaction_open: bool,
    bootstrap: Sequence[VersionedRecord],
    metadata_version: MetadataVersion | None,
    min_insync_replicas: str,
) -> list[VersionedRecord]:
    """`metadata_version` is that of the log, without an open transaction; None for an empty log. `min_insync_replicas`
    is the value in the node's properties: eligible leader replicas need a cluster-wide value (KIP-966). Raises
    `ValueError` where the bootstrap records set no metadata.version, or the log has a transaction and a version
    without transactions.
    """
    is_log_empty = metadata_version is None
    version = bootstrap_metadata_version(bootstrap) if metadata_version is None else metadata_version
    records: list[VersionedRecord] = []
    if is_transaction_open:
        if not version.is_metadata_transaction_supported:
            raise ValueError(f"the metadata log has an open transaction, but {version} has no transactions")
        records.append(VersionedRecord(AbortTransactionRecord(reason=_ABORT_REASON), 0))
    if not is_log_empty:
        return records
    records += bootstrap
    if _level(bootstrap, ELIGIBLE_LEADER_REPLICAS_VERSION) > 0:
        record = ConfigRecord(
            resource_type=int(CLUSTER_DEFAULT.type),
            resource_name=CLUSTER_DEFAULT.name,
            name=MIN_INSYNC_REPLICAS,
            value=min_insync_replicas,
        )
        records.append(VersionedRecord(record, 0))
    if not version.is_metadata_transaction_supported:
        return records
    aborts = int(is_transaction_open)
    begin = VersionedRecord(BeginTransactionRecord(name=_BOOTSTRAP_TRANSACTION), 0)
    end = VersionedRecord(EndTransactionRecord(), 0)
    return [*records[:aborts], begin, *records[aborts:], end]


def bootstrap_metadata_version(bootstrap: Sequence[VersionedRecord]) -> MetadataVersion:
    """Raises `ValueError` for records that set none: no cluster can start without one."""
    level = _level(bootstrap, METADATA_VERSION)
    if level == 0:
        raise ValueError("the bootstrap records do not set metadata.version: format the storage again")
    return from_level(level)


def _level(records: Sequence[VersionedRecord], feature: str) -> int:
    level = 0
    for versioned in records:
        record = versioned.record
        if isinstance(record, FeatureLevelRecord) and record.name == feature:
            level = record.feature_level
    return level


@dataclass(slots=True)
class PeriodicTask:
    """`run(now_ms)` does one step. It returns whether there is more to do."""

    name: str
    period_ms: int
    run: Callable[[int], bool]


RERUN_MS = 10
"""As long as in Apache Kafka."""


class PeriodicTasks:
    """The periodic tasks of the active controller.

    A task runs when it is due, and then again one period later; `RERUN_MS` later where its step returned that there is
    more to do, so that requests are handled in between. Only the active controller runs tasks, and only after its
    activation records are applied.

    Invariant: the next run of a task is set before it runs. A task that raises delays neither the others nor itself: it
    runs again one period later.

    Tasks, and when each is due.
    """

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        """`on_failure(name, error)`: a task has raised."""
        self._on_failure = on_failure
        self._tasks: list[PeriodicTask] = []
        self._due_ms: dict[str, int] = {}
        """by name of the task; empty while this controller is not active"""

    def add(self, task: PeriodicTask) -> None:
        assert task.period_ms > 0, f"the period of {task.name} is not positive"
        self._tasks.append(task)

    def activate(self, now_ms: int) -> None:
        self._due_ms = {task.name: now_ms + task.period_ms for task in self._tasks}

    def deactivate(self) -> None:
        self._due_ms = {}

    def hasten(self, name: str, due_ms: int) -> None:
        """The task has something to do: it is due at `due_ms` at the latest."""
        if name in self._due_ms:
            self._due_ms[name] = min(self._due_ms[name], due_ms)

    def poll(self, now_ms: int) -> int | None:
        """Run one step of each task that is due. Returns when the next one is due, None while inactive."""
        for task in self._tasks:
            if self._due_ms.get(task.name, now_ms + 1) > now_ms:
                continue
            self._due_ms[task.name] = now_ms + task.period_ms
            try:
                more = task.run(now_ms)
            except Exception as error:
                self._on_failure(task.name, error)
                continue
            if more and task.name in self._due_ms:  # otherwise this controller lost its leadership in this step
                self._due_ms[task.name] = now_ms + min(RERUN_MS, task.period_ms)
        return min(self._due_ms.values(), default=None)
