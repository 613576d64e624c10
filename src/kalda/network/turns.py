"""Turns: how the requests of many connections share the event loop.

A connection is served for `SHARE_NS`; where it has more requests then, it waits here behind all others that wait. In
one turn of the loop requests take `TURN_NS`, and what the last of them takes beyond that: each connection that waits is
served once at most, in the order in which they came, and what arrives while one waits, or when that time is used up,
waits behind it. The time is not divided by turns of the loop in which little is served, since to notice these costs
more than such a request: it may have been used up by several.

A connection whose last requests took `SLOW_NS`, or that had none yet, waits apart: of these one is served in a turn of
the loop, after the others. Requests of 30 ms are legal, and many peers that send such ones would otherwise delay every
round trip by 30 ms each.

Invariant: `must_wait` exactly while a call of `_next` is scheduled or runs; it is while a connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SHARE_NS: Final = 500_000
TURN_NS: Final = 2_000_000
SLOW_NS: Final = 5_000_000


class TurnTaker(Protocol):
    """A connection."""

    is_slow: bool
    """Whether its last requests took `SLOW_NS`, or it had none yet."""

    def take_turn(self) -> None:
        """It may be served again."""
        ...


class Turns:
    """Those of one event loop."""

    __slots__ = ("_call_soon", "_left_ns", "_quick", "_slow", "must_wait", "now_ns")

    def __init__(self, now_ns: Callable[[], int], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`now_ns` is a monotonic clock."""
        self.now_ns = now_ns
        self._call_soon = call_soon
        self.must_wait = False
        """Whether requests that have just arrived are served later."""
        self._left_ns = TURN_NS
        self._quick: deque[TurnTaker] = deque()
        self._slow: deque[TurnTaker] = deque()

    def wait(self, connection: TurnTaker) -> None:
        """Call `take_turn` of the connection when its turn comes."""
        (self._slow if connection.is_slow else self._quick).append(connection)
        self._schedule()

    def spend(self, took_ns: int) -> None:
        """Requests have taken so long."""
        self._left_ns -= took_ns
        if self._left_ns <= 0:
            self._schedule()

    def _schedule(self) -> None:
        if not self.must_wait:
            self.must_wait = True
            self._call_soon(self._next)

    def _next(self) -> None:
        """A turn of the loop begins."""
        self._left_ns = TURN_NS
        quick, slow = self._quick, self._slow
        try:
            for _ in range(len(quick)):
                if self._left_ns <= 0:
                    break
                quick.popleft().take_turn()
            if slow:
                slow.popleft().take_turn()
        finally:
            self.must_wait = False
            if quick or slow or self._left_ns <= 0:
                self._schedule()
