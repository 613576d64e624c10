"""Waiting for reassignments, with a line of the bytes copied."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.common.output import ProgressLine, counted
from kalda.cli.reassignment.progress import ReassignmentProgress, read_progress

_FIRST_POLL_S = 0.1
_POLL_S = 1.0
_MB = 1_000_000


def wait_with_bar(
    admin: CommandAdmin, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> bool:
    """Wait until none of them is in progress, and return True; or False after the timeout. Raises `ApiError`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    copied = _Copied(len(targets))
    line = ProgressLine(copied.describe)
    pause_s = _FIRST_POLL_S
    try:
        while True:
            progress = read_progress(admin, targets)
            copied.update(progress)
            line.step()
            if not progress.ongoing:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 1.5)
    finally:
        line.clear()


class _Copied:
    """The bytes copied: the difference between the largest remainder so far and the current one."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._done = 0
        self._remaining = self._most_remaining = 0

    def update(self, progress: ReassignmentProgress) -> None:
        self._remaining = progress.remaining_bytes
        self._most_remaining = max(self._most_remaining, self._remaining)
        self._done = self._partitions - len(progress.ongoing)

    def describe(self, seconds: float) -> str:
        """`2 of 6 partitions are moved, 120 of 400 MB copied, 12.0 MB/s, 23 s to go`."""
        copied = self._most_remaining - self._remaining
        text = f"{self._done} of {counted(self._partitions, 'partition')} moved"
        if self._most_remaining:
            rate = copied / seconds
            left = f", {self._remaining / rate:.0f} s to go" if rate else ""
            text += f", {copied / _MB:,.0f} of {self._most_remaining / _MB:,.0f} MB copied, {rate / _MB:.1f} MB/s{left}"
        return text
