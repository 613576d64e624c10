"""The Python processes in which Spark runs tasks: one process has many tasks, one after the other.

Spark calls `gc.collect()` in such a process after every task. That searches all objects of the imported modules, which
takes longer than a task with a few records.
"""

from __future__ import annotations

import gc
import os

from pyspark import TaskContext

_frozen_in: int | None = None
"""The process whose imported modules are exempt from garbage collection."""


def exempt_modules() -> None:
    """Exempt what was imported from garbage collection, at the first call in a process that runs tasks. Called when
    the task has imported all that it needs, and before it makes objects of its own."""
    global _frozen_in
    if _frozen_in != os.getpid() and TaskContext.get() is not None:
        gc.freeze()
        _frozen_in = os.getpid()
