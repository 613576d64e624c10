"""Bugs that a controller does not have, brought about: the next call of one of its parts raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.controller.quorum_controller import QuorumController

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
