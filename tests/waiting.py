"""The wait of all tests for what has no event: a state of another thread, process or machine."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.02


def wait_until(
    holds: Callable[[], object], what: str = "it is so", timeout_s: float = 60, pause_s: float = PAUSE_S
) -> None:
    """Ask until it holds; where that costs something, with longer pauses. Fails where it does not in time, and says
    `what` was to be."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(pause_s)
