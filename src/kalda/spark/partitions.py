"""Options and filters to ranges of offsets, and ranges to tasks.

Starts and ends given as times or as earliest and latest become offsets when the query is planned, so a task that is run
again reads the same records. Offsets of a range that the log does not have are data loss: the query fails or, with
`failOnDataLoss` false, reads without them.

Not obvious:

- Which ranges share a task depends on the ranges and the options alone, never on cores: a batch that is planned again
  must have the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, Protocol

from kalda.base.errors import KafkaError
from kalda.base.ids import TopicPartition
from kalda.spark.filters import Narrowing
from kalda.spark.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Edge,
    ReadOptions,
    TopicSubscription,
)

LEAST_TASKS: Final = 8
"""Small ranges do not share tasks beyond this: else a large cluster would have nothing to do in parallel."""


class LogQuestions(Protocol):
    """What planning requests of a cluster: `SparkAdmin`."""

    @property
    def topic_ids(self) -> Mapping[str, str]: ...
    def partitions(self, subscription: TopicSubscription, *, missing_is_error: bool) -> list[TopicPartition]: ...
    def offsets_at(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]: ...
    def earliest(
        self, partitions: Iterable[TopicPartition], *, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]: ...
    def latest(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]: ...


class OffsetRange(NamedTuple):
    """Offsets from `start` up to but not including `end`; some of them may have no record."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class DataLoss(KafkaError, RuntimeError):
    """Requested offsets are not in the log."""

    def __init__(self, partition: TopicPartition, problem: str) -> None:
        super().__init__(
            f"{partition}: {problem}. Choose startingOffsets and endingOffsets within the log, or set option "
            f"failOnDataLoss to false to read only what the log has"
        )


def plan(cluster: LogQuestions, options: ReadOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """The ranges to read, none empty. Raises `ApiError`, `DataLoss`, `ValueError`."""
    ranges = offset_ranges(cluster, options, narrowing)
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def offset_ranges(cluster: LogQuestions, options: ReadOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """One range for each partition with offsets to read."""
    subscribed = cluster.partitions(options.subscription, missing_is_error=True)
    for name, bound in (("starting", options.start), ("ending", options.end)):
        _check_partitions(name, bound, subscribed)
    partitions = [partition for partition in subscribed if narrowing.includes(*partition)]
    resolve = _Resolver(cluster, partitions, options)
    since: Mapping[TopicPartition, int] = {}
    if narrowing.start_timestamp_ms is not None:
        since = resolve.at_times(dict.fromkeys(partitions, narrowing.start_timestamp_ms))
    starts, ends = resolve.starts(), resolve.ends()
    ranges = []
    for partition in partitions:
        start = max(starts[partition], narrowing.start_offset, since.get(partition, 0))
        end = min(ends[partition], narrowing.end_offset)
        if start < end:
            ranges.append(OffsetRange(*partition, start, end))
    return ranges


def start_offsets(cluster: LogQuestions, options: ReadOptions) -> dict[TopicPartition, int]:
    """Where a new streaming query starts, in each partition."""
    partitions = cluster.partitions(options.subscription, missing_is_error=True)
    _check_partitions("starting", options.start, partitions)
    return dict(_Resolver(cluster, partitions, options).starts())


def _check_partitions(prefix: str, bound: Bound, partitions: Sequence[TopicPartition]) -> None:
    """A bound with a value for each partition must have exactly the subscribed partitions. Raises `ValueError`."""
    match bound:
        case AtOffsets(given):
            name = f"{prefix}Offsets"
        case AtTimestamps(given):
            name = f"{prefix}OffsetsByTimestamp"
        case _:
            return
    missing = [partition for partition in partitions if partition not in given]
    existing = set(partitions)
    surplus = [partition for partition in given if partition not in existing]
    if missing or surplus:
        problem = f"lacks {_listed(missing)}" if missing else f"has partitions that are not read: {_listed(surplus)}"
        raise ValueError(f"option {name} {problem}. Give each partition that is read, and no other")


def _listed(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{topic} partition {partition}" for topic, partition in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"


class _Resolver:
    """Turns bounds into offsets within the logs. The ends of all logs are requested at most once."""

    def __init__(self, cluster: LogQuestions, partitions: Sequence[TopicPartition], options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._partitions = partitions

    @cached_property
    def earliest(self) -> dict[TopicPartition, int]:
        return self._cluster.earliest(self._partitions)

    @cached_property
    def latest(self) -> dict[TopicPartition, int]:
        return self._cluster.latest(self._partitions, read_committed=self._options.read_committed)

    def starts(self) -> Mapping[TopicPartition, int]:
        return self._resolve(self._options.start, is_start=True)

    def ends(self) -> Mapping[TopicPartition, int]:
        return self._resolve(self._options.end, is_start=False)

    def at_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first record that is not older; the log's end where there is none."""
        found = self._list(timestamps_ms)
        return {one: found[one] if found[one] >= 0 else self.latest[one] for one in timestamps_ms}

    def _list(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset at each timestamp; -1 where every record is older."""
        return self._cluster.offsets_at(timestamps_ms, read_committed=self._options.read_committed)

    def _resolve(self, bound: Bound, *, is_start: bool) -> dict[TopicPartition, int]:
        match bound:
            case Edge.EARLIEST:
                return self.earliest
            case Edge.LATEST:
                return self.latest
            case AtOffsets(offsets):
                return {partition: self._within(partition, offsets[partition]) for partition in self._partitions}
            case AtTimestamp(timestamp_ms):
                return self._at(dict.fromkeys(self._partitions, timestamp_ms), is_start)
            case AtTimestamps(timestamps_ms):
                return self._at({one: timestamps_ms[one] for one in self._partitions}, is_start)

    def _within(self, partition: TopicPartition, offset: int) -> int:
        earliest, latest = self.earliest[partition], self.latest[partition]
        if offset == EARLIEST_OFFSET:
            return earliest
        if offset == LATEST_OFFSET:
            return latest
        if not earliest <= offset <= latest and self._options.fail_on_data_loss:
            raise DataLoss(partition, f"offset {offset} was requested, but the log has {earliest} to {latest}")
        return min(max(offset, earliest), latest)

    def _at(self, timestamps_ms: Mapping[TopicPartition, int], is_start: bool) -> dict[TopicPartition, int]:
        offsets = self._list(timestamps_ms)
        for partition, offset in offsets.items():
            if offset < 0:
                if is_start and not self._options.start_latest_where_none:
                    raise ValueError(
                        f"{partition}: all records are older than {timestamps_ms[partition]} ms since 1970. Choose an "
                        f"earlier start, or set option startingOffsetsByTimestampStrategy to latest to begin at the end"
                    )
                offsets[partition] = self.latest[partition]
        return offsets


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut into ranges of at most `max_records` offsets, and into at least `min_partitions` ranges if there are as many
    offsets.

    The range with the largest pieces is cut into one piece more, until there are enough.
    """
    pieces = [1 if max_records is None else -(-one.size // max_records) for one in ranges]
    missing = (min_partitions or 0) - sum(pieces)
    if missing > 0:
        total = sum(one.size for one in ranges)
        largest = [(-one.size / pieces[index], index) for index, one in enumerate(ranges)]
        heapify(largest)
        for _ in range(min(missing, total - sum(pieces))):
            index = largest[0][1]
            pieces[index] += 1
            heapreplace(largest, (-ranges[index].size / pieces[index], index))
    return [piece for one, count in zip(ranges, pieces, strict=True) for piece in _cut(one, count)]


def pack(ranges: Sequence[OffsetRange], options: ReadOptions) -> list[tuple[OffsetRange, ...]]:
    """What each task reads, in the order of `ranges`: small ones share a task, since a task costs as much as thousands
    of records.

    It depends on the ranges and the options alone, not on the cores: a batch that is planned again has the same
    tasks, as exactly-once writing needs."""
    total = sum(one.size for one in ranges)
    limit = min(options.task_offsets, total // max(LEAST_TASKS, options.min_partitions or 0))
    if options.max_records_per_partition is not None:
        limit = min(limit, options.max_records_per_partition)
    tasks: list[list[OffsetRange]] = []
    size = 0
    for one in ranges:
        if tasks and size + one.size <= limit:
            tasks[-1].append(one)
            size += one.size
        else:
            tasks.append([one])
            size = one.size
    return [tuple(task) for task in tasks]


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [one.start + one.size * index // count for index in range(count + 1)]
    return [one._replace(start=edges[index], end=edges[index + 1]) for index in range(count)]
