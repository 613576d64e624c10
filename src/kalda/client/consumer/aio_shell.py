"""What the asyncio shells of consumers have in common: I/O that runs their core on the user's loop, and waiting for it.

A consumer is used by one loop, but by any number of its tasks. Connections are made in the loop of the first call that
waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kalda.client.consumer.common_calls import CommonCalls, ConsumerClosed, ConsumerDriven, Steps
from kalda.client.transport.aio_face import AioFace, IoLoop
from kalda.clientcore.subscribed_core import SubscribedCore

FOREVER_S = 3600.0 * 24 * 365


class _Driven(ConsumerDriven):
    """What the loop runs, and what tasks wait for."""

    def __init__(self, core: SubscribedCore) -> None:
        super().__init__(core)
        self.waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        """What each waiting task waits for."""

    def finish(self) -> None:
        for future, is_done in list(self.waiting.items()):
            if not future.done() and (self.is_ending or is_done()):
                future.set_result(True)


class AioShell(CommonCalls, AioFace):
    """Runs a core on the loop of its user."""

    _driven: _Driven
    _what = "consumer"

    def _start(self) -> None:
        self._driven = _Driven(self._core)
        self._lock = contextlib.nullcontext()
        self._is_closed = False
        self._is_woken = False

    def wakeup(self) -> None:
        """Make a call that waits, or else the next one, end with `Wakeup`. From another thread, call it by the loop's
        `call_soon_threadsafe`."""
        self._is_woken = True
        self._changed()

    # -- inside

    def _current(self) -> object:
        return asyncio.current_task()

    def _changed(self) -> None:
        if self._io is not None:
            self._io.wake()

    def _let_run(self) -> None:
        self._changed()

    def _take(self, take: Callable[[], list[Any]]) -> list[Any]:
        self._core.raise_error()
        return take()

    def _next_records(self) -> None:
        return None

    def _end(self, io: IoLoop) -> None:
        """The last of a close: nothing can be called any more."""
        self._is_closed = True
        self._iterator.replace_rest([])
        self._driven.is_ending = True
        self._close_objects()
        io.wake()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed
        if self._driven.failure is not None:
            raise self._driven.failure

    def _started(self) -> IoLoop:
        self._check_open()
        return super()._started()

    async def _run_until(self, is_done: Callable[[], bool], due_ms: int) -> bool:
        """Wait until `is_done` or the deadline. True: it is done."""
        io = self._started()
        io.wake()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._driven.waiting[future] = is_done
        delay_s = min(FOREVER_S, max(0.0, (due_ms - self._now_ms()) / 1000))
        timer = loop.call_later(delay_s, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            self._driven.waiting.pop(future, None)

    async def _drive(self, steps: Steps) -> Any:
        """Run a call that waits."""
        try:
            wait = next(steps)
            while True:
                wait = steps.send(await self._run_until(wait.has_come, wait.due_ms))
        except StopIteration as end:
            return end.value
        finally:
            steps.close()


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
