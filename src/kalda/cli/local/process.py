"""One node's process: started in a session of its own, recognized by later commands, signalled, measured.

A pid alone proves nothing: after a crash or a reboot another process may have it. A process is this node's where its
start time is the recorded one (if one was recorded), and its command line has the path of this node's properties. A
signal is sent through a pidfd that was opened before that check, so it cannot reach another process with the same pid.

The first line of the pid file is the pid alone, as init systems read it. The second is the process's start time, in
clock ticks since the machine's boot; it is missing where the system does not report it.
"""

from __future__ import annotations

import contextlib
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
"""Nodes that this process started, by pid; they have to be waited for, or they stay as zombies."""


class Usage(NamedTuple):
    """Memory, CPU time and age of a process; None where the system does not report it."""

    memory_bytes: int | None
    cpu_seconds: float | None
    uptime_seconds: float | None


class NodeProcess:
    """The process of the node with this home directory, which may be running or not."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / LOG_FILE
        self.properties = home / PROPERTIES_FILE
        self._pid_file = home / PID_FILE

    def start(self) -> int:
        """Start the node; returns the pid. The process has a session of its own, so Ctrl-C in the terminal does not
        reach it."""
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
        record = "\n".join(str(each) for each in (child.pid, _start_ticks(child.pid)) if each is not None) + "\n"
        temporary = self._pid_file.with_suffix(".tmp")
        temporary.write_text(record, encoding="ascii")
        temporary.replace(self._pid_file)
        return child.pid

    @property
    def recorded_pid(self) -> int | None:
        """The pid of the last start, running or not; None after a stop."""
        recorded = self._recorded()
        return recorded[0] if recorded is not None else None

    def pid(self) -> int | None:
        """The pid where the node is running, else None."""
        recorded = self._recorded()
        return recorded[0] if recorded is not None and self._is_running(*recorded) else None

    def exit_code(self) -> int | None:
        """The exit code, where this process started the node and it has ended."""
        child = _children.get(self.recorded_pid or 0)
        return child.poll() if child is not None else None

    def send(self, number: int) -> bool:
        """Send a signal; False where the node is not running."""
        recorded = self._recorded()
        if recorded is None:
            return False
        try:
            handle = os.pidfd_open(recorded[0])
        except (ProcessLookupError, AttributeError, OSError):
            return self._kill(recorded, number)
        try:
            if not self._is_running(*recorded):
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def forget(self) -> None:
        """Remove the pid file after a stop."""
        child = _children.pop(self.recorded_pid or 0, None)
        if child is not None:
            child.poll()
        self._pid_file.unlink(missing_ok=True)

    def usage(self) -> Usage:
        """What the process uses now."""
        pid = self.pid()
        return _usage(pid) if pid is not None else Usage(None, None, None)

    # -- recognizing

    def _recorded(self) -> tuple[int, int | None] | None:
        """Pid and start time in the pid file; None where there is none, or it is unreadable."""
        try:
            pid, *started = map(int, self._pid_file.read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            return None
        return (pid, started[0] if started else None) if pid > 1 else None

    def _is_running(self, pid: int, started: int | None) -> bool:
        """Whether a process with this pid is running and is this node's."""
        child = _children.get(pid)
        if child is not None:
            return child.poll() is None
        now = _start_ticks(pid)
        if started is not None and now is not None and now != started:
            return False
        return str(self.properties) in _command_line(pid)

    def _kill(self, recorded: tuple[int, int | None], number: int) -> bool:
        """Send a signal on a system without pidfd."""
        if not self._is_running(*recorded):
            return False
        try:
            os.kill(recorded[0], number)
        except ProcessLookupError:
            return False
        return True

    def _rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _MAX_LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))


def _environment() -> dict[str, str]:
    """This process's environment. PYTHONPATH gets the directory of this package, if it is not an installed one: the
    node's working directory is another one."""
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
    """The process's state as a letter of /proc: R, S, D, or T where it was stopped by a signal."""
    fields = _stat(pid)
    return fields[0] if fields is not None else None


def _start_ticks(pid: int) -> int | None:
    """The process's start time, in clock ticks since the machine's boot."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def _command_line(pid: int) -> list[str]:
    """The process's arguments; empty where it has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except FileNotFoundError:
        if Path("/proc/self/cmdline").exists():
            return []
    except OSError:
        return []
    # This system has no /proc. `ps` joins the arguments with blanks, so a path with blanks is not recognized.
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
    """Wait until the processes have ended; returns those that are still running after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if process.pid() is not None]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.pid() is not None]
    return left
