"""Turns: how connections with many requests, or with slow ones, share the event loop with the others.

The requests of one connection are served for a turn; one request may take longer. Then its connection waits here behind
all others whose turns have ended, and one of these is served in each turn of the event loop. One that has no requests
left waits only where its last one was slow. The other connections are
served as their requests arrive, so such a request waits for one turn, however many connections have requests left.

Turns are short while there are connections that have few requests at a time, as clients have that wait for each answer.
A turn costs about 6 µs, so turns are long while there are none. The turns of requests that have just arrived share the
time of one turn with the connections that wait.

Invariant: a call of `_next` is scheduled exactly while a connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SHORT_NS: Final = 200_000
LONG_NS: Final = 2_000_000
SHARED_NS: Final = 100_000_000
"""For so long after a connection with few requests turns are short."""
FEW_REQUESTS: Final = 2
"""At most so many come at a time over a connection with few requests."""


class TurnTaker(Protocol):
    """What waits for its turn."""

    id: int

    def take_turn(self, turn_ns: int) -> None:
        """It may be served again, for so long."""
        ...


class Turns:
    """Those of one event loop."""

    __slots__ = ("_call_soon", "_shared_until_ns", "_turn_ns", "_waiting", "first_ns", "had_few", "now_ns")

    def __init__(self, now_ns: Callable[[], int], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`now_ns` is a monotonic clock."""
        self.now_ns = now_ns
        self._call_soon = call_soon
        self.had_few = 0
        """The id of the connection that had few requests last; 0 where turns are short because of it already."""
        self._shared_until_ns = 0
        """Turns are short until then."""
        self._waiting: deque[TurnTaker] = deque()
        """In the order in which they are served."""
        self._turn_ns = LONG_NS
        """The length of the last turn that began here."""
        self.first_ns = LONG_NS
        """The length of a turn of requests that have just arrived."""

    def wait(self, connection: TurnTaker) -> None:
        """Call `take_turn` of the connection when its turn comes."""
        if not self._waiting:
            self._call_soon(self._next)
        self._waiting.append(connection)
        self.first_ns = self._turn_ns // (len(self._waiting) + 1)

    def _next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            self._call_soon(self._next)
        now_ns = self.now_ns()
        if self.had_few not in (0, connection.id):
            self.had_few = 0
            self._shared_until_ns = now_ns + SHARED_NS
        self._turn_ns = SHORT_NS if now_ns < self._shared_until_ns else LONG_NS
        self.first_ns = self._turn_ns // (len(self._waiting) + 1)
        connection.take_turn(self._turn_ns)
