"""One simulated world: a loop, a network, machines, and what came to pass, all out of one seed.

Everybody who needs chance has a random source of their own, named in the seed, so that one more question asked by one
does not change what the others get.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from kalda.sim.bugs import Bug
from kalda.sim.loop import SimLoop
from kalda.sim.machine import Machine
from kalda.sim.network import SimNetwork
from kalda.sim.process import BOOT, PowerLoss

T = TypeVar("T")


_REAL_TIME = re.compile(r"serves after \d+ ms")
"""Nothing in a trace may differ between two runs."""


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """A context manager: one at a time in a process, for it listens to the process's log."""

    def __init__(self, seed: object, trace: Callable[[str], None] | None = None, *, verbose: bool = False) -> None:
        """`trace` gets a line for all that happens; with `verbose` also what the nodes log."""
        self.seed = seed
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, self.rng("network"))
        self.loop.network = self.network
        self.machines: dict[str, Machine] = {}
        self.violations: list[str] = []
        self._trace = trace
        self._listener = _LogListener(self, verbose)
        self._logger = logging.getLogger("kalda")
        self._logger_was = (self._logger.level, self._logger.propagate)

    def __enter__(self) -> World:
        self.loop.set_exception_handler(self._on_loop_error)
        self._logger.addHandler(self._listener)
        self._logger.setLevel(self._listener.level)
        self._logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trace = None
        self.loop.finish()
        for machine in self.machines.values():
            for boot in machine.lives:
                boot.clear()
        self.loop.close()
        self._logger.removeHandler(self._listener)
        level, self._logger.propagate = self._logger_was
        self._logger.setLevel(level)

    def rng(self, name: str) -> random.Random:
        """A random source of that name."""
        return random.Random(f"{self.seed}/{name}")

    def machine(self, name: str) -> Machine:
        """A machine, new where there is none of the name."""
        if name not in self.machines:
            self.machines[name] = Machine(name, self.seed, self.loop, self.network)
        return self.machines[name]

    @property
    def now_s(self) -> float:
        return self.loop.time()

    def tell(self, who: str, what: str) -> None:
        """A line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.loop.time():10.4f} {who:<9} {what}")

    @property
    def is_told(self) -> bool:
        """Whether anybody reads the trace."""
        return self._trace is not None

    def violated(self, what: str) -> None:
        """A promise was broken; the run ends soon."""
        self.tell("!!!", what)
        self.violations.append(what)

    def run(self, main: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run to the end. Raises `Violation` where a promise was broken on the way, or it does not come to an end."""
        task = self.loop.create_task(self._watched(main, limit_s))
        try:
            return self.loop.run_until_complete(task)
        finally:
            task.cancel()

    async def _watched(self, main: Coroutine[Any, Any, T], limit_s: float) -> T:
        work = self.loop.create_task(main)
        while not work.done() and not self.violations:
            if self.loop.time() > limit_s:
                self.violated(f"not at an end after {limit_s:.0f} s")
                break
            await asyncio.wait((work,), timeout=0.25)
        if self.violations:
            work.cancel()
            raise Violation("; ".join(self.violations))
        return work.result()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerLoss | asyncio.CancelledError):
            return
        boot = BOOT.get()
        who = boot.machine if boot is not None else "?"
        if error is not None:
            self.violated(f"{who}: {context.get('message')}: {error!r}{_place_of(error)}")


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


class _LogListener(logging.Handler):
    """Takes what nodes log into the trace. An error with a traceback is a bug, whoever has caught it, unless it was
    brought about."""

    def __init__(self, world: World, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        boot = BOOT.get()
        if boot is None or not boot.alive:
            return
        world = self._world
        if world.is_told:
            message = _REAL_TIME.sub("serves", record.getMessage())
            world.tell(boot.machine, f"{record.levelname.lower()}: {message}")
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], OSError | Bug):
            error = record.exc_info[1]
            world.violated(f"{boot.machine}: {record.getMessage()}: {error!r}{_place_of(error)}")
