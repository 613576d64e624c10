"""The periodic tasks of the active controller.

A task runs when it is due, and then again one period later; at once where its step returned that there is more to do.
Only the active controller runs tasks, and only after its activation records are applied.
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


MAX_RUNS_PER_POLL = 100


class PeriodicTasks:
    """Tasks, and when each is due."""

    def __init__(self) -> None:
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

    def poll(self, now_ms: int) -> int | None:
        """Run the tasks that are due. Returns when the next one is due, None while inactive. A task that always has
        more to do is interrupted after `MAX_RUNS_PER_POLL` steps, so that requests are served; the next poll continues
        it."""
        for task in self._tasks:
            runs = 0
            while self._due_ms.get(task.name, now_ms + 1) <= now_ms:
                more = task.run(now_ms)
                runs += 1
                if task.name not in self._due_ms:
                    break  # in this run the node lost its leadership
                if not more:
                    self._due_ms[task.name] = now_ms + task.period_ms
                elif runs == MAX_RUNS_PER_POLL:
                    break
        return min(self._due_ms.values(), default=None)
