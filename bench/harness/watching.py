"""What others notice while a node does something: how long another client waits, how much memory is resident."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from harness.blocking import BlockingConnection


class Resident:
    """The resident memory of a process, as Linux counts it."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        self._before = 0

    def reset(self) -> None:
        """Measure from now on."""
        (self._directory / "clear_refs").write_text("5")  # VmHWM begins anew
        self._before = self._bytes("VmRSS")

    def grown(self) -> int:
        """The peak since `reset`, above what it was then."""
        return self._bytes("VmHWM") - self._before

    def grown_now(self) -> int:
        """What is resident now, above what was at `reset`."""
        return self._bytes("VmRSS") - self._before

    def _bytes(self, name: str) -> int:
        (line,) = (each for each in (self._directory / "status").read_text().splitlines() if each.startswith(name))
        return int(line.split()[1]) * 1024


class Pings(threading.Thread):
    """Sends small requests until it is stopped, and keeps the longest wait."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.stopped = False
        self._connection = BlockingConnection("127.0.0.1", port)

    def run(self) -> None:
        with self._connection as connection:
            while not self.stopped:
                began = time.perf_counter()
                connection.negotiate()
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
