"""The bounds of the metadata log: its start and end, the start of each epoch, its snapshots. No records.

The machine changes this as it emits appends and truncations, and compares logs by it without reading any. Invariants:

- `start_offset <= flushed_offset <= end_offset`;
- epochs and their start offsets rise together;
- the newest snapshot ends at or before the end of the log;
- the log starts at 0 or at the end of a snapshot.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kalda.raft.voters import BOOTSTRAP_SNAPSHOT, OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Valid:
    """The follower's log is a prefix of this one."""


class Diverging(NamedTuple):
    """The follower's log differs from this one. It truncates to `end` or before: the largest epoch of this log that is
    not after the follower's last one, and the offset where that epoch ends here."""

    end: OffsetAndEpoch


class SnapshotRequired(NamedTuple):
    """This log begins after the point up to which the two agree: the follower fetches `snapshot` first."""

    snapshot: OffsetAndEpoch


FetchValidation: TypeAlias = Valid | Diverging | SnapshotRequired


class RaftLogState:
    __slots__ = ("end_offset", "epochs", "flushed_offset", "snapshots", "start_offset")

    def __init__(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = 0,
        epochs: list[tuple[int, int]] | None = None,
        snapshots: list[OffsetAndEpoch] | None = None,
    ) -> None:
        """`epochs`: (epoch, start offset) rising; `snapshots`: ids rising. All of the log must be synced."""
        self.start_offset = start_offset
        self.end_offset = end_offset
        """Exclusive."""
        self.flushed_offset = end_offset
        """Everything before it survives a loss of power."""
        self.epochs = list(epochs or [])
        """(epoch, offset of its first record), rising."""
        self.snapshots = list(snapshots or [])
        """Rising. The newest is always among them."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins after; 0 for nothing at all."""
        if self.epochs:
            return self.epochs[-1][0]
        return self.snapshots[-1].epoch if self.snapshots else 0

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        return self.snapshots[-1] if self.snapshots else None

    def append(self, epoch: int, count: int) -> int:
        """`count` records of `epoch` at the end; returns the first one's offset."""
        assert count > 0
        assert not self.epochs or epoch >= self.epochs[-1][0], f"epoch {epoch} after {self.epochs[-1][0]}"
        first = self.end_offset
        if not self.epochs or self.epochs[-1][0] != epoch:
            self.epochs.append((epoch, first))
        self.end_offset = first + count
        return first

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of this log that is not after `epoch`, and where it ends."""
        earliest = self.snapshots[0] if self.snapshots else None
        at = bisect_right(self.epochs, epoch, key=lambda entry: entry[0])
        if at == 0:
            if earliest is not None and epoch >= earliest.epoch and self.start_offset >= earliest.offset:
                return OffsetAndEpoch(self.start_offset, earliest.epoch)
            return OffsetAndEpoch(self.start_offset, 0)
        end = self.epochs[at][1] if at < len(self.epochs) else self.end_offset
        return OffsetAndEpoch(end, self.epochs[at - 1][0])

    def truncate_to(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()

    def truncation_point(self, diverging: OffsetAndEpoch) -> int:
        """The offset to truncate to. `diverging` is the leader's `Diverging.end`: an epoch, and where it ends there. Of
        that epoch what both logs hold stays; where this log has nothing of it, what is before it stays."""
        local = self.end_offset_for(diverging.epoch)
        if local.epoch == diverging.epoch:
            return min(local.offset, diverging.offset, self.end_offset)
        return min(local.offset, self.end_offset)

    def has_snapshot(self, snapshot: OffsetAndEpoch) -> bool:
        return snapshot in self.snapshots

    def continues(self, snapshot: OffsetAndEpoch) -> bool:
        """Whether this log continues the state of `snapshot`: it begins at its end, or the record before its end is of
        the snapshot's epoch."""
        if not self.start_offset < snapshot.offset <= self.end_offset:
            return self.start_offset == snapshot.offset
        before = bisect_left(self.epochs, snapshot.offset, key=lambda entry: entry[1])
        # Without an epoch for that record, nothing speaks against it.
        return before == 0 or self.epochs[before - 1][0] == snapshot.epoch

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        if snapshot not in self.snapshots:
            self.snapshots.append(snapshot)
            self.snapshots.sort()

    def restart_at(self, snapshot: OffsetAndEpoch) -> None:
        """The log was replaced by a snapshot: it is empty and begins where that ends."""
        self.snapshots = [snapshot]
        self.epochs = []
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.offset

    def advance_start(self, offset: int, dropped: list[OffsetAndEpoch]) -> None:
        """The records before `offset`, which a snapshot covers, and the snapshots `dropped` were deleted."""
        assert self.start_offset <= offset <= self.end_offset
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot not in dropped]
        self.start_offset = offset
        while len(self.epochs) > 1 and self.epochs[1][1] <= offset:
            del self.epochs[0]
        if self.epochs and self.epochs[0][1] < offset:
            self.epochs[0] = (self.epochs[0][0], offset)

    def validate_fetch(self, fetch_from: OffsetAndEpoch) -> FetchValidation:
        """Compare a follower's log, which ends at `fetch_from`, with this one."""
        offset, last_epoch = fetch_from
        if self.start_offset == 0 and offset == 0 and last_epoch == 0:
            return Valid()
        earliest = next((s for s in self.snapshots if s != BOOTSTRAP_SNAPSHOT), None)
        if earliest is not None and (
            offset < self.start_offset
            or (
                offset == self.start_offset != 0
                and last_epoch != earliest.epoch
                and self.start_offset == earliest.offset
            )
            or (self.start_offset != 0 and last_epoch < earliest.epoch)
        ):
            return SnapshotRequired(self.snapshots[-1])
        end = self.end_offset_for(last_epoch)
        if end.epoch != last_epoch or end.offset < offset:
            return Diverging(end)
        return Valid()
