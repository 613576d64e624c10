"""The real timers, threads and entropy, and `Host`, which holds them for a node; the watchdog of its loop.

The simulator replaces `Host`; all other code of a node is the same in both.

Not obvious:

- An exception that is raised again keeps every frame that it passed, and one in a local of the frame that caught it
  keeps that frame until a full collection, which is rare.
- Every connection of a node to another takes its address through `Host.route`, or `kalda.testing` cannot break it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kalda.base.background import Background, name_of
from kalda.base.disk import Disk
from kalda.base.errors import MORE_THREADS, ApiError
from kalda.base.ids import Uuid, random_uuid
from kalda.base.scheduling import TURN_MS, Jobs, LoopClock, LoopTime, Pending, Timer
from kalda.base.sensors import Sensors
from kalda.broker.process.disk import RealDisk
from kalda.broker.requests.context import RequestContext
from kalda.broker.system_clock import SystemClock
from kalda.network.client.client import Reach

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity

log = logging.getLogger("kalda.node")
watchdog_log = logging.getLogger("kalda.watchdog")

LATE_MS = 100
"""The delay from which on it is logged and counted."""
_LONG_STEP_MS = 20
"""A step that takes so long may be what made a turn late."""
_LOG_EVERY_MS = 1_000
_CHECK_S = 0.5
_HELD_MS = 1_000
_LONGEST_SILENCE_MS = 60_000
_LOCKED_S = 5
_FRAMES = 25
"""So many of a stack are logged, the innermost ones."""
GROUP = "kalda.server:type=EventLoop"


class Handling(Protocol):
    """A request pipeline."""

    handling: RequestContext | None
    """The last request that was passed to it."""


class Watchdog:
    """Measures how late the event loop is, and logs what holds it.

    The loop reports a turn every `TURN_MS` (`shell.py`). Where a callback holds it, the turn is late, and every client
    of the node has waited as long. The pipelines note the request that they are handling; the last one before a late
    turn is most likely the one that held the loop: requests that arrive meanwhile are read after the turn. Where a step
    of the background took long, it is named as well. Without either, it was another callback.

    A loop that is held for long logs nothing itself. So a thread watches it: after `_HELD_MS` without a turn it logs
    the request, and the stack of the loop's thread. It logs again when the loop has been held for twice as long, and at
    last every minute. Code in C that does not release the interpreter's lock, such as a regular expression, holds that
    thread too. In a process that is the node's alone, Python's `faulthandler` writes the stacks of all threads to the
    standard error then: once, after `_LOCKED_S`.

    A process that was stopped by a signal is not held: the thread stood still as well. On virtual time there is no
    thread, and a turn is late only where the process was paused.

    The delay of one event loop.
    """

    def __init__(self, clock: LoopClock, sensors: Sensors) -> None:
        self._clock = clock
        self._longest = sensors.gauge(GROUP, "MaxDelayMs")
        """The longest delay since the start."""
        self._late = sensors.counter(GROUP, "DelaysOver100Ms")
        self._pipelines: list[Handling] = []
        self._background: Background | None = None
        self._quiet_until_ms = 0
        """Nothing is logged before, for a turn that is late."""
        self._unlogged = 0
        """Delays since the last line."""
        self._turned_ms = clock.machine_ms()
        """When the loop has turned last."""
        self._checked_ms = self._turned_ms
        """When the thread has run last."""
        self._logs_from_ms = _HELD_MS
        """The thread logs a loop that is held for so long."""
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        """None while no thread watches."""
        self._stopped = threading.Event()

    def watch(self, pipeline: Handling) -> None:
        """Name the requests of this pipeline."""
        self._pipelines.append(pipeline)

    def watch_background(self, background: Background) -> None:
        """Name whose steps take long."""
        self._background = background

    def start(self, *, owns_process: bool) -> None:
        """Watch the loop that this is called on from a thread. `owns_process`: no other node is in this process, and
        nothing else of it uses `faulthandler`."""
        self._loop_thread = threading.get_ident()
        self._turned_ms = self._checked_ms = self._clock.machine_ms()
        thread = threading.Thread(target=self._run, args=(owns_process,), name="kalda-watchdog", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # On the loop

    def on_turn(self, late_ms: int) -> None:
        """The loop turns, so much later than it should."""
        now_ms = self._turned_ms = self._clock.machine_ms()
        self._logs_from_ms = _HELD_MS
        if late_ms > self._longest.value:
            self._longest.value = late_ms
        if late_ms > LATE_MS:
            self._late.value += 1
            self._report(late_ms, now_ms)
        for pipeline in self._pipelines:
            pipeline.handling = None  # it holds the memory of its frame
        if self._background is not None:
            self._background.longest = (0, "")

    def _report(self, late_ms: int, now_ms: int) -> None:
        if now_ms < self._quiet_until_ms:
            self._unlogged += 1
            return
        self._quiet_until_ms = now_ms + _LOG_EVERY_MS
        watchdog_log.warning(
            "the event loop was late by %d ms: no client was served meanwhile. Handled before: %s%s",
            late_ms,
            self._handled(self._longest_step()) or "no request, so another callback",
            f" ({self._unlogged} more delays since the last such line)" if self._unlogged else "",
        )
        self._unlogged = 0

    def _handled(self, step: str) -> str:
        handled = [str(pipeline.handling) for pipeline in self._pipelines if pipeline.handling is not None]
        return "; ".join([*handled, step] if step else handled)

    def _longest_step(self) -> str:
        took_ns, name = (0, "") if self._background is None else self._background.longest
        took_ms = took_ns // 1_000_000
        return f"a step of {took_ms} ms of {name}" if took_ms >= _LONG_STEP_MS else ""

    def _running_step(self) -> str:
        owner = None if self._background is None else self._background.running
        return "" if owner is None else f"a step of {name_of(owner)}, which is under way"

    # On the thread

    def _run(self, owns_process: bool) -> None:
        while not self._stopped.wait(_CHECK_S):
            if owns_process and sys.__stderr__ is not None:
                with contextlib.suppress(RuntimeError):  # each call starts a thread, for which there may be no room
                    faulthandler.dump_traceback_later(_LOCKED_S, file=sys.__stderr__)
            self.check()
        if owns_process:
            faulthandler.cancel_dump_traceback_later()

    def check(self) -> None:
        """Log what holds the loop, where it is held."""
        now_ms = self._clock.machine_ms()
        since_check_ms, self._checked_ms = now_ms - self._checked_ms, now_ms
        held_ms = now_ms - self._turned_ms
        if held_ms < self._logs_from_ms or since_check_ms > 2_000 * _CHECK_S:
            return
        self._logs_from_ms = held_ms + min(held_ms, _LONGEST_SILENCE_MS)
        watchdog_log.warning(
            "the event loop has been held for %d ms, and no client is served meanwhile. Handled before: %s. The loop is"
            " at:\n%s",
            held_ms,
            self._handled(self._running_step()) or "no request",
            self._stack(),
        )

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "  (its thread has ended)"
        return "".join(traceback.format_list(traceback.extract_stack(frame)[-_FRAMES:])).rstrip()


T = TypeVar("T")
Finish = Callable[[Any, BaseException | None], None]

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
