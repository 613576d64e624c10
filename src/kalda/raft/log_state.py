"""Where the log stands, as far as the machine must know: its ends, the start of each epoch, its snapshots.

The records are elsewhere. The machine keeps this beside them, changes it as it orders appends and truncations, and so
can compare logs without reading any. Invariants: epochs and their starts rise together; the newest snapshot ends at or
before the end of the log; the log starts at 0 or at the end of some snapshot.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kalda.raft.values import BOOTSTRAP_SNAPSHOT, OffsetAndEpoch


class LogState:
    __slots__ = ("end_offset", "epochs", "flushed_offset", "snapshots", "start_offset")

    def __init__(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = 0,
        epochs: list[tuple[int, int]] | None = None,
        snapshots: list[OffsetAndEpoch] | None = None,
    ) -> None:
        """`epochs`: (epoch, start offset) rising; `snapshots`: ids rising. All of the log is taken as flushed."""
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.epochs = list(epochs or [])
        self.snapshots = list(snapshots or [])

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
        """How far to cut, given where the leader says that our last epoch (or the largest before it that the leader
        has) ends: to the end of what both logs hold of that epoch, or, where we have nothing of it, to the end of the
        largest epoch before it here."""
        ours = self.end_offset_for(diverging.epoch)
        if ours.epoch == diverging.epoch:
            return min(ours.offset, diverging.offset, self.end_offset)
        return min(ours.offset, self.end_offset)

    def is_known_snapshot(self, snapshot: OffsetAndEpoch) -> bool:
        return snapshot in self.snapshots

    def continues(self, snapshot: OffsetAndEpoch) -> bool:
        """Whether this log goes on from the state that `snapshot` holds: it begins there, or the record before is the
        one that the snapshot ends with."""
        if not self.start_offset < snapshot.offset <= self.end_offset:
            return self.start_offset == snapshot.offset
        before = bisect_left(self.epochs, snapshot.offset, key=lambda entry: entry[1])
        # Where no epoch is known of it, nothing tells that it is another.
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
        """The prefix before `offset`, which a snapshot covers, and older snapshots were deleted."""
        assert self.start_offset <= offset <= self.end_offset
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot not in dropped]
        self.start_offset = offset
        while len(self.epochs) > 1 and self.epochs[1][1] <= offset:
            del self.epochs[0]
        if self.epochs and self.epochs[0][1] < offset:
            self.epochs[0] = (self.epochs[0][0], offset)

    def check_fetch(self, offset: int, last_epoch: int) -> OffsetAndEpoch | bool | None:
        """How a follower that ends at `offset` with a last record of `last_epoch` relates to this log.

        None: it is a prefix of this log. True: it must load the latest snapshot, since the log no longer reaches back
        to where they part. An end: it diverges, and this is the largest epoch not after its own, and where that
        ends here."""
        if self.start_offset == 0 and offset == 0 and last_epoch == 0:
            return None
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
            return True
        end = self.end_offset_for(last_epoch)
        if end.epoch != last_epoch or end.offset < offset:
            return end
        return None
