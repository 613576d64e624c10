"""The clock's interface. The shell implements it with the system's clocks, the simulator with virtual time."""

from __future__ import annotations

from typing import Protocol


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
