"""The outside world for the pure floors: clock, timers, threads, entropy, bundled as the host of a node.

The simulator has its own of each; everything else of a node is the same in both.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
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

T = TypeVar("T")


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000


class LoopTimers:
    """Timers on the running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back on the loop."""
        return self._loop.call_later(delay_ms / 1000, callback)


class ThreadJobs:
    """Jobs on a pool of threads; they finish on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kalda-job")

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Start `job` on a thread."""
        self._pool.submit(self._run, job, finish)

    def _run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = job()
        except BaseException as error:
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(finish, value, failure)

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class JobPool(Jobs, Protocol):
    """Jobs that somebody has to close."""

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        ...


class Host:
    """The machine that a node runs on: all of the outside world that it touches, but for the loop and its sockets."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk: Disk = disk if disk is not None else RealDisk()
        self.clock: Clock = SystemClock()
        self.rng = random.Random()

    def timers(self, loop: asyncio.AbstractEventLoop) -> Timers:
        """Timers on the loop of the node."""
        return LoopTimers(loop)

    def jobs(self, loop: asyncio.AbstractEventLoop, threads: int) -> JobPool:
        """At most so many threads for jobs."""
        return ThreadJobs(loop, threads)

    def pause_thread(self, duration_ms: int) -> None:
        """Suspend the thread of the job that calls this, so that the others get the interpreter."""
        time.sleep(duration_ms / 1000)

    async def is_refused(self, host: str, port: int) -> bool:
        """Whether connections there are refused, as they are where no process listens; within a short time."""
        from kalda.network.probe import is_refused

        return await is_refused(host, port)

    def new_uuid(self) -> Uuid:
        """A fresh id from the machine's entropy."""
        return random_uuid(os.urandom)


async def settled(pending: Pending[Any]) -> None:
    """Wait for a pending answer, whatever it is."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: Any, __: ApiError | None) -> None:
        if not done.done():
            done.set_result(None)

    pending.then(wake)
    await done
