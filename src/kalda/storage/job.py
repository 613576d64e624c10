"""Work that waits for a device, in two halves.

`run` may be called on any thread: it reads and writes files, and reads only what was snapshotted when the job was
made. `finish` is called on the thread that owns the log: it takes what `run` found, changes the log and gives the
result, or raises what went wrong. So nothing shared is ever locked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Job(Generic[T]):
    """Runs once, finishes once."""

    __slots__ = ("_error", "_failed", "_finish", "_outcome", "_work", "description")

    def __init__(self, description: str, work: Callable[[], W], finish: Callable[[W], T]) -> None:
        self.description = description
        self._work: Callable[[], object] = work
        self._finish: Callable[[object], T] = finish  # type: ignore[assignment]
        self._failed: Callable[[OSError], T] | None = None
        self._outcome: object = None
        self._error: BaseException | None = None

    @staticmethod
    def together(description: str, jobs: Sequence[Job[None]]) -> Job[None]:
        """Several as one. What one of them meets, the others do not: each is finished, then the first error raised."""

        def work() -> None:
            for job in jobs:
                with contextlib.suppress(Exception):  # kept by the job
                    job.run()

        def finish(_: None) -> None:
            failures: list[Exception] = []
            for job in jobs:
                try:
                    job.finish()
                except Exception as failure:
                    failures.append(failure)
            if failures:
                raise failures[0]

        return Job(description, work, finish)

    def on_failure(self, failed: Callable[[OSError], T]) -> Self:
        """A failing disk is not raised any more: `finish` gives what `failed` makes of it, on the owner's thread."""
        self._failed = failed
        return self

    def run(self) -> None:
        """The half for another thread. What it raises, `finish` raises again."""
        try:
            self._outcome = self._work()
        except OSError as error:
            self._error = error
            if self._failed is None:
                raise
        except BaseException as error:
            self._error = error
            raise

    def finish(self) -> T:
        """The owner's half. Raises what `run` met."""
        if self._error is None:
            return self._finish(self._outcome)
        if self._failed is not None and isinstance(self._error, OSError):
            return self._failed(self._error)
        raise self._error

    def __call__(self) -> None:
        self.run()

    def complete(self) -> T:
        """Both halves here and now."""
        self.run()
        return self.finish()
