"""How pure code asks for time and for threads: by interfaces that the shell, or the simulator, fills in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has happened."""
        ...


class Timers(Protocol):
    """Calls in the future, on the one thread that owns the state."""

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back once, not before `delay_ms` have passed."""
        ...


class Jobs(Protocol):
    """Work that may block on a disk, and so must not run where the state is.

    `job` runs on some thread and must not change shared state; `finish(value, error)` then runs on the thread that
    owns the state. Exactly one of its arguments is set, but for a job whose value is None.
    """

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Start `job`; the order of finishing is not the order of starting."""
        ...
