"""Deadlines of requests to other nodes. One that comes due in a stall of the loop is put off until what has arrived
meanwhile was read: the loop runs its timers before it reads its sockets, and the answer may wait there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kalda.base.loop_time import GRACE_MS, RUN_ON_MS


class Deadline:
    """Calls `callback` once after `delay_s`, unless it is cancelled."""

    __slots__ = ("_callback", "_due_s", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due_s = loop.time() + delay_s
        self._handle = loop.call_later(delay_s, self._on_due)

    def cancel(self) -> None:
        """Drop the call."""
        self._handle.cancel()

    def _on_due(self) -> None:
        late_ms = (self._loop.time() - self._due_s) * 1000
        if late_ms <= RUN_ON_MS:
            self._callback()
        else:
            self._handle = self._loop.call_later(min(late_ms, GRACE_MS) / 1000, self._callback)


@asynccontextmanager
async def timeout(delay_s: float | None) -> AsyncIterator[None]:
    """As `asyncio.timeout`, with such a deadline; None for none."""
    if delay_s is None:
        yield
        return
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        deadline = Deadline(loop, delay_s, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            deadline.cancel()
