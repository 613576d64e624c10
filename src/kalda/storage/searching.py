"""Searches by time, on another thread.

The largest timestamp of each segment decides in which one a search goes on. Those of segments that were not used since
the start are in files: the search opens these by name, and the timestamps that it reads are kept in the segments.
"""

from __future__ import annotations

from kalda.records.batch import TimestampType
from kalda.records.builder import Record, read_records
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.snapshot_jobs import SnapshotJob
from kalda.storage.state import LogState
from kalda.storage.values import TimestampOffset


class TimeSearch(SnapshotJob[TimestampOffset | None]):
    """Finds the first record at or after a time, or the one with the largest timestamp; None where there is none."""

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
        self._start_offset = log.log_start_offset
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
