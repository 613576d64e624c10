"""The offsets of one log, and how they move.

Invariants, at every moment that another callback can run:

- `log_start_offset <= local_log_start_offset <= high_watermark <= log_end_offset`
- `recovery_point <= log_end_offset`
- `last_stable_offset <= high_watermark`, and not below `log_start_offset`

| offset | everything below it | raised by | lowered by |
| --- | --- | --- | --- |
| log start | is not served any more | retention, DeleteRecords, the leader's | truncation below it |
| local log start | is not in segments on this disk | follows the log start: all segments are here | likewise |
| recovery point | has been synced | the `finish` of a flush job | truncation below it |
| last stable | is committed and in no open transaction | derived, see below | derived |
| high watermark | is committed | replication | replication and truncation |
| log end | has been appended | each append | truncation |

On disk, each in a checkpoint of the log directory (`log_dir.py`), written now and then: the recovery point, or a lower
one (`Unsynced.checkpoint_recovery_point`); the log start offset, where no segment begins there; the high watermark. A
checkpoint with a recovery point or a log start offset above what a truncation leaves is replaced before the truncation.
The log end is found in the last segment, the last stable offset from the producers' state.

The last stable offset is the smaller one of the high watermark and the first offset of the oldest transaction that is
open, or whose end is not committed yet.
"""

from __future__ import annotations


class LogOffsets:
    """A `Log` derives from this class: each request reads several offsets, and reading an attribute of the log itself
    costs a fifth of reading a property that delegates.

    The two that move with each request are assigned in place, in `Log`: the log end by appends, the high watermark by
    `update_high_watermark`. What lowers an offset is in `truncation.py`, everything else here."""

    __slots__ = ("first_unstable_offset", "high_watermark", "log_end_offset", "log_start_offset", "recovery_point")

    def __init__(self, log_start_offset: int, log_end_offset: int, recovery_point: int) -> None:
        """A log that was just opened: its high watermark is not known yet, and stands at the log start offset."""
        assert log_start_offset <= log_end_offset, f"a log of [{log_start_offset}, {log_end_offset})"
        assert recovery_point <= log_end_offset, f"recovery point {recovery_point} beyond log end {log_end_offset}"
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        self.high_watermark = log_start_offset
        self.log_end_offset = log_end_offset
        self.first_unstable_offset: int | None = None
        """First offset of the oldest transaction that is open or whose end is not committed; None without any. Derived
        from the producers' state by `Log.refresh`."""

    @property
    def local_log_start_offset(self) -> int:
        """Up to where older records would be in segments elsewhere. There are none, so it is the log start offset. Who
        asks for what this disk has, not for what is served, asks for this one."""
        return self.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Up to where a read_committed consumer may read."""
        first, high = self.first_unstable_offset, self.high_watermark
        return high if first is None or first > high else first

    def nearest(self, offset: int) -> int:
        """`offset`, or that end of [log start, log end] which is nearer to it."""
        return max(self.log_start_offset, min(offset, self.log_end_offset))

    def raise_log_start(self, offset: int) -> None:
        """What is below `offset`, all of it committed, is not served any more."""
        assert self.log_start_offset <= offset <= self.high_watermark, f"log start {offset} in {self.describe()}"
        self.log_start_offset = offset

    def raise_recovery_point(self, offset: int) -> None:
        """What is below `offset` has been synced."""
        assert offset <= self.log_end_offset, f"recovery point {offset} in {self.describe()}"
        if offset > self.recovery_point:
            self.recovery_point = offset

    def end_at(self, offset: int) -> None:
        """The log was cut back to `offset`. Log start and recovery point have been lowered before."""
        assert self.log_start_offset <= offset <= self.log_end_offset, f"log end {offset} in {self.describe()}"
        assert self.recovery_point <= offset, f"log end {offset} in {self.describe()}"
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)

    def begin_anew_at(self, offset: int, log_start_offset: int) -> None:
        """The log is empty, and the next record gets `offset`. The recovery point has been lowered before."""
        assert log_start_offset <= offset, f"an empty log that starts at {log_start_offset} and ends at {offset}"
        assert self.recovery_point <= offset, f"log end {offset} in {self.describe()}"
        self.log_start_offset, self.log_end_offset = log_start_offset, offset
        self.high_watermark = max(log_start_offset, min(self.high_watermark, offset))

    def describe(self) -> str:
        """For messages of broken invariants."""
        return (
            f"log start {self.log_start_offset}, recovery point {self.recovery_point}, high watermark "
            f"{self.high_watermark}, log end {self.log_end_offset}"
        )
