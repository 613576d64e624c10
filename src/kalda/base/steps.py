"""Long work in steps: one step of one request in each turn of the event loop.

A request whose answer takes long to make is a generator (`Steps`) that yields between bounded pieces of work. The
generators of a runner take turns, so the loop is never held for longer than one step however many such requests there
are, and everything else is served between two steps.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from kalda.base.errors import ApiError, as_api_error
from kalda.base.pending import Pending
from kalda.base.scheduling import Timers

log = logging.getLogger(__name__)
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work in bounded pieces: each `next` does one, and the generator returns the result."""
NextTurn = Callable[[Callable[[], None]], object]
"""Calls back in the next turn of the event loop, as `loop.call_soon` does."""


def by_timers(timers: Timers) -> NextTurn:
    """The next turn of the loop that the timers belong to."""
    return lambda callback: timers.call_later_ms(0, callback)


def run_to_end(steps: Steps[T]) -> T:
    """What the steps return, at once: for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result


def _settle(pending: Pending[Any], value: object) -> None:
    if isinstance(value, Pending):
        pending.on_abandoned = value.abandon
        value.then(pending.settle)
    else:
        pending.complete(value)


class _Work(Generic[T]):
    """A generator, and the pending answer that settles with what it returns."""

    __slots__ = ("pending", "steps")

    def __init__(self, steps: Steps[T | Pending[T]]) -> None:
        self.steps = steps
        self.pending: Pending[T] = Pending()


class StepRunner:
    """Runs generators in turn, or one after another. Invariant: a turn is scheduled exactly while a generator is
    unfinished."""

    def __init__(self, next_turn: NextTurn, *, takes_turns: bool = True) -> None:
        """Without `takes_turns`, the next generator begins when the one before has ended."""
        self._takes_turns = takes_turns
        self._next_turn = next_turn
        self._unfinished: deque[_Work[Any]] = deque()
        self._is_scheduled = False

    def run(self, steps: Steps[T | Pending[T]]) -> Pending[T]:
        """Settles with what `steps` returns or raises; where it returns a `Pending`, with the result of that. Where the
        pending answer is abandoned, `steps` is closed."""
        work: _Work[T] = _Work(steps)
        work.pending.on_abandoned = lambda: self._abandon(work)
        self._unfinished.append(work)
        self._schedule()
        return work.pending

    def _schedule(self) -> None:
        if self._unfinished and not self._is_scheduled:
            self._is_scheduled = True
            self._next_turn(self._step)

    def _abandon(self, work: _Work[Any]) -> None:
        self._unfinished.remove(work)
        work.steps.close()

    def _step(self) -> None:
        """One step of the generator that has waited longest."""
        self._is_scheduled = False
        if not self._unfinished:
            return
        work = self._unfinished[0]
        try:
            next(work.steps)
        except StopIteration as finished:
            self._unfinished.popleft()
            self._schedule()
            _settle(work.pending, finished.value)
        except Exception as error:
            self._fail(work, as_api_error(error))
        else:
            if self._takes_turns:
                self._unfinished.rotate(-1)
            self._schedule()

    def _fail(self, work: _Work[Any], error: ApiError) -> None:
        self._unfinished.popleft()
        self._schedule()
        work.pending.fail(error)


class Spread:
    """Short calls of which one event may cause thousands, as an append that many fetches wait for: those beyond what
    one turn of the loop has room for are made in the next turns, in their order.

    Turns are not counted: after calls of `a_turn` in all, the next one waits for a turn, however long ago they were.
    Invariant: steps are under way while calls wait here.
    """

    def __init__(self, next_turn: NextTurn, a_turn: int) -> None:
        """`a_turn`: the sum of the costs of the calls that are made in one turn."""
        self._steps = StepRunner(next_turn)  # its own: long work of others must not take the turns of these calls
        self._a_turn = a_turn
        self._left = a_turn
        """What may still be called at once; nothing while calls wait here."""
        self._waiting: OrderedDict[Callable[[], None], int] = OrderedDict()

    def call(self, function: Callable[[], None], cost: int) -> None:
        """Call `function`, now or in a later turn."""
        if self._left > 0:
            self._left -= cost
            function()
            return
        if not self._waiting:
            self._steps.run(self._call_waiting())
        self._waiting[function] = cost

    def forget(self, function: Callable[[], None]) -> None:
        """It is not to be called any more."""
        self._waiting.pop(function, None)

    def _call_waiting(self) -> Steps[None]:
        while self._waiting:
            left = self._a_turn
            while self._waiting and left > 0:
                function, cost = self._waiting.popitem(last=False)
                left -= cost
                try:
                    function()
                except Exception:  # those behind it must not wait for ever
                    log.exception("a call that had waited for a turn failed")
            yield
        self._left = self._a_turn
