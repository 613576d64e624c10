"""Timers in a deterministic heap, driven from outside.

A `TimerTask` is a handle that is armed, re-armed and disarmed many times: each heartbeat of a member moves the deadline
of its session timer. A later deadline does not change the heap. The handle holds the new deadline, and when the stale
heap entry is popped, it is pushed again with that. So a heartbeat sets one attribute, and the heap has about one entry
a timer.

Invariant: an armed timer has a heap entry at `_queued_ms`, which is not after its deadline.
Timers due at one moment fire in the order in which their entries were pushed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class TimerTask:
    """A handle: `callback(now_ms)` runs once per arming, unless disarmed before."""

    __slots__ = ("_queued_ms", "callback", "deadline_ms")

    def __init__(self, callback: Callable[[int], None]) -> None:
        self.callback = callback
        self.deadline_ms: int | None = None
        """When it fires; None while it is not armed."""
        self._queued_ms: int | None = None
        """The time of its heap entry; None while it has none. An entry with another time is superseded."""


class CoordinatorTimer:
    """The heap. It has no clock: `fire(now_ms)` brings the time."""

    __slots__ = ("_heap", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTask]] = []
        """(time, push number, timer), ordered by the first two."""
        self._pushed = 0
        """Counts pushes, so that entries of one time keep their order."""

    def arm(self, timer: TimerTask, deadline_ms: int) -> None:
        """Fire `timer` at `deadline_ms`; instead of at a deadline set before."""
        timer.deadline_ms = deadline_ms
        queued_ms = timer._queued_ms
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(timer, deadline_ms)

    def disarm(self, timer: TimerTask) -> None:
        """Do not fire `timer` until it is armed again."""
        timer.deadline_ms = None

    def next_deadline_ms(self) -> int | None:
        """When `fire` is due next: the first deadline, or an earlier time whose entry is stale."""
        return self._heap[0][0] if self._heap else None

    def fire(self, now_ms: int) -> int:
        """Run the timers that are due and return how many ran.

        One that a callback arms at or before `now_ms` waits for the next call, so that a timer that re-arms itself
        without delay cannot hold the caller.
        """
        fired = 0
        for _ in range(len(self._heap)):
            if not self._heap or self._heap[0][0] > now_ms:
                break  # the heap is empty where a callback has fired the others
            queued_ms, _, timer = heapq.heappop(self._heap)
            if timer._queued_ms != queued_ms:
                continue  # superseded by an entry for an earlier deadline
            timer._queued_ms = None
            if timer.deadline_ms is None:
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            timer.deadline_ms = None
            fired += 1
            timer.callback(now_ms)
        return fired

    def _push(self, timer: TimerTask, deadline_ms: int) -> None:
        timer._queued_ms = deadline_ms
        self._pushed += 1
        heapq.heappush(self._heap, (deadline_ms, self._pushed, timer))
