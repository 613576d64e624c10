"""Stalls of this controller: times in which it did nothing although it had something to do.

A process that is stopped by a signal, a machine that sleeps, a disk that blocks the event loop. Meanwhile heartbeats of
brokers arrive and wait in the sockets. The timers of the event loop run before its sockets are read, so without further
care the first thing after the stall would be to fence every broker whose session seems to have ended.

A stall is recognized by the time: each poll sets the time of the next one, and a call that comes much later shows that
nothing ran in between. What follows is in `liveness.py`.
"""

from __future__ import annotations


class Stalls:
    """Compares the time of each call with the time for which the next poll was set."""

    def __init__(self, tolerance_ms: int) -> None:
        """A call that is late by at most `tolerance_ms` is no stall."""
        self._tolerance_ms = tolerance_ms
        self._expected_ms: int | None = None
        """By this time the next call was due. None while this controller is not active."""

    def expect(self, deadline_ms: int | None) -> None:
        """The next call is due at `deadline_ms`; earlier ones may come."""
        self._expected_ms = deadline_ms

    def observe(self, now_ms: int) -> int:
        """The length of the stall that has ended just now, in ms; 0 where there was none. Each is returned once."""
        if self._expected_ms is None:
            return 0
        late_ms = now_ms - self._expected_ms
        if late_ms <= self._tolerance_ms:
            return 0
        self._expected_ms = now_ms
        return late_ms
