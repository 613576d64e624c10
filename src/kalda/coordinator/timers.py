"""Timers in a deterministic heap, driven from outside.

A `TimerTask` is a handle that is armed, re-armed and disarmed many times: a member's session timer moves with each of
its heartbeats. Moving a deadline later does not touch the heap. The handle remembers the new deadline, and the stale
heap entry, when it surfaces, is pushed back to where the deadline now is. So a heartbeat costs one attribute, and the
heap holds about one entry a timer.

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
        self._queued_ms: int | None = None


class CoordinatorTimer:
    """The heap. It has no clock: `fire(now_ms)` is told the time."""

    __slots__ = ("_heap", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._pushed = 0

    def arm(self, timer: TimerTask, deadline_ms: int) -> None:
        """Fire `timer` at `deadline_ms`; an earlier arming is forgotten."""
        timer.deadline_ms = deadline_ms
        queued_ms = timer._queued_ms
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(timer, deadline_ms)

    def disarm(self, timer: TimerTask) -> None:
        """Do not fire `timer` until it is armed again."""
        timer.deadline_ms = None

    def next_deadline_ms(self) -> int | None:
        """When `fire` is due next; at times earlier than the first real deadline, never later."""
        return self._heap[0][0] if self._heap else None

    def fire(self, now_ms: int) -> int:
        """Run what is due and return how many ran.

        What a callback arms at or before `now_ms` waits for the next call, so that a timer that re-arms itself
        without delay cannot hold the caller.
        """
        fired = 0
        for _ in range(len(self._heap)):
            if self._heap[0][0] > now_ms:
                break
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
