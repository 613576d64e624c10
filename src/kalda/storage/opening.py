"""Opening the files that the first append to a log needs, on another thread.

A log that a node finds on its disk has no file open before its first append or read. Opening may wait for the device:
for the directory's entries, for the file's first batch, whose timestamp decides when the segment is rolled, and for the
indexes, which are loaded into memory. One job opens the files of many logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kalda.base.errors import ApiError, CorruptRecord
from kalda.base.pending import Pending
from kalda.base.scheduling import Jobs
from kalda.storage.segment import Segment
from kalda.storage.snapshot_jobs import SnapshotJob, run_snapshots
from kalda.storage.state import LogState


def open_logs(jobs: Jobs, logs: Sequence[LogState]) -> Pending[None]:
    """Open the files of logs; settled when these are not `cold` any more, at once where there are none. An error is
    passed over: the append that follows raises it."""
    openings: list[Opening] = []
    for log in logs:
        with suppress(ApiError):
            openings.append(Opening(log))

    def opened(_: object) -> None:
        for log in logs:
            log.cold = False

    return run_snapshots(jobs, openings).and_then(opened)


class Opening(SnapshotJob[None]):
    """Of one log."""

    __slots__ = ("_active", "_view")

    _active: Segment
    _view: Segment
    """The snapshot that gets the open files."""

    def __init__(self, log: LogState) -> None:
        super().__init__(log, attempts=1)

    def take_snapshot(self) -> list[tuple[Segment, Segment]]:
        self._active = self.log.segments.active
        self._view = self._active.snapshot()
        return [(self._active, self._view)]

    def read(self, found_before: bool = False) -> None:
        with suppress(OSError, CorruptRecord):
            self._view.prepare()

    def adopt(self) -> None:
        if self.log.segments.active is self._active:
            self._active.adopt(self._view)
