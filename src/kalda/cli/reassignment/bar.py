"""Waiting for reassignments, with a bar of the bytes that are copied where a terminal shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from kalda.base.ids import TopicPartition
from kalda.cli.reassignment.progress import Outlook, look
from kalda.client.cluster_client import ClusterClient

_FIRST_POLL_S = 0.1
_POLL_S = 1.0


def wait_with_bar(
    cluster: ClusterClient, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> bool:
    """Until none of them runs any more; false where the time was over first. Raises `ApiError`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    bar = _Bar(len(targets)) if sys.stderr.isatty() else None
    pause_s = _FIRST_POLL_S
    try:
        while True:
            outlook = look(cluster, targets)
            if bar is not None:
                bar.show(outlook)
            if not outlook.ongoing:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 1.5)
    finally:
        if bar is not None:
            bar.close()


class _Bar:
    """`copied` is what no longer remains of the most that ever did."""

    def __init__(self, partitions: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        self._partitions = partitions
        self._most = 0
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

    def show(self, outlook: Outlook) -> None:
        remaining = outlook.remaining_bytes
        self._most = max(self._most, remaining)
        done = self._partitions - len(outlook.ongoing)
        self._progress.update(
            self._task,
            description=f"{done} of {self._partitions} partitions",
            total=self._most or None,
            completed=self._most - remaining,
        )

    def close(self) -> None:
        self._progress.stop()
