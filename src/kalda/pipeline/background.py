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
