"""The periodic tasks of the active controller.

A task runs when it is due, and then again one period later; `RERUN_MS` later where its step returned that there is more
to do, so that requests are handled in between. Only the active controller runs tasks, and only after its activation
records are applied.

Invariant: the next run of a task is set before it runs. A task that raises delays neither the others nor itself: it
runs again one period later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class PeriodicTask:
    """`run(now_ms)` does one step. It returns whether there is more to do."""

    name: str
    period_ms: int
    run: Callable[[int], bool]


RERUN_MS = 10
"""As long as in Apache Kafka."""


class PeriodicTasks:
    """Tasks, and when each is due."""

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        """`on_failure(name, error)`: a task has raised."""
        self._on_failure = on_failure
        self._tasks: list[PeriodicTask] = []
        self._due_ms: dict[str, int] = {}
        """by name of the task; empty while this controller is not active"""

    def add(self, task: PeriodicTask) -> None:
        assert task.period_ms > 0, f"the period of {task.name} is not positive"
        self._tasks.append(task)

    def activate(self, now_ms: int) -> None:
        self._due_ms = {task.name: now_ms + task.period_ms for task in self._tasks}

    def deactivate(self) -> None:
        self._due_ms = {}

    def hasten(self, name: str, due_ms: int) -> None:
        """The task has something to do: it is due at `due_ms` at the latest."""
        if name in self._due_ms:
            self._due_ms[name] = min(self._due_ms[name], due_ms)

    def poll(self, now_ms: int) -> int | None:
        """Run one step of each task that is due. Returns when the next one is due, None while inactive."""
        for task in self._tasks:
            if self._due_ms.get(task.name, now_ms + 1) > now_ms:
                continue
            self._due_ms[task.name] = now_ms + task.period_ms
            try:
                more = task.run(now_ms)
            except Exception as error:
                self._on_failure(task.name, error)
                continue
            if more and task.name in self._due_ms:  # otherwise this controller lost its leadership in this step
                self._due_ms[task.name] = now_ms + min(RERUN_MS, task.period_ms)
        return min(self._due_ms.values(), default=None)
