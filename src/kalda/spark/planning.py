"""Options and filters to ranges of offsets, and ranges to tasks.

Starts and ends given as times or as earliest and latest become offsets when the query is planned, so a task that is run
again reads the same records. Offsets of a range that the log does not have are data loss: the query fails or, with
`failOnDataLoss` false, reads without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kalda.base.ids import TopicPartition
from kalda.client.admin.offsets import list_offsets
from kalda.client.cluster_client import ClusterClient
from kalda.protocol.messages.fetch import OffsetSpec
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
    Subscription,
)


class OffsetRange(NamedTuple):
    """Offsets from `start` up to but not including `end`; some of them may have no record."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class DataLoss(RuntimeError):
    """Requested offsets are not in the log."""

    def __init__(self, partition: TopicPartition, problem: str) -> None:
        super().__init__(
            f"{partition}: {problem}. Choose startingOffsets and endingOffsets within the log, or set option "
            f"failOnDataLoss to false to read only what the log has"
        )


def plan(cluster: ClusterClient, options: ReadOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """One range for each task, none empty. Raises `ApiError`, `DataLoss`, `ValueError`."""
    ranges = offset_ranges(cluster, options, narrowing)
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def offset_ranges(cluster: ClusterClient, options: ReadOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """One range for each partition with offsets to read."""
    subscribed = find_partitions(cluster, options.subscription)
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


def find_partitions(cluster: ClusterClient, subscription: Subscription) -> list[TopicPartition]:
    """The partitions of the subscription, sorted. Raises `ApiError` for an unknown topic, `ValueError` for an unknown
    partition."""
    if subscription.assigned:
        existing = {topic: set(cluster.partitions(topic)) for topic in {one.topic for one in subscription.assigned}}
        for partition in subscription.assigned:
            if partition not in existing[partition.topic]:
                raise ValueError(
                    f"option assign: topic {partition.topic} has no partition {partition.partition}; it has "
                    f"{len(existing[partition.topic])}, numbered from 0"
                )
        return sorted(subscription.assigned)
    topics: Iterable[str] = subscription.topics
    if subscription.pattern is not None:
        found = cluster.metadata().topics.values()
        topics = [t.name for t in found if not t.is_internal and re.fullmatch(subscription.pattern, t.name)]
    return sorted(partition for topic in topics for partition in cluster.partitions(topic))


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
    surplus = [partition for partition in given if partition not in set(partitions)]
    if missing or surplus:
        problem = f"lacks {_listed(missing)}" if missing else f"has partitions that are not read: {_listed(surplus)}"
        raise ValueError(f"option {name} {problem}. Give each partition that is read, and no other")


def _listed(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{topic} partition {partition}" for topic, partition in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"


class _Resolver:
    """Turns bounds into offsets within the logs. The ends of all logs are requested once."""

    def __init__(self, cluster: ClusterClient, partitions: Sequence[TopicPartition], options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._partitions = partitions
        self.earliest = self._list(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        self.latest = self._list(dict.fromkeys(partitions, OffsetSpec.LATEST))

    def starts(self) -> dict[TopicPartition, int]:
        return self._resolve(self._options.start, is_start=True)

    def ends(self) -> dict[TopicPartition, int]:
        return self._resolve(self._options.end, is_start=False)

    def at_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first record that is not older; the log's end where there is none."""
        found = self._list(timestamps_ms)
        return {one: found[one] if found[one] >= 0 else self.latest[one] for one in timestamps_ms}

    def _list(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """`list_offsets` of timestamps or of `OffsetSpec`; -1 where every record is older."""
        if not timestamps_ms:
            return {}
        found = list_offsets(self._cluster, timestamps_ms, read_committed=self._options.fetch.read_committed)
        return {partition: at.offset for partition, at in found.items()}

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
        for _ in range(min(missing, total - sum(pieces))):
            largest = max(range(len(ranges)), key=lambda index: ranges[index].size / pieces[index])
            pieces[largest] += 1
    return [piece for one, count in zip(ranges, pieces, strict=True) for piece in _cut(one, count)]


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [one.start + one.size * index // count for index in range(count + 1)]
    return [one._replace(start=edges[index], end=edges[index + 1]) for index in range(count)]
