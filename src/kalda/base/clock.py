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
