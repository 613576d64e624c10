"""Connections whose last turn was long: one of them is served in each turn of the event loop.

A peer may send many requests at once that each take some milliseconds. Its turn ends after `Limits.turn_ms`, and its
connection waits here behind all others whose turns were long. The other connections are served as their requests
arrive, so they wait for one long turn at most, however many connections cause such turns.

Invariant: a call of `_next` is scheduled exactly while a connection waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class TurnTaker(Protocol):
    """What waits for its turn."""

    def take_turn(self) -> None:
        """It may be served again."""
        ...


class LongTurns:
    """Those of one event loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: OrderedDict[TurnTaker, None] = OrderedDict()
        """In the order in which they are served."""

    def wait(self, connection: TurnTaker) -> None:
        """Call `take_turn` of the connection when its turn comes."""
        if not self._waiting:
            self._call_soon(self._next)
        self._waiting[connection] = None

    def _next(self) -> None:
        connection, _ = self._waiting.popitem(last=False)
        if self._waiting:
            self._call_soon(self._next)
        connection.take_turn()
