"""The real timers, threads and entropy, and `Host`, which holds them for a node.

The simulator replaces `Host`; all other code of a node is the same in both.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from kalda.base.clock import Clock
from kalda.base.disk import Disk
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid, random_uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Jobs, Timers
from kalda.broker.disk import RealDisk
from kalda.broker.system_clock import SystemClock

T = TypeVar("T")
Finish = Callable[[Any, BaseException | None], None]
_FINISHING_A_TURN_S = 0.005
"""For so long the loop finishes jobs before it serves its sockets again."""
_RESERVED_DESCRIPTORS = 16
"""Kept for small files and the metadata log: more than these have open at a time."""


class LoopTimers:
    """Timers on the running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` on the loop after the delay."""
        return self._loop.call_later(delay_ms / 1000, callback)


class ThreadJobs:
    """Runs jobs on a pool of threads, and their second half on the loop.

    The second halves of many jobs, as of the appends of one large request, may be due at the same time. They take
    turns with the loop's sockets: in their order, for `_FINISHING_A_TURN_S` in one turn, but at least one of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kalda-job")
        self._done: deque[tuple[Finish, Any, BaseException | None]] = deque()
        """Jobs whose second half has to wait for another turn."""
        self._spent_s = 0.0
        """What second halves have taken in this turn."""
        self._has_next_turn = False
        """Whether `_next_turn` is scheduled: always while `_done` has jobs or `_spent_s` is not 0."""

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `job` on a thread, then `finish(value, failure)` on the loop; one of the two is None.

        `finish` is not called where the loop has been closed meanwhile.
        """
        self._pool.submit(self._run, job, finish)

    def _run(self, job: Callable[[], T], finish: Finish) -> None:
        try:
            value = job()
        except BaseException as error:
            # Kept in no variable: the frame would keep what its own traceback keeps, and be garbage that only a full
            # collection finds, with all that the job had read.
            self._hand_over(finish, None, error)
        else:
            self._hand_over(finish, value, None)

    def _hand_over(self, finish: Finish, value: object, failure: BaseException | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_done, finish, value, failure)

    def _on_done(self, finish: Finish, value: object, failure: BaseException | None) -> None:
        if self._done or self._spent_s >= _FINISHING_A_TURN_S:
            self._done.append((finish, value, failure))
            return
        if not self._has_next_turn:
            self._has_next_turn = True
            self._loop.call_soon(self._next_turn)
        self._finish(finish, value, failure)

    def _next_turn(self) -> None:
        self._spent_s = 0.0
        if not self._done:
            self._has_next_turn = False
            return
        self._loop.call_soon(self._next_turn)  # before a second half may raise
        while self._done and self._spent_s < _FINISHING_A_TURN_S:
            self._finish(*self._done.popleft())

    def _finish(self, finish: Finish, value: object, failure: BaseException | None) -> None:
        began_s = time.perf_counter()
        try:
            finish(value, failure)
        finally:
            self._spent_s += time.perf_counter() - began_s

    def close(self) -> None:
        """Wait for the jobs that run; those that have not begun are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class JobPool(Jobs, Protocol):
    """Jobs on threads that must be joined at the end."""

    def close(self) -> None:
        """Wait for the jobs that run; those that have not begun are dropped."""
        ...


class Host:
    """The machine that a node runs on: disk, clock, randomness, timers, threads. The loop and its sockets are not part
    of it."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk: Disk = disk if disk is not None else RealDisk(_RESERVED_DESCRIPTORS)
        self.clock: Clock = SystemClock()
        self.rng = random.Random()
        """For jitter and for choices that need not be secret."""

    @property
    def busy_ns(self) -> Callable[[], int]:
        """A clock for the time for which requests hold the event loop: monotonic nanoseconds."""
        return time.perf_counter_ns

    def timers(self, loop: asyncio.AbstractEventLoop) -> Timers:
        """Timers that call back on `loop`."""
        return LoopTimers(loop)

    def jobs(self, loop: asyncio.AbstractEventLoop, threads: int) -> JobPool:
        """A pool of at most `threads` threads, whose jobs finish on `loop`."""
        return ThreadJobs(loop, threads)

    def pause_thread(self, duration_ms: float) -> None:
        """Suspend the thread of the job that calls this, so that the others get the interpreter."""
        time.sleep(duration_ms / 1000)

    def route(self, host: str, port: int) -> tuple[str, int]:
        """Where connections to that address of another node are made to."""
        return host, port

    async def is_refused(self, host: str, port: int) -> bool:
        """Whether `host` refuses connections to `port`, as it does where no process listens. Bounded in time."""
        from kalda.network.probe import is_refused

        return await is_refused(host, port)

    def new_uuid(self) -> Uuid:
        """A random id from the entropy of the operating system."""
        return random_uuid(os.urandom)


async def wait_settled(pending: Pending[Any]) -> None:
    """Wait until `pending` has completed or failed."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: Any, __: ApiError | None) -> None:
        if not done.done():
            done.set_result(None)

    pending.then(wake)
    await done
