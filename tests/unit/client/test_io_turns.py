"""The shells of clients: a timer that runs out in the middle of a turn is not lost."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from kalda.base.errors import ApiError
from kalda.client import io_thread
from kalda.client.core.connections import Action
from kalda.client.io_loop import IoLoop
from kalda.client.io_thread import IoThread

TIMEOUT_S = 30
DUE_MS = 3


class OneTimer:
    """A core with a timer, which ends with it. Like every core, it names the timers after the time that it is given."""

    def __init__(self) -> None:
        self.has_fired = False

    def run(self, now_ms: int) -> None:
        self.has_fired |= now_ms >= DUE_MS

    def deadline_ms(self, now_ms: int) -> int | None:
        return DUE_MS if now_ms < DUE_MS else None

    def take_actions(self) -> list[Action]:
        return []

    def at(self, now_ms: int) -> Any:
        raise AssertionError("there are no connections")

    def finish(self) -> None:
        return None

    def is_over(self) -> bool:
        return self.has_fired

    def on_end(self, error: ApiError | None) -> None:
        assert error is None


def test_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 2 * DUE_MS)  # each look at the clock is later than the timer
    monkeypatch.setattr(io_thread, "monotonic_ms", lambda: next(clock))
    driven = OneTimer()
    thread = IoThread("test", driven, None, 1024, 1024)
    thread.start()
    thread.join(TIMEOUT_S)
    assert driven.has_fired


def test_of_the_loop() -> None:
    clock = itertools.count(0, 2 * DUE_MS)
    driven = OneTimer()

    async def run() -> None:
        io = IoLoop(asyncio.get_running_loop(), driven, None, 1024, 1024, now_ms=lambda: next(clock))
        io.wake()
        await asyncio.wait_for(asyncio.shield(io.ended), TIMEOUT_S)

    asyncio.run(run())
    assert driven.has_fired
