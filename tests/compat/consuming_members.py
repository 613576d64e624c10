"""Consumers in processes of their own: started, killed, and what all of them have printed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

MEMBER = Path(__file__).with_name("consuming_process.py")


class Members:
    """Processes of one group, and what they have printed."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, str(MEMBER), *arguments]
        self.processes: list[subprocess.Popen[str]] = []
        self.seen: set[str] = set()
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        reader = threading.Thread(target=self._read, args=(process,))
        reader.start()
        self.processes.append(process)
        self._readers.append(reader)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("assigned"):
                self.seen.add(line.rsplit(" ", 1)[-1].strip())

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.processes.remove(process)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in list(self.processes):
            self.kill(process)
        for reader in self._readers:
            reader.join()
