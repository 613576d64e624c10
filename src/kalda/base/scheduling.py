"""Interfaces by which pure code reads the time, sets timers and runs jobs on threads: the shell implements them with
the system's clocks and threads, the simulator with virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar


class Clock(Protocol):
    """Two readings: wall time for timestamps that are stored or shown, monotonic time for timeouts and intervals."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def mono_ms(self) -> int:
        """Milliseconds since an arbitrary point; never goes back."""
        ...


class LoopClock(Clock, Protocol):
    """The clock of a loop: its monotonic time stands still while the loop does (`kalda.base.loop_time`)."""

    def machine_ms(self) -> int:
        """The machine's own monotonic time."""
        ...

    def follow(self, limit_ms: int, lost_ms: int) -> None:
        """From now on `mono_ms` is the machine's time, but at most `limit_ms`, less `lost_ms`."""
        ...


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
