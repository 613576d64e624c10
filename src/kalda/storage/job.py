"""Work that waits for a device, in two halves.

`run` may be called on any thread: it reads and writes files, and reads only what was snapshotted when the job was
made. `finish` is called on the thread that owns the log: it takes what `run` found, changes the log and gives the
result, or raises what went wrong. So nothing shared is ever locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Job(Generic[T]):
    """Runs once, finishes once."""

    __slots__ = ("_error", "_finish", "_outcome", "_work", "description")

    def __init__(self, description: str, work: Callable[[], W], finish: Callable[[W], T]) -> None:
        self.description = description
        self._work: Callable[[], object] = work
        self._finish: Callable[[object], T] = finish  # type: ignore[assignment]
        self._outcome: object = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """The half for another thread. What it raises, `finish` raises again."""
        try:
            self._outcome = self._work()
        except BaseException as error:
            self._error = error
            raise

    def finish(self) -> T:
        """The owner's half. Raises what `run` met, `OSError` above all."""
        if self._error is not None:
            raise self._error
        return self._finish(self._outcome)

    def __call__(self) -> None:
        self.run()

    def complete(self) -> T:
        """Both halves here and now."""
        self.run()
        return self.finish()
