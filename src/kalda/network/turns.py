"""How connections with many requests share the event loop with the others.

A connection whose peer sends many requests at once is served for a turn. Then the loop serves what has arrived
elsewhere, and goes on. Turns are short while there are other connections that have few requests at a time, as clients
have that wait for each answer: such a request waits for one turn. A turn costs about 6 µs, so turns are long while
nobody waits. Where several connections have requests left, they share the time of one turn.

A connection with few requests is served at once, and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SHORT_NS: Final = 200_000
LONG_NS: Final = 2_000_000
SHARED_NS: Final = 100_000_000
"""For so long after such a request turns are short."""
REQUESTS_PER_READING: Final = 2
"""So many requests are served between two readings of the clock."""


class Turns:
    """The turns of one loop's connections."""

    __slots__ = ("_shared_until_ns", "_waiting", "now_ns", "untimed")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """`now_ns` is a monotonic clock."""
        self.now_ns = now_ns
        self.untimed = 0
        """The id of the connection whose few requests were served last; 0 where `end_ns` has taken note of it."""
        self._shared_until_ns = 0
        """Turns are short until then."""
        self._waiting = 0
        """Connections that wait for their next turn."""

    def end_ns(self, connection_id: int, now_ns: int) -> int:
        """When the turn of that connection ends which begins now."""
        if self.untimed not in (0, connection_id):
            self.untimed = 0
            self._shared_until_ns = now_ns + SHARED_NS
        return now_ns + (SHORT_NS // (self._waiting + 1) if now_ns < self._shared_until_ns else LONG_NS)

    def wait(self) -> None:
        """A connection waits for its next turn."""
        self._waiting += 1

    def begin(self) -> None:
        """The turn of a connection that has waited begins."""
        self._waiting -= 1
        assert self._waiting >= 0, "each turn begins once"
