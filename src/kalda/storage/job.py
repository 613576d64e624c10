"""Work that waits for a device, in two halves.

`run` may be called on any thread: it reads and writes files, and of the state only a snapshot that was taken when the
job was made. `finish` is called on the thread that owns the state: it gets what `run` returned, changes the state and
returns the result, or raises what `run` raised. So nothing that is shared needs a lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Job(Generic[T]):
    """`run` is called once, then `finish` once."""

    __slots__ = ("_error", "_failed", "_finish", "_outcome", "_work", "description")

    def __init__(self, description: str, work: Callable[[], W], finish: Callable[[W], T]) -> None:
        self.description = description
        self._work: Callable[[], object] = work
        self._finish: Callable[[object], T] = finish  # type: ignore[assignment]
        self._failed: Callable[[OSError], T] | None = None
        """What `finish` calls instead of raising an `OSError`; None: it raises."""
        self._outcome: object = None
        """What `_work` returned."""
        self._error: BaseException | None = None
        """What `_work` raised."""

    @staticmethod
    def together(description: str, jobs: Sequence[Job[None]]) -> Job[None]:
        """Several as one. Where one fails the others run and finish all the same; then the first error is raised."""

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
        """Where `run` raises an `OSError`, `finish` returns `failed(error)` instead of raising it."""
        self._failed = failed
        return self

    def run(self) -> None:
        """The half for another thread. `finish` raises again what this raises."""
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
        """The owner's half. Raises what `run` raised."""
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
