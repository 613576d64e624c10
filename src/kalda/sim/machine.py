"""A simulated machine: a disk that outlives processes, a clock, and one process at a time.

A process may be killed (its connections are closed, and the disk has all that it wrote), paused, or ended by a power
loss, at once or at one of its next operations on the disk. After a power loss the disk has what was synced, and a
random part of the rest.

Not obvious:

- Budgets end by `Host.work_ns`. In the simulator this clock moves at each read: simulated time stands still while the
  loop works.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kalda.base.background import Background
from kalda.base.ids import Uuid, random_uuid
from kalda.base.scheduling import UNLIMITED_MS
from kalda.broker.process.shell import Host, LoopTimers, Watchdog
from kalda.sim.disk import SimDisk
from kalda.sim.loop import SimLoop
from kalda.sim.network import SimNetwork
from kalda.sim.process import BOOT, Boot, PowerLoss

T = TypeVar("T")
EPOCH_MS = 1_760_000_000_000
"""The time of the wall clocks at the beginning of a simulation, except for `skew_ms`."""


class SimClock:
    """One machine's clocks. The wall clock is wrong by `skew_ms`; the monotonic one is not affected."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skew_ms = 0
        self._limit_ms = UNLIMITED_MS
        self._lost_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def mono_ms(self) -> int:
        return min(self.machine_ms(), self._limit_ms) - self._lost_ms

    def machine_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def follow(self, limit_ms: int, lost_ms: int) -> None:
        self._limit_ms, self._lost_ms = limit_ms, lost_ms


class WorkClock:
    """The time for which work holds the event loop. The simulated time stands still meanwhile, and no budget would ever
    end, so this one moves at each read, by a random part of `STEP_NS`. Its random numbers are its own: what else is
    drawn does not depend on how often it is read."""

    STEP_NS = 1_000_000

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now_ns = 0

    def read(self) -> int:
        self._now_ns += int(self._rng.random() * self.STEP_NS)
        return self._now_ns


class SimJobs:
    """Jobs without threads: a job runs in one go some time after `run`; its `finish` is called some time later."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, background: Background, rng: random.Random, machine: Machine
    ) -> None:
        self._loop = loop
        self._background = background
        self._rng = rng
        self._machine = machine
        self._paused_s = 0.0
        """How long the job that runs has paused, in virtual time: it finishes so much later."""

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        rng, limit = self._rng, self._machine.disk_delay_s

        def work() -> None:
            value: T | None = None
            failure: BaseException | None = None
            self._paused_s = 0.0
            try:
                value = job()
            except Exception as error:
                failure = error
            delay_s = rng.uniform(0, limit) + self._paused_s
            self._loop.call_later(delay_s, self._background.call, partial(finish, value, failure))

        self._loop.call_later(rng.uniform(0, limit), work)

    def pause(self, duration_ms: float) -> None:
        """The job that runs pauses."""
        self._paused_s += duration_ms / 1000

    def close(self) -> None:
        """There is nothing to close."""


class SimHost(Host):
    """What a machine provides to one boot's process: disk, clock, timers, jobs, random numbers."""

    def __init__(self, machine: Machine, seed: str) -> None:
        self.disk = machine.disk
        self.clock = machine.clock
        self.rng = random.Random(seed)
        self._work = WorkClock(random.Random(f"{seed}/work"))
        self._machine = machine
        self._jobs: SimJobs | None = None

    @property
    def busy_ns(self) -> Callable[[], int]:
        return lambda: self.clock.machine_ms() * 1_000_000

    @property
    def work_ns(self) -> Callable[[], int]:
        return self._work.read

    def timers(self, loop: asyncio.AbstractEventLoop) -> LoopTimers:
        return LoopTimers(loop, self.clock)

    def jobs(self, loop: asyncio.AbstractEventLoop, background: Background, threads: int) -> SimJobs:
        assert self._jobs is None, "a node has one pool of jobs"
        self._jobs = SimJobs(loop, background, self.rng, self._machine)
        return self._jobs

    def pause_thread(self, duration_ms: float) -> None:
        assert self._jobs is not None, "only jobs pause"
        self._jobs.pause(duration_ms)

    def close(self) -> None:
        """The disk outlives the process."""

    def watch(self, watchdog: Watchdog) -> None:
        """There are no threads."""

    async def is_refused(self, host: str, port: int) -> bool:
        return await self._machine.network.is_refused(host, port)

    def new_uuid(self) -> Uuid:
        return random_uuid(self.rng.randbytes)


class Machine:
    """One host of the network."""

    def __init__(self, name: str, seed: object, loop: SimLoop, network: SimNetwork) -> None:
        self.name = name
        self.clock = SimClock(loop)
        self.disk = SimDisk(random.Random(f"{seed}/{name}/disk"), now_ms=self.clock.wall_ms)
        self.disk.before = self._before_disk
        self.disk_delay_s = 0.002
        """The longest time before a job runs, and again before it finishes."""
        self.boot: Boot | None = None
        self.boots: list[Boot] = []
        """Every boot so far: garbage collection of an ended one's tasks would run their `finally` blocks."""
        self.fuse: int | None = None
        """The number of operations on the disk after which power is lost; None: no such fault."""
        self.on_power_loss: Callable[[], None] = _nothing
        """Called when `fuse` has caused a power loss."""
        self._seed = seed
        self._loop = loop
        self.network = network

    @property
    def up(self) -> bool:
        """Whether a process runs here, paused or not."""
        return self.boot is not None

    def start(self) -> tuple[Boot, SimHost]:
        """Start a new process."""
        assert self.boot is None, f"{self.name} already has a process"
        self.network.off.discard(self.name)
        self.boot = Boot(self.name, len(self.boots) + 1)
        self.boots.append(self.boot)
        return self.boot, SimHost(self, f"{self._seed}/{self.name}/{self.boot.number}")

    def stopped(self) -> None:
        """The process has ended by itself."""
        self._end()
        self.network.kill(self.name)
        self.disk.let_go()

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        if self.boot is not None:
            self.stopped()

    def lose_power(self) -> None:
        """End the process, its connections without a reset, and lose what the disk has not synced."""
        if self.boot is not None:
            self._end()
            self.network.power_off(self.name)
            self.disk.crash()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.boot is not None:
            self.boot.paused = True

    def resume(self) -> None:
        """Continue the process as SIGCONT does."""
        if self.boot is not None and self.boot.paused:
            self._loop.resume(self.boot)

    def _end(self) -> None:
        assert self.boot is not None
        self.boot.alive = False
        self.boot = None
        self.fuse = None

    def _before_disk(self, path: str, operation: str) -> None:
        boot = BOOT.get()
        if boot is None:
            return
        if not boot.alive:
            raise PowerLoss
        if operation == "read" or self.fuse is None:
            return
        self.fuse -= 1
        if self.fuse < 0:
            self.lose_power()
            self.on_power_loss()
            raise PowerLoss


def _nothing() -> None:
    return None
