"""Timers in a deterministic heap, driven from outside.

A `TimerTask` is a handle that is armed, re-armed and disarmed many times: each heartbeat of a member moves the deadline
of its session timer. A later deadline does not change the heap. The handle holds the new deadline, and when the stale
heap entry is popped, it is pushed again with that. So a heartbeat sets one attribute, and the heap has about one entry
a timer.

The entries of timers that were disarmed stay, too, and hold what their callbacks refer to. Where they are more than
half of the heap, it is made anew without them: members that join and leave cannot fill it for as long as their sessions
would have lasted.

Invariant: an armed timer has a heap entry at `_queued_ms`, which is not after its deadline.
Timers due at one moment fire in the order in which their entries were pushed. What a timer does never ends for good by
a fault: a timer whose callback raises is armed again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from kalda.base.background import Steps, run_to_end

_FEW = 64
"""So many entries without effect are left in the heap in any case."""
RETRY_MS = 10_000
"""When a timer whose callback has raised fires again."""


class TimerTask:
    """A handle: `callback(now_ms)` runs once per arming, unless disarmed before; what takes long are steps."""

    __slots__ = ("_queued_ms", "callback", "deadline_ms")

    def __init__(self, callback: Callable[[int], Steps[None] | None]) -> None:
        self.callback = callback
        self.deadline_ms: int | None = None
        """When it fires; None while it is not armed."""
        self._queued_ms: int | None = None
        """The time of its heap entry; None while it has none. An entry with another time is superseded."""


class EventClock(Protocol):
    """The time of the event being handled."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class CoordinatorTimer:
    """The heap. It has no clock: `fire(now_ms)` brings the time."""

    __slots__ = ("_heap", "_pushed", "_stale", "run")

    def __init__(self) -> None:
        self.run: Callable[[Steps[None]], object] = run_to_end
        """Called with the steps that callbacks return. They may end later than `fire`; the driver puts them into the
        background of its loop."""
        self._heap: list[tuple[int, int, TimerTask]] = []
        """(time, push number, timer), ordered by the first two."""
        self._pushed = 0
        """Counts pushes, so that entries of one time keep their order."""
        self._stale = 0
        """Entries without effect: of timers that are not armed, or superseded by an earlier one."""

    def arm(self, timer: TimerTask, deadline_ms: int) -> None:
        """Fire `timer` at `deadline_ms`; instead of at a deadline set before."""
        queued_ms = timer._queued_ms
        if queued_ms is not None and timer.deadline_ms is None:
            self._stale -= 1
        timer.deadline_ms = deadline_ms
        if queued_ms is None:
            self._push(timer, deadline_ms)
        elif deadline_ms < queued_ms:
            self._stale += 1
            self._push(timer, deadline_ms)

    def disarm(self, timer: TimerTask) -> None:
        """Do not fire `timer` until it is armed again."""
        if timer.deadline_ms is None:
            return
        timer.deadline_ms = None
        if timer._queued_ms is not None:
            self._stale += 1
            if self._stale > _FEW and 2 * self._stale > len(self._heap):
                self._sweep()

    def next_deadline_ms(self) -> int | None:
        """When `fire` is due next: the first deadline, or an earlier time whose entry is stale."""
        return self._heap[0][0] if self._heap else None

    def fire(self, now_ms: int) -> int:
        """Run the timers that are due and return how many ran.

        One that a callback arms at or before `now_ms` waits for the next call, so that a timer that re-arms itself
        without delay cannot hold the caller. Raises what a callback raises; timers that were due after it stay due.
        """
        fired = 0
        for _ in range(len(self._heap)):
            if not self._heap or self._heap[0][0] > now_ms:
                break  # the heap is empty where a callback has fired the others
            queued_ms, _, timer = heapq.heappop(self._heap)
            if timer._queued_ms != queued_ms:
                self._stale -= 1
                continue  # superseded by an entry for an earlier deadline
            timer._queued_ms = None
            if timer.deadline_ms is None:
                self._stale -= 1
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            timer.deadline_ms = None
            fired += 1
            try:
                steps = timer.callback(now_ms)
            except Exception:
                if timer.deadline_ms is None:
                    self.arm(timer, now_ms + RETRY_MS)
                raise
            if steps is not None:
                self.run(self._steps(timer, steps, now_ms))
        return fired

    def _steps(self, timer: TimerTask, steps: Steps[None], now_ms: int) -> Steps[None]:
        """The same. Where they raise, the timer fires again."""
        try:
            yield from steps
        except Exception:
            if timer.deadline_ms is None:
                self.arm(timer, now_ms + RETRY_MS)
            raise

    def _push(self, timer: TimerTask, deadline_ms: int) -> None:
        timer._queued_ms = deadline_ms
        self._pushed += 1
        heapq.heappush(self._heap, (deadline_ms, self._pushed, timer))

    def _sweep(self) -> None:
        """Make the heap anew from the entries that have an effect."""
        kept = []
        for entry in self._heap:
            queued_ms, _, timer = entry
            if timer._queued_ms == queued_ms:
                if timer.deadline_ms is not None:
                    kept.append(entry)
                else:
                    timer._queued_ms = None
        heapq.heapify(kept)
        self._heap = kept
        # Of two entries of a timer for one time, the second has no effect.
        self._stale = len(kept) - len({timer for _, _, timer in kept})
