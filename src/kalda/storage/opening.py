"""Opening what the first appends to logs need, on another thread.

Logs that a node finds on its disk hold no files open until somebody comes. Opening them may wait for the device: for
the directory's entries, for the file's first batch, which tells when the segment is to be rolled, and for the indexes,
which go into memory. Whoever appends to many logs has them opened together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kalda.base.errors import CorruptRecord
from kalda.storage.job import Job
from kalda.storage.log import Log


def opening_job(logs: Sequence[Log]) -> Job[None]:
    """A job after which these are not `cold`. What fails in it, the append meets again, and says so."""
    opening = [(log, log.segments.active, log.segments.active.snapshot()) for log in logs]

    def work() -> None:
        for _, _, view in opening:
            with contextlib.suppress(OSError, CorruptRecord):
                view.prepare()

    def finish(_: None) -> None:
        for log, active, view in opening:
            log.cold = False
            if not log.offline and log.segments.active is active:
                active.adopt(view)
            view.close()

    return Job(f"open {len(opening)} logs", work, finish)
