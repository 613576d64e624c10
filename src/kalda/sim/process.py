"""Processes of the simulation, and what they schedule.

Everything that a process schedules (a callback, a timer, a task and all that the task schedules) carries in its context
the *boot* that it belongs to. So a process can be killed between two of its steps, for nothing of a dead boot ever runs
again, or be stopped for a while, when its steps wait in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import Any


class PowerLoss(BaseException):
    """Ends the step of a process in which its machine stopped. Not an `Exception`: nothing must survive it."""


class Boot:
    """One life of one process."""

    __slots__ = ("alive", "held", "machine", "number", "paused", "tasks")

    def __init__(self, machine: str, number: int) -> None:
        self.machine = machine
        self.number = number
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """Steps that wait until it is no longer paused; one that is cancelled meanwhile is not taken."""
        self.tasks: list[asyncio.Task[Any]] = []

    def clear(self) -> None:
        """End what is left half done, of a process that is gone or a world that is over."""
        self.alive = False
        self.held.clear()
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()

    def context(self) -> contextvars.Context:
        """A context whose steps belong to this boot."""
        context = contextvars.copy_context()
        context.run(BOOT.set, self)
        return context


BOOT: contextvars.ContextVar[Boot | None] = contextvars.ContextVar("kalda_boot", default=None)
"""Whose step is being taken; None for the simulation's own."""
