"""Simulated processes, and the callbacks that they schedule.

Everything that a process schedules (a callback, a timer, a task and all that the task schedules) has in its context the
*boot* that it belongs to. So a process can be killed between two callbacks, as no callback of an ended boot is run; or
be paused, while its callbacks wait in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import Any


class PowerLoss(BaseException):
    """Ends the callback in which the process's machine lost power. A `BaseException`, so that no handler of `Exception`
    continues after it."""


class Boot:
    """One process, from its start to its end."""

    __slots__ = ("alive", "held", "machine", "number", "paused", "tasks")

    def __init__(self, machine: str, number: int) -> None:
        self.machine = machine
        self.number = number
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """Callbacks that came due while it is paused; one that is cancelled meanwhile is not run."""
        self.tasks: list[asyncio.Task[Any]] = []

    def clear(self) -> None:
        """Close the unfinished coroutines of an ended process, or at the end of a simulation."""
        self.alive = False
        self.held.clear()
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()

    def context(self) -> contextvars.Context:
        """A context whose callbacks belong to this boot."""
        context = contextvars.copy_context()
        context.run(BOOT.set, self)
        return context


BOOT: contextvars.ContextVar[Boot | None] = contextvars.ContextVar("kalda_boot", default=None)
"""The boot of the callback that is being run; None for the simulator's own callbacks."""
