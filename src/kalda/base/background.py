"""The work of an event loop that is not the answer to what has just arrived: who does it, and for how long in one turn.

A turn is one iteration of the loop. Work that takes long is a generator (`Steps`) that yields between steps of at most
about a millisecond. A node has one `Background`, which runs all of them, and the short calls of which one event may
cause thousands, as an append that many fetches wait for.

The promise: in one turn it holds the loop for at most `TURN_BUDGET_NS` and one step, however much there is to do. Then
sockets are read and requests are answered, and it goes on in the next turn.

Time is shared by three queues: calls, steps of answers (`Priority.ANSWER`), maintenance (`Priority.MAINTENANCE`). The
next step is one of the queue that has used least of its share. So maintenance gets a ninth of the time or more, and the
work of one queue never waits for the end of that of another. In a queue of steps, generators alternate; calls keep
their order.

Not obvious:

- A request that is handled in steps holds its connection alone; its first step runs on the spot.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from enum import IntEnum
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from kalda.base.errors import as_api_error
from kalda.base.scheduling import Pending, Timer

log = logging.getLogger("kalda.background")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work in bounded steps: each `next` does one, and the generator returns the result."""
NextTurn = Callable[[Callable[[], None]], object]
"""Calls back in the next turn of the event loop, as `loop.call_soon` does."""

TURN_BUDGET_NS: Final = 5_000_000
ITEMS_A_STEP: Final = 50
"""A loop over items of at most 20 us each yields after so many of them."""


class Priority(IntEnum):
    """Who waits for the work. The value is its share of the time."""

    ANSWER = 4
    """A client or another node waits for it."""
    MAINTENANCE = 1
    """No answer waits for it."""


_SHARE_OF_CALLS: Final = 4
_FAILED: Final = "work in the background failed"


def run_to_end(steps: Steps[T]) -> T:
    """What the steps return, at once: for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result


class Background:
    """The background work of one event loop.

    Invariant: outside of a turn and of a call, the next turn is asked for exactly while work is queued.
    """

    def __init__(self, next_turn: NextTurn, now_ns: Callable[[], int]) -> None:
        """`now_ns` is a monotonic clock that moves while the loop is held."""
        self._next_turn = next_turn
        self._now_ns = now_ns
        self._calls: _Queue[_Call] = _Queue(_SHARE_OF_CALLS)
        self._steps: dict[Priority, _Queue[_Work[Any]]] = {each: _Queue(each) for each in Priority}
        self._queues: tuple[_Queue[Any], ...] = (self._calls, *self._steps.values())
        self._began_ns: int | None = None
        """When the turn began that runs, or the call that was made outside of one. None while neither does."""
        self._spent_ns = 0
        """What calls outside of turns have used of the budget since the last turn began, and that turn itself."""
        self._has_next_turn = False
        self._is_closed = False
        self.running: object = None
        """Whose step runs; None outside of turns."""
        self.longest: tuple[int, str] = (0, "")
        """How many nanoseconds the longest step has taken, and whose it was, since the watchdog has reset this."""

    def run(
        self, steps: Steps[T | Pending[T]], priority: Priority = Priority.ANSWER, owner: object = None
    ) -> Pending[T]:
        """Settles with what `steps` returns or raises; where it returns a `Pending`, with the result of that. Where the
        pending result is abandoned, `steps` is closed: at once, or after the step that is under way. `owner` is who is
        named where a step takes too long; the generator itself where it is None."""
        work: _Work[T] = _Work(steps, steps if owner is None else owner)
        if self._is_closed:
            work.abandon()
        else:
            self._add(self._steps[priority], work)
        return work.pending

    def call(self, function: Callable[[], None]) -> Timer:
        """Call `function`: now, where the turn has time left and no other call waits; otherwise in a later turn, unless
        it is cancelled before. What it raises is logged."""
        began_ns = self._began_ns
        if self._calls.waiting or self._is_closed:
            return self._call_later(function)
        if began_ns is not None:
            if self._spent_ns + self._now_ns() - began_ns >= TURN_BUDGET_NS:
                return self._call_later(function)
            _make(function)
            return _MADE
        if self._spent_ns >= TURN_BUDGET_NS:
            return self._call_later(function)
        self._began_ns = began_ns = self._now_ns()
        try:
            function()
        except Exception:
            log.exception(_FAILED)
        finally:
            self._end(began_ns)
        return _MADE

    def close(self) -> None:
        """Do nothing more: the node has stopped."""
        self._is_closed = True
        self._calls.waiting.clear()
        for queue in self._steps.values():
            for work in tuple(queue.waiting):
                work.abandon()
            queue.waiting.clear()

    def _call_later(self, function: Callable[[], None]) -> Timer:
        call = _Call(function)
        if not self._is_closed:
            self._add(self._calls, call)
        return call

    def _add(self, queue: _Queue[Any], work: Any) -> None:
        if not queue.waiting:  # the time in which the queue was empty does not count for it
            queue.used_ns = max(queue.used_ns, min((each.used_ns for each in self._queues if each.waiting), default=0))
        queue.waiting.append(work)
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if self._began_ns is None and not self._has_next_turn and self._next_queue() is not None:
            self._has_next_turn = True
            self._next_turn(self._turn)

    def _next_queue(self) -> _Queue[Any] | None:
        """The one that has used least of its share, of those with work."""
        found: _Queue[Any] | None = None
        for queue in self._queues:
            if queue.waiting and (found is None or queue.used_ns < found.used_ns):
                found = queue
        return found

    def _end(self, began_ns: int) -> None:
        """The turn is over, or the call outside of one."""
        self._spent_ns += self._now_ns() - began_ns
        self._began_ns = None
        self._ask_for_turn()

    def _turn(self) -> None:
        self._has_next_turn = False
        self._spent_ns = 0
        self._began_ns = began_ns = now_ns = self._now_ns()
        try:
            while now_ns - began_ns < TURN_BUDGET_NS:
                queue = self._next_queue()
                if queue is None:
                    break
                work = queue.waiting.popleft()
                step_ns, self.running = now_ns, work.owner
                if work.step():
                    queue.waiting.append(work)
                now_ns = self._now_ns()
                queue.used_ns += (now_ns - step_ns) // queue.share
                if now_ns - step_ns > self.longest[0]:
                    self.longest = (now_ns - step_ns, name_of(self.running))
        finally:
            self.running = None
            self._end(began_ns)


W = TypeVar("W")


class _Queue(Generic[W]):
    """What waits with one share of the time."""

    __slots__ = ("share", "used_ns", "waiting")

    def __init__(self, share: int) -> None:
        self.share = share
        self.used_ns = 0
        """The time that was used, divided by the share."""
        self.waiting: deque[W] = deque()


class _Work(Generic[T]):
    """A generator, and the pending result that settles with what it returns."""

    __slots__ = ("_is_abandoned", "_is_running", "owner", "pending", "steps")

    def __init__(self, steps: Steps[T | Pending[T]], owner: object) -> None:
        self.steps = steps
        self.owner = owner
        self.pending: Pending[T] = Pending()
        self.pending.on_abandoned = self.abandon
        self._is_running = False
        self._is_abandoned = False

    def abandon(self) -> None:
        """The result is not wanted any more."""
        self._is_abandoned = True
        if not self._is_running:
            _make(self.steps.close)

    def step(self) -> bool:
        """Do one step. Whether there are more; there is none where the generator is closed."""
        self._is_running = True
        try:
            next(self.steps)
        except StopIteration as finished:
            if self._is_abandoned:
                if isinstance(finished.value, Pending):
                    _make(finished.value.abandon)
            else:
                _make(partial(self._settle, finished.value))
            return False
        except Exception as error:
            if not self._is_abandoned:
                _make(partial(self.pending.fail, as_api_error(error)))
            return False
        finally:
            self._is_running = False
        if self._is_abandoned:
            _make(self.steps.close)
            return False
        return True

    def _settle(self, value: Any) -> None:
        if isinstance(value, Pending):
            self.pending.on_abandoned = value.abandon
            value.then(self.pending.settle)
        else:
            self.pending.complete(value)


class _Call:
    """A call that waits."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        """None when it is made or cancelled."""

    @property
    def owner(self) -> object:
        """Who is named where it takes too long."""
        return self._function

    def cancel(self) -> None:
        """Drop the call; no effect where it has been made."""
        self._function = None

    def step(self) -> bool:
        """Make the call. There is no more."""
        function, self._function = self._function, None
        if function is not None:
            _make(function)
        return False


_MADE: Final = _Call(lambda: None)
_MADE.cancel()


def _make(function: Callable[[], object]) -> None:
    """Call it. Nothing that was queued behind it is harmed where it fails."""
    try:
        function()
    except Exception:
        log.exception(_FAILED)


def name_of(owner: object) -> str:
    """What the log calls the owner of a step."""
    while isinstance(owner, partial):
        owner = owner.func
    return str(getattr(owner, "__qualname__", owner))
