"""One simulated world: a loop, a network, machines, the trace and the violations, all as a function of one seed.

Each part that needs random numbers has a source of its own, seeded with its name, so that one more draw in one part
does not change the numbers of another. One more draw, or another name, changes what the committed seeds run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from kalda.base.errors import ApiError
from kalda.controller.quorum_controller import QuorumController
from kalda.sim.loop import SimLoop, Stuck
from kalda.sim.machine import Machine
from kalda.sim.network import SimNetwork
from kalda.sim.process import BOOT, PowerLoss

PARTS: tuple[tuple[str, str], ...] = (
    ("broker_changes", "heartbeat"),
    ("broker_changes", "fence"),
    ("alter_partitions", "alter"),
    ("elections", "balance"),
    ("elections", "elect_unclean"),
    ("_liveness", "probes_due"),
    ("_liveness", "on_probed"),
    ("_liveness", "fence_next"),
    ("_periodic", "poll"),
)
"""Attribute of the controller, and a method of what it holds."""


class Bug(Exception):
    """Raised by the simulator, and no fault of the product."""


def raise_once(controller: QuorumController, part: str, method: str, may_raise: Callable[[], bool]) -> None:
    """The next call of that method raises, if `may_raise()` then. A periodic task is called through its table."""
    owner = getattr(controller, part)
    setattr(owner, method, _raising_once(getattr(owner, method), may_raise))
    for task in controller._periodic._tasks:
        if getattr(task.run, "__name__", "") == method:
            task.run = _raising_once(task.run, may_raise)


def _raising_once(original: Callable[..., Any], may_raise: Callable[[], bool]) -> Callable[..., Any]:
    has_raised = False

    def bug(*arguments: Any, **named: Any) -> Any:
        nonlocal has_raised
        if has_raised or not may_raise():
            return original(*arguments, **named)
        has_raised = True
        raise Bug(getattr(original, "__name__", "a task"))

    return bug


T = TypeVar("T")


_REAL_TIME = re.compile(r"serves after \d+ ms")
"""Real durations in log lines, which are removed: the traces of two runs of a seed must be equal."""


class Violation(AssertionError):
    """An invariant was violated."""


class World:
    """Bugs that a controller does not have, brought about: the next call of one of its parts raises.

    A context manager; only one at a time in a process, since it handles the records of the logger `kalda`.
    """

    def __init__(self, seed: object, trace: Callable[[str], None] | None = None, *, verbose: bool = False) -> None:
        """`trace` is called with a line for each event; with `verbose` also for each log line of the nodes."""
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
            for boot in machine.boots:
                boot.clear()
        self.loop.close()
        self._logger.removeHandler(self._listener)
        level, self._logger.propagate = self._logger_was
        self._logger.setLevel(level)

    def rng(self, name: str) -> random.Random:
        """A new random source, seeded with the seed and the name."""
        return random.Random(f"{self.seed}/{name}")

    def machine(self, name: str) -> Machine:
        """The machine of this name, made on first use."""
        if name not in self.machines:
            self.machines[name] = Machine(name, self.seed, self.loop, self.network)
        return self.machines[name]

    @property
    def now_s(self) -> float:
        return self.loop.time()

    def trace(self, source: str, event: str) -> None:
        """Add a line to the trace."""
        if self._trace is not None:
            self._trace(f"{self.loop.time():10.4f} {source:<9} {event}")

    @property
    def is_traced(self) -> bool:
        """Whether there is a trace."""
        return self._trace is not None

    def violated(self, description: str) -> None:
        """An invariant was violated; the run ends within 0.25 s of virtual time."""
        self.trace("!!!", description)
        self.violations.append(description)

    def run(self, main: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run `main` to its end. Raises `Violation` after a violation, or where it has not ended after `limit_s`."""
        task = self.loop.create_task(self._watched(main, limit_s))
        try:
            return self.loop.run_until_complete(task)
        finally:
            task.cancel()

    def violation_of(self, main: Coroutine[Any, Any, None], limit_s: float) -> str:
        """Run `main` to its end, or to a violation: which one; empty where there was none."""
        violation = ""
        try:
            self.run(main, limit_s)
        except (Violation, Stuck) as error:
            violation = str(error)
        except ApiError as error:
            violation = f"the end cannot be read: {error}"
        with contextlib.suppress(RuntimeError):
            main.close()
        return "; ".join(dict.fromkeys(self.violations)) or violation

    async def _watched(self, main: Coroutine[Any, Any, T], limit_s: float) -> T:
        work = self.loop.create_task(main)
        while not work.done() and not self.violations:
            if self.loop.time() > limit_s:
                self.violated(f"the run has not ended after {limit_s:.0f} s")
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
        source = boot.machine if boot is not None else "?"
        if error is not None:
            self.violated(f"{source}: {context.get('message')}: {error!r}{_place_of(error)}")


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


class _LogListener(logging.Handler):
    """Adds log lines of nodes to the trace. A log line with a traceback is a violation, even where the exception was
    caught; an `OSError` is not, nor an exception that a fault has raised."""

    def __init__(self, world: World, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        boot = BOOT.get()
        if boot is None or not boot.alive:
            return
        world = self._world
        if world.is_traced:
            message = _REAL_TIME.sub("serves", record.getMessage())
            world.trace(boot.machine, f"{record.levelname.lower()}: {message}")
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], OSError | Bug):
            error = record.exc_info[1]
            world.violated(f"{boot.machine}: {record.getMessage()}: {error!r}{_place_of(error)}")
