"""Waiting for reassignments, on a terminal with a bar of the bytes copied."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.reassignment.progress import ReassignmentProgress, read_progress

_FIRST_POLL_S = 0.1
_POLL_S = 1.0


def wait_with_bar(
    admin: CommandAdmin, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> bool:
    """Wait until none of them is in progress, and return True; or False after the timeout. Raises `ApiError`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    bar = _Bar(len(targets)) if sys.stderr.isatty() else None
    pause_s = _FIRST_POLL_S
    try:
        while True:
            progress = read_progress(admin, targets)
            if bar is not None:
                bar.show(progress)
            if not progress.ongoing:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 1.5)
    finally:
        if bar is not None:
            bar.close()


class _Bar:
    """A progress bar. The bytes copied are the difference between the largest remainder so far and the current one."""

    def __init__(self, partitions: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        self._partitions = partitions
        self._most_remaining = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, progress: ReassignmentProgress) -> None:
        remaining = progress.remaining_bytes
        self._most_remaining = max(self._most_remaining, remaining)
        done = self._partitions - len(progress.ongoing)
        self._progress.update(
            self._task,
            description=f"{done} of {self._partitions} partitions",
            total=self._most_remaining or None,
            completed=self._most_remaining - remaining,
        )

    def close(self) -> None:
        self._progress.stop()
