"""Searches by time, on another thread.

The largest timestamp of each segment decides in which one a search goes on. Those of segments that were not used since
the start are in files: the search opens these by name, and the timestamps that it reads are kept in the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kalda.base.errors import ApiError, ErrorCode
from kalda.records.batch import TimestampType
from kalda.records.builder import Record, read_records
from kalda.storage.job import Job
from kalda.storage.segment import Segment
from kalda.storage.state import LogState
from kalda.storage.values import TimestampOffset


def timestamp_job(log: LogState, timestamp: int) -> Job[TimestampOffset | None]:
    """A job that finds the first record at or after `timestamp`; None where there is none."""
    log.check_online()
    start_offset = log.log_start_offset
    chosen: list[Segment] = []
    for segment in log.segments:
        known = segment.known_timestamp
        if known is None or known >= timestamp:
            chosen.append(segment)
        if known is not None and known >= timestamp:
            break

    def find(views: Iterable[Segment]) -> TimestampOffset | None:
        view = next((each for each in views if each.largest_timestamp() >= timestamp), None)
        return None if view is None else find_timestamp(view, timestamp, start_offset)

    return _job(log, chosen, find)


def max_timestamp_job(log: LogState) -> Job[TimestampOffset | None]:
    """A job that finds the record with the largest timestamp; None in a log without any."""
    log.check_online()

    def find(views: Iterable[Segment]) -> TimestampOffset | None:
        view = max(views, key=lambda each: each.max_timestamp[0])
        return find_max_timestamp(view) if view.max_timestamp[0] >= 0 else None

    known = [segment.known_timestamp for segment in log.segments]
    largest = max((each for each in known if each is not None), default=-1)
    return _job(log, [each for each in log.segments if each.known_timestamp in (None, largest)], find)


def _job(
    log: LogState, segments: list[Segment], find: Callable[[Iterable[Segment]], TimestampOffset | None]
) -> Job[TimestampOffset | None]:
    name = str(log.topic_partition)
    try:
        views = [segment.snapshot(times=True) for segment in segments]
    except OSError as error:
        raise log.refused(error) from error

    def work() -> TimestampOffset | None:
        try:
            return find(views)
        except FileNotFoundError as error:
            # Deleted or renamed since the job was made: the client's next request searches the files of that time.
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {error}") from error
        finally:
            for view in views:
                view.close()

    def finish(found: TimestampOffset | None) -> TimestampOffset | None:
        for segment, view in zip(segments, views, strict=True):
            segment.adopt_timestamp(view)
        return found

    return Job(f"search {name}", work, finish)


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
