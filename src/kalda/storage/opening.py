"""Opening the files that the first append to a log needs, on another thread.

A log that a node finds on its disk has no file open before its first append or read. Opening may wait for the device:
for the directory's entries, for the file's first batch, whose timestamp decides when the segment is rolled, and for the
indexes, which are loaded into memory. One job opens the files of many logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kalda.base.errors import CorruptRecord
from kalda.storage.job import Job
from kalda.storage.segment import Segment
from kalda.storage.state import LogState


def opening_job(logs: Sequence[LogState]) -> Job[None]:
    """A job after which these are not `cold`. An error in it is passed over: the append that follows raises it."""
    opening: list[tuple[LogState, Segment, Segment]] = []
    for log in logs:
        active = log.segments.active
        try:
            opening.append((log, active, active.snapshot()))
        except OSError as error:
            log.refused(error)

    def work() -> None:
        for _, _, view in opening:
            with contextlib.suppress(OSError, CorruptRecord):
                view.prepare()

    def finish(_: None) -> None:
        for log in logs:
            log.cold = False
        for log, active, view in opening:
            if not log.offline and log.segments.active is active:
                active.adopt(view)
            view.close()

    return Job(f"open {len(opening)} logs", work, finish)
