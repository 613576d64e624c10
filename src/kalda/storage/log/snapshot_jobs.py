"""Reads of a log's files on another thread, from a snapshot; begun again while files are renamed, removed or replaced
under them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar, cast

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.scheduling import Jobs, Pending
from kalda.records.batch import TimestampType
from kalda.records.builder import Record, read_records
from kalda.storage.log.index import Reader, WouldWait, read_cached, read_waiting
from kalda.storage.log.reads import SLICED_BYTES, find_place, find_slice
from kalda.storage.log.segment import Segment, Segments
from kalda.storage.log.state import LogState
from kalda.storage.log.txn_index import AbortedTxn, TxnIndex
from kalda.storage.values import FetchInfo, TimestampOffset

logger = logging.getLogger("kalda.logs")

_ATTEMPTS = 5
"""How often a job whose files change under it is run. Each attempt takes a new snapshot of what the log has."""

T = TypeVar("T")


class View(Protocol):
    """A snapshot of files of one segment, which share nothing that changes with the segment's own."""

    @property
    def is_open(self) -> bool:
        """Whether a read of it opens no file by name."""
        ...

    def close(self) -> None: ...


class SnapshotJob(ABC, Generic[T]):
    """One read: `run` on any thread, then `finish` on the log's own, and both again where that says so.

    No file is opened to take the snapshot, so `run` opens by name what was closed. A file that was renamed or removed
    before that, or replaced by compaction, belongs to another state of the log: then there is another attempt, with a
    new snapshot. Likewise where a read fails in a file that was cut, and perhaps written anew, meanwhile.
    """

    __slots__ = ("_attempts_left", "_by_name", "_changes", "_failure", "_found", "_views", "log", "result")

    result: T | ApiError
    """Set by the last `finish`."""

    def __init__(self, log: LogState, attempts: int = _ATTEMPTS) -> None:
        """Takes the first snapshot. Raises `ApiError`."""
        self.log = log
        self._attempts_left = attempts
        self._views: Sequence[tuple[Segment, View]] = ()
        """Segments of the log, each with the snapshot that is read."""
        self._by_name: list[tuple[Segment, View]] = []
        """Those of them that were closed when the snapshot was taken."""
        self._found: T | None = None
        """What `read` has returned; None before it, or where it failed."""
        self._failure: Exception | None = None
        """What was raised in `read`."""
        self._changes = 0
        """The log's count of removals and cuts at the snapshot."""
        try:
            self._begin()
        except OSError as error:
            raise log.refused(error) from error

    def _begin(self) -> None:
        self._changes = self.log.unsynced.truncations
        self._views = self.take_snapshot()
        self._by_name = [pair for pair in self._views if not pair[1].is_open]
        self._found = self._failure = None

    @abstractmethod
    def take_snapshot(self) -> Sequence[tuple[Segment, View]]:
        """On the log's thread: the segments that the read needs, each with a snapshot. Raises `ApiError` where the log
        does not have what is to be read any more, and `OSError`."""

    @abstractmethod
    def read(self, found_before: bool = False) -> T:
        """On any thread: read the snapshot. `found_before`: a read of the same job has found records before this one.
        Raises `ApiError` and `OSError`. Called by `run` alone: `finish` reads again what has changed, and reports a
        failed disk."""

    def adopt(self) -> None:
        """On the log's thread: let later reads and appends have what was opened and read."""

    @property
    def has_records(self) -> bool:
        """Whether `read` has found records."""
        return False

    @property
    def is_outdated(self) -> bool:
        """Whether the log has been cut, or has lost segments, since the snapshot; true before any file changes."""
        return self._changes != self.log.unsynced.truncations

    def run(self, found_before: bool = False) -> None:
        """`read`, on any thread."""
        try:
            self._found = self.read(found_before)
        except Exception as error:
            self._failure = error

    def finish(self) -> bool:
        """On the log's thread, after a run: whether there is a `result`; otherwise it must `run` again. An `OSError` of
        the disk takes the log offline."""
        log, failure = self.log, self._failure
        is_replaced = any(
            view.is_open and log.segments.floor(segment.base_offset) is not segment for segment, view in self._by_name
        )
        if isinstance(failure, FileNotFoundError) or (failure is not None and self.is_outdated):
            is_replaced = True
        elif isinstance(failure, OSError):
            failure = log.refused(failure)
        if not log.offline and not self.is_outdated:
            self.adopt()
        self.close()
        if not is_replaced:
            self.result = cast(T, self._found) if failure is None else self._error(failure)
            return True
        self._attempts_left -= 1
        try:
            log.check_online()
            if not self._attempts_left:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"segments of {log.topic_partition} change while read")
            self._begin()
        except ApiError as error:
            self.result = error
        except OSError as error:
            self.result = log.refused(error)
        else:
            return False
        return True

    def _error(self, failure: Exception) -> ApiError:
        if isinstance(failure, ApiError):
            return failure
        logger.error("a read of %s failed", self.log.topic_partition, exc_info=failure)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(failure))

    def fail(self, error: ApiError) -> None:
        """It is not run any more."""
        self.close()
        self.result = error

    def close(self) -> None:
        """Close the files of the snapshot."""
        for _, view in self._views:
            view.close()
        self._views = ()

    def complete(self) -> T:
        """All of it here and now. Raises `ApiError`."""
        self.run()
        while not self.finish():
            self.run()
        if isinstance(self.result, ApiError):
            raise self.result
        return self.result


def run_snapshots(jobs: Jobs, reads: Sequence[SnapshotJob[T]]) -> Pending[list[T | ApiError]]:
    """Run reads by one job, one after another; those whose files have changed again, by another one. Their results, in
    the same order, are set on the log's thread; without any reads at once."""
    done: Pending[list[T | ApiError]] = Pending()

    def start(unfinished: list[SnapshotJob[T]]) -> None:
        if not unfinished:
            done.complete([each.result for each in reads])
            return

        def run() -> None:
            has_records = any(each.has_records for each in reads)
            for each in unfinished:
                each.run(has_records)
                has_records = has_records or each.has_records

        def finish(_: None, error: BaseException | None) -> None:
            if error is None:
                start([each for each in unfinished if not each.finish()])
                return
            for each in unfinished:
                each.fail(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            start([])

        jobs.run(run, finish)

    start(list(reads))
    return done


def run_snapshot(jobs: Jobs, read: SnapshotJob[T]) -> Pending[T]:
    """`run_snapshots` of one read, whose `ApiError` fails the result."""

    def only(results: list[T | ApiError]) -> T:
        (result,) = results
        if isinstance(result, ApiError):
            raise result
        return result

    return run_snapshots(jobs, [read]).and_then(only)


class ColdRead(SnapshotJob[FetchInfo]):
    """A read of batches that may wait for a device. A batch larger than its limit is only returned where no batch was
    found before it by the same job (KIP-74)."""

    __slots__ = ("_end_offset", "_max_bytes", "_min_one", "_offset", "_pairs", "_slices")

    def __init__(
        self, log: LogState, offset: int, max_bytes: int, end_offset: int, min_one: bool, slices: Jobs | None = None
    ) -> None:
        """`offset` and `end_offset` are within the log. `slices`: as of `Log.read_nowait`."""
        self._offset = offset
        self._max_bytes = max_bytes
        self._end_offset = end_offset
        self._min_one = min_one
        self._slices = slices
        self._pairs: list[tuple[Segment, Segment]] = []
        """The segments of the snapshot, each with its view."""
        super().__init__(log)

    def take_snapshot(self) -> list[tuple[Segment, Segment]]:
        log = self.log
        log.check_range(self._offset)
        self._end_offset = min(self._end_offset, log.log_end_offset)
        self._pairs = [(segment, segment.snapshot()) for segment in log.segments.for_read(self._offset)]
        return self._pairs

    def read(self, found_before: bool = False) -> FetchInfo:
        offset, max_bytes, end_offset = self._offset, self._max_bytes, self._end_offset
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        place = find_place(Segments([view for _, view in self._pairs]), offset, read_waiting)
        if place is None:
            return FetchInfo(offset, offset, b"")
        segment, position = place
        if self._slices is not None and max_bytes >= SLICED_BYTES:
            sliced = find_slice(
                segment, position, max_bytes, end_offset, self._slices, read_waiting, self.log.on_io_error
            )
            if sliced is not None:
                return FetchInfo(offset, sliced[1], cast(Buffer, sliced[0]))
        max_bytes = segment.bound(position, end_offset, max_bytes, read_waiting)
        min_one = self._min_one and not found_before
        return segment.read_slice(position, max_bytes, end_offset, min_one, read_waiting).info(offset)

    @property
    def has_records(self) -> bool:
        return self._found is not None and self._found.size_bytes > 0

    def adopt(self) -> None:
        for segment, view in self._pairs:
            self.log.reads.adopt(segment, view)


class TimeSearch(SnapshotJob[TimestampOffset | None]):
    """Finds the first record at or after a time, or the one with the largest timestamp; None where there is none.

    The largest timestamp of each segment decides in which one a search goes on. Those of segments that were not used
    since the start are in files: the search opens these by name, and the timestamps that it reads are kept in the
    segments.
    """

    __slots__ = ("_searched", "_start_offset", "_timestamp")

    def __init__(self, log: LogState, timestamp: int | None) -> None:
        """`timestamp`: None for the record with the largest one."""
        self._timestamp = timestamp
        self._start_offset = 0
        self._searched: list[tuple[Segment, Segment]] = []
        """The segments of the snapshot, each with its view."""
        super().__init__(log)

    def take_snapshot(self) -> list[tuple[Segment, Segment]]:
        log, timestamp = self.log, self._timestamp
        log.check_online()
        self._start_offset = log.local_log_start_offset
        chosen = _with_largest(log.segments) if timestamp is None else _up_to(log.segments, timestamp)
        self._searched = [(segment, segment.snapshot(times=True)) for segment in chosen]
        return self._searched

    def read(self, found_before: bool = False) -> TimestampOffset | None:
        views, timestamp = [view for _, view in self._searched], self._timestamp
        if timestamp is None:
            latest = max(views, key=lambda view: view.max_timestamp[0])
            return find_max_timestamp(latest) if latest.max_timestamp[0] >= 0 else None
        holder = next((view for view in views if view.largest_timestamp() >= timestamp), None)
        return None if holder is None else find_timestamp(holder, timestamp, self._start_offset)

    def adopt(self) -> None:
        for segment, view in self._searched:
            segment.adopt_timestamp(view)


def _up_to(segments: Segments, timestamp: int) -> list[Segment]:
    """Those of which one may hold the first record at or after that time."""
    chosen: list[Segment] = []
    for segment in segments:
        known = segment.known_timestamp
        if known is None or known >= timestamp:
            chosen.append(segment)
        if known is not None and known >= timestamp:
            break
    return chosen


def _with_largest(segments: Segments) -> list[Segment]:
    """Those of which one holds the record with the largest timestamp."""
    known = [segment.known_timestamp for segment in segments]
    largest = max((each for each in known if each is not None), default=-1)
    return [segment for segment in segments if segment.known_timestamp in (None, largest)]


def find_timestamp(segment: Segment, timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record at or after `timestamp` and `start_offset` in a segment."""
    _, near = segment.time_index.lookup(timestamp)
    _, position = segment.offset_index.lookup(max(near, start_offset))
    for at, header in segment.headers(position):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in _records(segment, at, header.size_bytes):
            stamp = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND else record.timestamp
            if stamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(stamp, record.offset, header.partition_leader_epoch)
    return None


def find_max_timestamp(segment: Segment) -> TimestampOffset | None:
    """The first record with the largest timestamp in a segment."""
    largest, near = segment.max_timestamp
    _, position = segment.offset_index.lookup(near)
    for at, header in segment.headers(position):
        if header.max_timestamp != largest:
            continue
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND
        for record in _records(segment, at, header.size_bytes):
            if is_append_time or record.timestamp == largest:
                return TimestampOffset(largest, record.offset, header.partition_leader_epoch)
    return None


def _records(segment: Segment, position: int, size_bytes: int) -> list[Record]:
    return read_records(segment.file().read(position, size_bytes))


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
    """Opens the files that the first append to a log needs.

    A log that a node finds on its disk has no file open before its first append or read. Opening may wait for the
    device: for the directory's entries, for the file's first batch, whose timestamp decides when the segment is rolled,
    and for the indexes, which are loaded into memory. One job opens the files of many logs.
    """

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


_HELD = 2
"""Indexes that a read leaves in memory."""


def collect_aborted(segments: Segments, first_offset: int, upto: int, read: Reader = read_waiting) -> list[AbortedTxn]:
    """Aborted transactions that overlap [first_offset, upto), by first offset. Raises as `read`.

    They are in the transaction indexes of the segments from the first offset on: of the segment that holds the marker
    of each. Where the page cache has what is needed, the log's own thread reads it; otherwise `AbortedRead` does on
    another one.
    """
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
