"""The shells of clients: a timer that runs out in the middle of a turn is not lost, nor is a wake."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kalda.base.errors import ApiError
from kalda.client.transport import io_thread
from kalda.client.transport.aio_face import IoLoop
from kalda.client.transport.channels import Channels
from kalda.client.transport.io_thread import IoThread
from kalda.client.transport.shared_io import SharedIo
from kalda.clientcore.connections.client_metrics import ClientMetrics
from kalda.clientcore.connections.connections import Action

TIMEOUT_S = 30
DUE_MS = 3


class OneTimer:
    """A core with a timer, which ends with it. Like every core, it names the timers after the time that it is given."""

    security = None

    def __init__(self) -> None:
        self.core = self.connections = self
        self.has_fired = False
        self.metrics = ClientMetrics("test", "test")

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
    thread = IoThread("test", driven)
    thread.start()
    thread.join(TIMEOUT_S)
    assert driven.has_fired


def test_of_the_loop() -> None:
    clock = itertools.count(0, 2 * DUE_MS)
    driven = OneTimer()

    async def run() -> None:
        io = IoLoop(asyncio.get_running_loop(), driven, now_ms=lambda: next(clock))
        io.wake()
        await asyncio.wait_for(asyncio.shield(io.ended), TIMEOUT_S)

    asyncio.run(run())
    assert driven.has_fired


class UntilStopped(OneTimer):
    """A core without timers. It ends at the first turn after `is_stopped` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.has_ended = threading.Event()

    def run(self, now_ms: int) -> None:
        return None

    def deadline_ms(self, now_ms: int) -> int | None:
        return None

    def is_over(self) -> bool:
        return self.is_stopped

    def on_end(self, error: ApiError | None) -> None:
        self.has_ended.set()


class Interrupted:
    """A socket that fails once as where Ctrl-C is pressed before it has sent."""

    def __init__(self, waker: Any) -> None:
        self.waker = waker
        self.is_over = False

    def send(self, data: bytes) -> int:
        if not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt
        sent: int = self.waker.send(data)
        return sent

    def close(self) -> None:
        self.waker.close()


def test_an_interrupted_wake_prevents_no_later_one() -> None:
    driven = UntilStopped()
    thread = IoThread("test", driven)
    waker: Any = Interrupted(thread._waker)
    thread._waker = waker
    thread.start()
    while not (thread._is_selecting and thread.sleeps_until_ms):
        threading.Event().wait(0.001)
    with pytest.raises(KeyboardInterrupt):
        thread.wake()
    driven.is_stopped = True
    thread.wake()
    thread.join(TIMEOUT_S)
    assert driven.has_ended.is_set()


def test_a_descriptor_that_was_closed_is_waited_for_no_longer() -> None:
    thread = IoThread("test", UntilStopped())
    watched, peer = socket.socketpair()
    thread.watch(1, watched, True)
    watched.close()
    peer.close()
    thread.unwatch(watched)
    thread._wait(0)
    assert not thread._watched
    assert not thread._select(0)
    thread._close_sockets()


class Renewed:
    """An open channel whose login is renewed by what it receives: then it writes what it has held."""

    socket = None
    wants_write = False
    is_open = has_unwritten = True

    def receive(self) -> list[memoryview]:
        self.has_unwritten = False
        return []


def test_what_waited_for_a_login_is_reported_as_written() -> None:
    written: list[int] = []
    driven, security = Mock(), Mock()
    driven.core.at.return_value.on_written = written.append
    driven.security = security
    channels = Channels(driven, Mock())
    channels._channels[7] = Renewed()  # type: ignore[assignment]
    channels.on_event(7, True, False)
    assert written == [7]


def test_a_wake_during_a_turn_ends_its_waiting() -> None:
    driven = UntilStopped()
    thread = IoThread("test", driven)

    def told_too_late(now_ms: int) -> int | None:
        thread.wake()
        driven.is_stopped = True
        return None

    driven.deadline_ms = told_too_late  # type: ignore[method-assign]
    driven.is_over = lambda: driven.is_stopped and thread._turns > 1  # type: ignore[method-assign]
    thread.start()
    thread.join(TIMEOUT_S)
    assert driven.has_ended.is_set()


class CountedLock:
    """A lock, and how it was used."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.timeouts_s: list[float] = []
        self.releases = 0

    def acquire(self, timeout: float) -> bool:
        self.timeouts_s.append(timeout)
        acquired: bool = self.lock.acquire(timeout=timeout)
        return acquired

    def release(self) -> None:
        self.releases += 1
        self.lock.release()


def test_a_producers_thread_pauses_once_for_a_wait_that_lasts() -> None:
    driven = UntilStopped()
    io = SharedIo("test", driven, 0.002)
    resume: Any = CountedLock(io._resume)
    io._resume = resume
    awaited = SimpleNamespace(is_done=False)
    waiting = threading.Thread(target=io.run_until, args=(awaited, None))
    waiting.start()
    while not (io._is_driven and io._is_selecting and io.sleeps_until_ms):
        threading.Event().wait(0.001)
    io.start()
    while len(resume.timeouts_s) < 2:
        threading.Event().wait(0.001)
    short_s, long_s = resume.timeouts_s
    assert long_s >= 100 * short_s, "a broker that does not answer costs no wakes"
    while not io._pauses_until_driven:
        threading.Event().wait(0.001)
    awaited.is_done = True
    io.wake()
    waiting.join(TIMEOUT_S)
    assert resume.releases == 1, "the end of the wait ends the pause"
    driven.is_stopped = True
    io.wake()
    io.join(TIMEOUT_S)
    assert not io.is_alive()
