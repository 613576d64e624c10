"""The background class of processes: they get only the CPU and the disk that no other process uses.

A bulk load that shares its machine with a node would else take the cores in whole time slices, also with niceness 19,
and clients of the node would wait for them. A process of Linux's class SCHED_IDLE gives up the core as soon as any
other process can run, and its own reads and writes of files come after those of others.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SMALL_FETCHES: Final = {"kafka.max.partition.fetch.bytes": str(1024 * 1024)}
"""Options of the source: the node is in no background, and what it does for one large response delays others."""
_LOWEST: Final = 19
_LITTLE: Final = 0.1
_TICKS_A_SECOND: Final = 100
"""Linux's USER_HZ."""
_AUTOGROUPS: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")


def enter_background() -> None:
    """Put this process, and all that it starts, into the background; where the platform has no such class, with the
    lowest priority. Called in a new process of one thread."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or a sandbox that refuses the call
        os.nice(_LOWEST)
    if _has_autogroups():
        _lower_autogroup()


def _has_autogroups() -> bool:
    """Whether the kernel divides the cores between sessions of processes first, and in a session by class."""
    try:
        return _AUTOGROUPS.read_text().strip() == "1"
    except OSError:
        return False


def _lower_autogroup() -> None:
    """Begin a session, and give it the smallest share: else it has as much of the cores as the node's session."""
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(_LOWEST))


class CpuWait:
    """Whether the processes that this one has started want the CPU and hardly get it; never on others than Linux."""

    def __init__(self, proc: Path | None = None, pid: int | None = None) -> None:
        self._proc = Path("/proc") if proc is None else proc
        self._pid = os.getpid() if pid is None else pid
        self._used: tuple[float, int] | None = None
        """When it was last looked at, and the ticks of the CPU used until then."""

    def is_long(self, now_s: float) -> bool:
        """Since the last call, at `now_s` on a clock of seconds: a thread could run, and less than a tenth of a core
        was used."""
        threads = [
            (fields[0], int(fields[11]) + int(fields[12]))
            for pid in self._children(self._pid)
            for fields in self._of(pid)
        ]
        used = sum(ticks for _, ticks in threads)
        before, self._used = self._used, (now_s, used)
        if before is None or now_s <= before[0]:
            return False
        share = (used - before[1]) / _TICKS_A_SECOND / (now_s - before[0])
        return share < _LITTLE and any(state == "R" for state, _ in threads)

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        for file in (self._proc / str(pid) / "task").glob("*/children"):
            with suppress(OSError):
                for child in map(int, file.read_text().split()):
                    found += [child, *self._children(child)]
        return found

    def _of(self, pid: int) -> list[list[str]]:
        """The fields of each thread's stat behind its name, of which the first is its state."""
        found = []
        for file in (self._proc / str(pid) / "task").glob("*/stat"):
            with suppress(OSError):
                found.append(file.read_text().rpartition(")")[2].split())
        return found
