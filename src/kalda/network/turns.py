"""Turns: how connections with many requests, or with slow ones, share the event loop with the others.

The requests of one connection are served for a turn; one request may take longer. Then its connection waits here behind
all others whose turns have ended, and one of these is served in each turn of the event loop. One that has no requests
left waits only where its last one was slow. The other connections are served as their requests arrive, so such a
request waits for one turn, however many connections have requests left.

Turns are short while there are connections that have few requests at a time, as clients have that wait for each answer.
A turn costs about 6 µs, so turns are long while there are none. The turns of requests that have just arrived share the
time of one turn with the connections that wait.

Where such turns have taken `LONG_NS` in one turn of the loop, as with slow requests that arrive over many connections
at once, the other requests that have arrived are not served in it (`is_over`). Connections whose last requests were
quick are served first in the next turn of the loop; those whose last ones were slow, or that had none yet, wait here.

Invariant: a call of `_next` is scheduled exactly while a connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SHORT_NS: Final = 100_000
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

    __slots__ = (
        "_call_soon", "_shared_until_ns", "_spent_ns", "_turn_ns", "_waiting", "first_ns", "had_few", "is_over",
        "now_ns",
    )  # fmt: skip

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
        self._spent_ns = 0
        """What the turns of `first_took` have taken in this turn of the loop."""
        self.is_over = False
        """Whether no more requests that have just arrived are served in this turn of the loop."""

    @property
    def are_contended(self) -> bool:
        """Whether more than one connection waits."""
        return len(self._waiting) > 1

    def wait(self, connection: TurnTaker) -> None:
        """Call `take_turn` of the connection when its turn comes."""
        if not self._waiting:
            self._call_soon(self._next)
        self._waiting.append(connection)
        self._share(connection.id)

    def first_took(self, connection: TurnTaker, took_ns: int) -> None:
        """A turn of requests that had just arrived took so long. Turns below `SHORT_NS` are not counted."""
        if not self._spent_ns:
            self._call_soon(self._begin)
        self._spent_ns += took_ns
        self.is_over = self._spent_ns >= LONG_NS
        self._share(connection.id)

    def _begin(self) -> None:
        """A turn of the loop begins."""
        self._spent_ns = 0
        self.is_over = False

    def _next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            self._call_soon(self._next)
        self._share(connection.id)
        connection.take_turn(self._turn_ns)

    def _share(self, connection_id: int) -> None:
        """Decide how long turns are beside this connection, which has many requests or slow ones."""
        if self.had_few not in (0, connection_id):
            self.had_few = 0
            self._shared_until_ns = self.now_ns() + SHARED_NS
        self._turn_ns = SHORT_NS if self.now_ns() < self._shared_until_ns else LONG_NS
        self.first_ns = self._turn_ns // (len(self._waiting) + 1)
