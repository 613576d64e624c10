"""Time, threads and waiting without asyncio: clocks, timers, jobs, results that are set later.

Interfaces by which pure code reads the time, sets timers and runs jobs on threads: the shell implements them with the
system's clocks and threads, the simulator with virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar, cast, overload

from kalda.base.errors import ApiError, as_api_error


class Clock(Protocol):
    """Two readings: wall time for timestamps that are stored or shown, monotonic time for timeouts and intervals."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def mono_ms(self) -> int:
        """Milliseconds since an arbitrary point; never goes back."""
        ...


class LoopClock(Clock, Protocol):
    """The clock of a loop: its monotonic time stands still while the loop does (`kalda.base.scheduling`)."""

    def machine_ms(self) -> int:
        """The machine's own monotonic time."""
        ...

    def follow(self, limit_ms: int, lost_ms: int) -> None:
        """From now on `mono_ms` is the machine's time, but at most `limit_ms`, less `lost_ms`."""
        ...


T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Drop the call; no effect where it has already happened."""
        ...


class Timers(Protocol):
    """Delayed calls, made on the one thread that owns the state."""

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, not before `delay_ms` have passed."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` in the next turn."""
        ...


class Jobs(Protocol):
    """Work that may block on a disk, and so must not run on the thread that owns the state.

    `job` runs on another thread and must not change shared state. `finish(value, error)` then runs on the thread that
    owns the state. Exactly one of its arguments is set, except for a job that returns None.
    """

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Start `job`. Jobs may finish in another order than they were started."""
        ...


U = TypeVar("U")
Callback = Callable[[T | None, ApiError | None], None]


class Pending(Generic[T]):
    """A result that is set later, without asyncio.

    `Pending` is what the pure floors return where Java would return a future: for a produce that waits for its
    replicas, a fetch that waits for bytes, a controller write that waits for its commit. Its producer calls `complete`
    or `fail` exactly once. Its consumer passes a callback to `then`, which is called at once where the result is
    already set. Callbacks run in the order in which they were added, on the stack of `complete` or `fail`. No event
    loop is needed, and the simulator controls every step. What follows in several waits is a chain of `and_then`.

    A consumer that no longer needs the result calls `abandon`, which calls the producer's `on_abandoned`, where one is
    set. The producer may then stop, and need not settle the `Pending`. `on_abandoned` refers to the producer, which may
    refer to the `Pending`: it is dropped when that is settled or abandoned, since a cycle would keep the value until a
    full garbage collection, which is rare.

    One value or one `ApiError`, once.
    """

    __slots__ = ("_callbacks", "done", "error", "on_abandoned", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: ApiError | None = None
        self.on_abandoned: Callable[[], None] | None = None
        """set by the producer; called by `abandon` while the result is not set, and None afterwards"""
        self._callbacks: list[Callback[T]] = []

    def complete(self, value: T) -> None:
        """Settle with a value. Settling twice is a broken invariant."""
        self._settle(value, None)

    def fail(self, error: ApiError) -> None:
        """Settle with an error. Settling twice is a broken invariant."""
        self._settle(None, error)

    def settle(self, value: T | None, error: ApiError | None) -> None:
        """Take over the result of another `Pending`: `other.then(self.settle)`. Exactly one argument is set, except
        for a value of None."""
        self._settle(value, error)

    def then(self, callback: Callback[T]) -> None:
        """Call `callback(value, error)` once this is settled; at once, where it already is."""
        if self.done:
            callback(self.value, self.error)
        else:
            self._callbacks.append(callback)

    @overload
    def and_then(self, follow: Callable[[T], Pending[U]]) -> Pending[U]: ...
    @overload
    def and_then(self, follow: Callable[[T], U | Pending[U]]) -> Pending[U]: ...
    def and_then(self, follow: Callable[[T], U | Pending[U]]) -> Pending[U]:
        """What `follow` makes of the value: a value, or what is settled later. Errors pass, also what `follow`
        raises. Who abandons the result abandons what it waits for, now or later."""
        chained: Pending[U] = Pending()
        is_abandoned = False

        def abandon() -> None:
            nonlocal is_abandoned
            is_abandoned = True
            self.abandon()

        def on_settled(value: T | None, error: ApiError | None) -> None:
            if error is not None:
                chained.fail(error)
                return
            try:
                following = follow(cast(T, value))
            except Exception as failure:  # the stack that settled this must not be harmed
                chained.fail(as_api_error(failure))
                return
            if not isinstance(following, Pending):
                chained.complete(following)
                return
            following.then(chained.settle)
            if is_abandoned:
                following.abandon()
            elif not chained.done:
                chained.on_abandoned = following.abandon

        chained.on_abandoned = abandon
        self.then(on_settled)
        return chained

    def abandon(self) -> None:
        """The consumer no longer needs the result."""
        on_abandoned, self.on_abandoned = self.on_abandoned, None
        if on_abandoned is not None:
            on_abandoned()

    def _settle(self, value: T | None, error: ApiError | None) -> None:
        assert not self.done, "a Pending is settled once"
        self.done, self.value, self.error = True, value, error
        self.on_abandoned = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value, error)


class Reentrancy:
    """One rule for objects that call out and may be called back: a body that never runs inside itself.

    A synchronous object that owns state and calls out (it sends, appends to a log, moves a high watermark, settles a
    `Pending`) may be called again before its own call returns. So it completes its change of state first, or works in a
    `Reentrancy`. What such a second call finds is state in the middle of a change. A `Reentrancy` gives the object one
    place where it does its work: `run` does it, a call of `run` that arrives meanwhile makes the running one do it once
    more, and while a change is under way (`held`) the work waits until the change is complete.

    Invariant: the body is not on the stack twice, and no call of `run` is lost: the body begins at least once after it.

    Runs `body` one at a time. What the body raises leaves `run`; calls that waited for it are dropped then.
    """

    __slots__ = ("_again", "_body", "_depth")

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._depth = 0
        self._again = False

    def run(self) -> None:
        """Run the body now, or as soon as the run or the change that is under way ends."""
        self._again = True
        if not self._depth:
            self._drain()

    def held(self) -> Reentrancy:
        """A context: the body does not run inside it, and runs at its end where that was asked for meanwhile."""
        return self

    def __enter__(self) -> Reentrancy:
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth and self._again:
            self._drain()

    def _drain(self) -> None:
        self._depth += 1
        try:
            while self._again:
                self._again = False
                self._body()
        finally:
            self._depth -= 1
            self._again = False


TURN_MS = 100
RUN_ON_MS = 300
MAX_RUN_ON_MS = 2_000
GRACE_MS = 500
UNLIMITED_MS = 2**62


class LoopTime:
    """The time by which a node measures how long its peers take. It does not pass while the node's event loop does
    not run.

    A process that is stopped by a signal, a machine that sleeps, a disk that blocks the loop: meanwhile requests of
    peers arrive and wait in the sockets, and the loop's timers run before its sockets are read. By the machine's time
    the first thing after such a stall would be to end each session whose heartbeat waits there. So no deadline that a
    node keeps for a peer counts a stall: sessions, joins, transactions, requests that wait, fetches of the quorum.

    The loop reports its turns, every `TURN_MS`. The time runs at most `RUN_ON_MS` beyond the last one. The turn after a
    longer pause ends a stall. Then the time stands still a little longer, for as long as the stall lasted but at most
    `GRACE_MS`, so that what waits in the sockets is handled first. A pause that is shorter than `RUN_ON_MS` counts.

    A loop that has too much to do turns all the time, but slowly. It reads its sockets in each turn, so there a pause
    proves no stall, and the session of a dead peer has to end. So after a longer pause the time may run on for twice
    its length beyond each turn, but at most for `MAX_RUN_ON_MS`; with each turn in time that gets shorter by a
    twentieth. A loop whose turns take up to `MAX_RUN_ON_MS` loses time in its first long pause only; of slower turns
    that much counts. A stall that follows another one within a few seconds costs a peer at most that much too, which is
    less than what is left of the shortest session as long as its heartbeats are in time.

    Pure: the caller brings the machine's time, in ms. Invariant: the time never goes back, and it never runs faster
    than the machine's.
    """

    __slots__ = ("_last_ms", "_resumes_ms", "_run_on_ms", "limit_ms", "lost_ms")

    def __init__(self) -> None:
        self.limit_ms = UNLIMITED_MS
        """The machine's time up to which this one runs."""
        self.lost_ms = 0
        """By so much it is behind the machine's, as long as that is below `limit_ms`."""
        self._last_ms: int | None = None
        """The machine's time at the last turn; None: no turns are reported."""
        self._run_on_ms = RUN_ON_MS
        """How long it runs beyond a turn."""
        self._resumes_ms: int | None = None
        """The machine's time at which it runs again; None while it has not stood still since the last turn."""

    def read(self, machine_ms: int) -> int:
        """The time."""
        return min(machine_ms, self.limit_ms) - self.lost_ms

    def stands_still(self, machine_ms: int) -> bool:
        """Whether there is a stall, or what has arrived meanwhile is still to be handled."""
        return machine_ms > self.limit_ms

    def turn(self, machine_ms: int) -> int:
        """The loop turns. Returns for how long the time has stood still in the stall that has ended just now, in ms:
        each is returned once."""
        pause_ms = 0 if self._last_ms is None else machine_ms - self._last_ms
        self._last_ms = machine_ms
        could_run_on_ms = self._run_on_ms
        if pause_ms > RUN_ON_MS:
            self._run_on_ms = min(MAX_RUN_ON_MS, max(could_run_on_ms, 2 * pause_ms))
        else:
            self._run_on_ms = max(RUN_ON_MS, could_run_on_ms * 19 // 20)
        if machine_ms <= self.limit_ms:
            self.limit_ms = machine_ms + self._run_on_ms
            return 0
        stood_still_ms = 0
        if self._resumes_ms is None:
            stood_still_ms = machine_ms - self.limit_ms
            self._resumes_ms = machine_ms + min(pause_ms, GRACE_MS)
        if machine_ms >= self._resumes_ms:
            is_late = pause_ms > RUN_ON_MS  # and counts as any other such turn: the sockets have been read before it
            self._run_on(max(self._resumes_ms, machine_ms - could_run_on_ms) if is_late else machine_ms)
            self.limit_ms = machine_ms + self._run_on_ms
        return stood_still_ms

    def free(self, machine_ms: int) -> None:
        """The loop reports no more turns: the time runs as the machine's does."""
        self._run_on(machine_ms)
        self.limit_ms = UNLIMITED_MS
        self._last_ms = None
        self._run_on_ms = RUN_ON_MS

    def _run_on(self, machine_ms: int) -> None:
        """The time runs on from that moment."""
        self.lost_ms += max(0, machine_ms - self.limit_ms)
        self._resumes_ms = None
