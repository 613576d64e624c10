"""Interfaces by which pure code sets timers and runs jobs on threads; the shell and the simulator implement them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Drop the call; no effect where it has already happened."""
        ...


class Timers(Protocol):
    """Delayed calls, made on the one thread that owns the state."""

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, not before `delay_ms` have passed."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` in the next turn."""
        ...


class Jobs(Protocol):
    """Work that may block on a disk, and so must not run on the thread that owns the state.

    `job` runs on another thread and must not change shared state. `finish(value, error)` then runs on the thread that
    owns the state. Exactly one of its arguments is set, except for a job that returns None.
    """

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        """Start `job`. Jobs may finish in another order than they were started."""
        ...
