"""The real timers, threads and entropy, and `Host`, which holds them for a node.

The simulator replaces `Host`; all other code of a node is the same in both.

Not obvious:

- An exception that is raised again keeps every frame that it passed, and one in a local of the frame that caught it
  keeps that frame until a full collection, which is rare.
- Every connection of a node to another takes its address through `Host.route`, or `kalda.testing` cannot break it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kalda.base.background import Background
from kalda.base.disk import Disk
from kalda.base.errors import MORE_THREADS, ApiError
from kalda.base.ids import Uuid, random_uuid
from kalda.base.scheduling import TURN_MS, Jobs, LoopClock, LoopTime, Pending, Timer
from kalda.broker.process.disk import RealDisk
from kalda.broker.process.watchdog import Watchdog
from kalda.broker.system_clock import SystemClock
from kalda.network.client.client import Reach

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity

T = TypeVar("T")
Finish = Callable[[Any, BaseException | None], None]
log = logging.getLogger("kalda.node")

_LOGGED_STALL_MS = 1_000
"""The watchdog logs shorter ones."""
_ROUNDING_MS = 1
"""The loop's clock and that of the node are read at different moments, and rounded."""
_RESERVED_DESCRIPTORS = 16
"""Kept for small files and the metadata log: more than these have open at a time."""


class LoopTimers:
    """Timers on the running loop, by the time of its clock, which they keep: it does not pass while the loop does not
    run. So a timer that comes due in a stall is called after the sockets have been read, at the earliest."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: LoopClock) -> None:
        self._loop = loop
        self.call_soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self._clock = clock
        self._time = LoopTime()
        self._turning: asyncio.TimerHandle | None = None
        """None while no turns are reported: the time is the machine's."""
        self.on_turn: Callable[[int], None] = lambda late_ms: None
        """Called at each turn that is reported, with how late it is."""
        self._turn_due_ms = 0

    def start(self) -> None:
        """Stalls count no longer."""
        self._turn(self._clock.machine_ms())

    def stop(self) -> None:
        """They count again. Timers stay set."""
        if self._turning is not None:
            self._turning.cancel()
            self._turning = None
            self._time.free(self._clock.machine_ms())
            self._clock.follow(self._time.limit_ms, self._time.lost_ms)

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the loop after the delay; without a delay, in its next turn."""
        if delay_ms <= 0:
            return self._loop.call_later(0, callback)
        return _LoopTimer(self, self._clock.mono_ms() + delay_ms, delay_ms, callback)

    def _on_turn(self) -> None:
        now_ms = self._clock.machine_ms()
        late_ms = max(0, now_ms - self._turn_due_ms)
        self._turn(now_ms)  # first: without a next turn the time would stand still for good
        self.on_turn(late_ms)

    def _turn(self, now_ms: int) -> None:
        stall_ms = self._time.turn(now_ms)
        self._clock.follow(self._time.limit_ms, self._time.lost_ms)
        if stall_ms > _LOGGED_STALL_MS:
            log.warning(
                "the node did nothing: %d ms of that count for no session, transaction or request of a peer",
                stall_ms,
            )
        self._turn_due_ms = now_ms + TURN_MS
        self._turning = self._loop.call_later(TURN_MS / 1000, self._on_turn)

    def left_ms(self, due_ms: int) -> int:
        """How long a timer for `due_ms` has to wait; 0 or less where it is due."""
        if self._time.stands_still(self._clock.machine_ms()):
            return max(TURN_MS, due_ms - self._clock.mono_ms())
        return due_ms - self._clock.mono_ms()

    def set(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer of the loop itself."""
        return self._loop.call_later(delay_ms / 1000, callback)


class _LoopTimer:
    """A timer that is set again where the loop has stood still meanwhile."""

    __slots__ = ("_callback", "_due_ms", "_handle", "_timers")

    def __init__(self, timers: LoopTimers, due_ms: int, delay_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self._due_ms = due_ms
        self._callback = callback
        self._handle = timers.set(delay_ms, self._fire)

    def cancel(self) -> None:
        """Drop the call."""
        self._handle.cancel()

    def _fire(self) -> None:
        left_ms = self._timers.left_ms(self._due_ms)
        if left_ms > _ROUNDING_MS:
            self._handle = self._timers.set(left_ms, self._fire)
        else:
            self._callback()


class ThreadJobs:
    """Runs jobs on a pool of threads, and their second halves in the background of the loop, in their order. Those of
    many jobs may be due at the same time, as of the appends of one large request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, background: Background, threads: int) -> None:
        self._loop = loop
        self._background = background
        """Raises `OSError` where no thread can be started."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kalda-job")
        self._is_open = True
        self._lacks_threads = False
        """More than those that run could not be started at least once."""
        try:
            self._pool.submit(_nothing)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}; {MORE_THREADS}") from error

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `job` on a thread, then `finish(value, failure)` on the loop; one of the two is None.

        `finish` is not called where the loop has been closed meanwhile.
        """
        try:
            self._pool.submit(self._run, job, finish)
        except RuntimeError as error:
            # The pool queues a job before it starts another thread for it: one of those that run takes it.
            if not self._is_open:
                raise
            if not self._lacks_threads:
                self._lacks_threads = True
                log.warning("jobs wait for each other: %s; %s", error, MORE_THREADS)

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
        self._background.call(partial(finish, value, failure))

    def close(self) -> None:
        """Wait for the jobs that run; those that have not begun are dropped."""
        self._is_open = False
        self._pool.shutdown(wait=True, cancel_futures=True)


def _nothing() -> None:
    """So that one thread runs from the start: later ones may find no room."""


class JobPool(Jobs, Protocol):
    """Jobs on threads that must be joined at the end."""

    def close(self) -> None:
        """Wait for the jobs that run; those that have not begun are dropped."""
        ...


class Host:
    """The machine that a node runs on: disk, clock, randomness, timers, threads. The loop and its sockets are not part
    of it."""

    def __init__(self, disk: Disk | None = None, *, owns_process: bool = False) -> None:
        """`owns_process`: the process is for this node alone."""
        self._owns_process = owns_process
        self._own_disk = RealDisk(_RESERVED_DESCRIPTORS) if disk is None else None
        """None where the caller has one."""
        self.disk: Disk = disk if disk is not None else self._own_disk or RealDisk()
        self.clock: LoopClock = SystemClock()
        self.rng = random.Random()
        """For jitter and for choices that need not be secret."""

    @property
    def busy_ns(self) -> Callable[[], int]:
        """A clock for the time for which requests hold the event loop: monotonic nanoseconds."""
        return time.perf_counter_ns

    @property
    def work_ns(self) -> Callable[[], int]:
        """A clock by which work ends its turn of the event loop: monotonic nanoseconds. It moves while the loop is
        held, on virtual time too."""
        return time.perf_counter_ns

    def timers(self, loop: asyncio.AbstractEventLoop) -> LoopTimers:
        """Timers that call back on `loop`, by the time of `clock`, which they keep."""
        return LoopTimers(loop, self.clock)

    def jobs(self, loop: asyncio.AbstractEventLoop, background: Background, threads: int) -> JobPool:
        """A pool of at most `threads` threads, whose jobs finish in the background of `loop`."""
        return ThreadJobs(loop, background, threads)

    def pause_thread(self, duration_ms: float) -> None:
        """Suspend the thread of the job that calls this, so that the others get the interpreter."""
        time.sleep(duration_ms / 1000)

    def watch(self, watchdog: Watchdog) -> None:
        """Have a thread watch the loop that this is called on, until `Watchdog.stop`."""
        watchdog.start(owns_process=self._owns_process)

    def close(self) -> None:
        """The node has stopped: give back what the host has for it."""
        if self._own_disk is not None:
            self._own_disk.close()

    def route(self, host: str, port: int) -> tuple[str, int]:
        """Where connections to that address of another node are made to."""
        return host, port

    def reach(self, security: ClientSecurity | None, *, probes: bool) -> Reach:
        """How clients of other nodes connect to them; with `probes` they may find out that no process listens there."""
        return Reach(self.rng.random, self.route, self.is_refused if probes else None, security)

    async def is_refused(self, host: str, port: int) -> bool:
        """Whether `host` refuses connections to `port`, as it does where no process listens. Bounded in time."""
        from kalda.network.client.addresses import is_refused

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
