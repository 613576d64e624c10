"""The end of a node: what its start has made is closed in an order of its own.

The order is not the reverse of the start. Listeners answer until the modules are closed, since a controlled shutdown
and the requests under way need them; logs and the metadata log are closed last, when nothing can append to them any
more. A start that fails has made some of the parts: the same order closes those.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum, auto
from typing import NamedTuple

log = logging.getLogger("kalda.node")


class Part(IntEnum):
    """What is closed, in this order."""

    WATCHDOG = auto()
    TIMERS = auto()
    SECURITY = auto()
    METRICS = auto()
    QUOTAS = auto()
    AUTHORIZER = auto()
    CONTROLLER = auto()
    """The controller infers nothing any more from connections that end."""
    MODULES = auto()
    """All that a broker serves, and its heartbeats."""
    REGISTRATION = auto()
    CHANNELS = auto()
    SERVER = auto()
    LOGS = auto()
    QUORUM = auto()
    """The metadata log."""
    RAFT_CHANNEL = auto()


class Ending(NamedTuple):
    """How a node ends."""

    is_clean: bool
    """Whether logs are closed, and marked as closed; else all files stay as they are."""
    has_failed: bool
    """Whether the node ends because it cannot go on."""


class Closing:
    """The parts that have been made so far."""

    def __init__(self) -> None:
        self._closes: list[tuple[Part, Callable[[Ending], Awaitable[None] | None]]] = []

    def add(self, part: Part, close: Callable[[Ending], Awaitable[None] | None]) -> None:
        """Something was made that `close` ends; what it returns is awaited."""
        self._closes.append((part, close))

    async def run(self, ending: Ending) -> None:
        """Close everything. Where one fails, the others are closed, and this raises what the first one raised."""
        first: BaseException | None = None
        for part, close in sorted(self._closes, key=lambda each: each[0]):
            try:
                under_way = close(ending)
                if under_way is not None:
                    await under_way
            except (Exception, asyncio.CancelledError) as error:
                if first is None:
                    first = error
                else:
                    log.error("the %s of this node could not be closed, too", part.name.lower(), exc_info=error)
        if first is not None:
            raise first
