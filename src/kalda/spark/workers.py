"""The Python processes of Spark: one that runs tasks has many of them, one after the other.

Spark calls `gc.collect()` in such a process after every task. That searches all objects of the imported modules, which
takes longer than a task with a few records.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext

from kalda.base.errors import KafkaError

_frozen_in: int | None = None
"""The process whose imported modules are exempt from garbage collection."""


def exempt_modules() -> None:
    """Exempt what was imported from garbage collection, at the first call in a process that runs tasks. Called when
    the task has imported all that it needs, and before it makes objects of its own."""
    global _frozen_in
    if _frozen_in != os.getpid() and TaskContext.get() is not None:
        gc.freeze()
        _frozen_in = os.getpid()


@contextmanager
def one_sentence() -> Iterator[None]:
    """In a Python process that Spark has started, let the failures that a user can mend be shown without a traceback.

    The process ends with the exception, so the setting has no effect on other exceptions.
    """
    try:
        yield
    except (ValueError, KafkaError):
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
