"""Turns: how the requests of many connections share the event loop.

A connection is served for `SHARE_NS`; where it has more requests then, it waits here behind all others that wait. In
one turn of the loop requests take `TURN_NS`, and what the last of them takes beyond that: each connection that waits is
served once at most, in the order in which they came, then what has just arrived; what arrives when that time is used up
waits as well. Turns of the loop in which little is served may use up the time together: to notice each of them costs
more than such a request.

The share is `SHORT_NS` after another connection had few requests at a time, and then for some turns of the loop: what
such a client sends next waits for a share, and its round trips take hardly longer than alone. It is longer otherwise,
since a turn of the loop and a write for each cost some 15 us.

A connection whose last requests took `SLOW_NS`, or that had none yet, waits apart: of these one is served in a turn of
the loop, after the others. Requests of 30 ms are legal, and many peers that send such ones would otherwise delay every
round trip by 30 ms each.

Invariant: a call of `_next` is scheduled while a connection waits, or `must_wait`.

Not obvious:

- A connection is served for 0.5 ms, or 0.1 ms beside connections with few requests, then behind all others that wait.
  Requests take 2 ms of a turn of the loop and what the last one takes beyond. Connections whose last requests took 5
  ms wait apart, so that a round trip beside heavy requests of many peers waits for two or three of them, not for one
  of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SHARE_NS: Final = 500_000
SHORT_NS: Final = 100_000
TURN_NS: Final = 2_000_000
SLOW_NS: Final = 5_000_000
FEW_REQUESTS: Final = 2
_SHORT_TURNS: Final = 200


class TurnTaker(Protocol):
    """A connection."""

    id: int
    is_slow: bool
    """Whether its last requests took `SLOW_NS`, or it had none yet."""

    def take_turn(self) -> None:
        """It may be served again."""
        ...


class Turns:
    """Those of one event loop."""

    __slots__ = (
        "_call_soon", "_had_few", "_is_scheduled", "_left_ns", "_quick", "_short_turns", "_slow", "must_wait", "now_ns",
    )  # fmt: skip

    def __init__(self, now_ns: Callable[[], int], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`now_ns` is a monotonic clock."""
        self.now_ns = now_ns
        self._call_soon = call_soon
        self.must_wait = False
        """Whether requests that have just arrived are served in a later turn of the loop."""
        self._left_ns = TURN_NS
        self._had_few = 0
        """The id of the connection that had few requests last; 0 where shares are short because of it already."""
        self._short_turns = 0
        """In so many turns of the loop shares are short."""
        self._quick: deque[TurnTaker] = deque()
        self._slow: deque[TurnTaker] = deque()
        self._is_scheduled = False

    def share_ns(self, connection: TurnTaker) -> int:
        """For so long the connection is served now."""
        return SHORT_NS if self._short_turns or self._had_few not in (0, connection.id) else SHARE_NS

    def wait(self, connection: TurnTaker) -> None:
        """Call `take_turn` of the connection when its turn comes."""
        (self._slow if connection.is_slow else self._quick).append(connection)
        if self._had_few not in (0, connection.id):
            self._had_few, self._short_turns = 0, _SHORT_TURNS
        self._schedule()

    def spend(self, connection: TurnTaker, took_ns: int, *, had_few: bool) -> None:
        """Requests of the connection have taken so long. `had_few`: at most `FEW_REQUESTS` had arrived."""
        if had_few:
            self._had_few = connection.id
        self._left_ns -= took_ns
        if self._left_ns <= 0:
            self.must_wait = True
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._next)

    def _next(self) -> None:
        """A turn of the loop begins."""
        self._left_ns, self.must_wait = TURN_NS, False
        self._short_turns = max(0, self._short_turns - 1)
        quick, slow = self._quick, self._slow
        try:
            for _ in range(len(quick)):
                if self.must_wait:
                    break
                quick.popleft().take_turn()
            if slow:
                slow.popleft().take_turn()
        finally:
            self._is_scheduled = False
            if quick or slow or self.must_wait:
                self._schedule()
