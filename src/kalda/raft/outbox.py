"""Calls under way: at most one for each destination, and the back-off after one that failed.

One for each destination is enough, since the next call depends on the last reply; and it bounds all queues. A change of
role drops all of them: a reply to a call of an earlier role is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from kalda.raft.rpc import Call
from kalda.raft.values import Destination


class InFlight(NamedTuple):
    destination: Destination
    call: Call
    deadline: int


class Outbox:
    """Invariant: a destination is either free, busy with one call in flight, or backing off."""

    __slots__ = ("_backoff_ms", "_backoff_until", "_busy", "_in_flight", "_next_correlation", "_timeout_ms")

    def __init__(self, timeout_ms: int, backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._in_flight: dict[int, InFlight] = {}
        """By correlation."""
        self._busy: dict[Destination, int] = {}
        """The correlation of the call in flight to each destination; the same calls as `_in_flight`."""
        self._backoff_until: dict[Destination, int] = {}
        self._next_correlation = 0

    def ready(self, destination: Destination, now: int) -> bool:
        return destination not in self._busy and self._backoff_until.get(destination, now) <= now

    def send(self, destination: Destination, call: Call, now: int, extra_ms: int = 0) -> int:
        """Record `call` as under way; returns its correlation. `extra_ms` is how long the receiver may park it."""
        assert destination not in self._busy
        correlation, self._next_correlation = self._next_correlation, self._next_correlation + 1
        self._in_flight[correlation] = InFlight(destination, call, now + self._timeout_ms + extra_ms)
        self._busy[destination] = correlation
        self._backoff_until.pop(destination, None)
        return correlation

    def close(self, correlation: int) -> InFlight | None:
        """The call is over. None where it was dropped before."""
        request = self._in_flight.pop(correlation, None)
        if request is not None:
            del self._busy[request.destination]
        return request

    def back_off(self, destination: Destination, now: int, at_least_ms: int = 0) -> None:
        self._backoff_until[destination] = now + max(self._backoff_ms, at_least_ms)

    def expire(self, now: int) -> None:
        """End calls that have timed out, and back-offs that are over."""
        for correlation in [c for c, request in self._in_flight.items() if request.deadline <= now]:
            request = self.close(correlation)
            assert request is not None
            self.back_off(request.destination, now)
        for destination in [d for d, until in self._backoff_until.items() if until <= now]:
            del self._backoff_until[destination]

    def drop_all(self) -> None:
        self._in_flight.clear()
        self._busy.clear()
        self._backoff_until.clear()

    @property
    def deadline(self) -> int | None:
        times = [request.deadline for request in self._in_flight.values()]
        times += self._backoff_until.values()
        return min(times, default=None)
