"""A process of the demonstration: it reports lines of JSON on its standard output, and ends at the end of its standard
input, so that none survives the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Report = dict[str, Any]
STOP_S = 30.0


class Child:
    """The command's side. `on_report` is called on a thread: with each report, and with None at the output's end."""

    def __init__(
        self, module: str, arguments: list[str], log: Path, on_report: Callable[[Child, Report | None], None]
    ) -> None:
        self.log = log
        self.was_killed = False
        self.was_asked_to_end = False
        self._on_report = on_report
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"kalda.cli.demo.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C in the terminal reaches the command alone, which ends the others
            )
        self._reader = threading.Thread(target=self._read, name=f"reports of {module}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative where a signal has ended it."""
        return self._process.poll()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                continue  # the line in which the process was killed
            self._on_report(self, report)
        self._process.wait()
        self._on_report(self, None)

    def kill(self) -> None:
        """As `kill -9` does."""
        self.was_killed = True
        self._process.kill()
        self._process.wait()
        self._close_input()

    def ask_to_end(self) -> None:
        self.was_asked_to_end = True
        self._close_input()

    def end(self, timeout_s: float = STOP_S) -> str | None:
        """Let it end, and kill it where it does not in time. How it has ended; None where that was with 0, or where it
        had been killed before."""
        self.ask_to_end()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"did not end within {timeout_s:.0f} s"
        self._reader.join(5)
        return None if code == 0 or self.was_killed else f"ended with {code}"

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def report(out: IO[str] | None = None, /, **fields: object) -> None:
    """The process's side: report."""
    print(json.dumps(fields), file=out or sys.stdout, flush=True)


def end_of_input() -> threading.Event:
    """The process's side: an event that is set when the command has closed this process's input, or has ended."""
    ended = threading.Event()

    def wait() -> None:
        while os.read(0, 1):
            pass
        ended.set()

    threading.Thread(target=wait, name="end of input", daemon=True).start()
    return ended
