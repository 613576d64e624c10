"""The clock's interface. The shell implements it; the simulator too, in virtual time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings: wall time for what is stored and shown, monotonic time for what is waited for."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def mono_ms(self) -> int:
        """Milliseconds since an arbitrary point; never goes back."""
        ...
