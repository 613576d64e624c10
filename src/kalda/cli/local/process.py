"""One node's process: started apart from the terminal, recognized later, signalled, measured.

A pid alone proves nothing: after a crash or a reboot another process may have it. A process is this node's where its
start time is the one that was noted, or where nothing was noted, and where its command line names this node's
properties. A signal goes through a descriptor that was opened before that check, so it cannot hit a successor.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import kalda

PID_FILE = "pid"
LOG_FILE = "node.log"
PROPERTIES_FILE = "server.properties"
_MAX_LOG_BYTES = 64 << 20
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Of this process: they have to be waited for, or they stay as zombies."""


class Usage(NamedTuple):
    """What a process takes; None where the system does not tell."""

    memory_bytes: int | None
    cpu_seconds: float | None
    uptime_seconds: float | None


class NodeProcess:
    """The process of the node that lives in a directory, if it runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / LOG_FILE
        self.properties = home / PROPERTIES_FILE
        self._pid_file = home / PID_FILE

    def start(self) -> int:
        """Start it; the pid. The process belongs to no terminal, so Ctrl-C there does not reach it."""
        self._rotate_log()
        command = [sys.executable, "-m", "kalda.cli.main", "server", str(self.properties)]
        with open(self.log, "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=_environment(),
                start_new_session=True,
            )
        _children[child.pid] = child
        note = json.dumps({"pid": child.pid, "started": _start_ticks(child.pid)})
        temporary = self._pid_file.with_suffix(".tmp")
        temporary.write_text(note, encoding="ascii")
        temporary.replace(self._pid_file)
        return child.pid

    @property
    def noted_pid(self) -> int | None:
        """The pid of the last start, whatever has become of it; None after a stop."""
        noted = self._noted()
        return noted[0] if noted is not None else None

    def pid(self) -> int | None:
        """The pid while it runs."""
        noted = self._noted()
        return noted[0] if noted is not None and self._is_this(*noted) else None

    def exit_code(self) -> int | None:
        """How it ended, where this process started it."""
        child = _children.get(self.noted_pid or 0)
        return child.poll() if child is not None else None

    def send(self, number: int) -> bool:
        """Send a signal; false where it does not run."""
        noted = self._noted()
        if noted is None:
            return False
        try:
            handle = os.pidfd_open(noted[0])
        except (ProcessLookupError, AttributeError, OSError):
            return self._kill(noted, number)
        try:
            if not self._is_this(*noted):
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def forget(self) -> None:
        """It has ended as it should."""
        child = _children.pop(self.noted_pid or 0, None)
        if child is not None:
            child.poll()
        self._pid_file.unlink(missing_ok=True)

    def usage(self) -> Usage:
        """What it takes now."""
        pid = self.pid()
        return _usage(pid) if pid is not None else Usage(None, None, None)

    # -- recognizing

    def _noted(self) -> tuple[int, int | None] | None:
        try:
            note = json.loads(self._pid_file.read_text(encoding="ascii"))
            pid, started = int(note["pid"]), note["started"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (pid, started if isinstance(started, int) else None) if pid > 1 else None

    def _is_this(self, pid: int, started: int | None) -> bool:
        child = _children.get(pid)
        if child is not None:
            return child.poll() is None
        now = _start_ticks(pid)
        if started is not None and now is not None and now != started:
            return False
        return str(self.properties) in _command_line(pid)

    def _kill(self, noted: tuple[int, int | None], number: int) -> bool:
        if not self._is_this(*noted):
            return False
        try:
            os.kill(noted[0], number)
        except ProcessLookupError:
            return False
        return True

    def _rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _MAX_LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))


def _environment() -> dict[str, str]:
    """That of this process; and where this package was found, if a process elsewhere would not find it."""
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = str(Path(kalda.__file__).parents[1])
    if not root.endswith("-packages"):
        paths.append(root)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 21 else None


def process_state(pid: int) -> str | None:
    """The system's letter for it: R, S, D, and T where it was paused."""
    fields = _stat(pid)
    return fields[0] if fields is not None else None


def _start_ticks(pid: int) -> int | None:
    """When it started, in clock ticks since the machine did."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def _command_line(pid: int) -> list[str]:
    """Its arguments; none of a process that is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except FileNotFoundError:
        if Path("/proc/self/cmdline").exists():
            return []
    except OSError:
        return []
    # No /proc on this system. `ps` joins the arguments, which is enough for a path without blanks.
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.split()


def _usage(pid: int) -> Usage:
    fields = _stat(pid)
    if fields is None:
        return Usage(None, None, None)
    tick = os.sysconf("SC_CLK_TCK")
    try:
        now = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        uptime = round(now - int(fields[19]) / tick, 1)
    except OSError:
        uptime = None
    cpu = (int(fields[11]) + int(fields[12])) / tick
    return Usage(int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), round(cpu, 2), uptime)


def wait_until_ended(processes: list[NodeProcess], timeout_s: float) -> list[NodeProcess]:
    """Those that still run when the time is over."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if process.pid() is not None]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.pid() is not None]
    return left
