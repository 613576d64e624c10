"""Ranges of offsets: options and filters to ranges, ranges to tasks, and which ranges a DataFrame reads.

Starts and ends given as times or as earliest and latest become offsets when the query is planned, so a task that is run
again reads the same records. Offsets of a range that the log does not have are data loss: the query fails or, with
`failOnDataLoss` false, reads without them.

Conditions of a query on topic, partition and offset are applied exactly here, and Spark does not apply them again. A
lower bound on the timestamp only moves the start: the records before the first one of that time are older, but records
after it may be older too, so Spark applies it again. An upper bound on the timestamp gives no bound of offsets.

The offsets that a frame reads are taken from its plan to store them with the rows, in one transaction of another
system, and to continue from there. The rows of a batch that is run again are those of the same offsets, so a system
that stores both at once has each row once, whatever crashes. In `foreachBatch`, a frame has the offsets of its
micro-batch. A batch query has its offsets from when it is first planned; a frame that is derived from another one may
be planned anew, and "latest" is then a later offset. `reading` gives the options that read exactly these ranges.

Not obvious:

- Which ranges share a task depends on the ranges and the options alone, never on cores: a batch that is planned again
  must have the same tasks.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kalda.base.errors import KafkaError
from kalda.base.ids import TopicPartition
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What remains to be read after the conditions; None and the widest bounds where there is none. `end_offset` is
    exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _MAX_OFFSET
    start_timestamp_ms: int | None = None

    def includes(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def narrow(filters: Sequence[Filter]) -> tuple[Narrowing, list[Filter]]:
    """The conjunction of `filters`, and those of them that Spark must still apply."""
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start, end = 0, _MAX_OFFSET
    since: int | None = None
    left: list[Filter] = []
    for one in filters:
        column, values = _column_and_values(one)
        if column == "topic" and (names := _all(str, values)) is not None:
            topics = names if topics is None else topics & names
        elif column == "partition" and (numbers := _all(int, values)) is not None:
            partitions = numbers if partitions is None else partitions & numbers
        elif column == "offset" and (bounds := _offset_bounds(one)) is not None:
            start, end = max(start, bounds[0]), min(end, bounds[1])
        else:
            left.append(one)
            if column == "timestamp" and (moment := _lower_bound_ms(one)) is not None:
                since = moment if since is None else max(since, moment)
    return Narrowing(topics, partitions, start, end, since), left


def _column_and_values(one: Filter) -> tuple[str | None, tuple[object, ...] | None]:
    """The column of a condition on a single column, and its values where it is = or IN; else None."""
    match one:
        case EqualTo((column,), value):
            return column, (value,)
        case In((column,), values):
            return column, tuple(values)
        case GreaterThan((column,)) | GreaterThanOrEqual((column,)) | LessThan((column,)) | LessThanOrEqual((column,)):
            return column, None
    return None, None


def _all(kind: type[T], values: tuple[object, ...] | None) -> frozenset[T] | None:
    """The values if all are of this kind, else None. So Spark applies a comparison with null."""
    if values is None:
        return None
    found = frozenset(value for value in values if isinstance(value, kind))
    return found if len(found) == len(frozenset(values)) else None


def _offset_bounds(one: Filter) -> tuple[int, int] | None:
    match one:
        case EqualTo(_, int(value)):
            return value, value + 1
        case GreaterThan(_, int(value)):
            return value + 1, _MAX_OFFSET
        case GreaterThanOrEqual(_, int(value)):
            return value, _MAX_OFFSET
        case LessThan(_, int(value)):
            return 0, value
        case LessThanOrEqual(_, int(value)):
            return 0, value + 1
    return None


def _lower_bound_ms(one: Filter) -> int | None:
    match one:
        case EqualTo(_, datetime() as moment) | GreaterThan(_, datetime() as moment):
            pass
        case GreaterThanOrEqual(_, datetime() as moment):
            pass
        case _:
            return None
    if moment.tzinfo is None:
        return None
    since = (moment - _EPOCH) // _MILLISECOND
    return max(0, since)


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


# -- ranges of a plan

TOPIC_IDS: Final = "topic ids"
"""The key of the topics' ids in an offset of a query. A topic has no blanks in its name."""


class StreamOffset(NamedTuple):
    """An offset of a query."""

    position: dict[TopicPartition, int]
    ids: dict[str, str]
    """By topic; without those that are not known: of an older checkpoint, or of brokers before Kafka 2.8."""

    def others(self, ids: Mapping[str, str]) -> list[str]:
        """The topics that have another id in `ids`, sorted."""
        return sorted(topic for topic, known in self.ids.items() if ids.get(topic, known) != known)

    def without(self, topics: Collection[str]) -> StreamOffset:
        kept = {partition: offset for partition, offset in self.position.items() if partition.topic not in topics}
        return StreamOffset(kept, {topic: known for topic, known in self.ids.items() if topic not in topics})


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """In the order of topics and partitions: equal offsets are equal texts."""
    found: dict[str, Any] = {}
    for partition, at in sorted(offset.position.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = at
    ids = {topic: offset.ids[topic] for topic in found if topic in offset.ids}
    return found | {TOPIC_IDS: ids} if ids else found


def from_json(offset: Mapping[str, Mapping[str, Any]]) -> StreamOffset:
    """Raises `ValueError` where it is not an offset of this source."""
    try:
        position = {
            TopicPartition(topic, int(partition)): int(at)
            for topic, found in offset.items()
            if topic != TOPIC_IDS
            for partition, at in found.items()
        }
        return StreamOffset(position, dict(offset.get(TOPIC_IDS, {})))
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"the checkpoint has {offset!r}, which is not an offset of topics; use a new one") from None


_OFFSETS = ("endOffset", "latestOffset")
_ADAPTIVE = "AdaptiveSparkPlanExec"


def offset_ranges_of(frame: DataFrame) -> list[OffsetRange]:
    """The ranges that the frame reads by the format "kalda", one for each partition, sorted. Raises `ValueError` where
    it reads none, or belongs to a Spark Connect session, whose plan is on the server."""
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        raise ValueError(
            "the plan of a Spark Connect frame is on the server: take the smallest and the largest offset of each "
            "partition from its rows instead"
        )
    execution = plan.queryExecution()
    found = [*_of_plan(execution.sparkPlan())]
    if not found:
        raise ValueError('the frame reads nothing by format "kalda", or its plan has been cut off (checkpoint, cache)')
    return _joined(one for one in found if one is not None)


def behind_latest(source: Any) -> dict[str, float]:
    """See `kalda.spark.offsets_behind`."""
    found = source if isinstance(source, Mapping) else {name: getattr(source, name) for name in _OFFSETS}
    read, latest = (_position(found[name]) for name in _OFFSETS)
    behind = [max(0, end - read.get(partition, 0)) for partition, end in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _position(text: str | Mapping[str, Any] | None) -> Mapping[TopicPartition, int]:
    given = json.loads(text) if isinstance(text, str) else text
    return from_json(given or {}).position


def reading(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Options that read exactly these ranges."""
    given = list(ranges)
    if not given:
        raise ValueError("there is no range to read")
    return {
        "assign": json.dumps(_by_topic(given, lambda one: one.partition, is_list=True)),
        "startingOffsets": json.dumps(_by_topic(given, lambda one: one.start)),
        "endingOffsets": json.dumps(_by_topic(given, lambda one: one.end)),
    }


def starting_after(stored: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> str:
    """The value of `startingOffsets` that continues at stored offsets: by topic and partition, the next to read."""
    return json.dumps(_by_topic([OffsetRange(*each, at, at) for each, at in stored.items()], lambda one: one.start))


def _by_topic(ranges: Iterable[OffsetRange], value_of: Any, *, is_list: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in sorted(ranges):
        if is_list:
            found.setdefault(one.topic, []).append(value_of(one))
        else:
            found.setdefault(one.topic, {})[str(one.partition)] = value_of(one)
    return found


def _joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range for each partition, of the pieces that its tasks read."""
    found: dict[tuple[str, int], OffsetRange] = {}
    for one in ranges:
        other = found.get((one.topic, one.partition), one)
        found[one.topic, one.partition] = one._replace(start=min(one.start, other.start), end=max(one.end, other.end))
    return sorted(found.values())


def _of_plan(plan: Any) -> Iterator[OffsetRange | None]:
    """The ranges of a physical plan, and None for each scan that has no range."""
    name = plan.getClass().getSimpleName()
    if name == _ADAPTIVE:
        yield from _of_plan(plan.inputPlan())
        return
    if name in ("BatchScanExec", "MicroBatchScanExec"):
        yield from _of_inputs(plan.inputPartitions())
    elif name == "RDDScanExec":
        yield from _of_rdd(plan.rdd(), set())
    children = plan.children()
    for index in range(children.size()):
        yield from _of_plan(children.apply(index))


def _of_rdd(rdd: Any, seen: set[int]) -> Iterator[OffsetRange | None]:
    """In `foreachBatch` the frame's plan is an RDD: its ancestor reads the source."""
    if rdd.id() in seen:
        return
    seen.add(rdd.id())
    if rdd.getClass().getSimpleName() == "DataSourceRDD":
        partitions = rdd.partitions()
        if not len(partitions):
            yield None
        for partition in partitions:
            methods = {method.getName() for method in partition.getClass().getMethods()}
            if "inputPartitions" in methods:  # up to Spark 4.2
                yield from _of_inputs(partition.inputPartitions())
            else:
                given = partition.inputPartition()
                is_option = given.getClass().getSimpleName() in ("Some", "None$")
                yield from _of_inputs(given.toList()) if is_option else _of_input(given)
        return
    dependencies = rdd.dependencies()
    for index in range(dependencies.size()):
        yield from _of_rdd(dependencies.apply(index).rdd(), seen)


def _of_inputs(inputs: Any) -> Iterator[OffsetRange | None]:
    for index in range(inputs.size()):
        yield from _of_input(inputs.apply(index))


def _of_input(one: Any) -> Iterator[OffsetRange | None]:
    # PythonInputPartition of a batch, PythonStreamingInputPartition of a stream; others are not of Python sources.
    if not one.getClass().getSimpleName().startswith("Python"):
        return
    partition = pickle.loads(bytes(one.pickedPartition()))
    if partition is None or partition.value is None:  # Spark's own, where no range was planned
        yield None
    elif type(partition).__module__ == "kalda.spark.source":
        yield from (OffsetRange(*each) for each in partition.value)
