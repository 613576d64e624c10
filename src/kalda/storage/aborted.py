"""The aborted transactions that a range of a log overlaps: for read_committed fetches, and for compaction.

They are in the transaction indexes of the segments from the first offset on: of the segment that holds the marker of
each. Where the page cache has what is needed, the log's own thread reads it; otherwise `AbortedRead` does on another
one, as `ColdRead` does with the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Jobs
from kalda.storage.index import Reader, WouldWait, read_cached, read_waiting
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.snapshot_jobs import start_repeated
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


def _in_order(found: list[AbortedTxn]) -> list[AbortedTxn]:
    if len(found) > 1:
        found.sort(key=lambda txn: txn.first_offset)
    return found


def aborted_nowait(log: LogState, first_offset: int, upto: int) -> list[AbortedTxn] | AbortedRead:
    """`collect_aborted` of a log, or the read that does it on another thread. Raises `ApiError`."""
    log.check_online()
    try:
        with suppress(WouldWait):
            return collect_aborted(log.segments, first_offset, upto, read_cached)
        return AbortedRead(log, first_offset, upto)
    except OSError as error:
        raise log.refused(error) from error


class AbortedRead:
    """`collect_aborted` on a snapshot of the indexes: `collect` on any thread, or `run` and then `finish` on the log's
    own. Files that are not open are opened by name."""

    __slots__ = ("_by_name", "_failure", "_first_offset", "_found", "_log", "_upto", "_views")

    def __init__(self, log: LogState, first_offset: int, upto: int) -> None:
        self._log = log
        self._first_offset = first_offset
        self._upto = upto
        self._views: list[tuple[Segment, TxnIndex]] = []
        """Segments of the log, each with a snapshot of its transaction index."""
        self._by_name: list[Segment] = []
        """Those whose index is read by name."""
        self._found: list[AbortedTxn] | None = None
        """What `run` has found; None before it, or where it failed."""
        self._failure: OSError | None = None
        """What was raised in `run`."""
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        segments = [each for each in self._log.segments.from_floor(self._first_offset) if each.txn_index.exists]
        self._by_name = [each for each in segments if each.txn_index.is_in_file_only]
        self._views = [(each, each.txn_index.snapshot()) for each in segments]
        self._found = self._failure = None

    def collect(self) -> list[AbortedTxn]:
        """On any thread. Raises `OSError`; `FileNotFoundError` where a segment was renamed or removed."""
        found: list[AbortedTxn] = []
        try:
            for _, index in self._views:
                if index.collect(self._first_offset, self._upto, found):
                    break
        finally:
            for _, index in self._views:
                index.close_file()
        return _in_order(found)

    def run(self) -> None:
        """Read, on any thread."""
        try:
            self._found = self.collect()
        except OSError as error:
            self._failure = error

    def finish(self, last: bool = False) -> list[AbortedTxn] | ApiError | None:
        """On the log's thread: what `run` has found; None where it must `run` again, or an error instead with `last`.
        An `OSError` of the disk takes the log offline."""
        log, views, segments = self._log, self._views, self._log.segments
        replaced = isinstance(self._failure, FileNotFoundError) or any(
            segments.floor(each.base_offset) is not each for each in self._by_name
        )
        if not replaced:
            if self._failure is not None:
                return log.refused(self._failure)
            for segment, index in views[:_HELD]:  # where the next read begins too
                segment.txn_index.adopt(index)
                if segment is not segments.active:
                    log.reads.keep_open(segment)
            return self._found
        try:
            log.check_online()
        except ApiError as error:
            return error
        if last:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"segments of {log.topic_partition} change while read")
        try:
            self._take_snapshot()
        except OSError as error:
            return log.refused(error)
        return None


def start_aborted_reads(
    jobs: Jobs, reads: Sequence[AbortedRead], done: Callable[[list[list[AbortedTxn] | ApiError]], None]
) -> None:
    """Run reads by one job, one after another; `done` gets their results, in the same order, on the log's thread."""

    def run(unread: Sequence[int], _: object) -> None:
        for at in unread:
            reads[at].run()

    start_repeated(jobs, reads, run, done)
