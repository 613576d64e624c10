"""The offsets of one log, how they move, and which leader epoch began where.

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

On disk, each in a checkpoint of the log directory (`log_dirs.py`), written now and then: the recovery point, or a lower
one (`Unsynced.checkpoint_recovery_point`); the log start offset, where no segment begins there; the high watermark. A
checkpoint with a recovery point or a log start offset above what a truncation leaves is replaced before the truncation.
The log end is found in the last segment, the last stable offset from the producers' state.

The last stable offset is the smaller one of the high watermark and the first offset of the oldest transaction that is
open, or whose end is not committed yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from kalda.base.disk import Disk
from kalda.storage.checkpoints import LEADER_EPOCH_FILE, read_epochs, write_epochs


class LogOffsets:
    """A `Log` derives from this class: each request reads several offsets, and reading an attribute of the log itself
    costs a fifth of reading a property that delegates.

    The two that move with each request are assigned in place, in `Log`: the log end by appends, the high watermark by
    `update_high_watermark`. What lowers an offset is in `deletion.py`, everything else here."""

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


UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """Which leader epoch began at which offset (KIP-101).

    A replica that starts again compares its epochs with the leader's to find where their logs diverge. Each entry is an
    epoch and the offset of the first record written in it.

    Invariants: epochs and start offsets both grow strictly. A new entry replaces every later one that contradicts it.

    The file is written with the next flush or clean stop, not on each change: batches carry their epoch too, so
    recovery finds lost entries of the unflushed end again, and a flush syncs the file before the recovery point is
    raised. An epoch in which nothing was appended is not written: no replica can have copied a record of it, and
    opening the log would drop it again. A node that starts leads thousands of partitions in new epochs at once; neither
    that nor its next stop writes a file for those that got no record.

    The epochs of one log, oldest first.
    """

    __slots__ = ("_disk", "_epochs", "_offsets", "_stored", "directory", "unsynced", "unwritten", "writes")

    def __init__(self, disk: Disk, directory: str, entries: list[tuple[int, int]] | None = None) -> None:
        self._disk = disk
        self.directory = directory
        self._epochs: list[int] = []
        self._offsets: list[int] = []
        """Where each of `_epochs` began."""
        self.unsynced = False
        """The file was written and not synced."""
        self.unwritten = False
        """The file does not have all entries, or has others."""
        self.writes = 0
        """Counts the writes of the file."""
        for epoch, offset in entries or ():
            self._add(epoch, offset)
        self._stored = list(entries or ())
        """The entries in the file."""

    @classmethod
    def load(cls, disk: Disk, directory: str) -> LeaderEpochs:
        """Raises `ValueError` where the file is malformed."""
        return cls(disk, directory, read_epochs(disk, f"{directory}/{LEADER_EPOCH_FILE}"))

    @property
    def path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_FILE}"

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._offsets, strict=True))

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def latest_entry(self) -> tuple[int, int] | None:
        return (self._epochs[-1], self._offsets[-1]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Epoch `epoch` begins at `start_offset`; False where there is that entry already."""
        assert epoch >= 0, f"epoch {epoch} in {self.directory}"
        assert start_offset >= 0, f"offset {start_offset} in {self.directory}"
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._offsets[-1]:
            return False
        self._add(epoch, start_offset)
        self.unwritten = True
        return True

    def correct(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` is at `offset`: drop the entries that contradict it, and all after them. The file may have
        been written before a truncation, and name epochs of records that others have replaced, perhaps of an earlier
        epoch."""
        known = self.epoch_for_offset(offset)
        if known == epoch or (known is None and self._epochs and epoch <= self._epochs[0]):
            return  # in the latter case the batch is below the log's start
        at = min(bisect_right(self._epochs, epoch), bisect_right(self._offsets, offset))
        del self._epochs[at:], self._offsets[at:]
        if self.latest != epoch:
            self._add(epoch, offset)
        self.unwritten = True

    def _add(self, epoch: int, start_offset: int) -> None:
        while self._epochs and (self._epochs[-1] >= epoch or self._offsets[-1] >= start_offset):
            del self._epochs[-1], self._offsets[-1]
        self._epochs.append(epoch)
        self._offsets.append(start_offset)

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Replace all entries."""
        self._epochs.clear()
        self._offsets.clear()
        for epoch, offset in entries:
            self._add(epoch, offset)
        self.unwritten = True

    def write(self) -> None:
        """Write the entries to the file, without a sync."""
        self._write(self.entries)

    def write_below(self, end_offset: int) -> bool:
        """`write`, of the epochs that begin below `end_offset`, and of those in the file already, which a flush job
        that goes further may be about to sync. False where the file has just these."""
        stored = set(self._stored)
        entries = [entry for entry in self.entries if entry[1] < end_offset or entry in stored]
        if entries == self._stored:
            return False
        self._write(entries)
        return True

    def _write(self, entries: list[tuple[int, int]]) -> None:
        self.unwritten = True  # where the disk raises
        write_epochs(self._disk, self.path, entries, durable=False)
        self._stored = entries
        self.unsynced = True
        self.writes += 1
        self.unwritten = len(entries) < len(self._epochs)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch at most `epoch`, the offset where the next one began).

        The latest epoch ends at the log's end. (-1, -1) where `epoch` is later than any known; an epoch earlier than
        any known ended where the first known one began.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if above == 0:
            return epoch, self._offsets[0]
        return self._epochs[above - 1], self._offsets[above]

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which the record at `offset` was written."""
        at = bisect_right(self._offsets, offset)
        return self._epochs[at - 1] if at else None

    def truncate_from_end(self, end_offset: int, *, write: bool = True) -> None:
        """Drop epochs that begin at or after `end_offset`."""
        if end_offset < 0 or not self._offsets or self._offsets[-1] < end_offset:
            return
        at = bisect_left(self._offsets, end_offset)
        del self._epochs[at:], self._offsets[at:]
        if write:
            self.write()

    def truncate_from_start(self, start_offset: int, *, write: bool = True) -> None:
        """Drop epochs that end before `start_offset`; the one that spans it begins there from now on."""
        at = bisect_right(self._offsets, start_offset)
        if not at or self._offsets[at - 1] == start_offset == self._offsets[0]:
            return
        del self._epochs[: at - 1], self._offsets[: at - 1]
        self._offsets[0] = start_offset
        if write:
            self.write()

    def forget(self) -> Iterator[Callable[[], None]]:
        """Drop all entries, synced, before the records are removed: in an empty log no batch would contradict the
        entries of former records. Yields what is to be waited for, on any thread, before it goes on."""
        temporary = f"{self.path}.empty.tmp"
        write_epochs(self._disk, temporary, (), durable=False)
        file = self._disk.open(temporary)
        yield file.sync
        file.close()
        self._disk.rename(temporary, self.path)
        self._epochs.clear()
        self._offsets.clear()
        self._stored = []
        self.unsynced = self.unwritten = False
        self.writes += 1
        disk, directory = self._disk, self.directory
        yield lambda: disk.sync_dir(directory)
