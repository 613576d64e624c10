"""Timers, jobs and background work whose progress a test controls."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TypeVar

from kalda.base.background import TURN_BUDGET_NS, Background, NextTurn

T = TypeVar("T")


class HandTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandTime:
    """A clock that stands still until the test moves it, and its timers."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self._due: list[tuple[int, int, HandTimer]] = []
        self._count = 0

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> HandTimer:
        timer = HandTimer(callback)
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._count, timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> HandTimer:
        return self.call_later_ms(0, callback)

    def background(self) -> Background:
        """One whose turns are timers without a delay, and end when there is nothing left to do."""
        return Background(lambda turn: self.call_later_ms(0, turn), lambda: 0)

    def advance(self, ms: int) -> None:
        """Move the clock. Each due timer is called at its due time, timers set by these calls included."""
        until = self.now_ms + ms
        while self._due and self._due[0][0] <= until:
            at, _, timer = heapq.heappop(self._due)
            self.now_ms = max(self.now_ms, at)
            if not timer.cancelled:
                timer.callback()
        self.now_ms = until

    @property
    def timers(self) -> int:
        """The number of timers that are neither called nor cancelled."""
        return sum(not timer.cancelled for _, _, timer in self._due)


def inline_background() -> Background:
    """Background work that is done at once, to its end."""
    return Background(lambda turn: turn(), lambda: 0)


def one_step_a_turn(next_turn: NextTurn) -> Background:
    """Background work whose every step uses up the turn."""
    return Background(next_turn, itertools.count(0, TURN_BUDGET_NS).__next__)


class HandJobs:
    """Jobs that run at once, inside `run`; with `hold_jobs`, in `let_jobs_run`."""

    def __init__(self, hold_jobs: bool = False) -> None:
        self.hold_jobs = hold_jobs
        self.waiting: list[Callable[[], None]] = []

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        def both() -> None:
            try:
                value = job()
            except Exception as error:
                finish(None, error)
            else:
                finish(value, None)

        self.waiting.append(both)
        if not self.hold_jobs:
            self.let_jobs_run()

    def let_jobs_run(self) -> None:
        """Run the waiting jobs in the order in which they were started, until none waits."""
        while self.waiting:
            self.waiting.pop(0)()
