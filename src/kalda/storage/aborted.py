"""The aborted transactions that a range of a log overlaps: for read_committed fetches, and for compaction.

They are in the transaction indexes of the segments from the first offset on: of the segment that holds the marker of
each. Where the page cache has what is needed, the log's own thread reads it; otherwise `AbortedRead` does on another
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kalda.storage.index import Reader, WouldWait, read_cached, read_waiting
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.snapshot_jobs import SnapshotJob
from kalda.storage.state import LogState
from kalda.storage.txn_index import AbortedTxn, TxnIndex

_HELD = 2
"""Indexes that a read leaves in memory."""


def collect_aborted(segments: Segments, first_offset: int, upto: int, read: Reader = read_waiting) -> list[AbortedTxn]:
    """Aborted transactions that overlap [first_offset, upto), by first offset. Raises as `read`."""
    found: list[AbortedTxn] = []
    for segment in segments.from_floor(first_offset):
        if segment.txn_index.exists and segment.txn_index.collect(first_offset, upto, found, read):
            break
    return _in_order(found)


def snapshots_of_indexes(segments: Segments, first_offset: int) -> list[tuple[Segment, TxnIndex]]:
    """What `collect_from` needs for [first_offset, ...): segments, each with a snapshot of its transaction index.
    Raises `OSError`."""
    return [(each, each.txn_index.snapshot()) for each in segments.from_floor(first_offset) if each.txn_index.exists]


def collect_from(indexes: Sequence[tuple[Segment, TxnIndex]], first_offset: int, upto: int) -> list[AbortedTxn]:
    """`collect_aborted`, of snapshots, on any thread. Indexes that are not open are opened by name: raises `OSError`,
    `FileNotFoundError` where a segment was renamed or removed."""
    found: list[AbortedTxn] = []
    try:
        for _, index in indexes:
            if index.collect(first_offset, upto, found):
                break
    finally:
        for _, index in indexes:
            index.close_file()
    return _in_order(found)


def _in_order(found: list[AbortedTxn]) -> list[AbortedTxn]:
    if len(found) > 1:
        found.sort(key=lambda txn: txn.first_offset)
    return found


def aborted_nowait(log: LogState, first_offset: int, upto: int) -> list[AbortedTxn] | AbortedRead:
    """`collect_aborted` of a log, or the read that does it, for `run_snapshots`. Raises `ApiError`."""
    log.check_online()
    try:
        with suppress(WouldWait):
            return collect_aborted(log.segments, first_offset, upto, read_cached)
    except OSError as error:
        raise log.refused(error) from error
    return AbortedRead(log, first_offset, upto)


class AbortedRead(SnapshotJob[list[AbortedTxn]]):
    """`collect_aborted` on another thread."""

    __slots__ = ("_first_offset", "_indexes", "_upto")

    def __init__(self, log: LogState, first_offset: int, upto: int) -> None:
        self._first_offset = first_offset
        self._upto = upto
        self._indexes: list[tuple[Segment, TxnIndex]] = []
        super().__init__(log)

    def take_snapshot(self) -> list[tuple[Segment, TxnIndex]]:
        self._indexes = snapshots_of_indexes(self.log.segments, self._first_offset)
        return self._indexes

    def read(self, found_before: bool = False) -> list[AbortedTxn]:
        return collect_from(self._indexes, self._first_offset, self._upto)

    def adopt(self) -> None:
        for segment, index in self._indexes[:_HELD]:  # where the next read begins too
            segment.txn_index.adopt(index)
            if segment is not self.log.segments.active:
                self.log.reads.keep_open(segment)
