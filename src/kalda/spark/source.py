"""The classes that Spark calls to read: the data source, its batch and streaming readers, and the input of a task.

Spark makes the source in a separate Python process, calls `partitions` there, and pickles the reader for the tasks.
`read` imports what a task needs, so that a worker that only unpickles a reader stays small.

There are two sources, since PySpark refuses a reader with `pushFilters` where the session does not allow it. The one
with filters is registered where the user asks for it: Spark (seen with 4.3) keeps the narrowed partitions with the
relation that `load` has made, and a later query of the same frame that has no condition reads those only.

Not obvious:

- `streamReader()` of a PySpark source must not raise, since PySpark hides the error.
- Spark calls `commit` of a batch when it has planned the next one, so not before there are new records. It calls
  `latestOffset` at once after a batch, with the end of it: the group of `kalda.commit.group` gets it there.
- Spark calls `initialOffset` again and writes only the ends of batches into a checkpoint: the start of a stream from
  `latest` must not change between calls, and its first batch must be empty.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kalda.base.errors import KafkaError
from kalda.base.ids import TopicPartition
from kalda.spark.options import COMMIT_GROUP, Edge, OptionError, ReadOptions, read_options
from kalda.spark.partitions import (
    LogQuestions,
    Narrowing,
    OffsetRange,
    StreamOffset,
    from_json,
    narrow,
    pack,
    plan,
    split,
    start_offsets,
    to_json,
)
from kalda.spark.workers import exempt_modules, one_sentence

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kalda.spark.cluster import SparkAdmin

# Which offsets the next batch of a streaming query reads, as Spark's own source decides it.
#
# An offset of the query is JSON, `{"logs": {"0": 23, "1": 42}, "topic ids": {"logs": "zQ..."}}`: in each partition, the
# next offset to read, and the topics' ids where the brokers have ids. Spark writes it to the checkpoint. Partitions
# that appear later are read from their first offset.
#
# A topic whose id differs from that of the checkpoint was deleted and created again: its offsets are those of another
# log. A batch that was planned with the old topic has no records any more; the next one begins at the first record of
# the new topic.
#
# Data loss (a partition that has disappeared, records that were deleted before they were read) fails the query, or is
# written to the log where `failOnDataLoss` is false.

log = logging.getLogger(__name__)
Position = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""
_MAX_OFFSET = 2**63 - 1


class StreamDataLoss(KafkaError, RuntimeError):
    """Records of a streaming query were lost before they were read."""


_DELETED: Final = "Some data may have been lost: it was deleted before the query has read it"
_NOT_NAMED: Final = "Its records that were not read would be left out: name it again"


def report_loss(problem: str, options: ReadOptions, effect: str = _DELETED) -> None:
    """Raises `StreamDataLoss`, or writes a line of the log where data loss does not fail the query."""
    if options.fail_on_data_loss:
        raise StreamDataLoss(
            f"{problem}. {effect}. If the query may continue without it, set option failOnDataLoss to false"
        )
    log.warning("%s. The query continues without these records: failOnDataLoss is false", problem)


class BatchBounds:
    """The bounds of a batch: `minOffsetsPerTrigger` with `maxTriggerDelay`, and `maxOffsetsPerTrigger`."""

    def __init__(self, options: ReadOptions, now_ms: Callable[[], int]) -> None:
        self._minimum = options.min_offsets_per_trigger
        self._maximum = options.max_offsets_per_trigger
        self._delay_ms = options.max_trigger_delay_ms
        self._now_ms = now_ms
        self._last_batch_ms: int | None = None
        """When a batch was last let through; None: never."""

    def is_delayed(self, start: Position, latest: Position) -> bool:
        """Whether there are too few records for a batch, and the longest delay has not passed."""
        if self._minimum is None:
            return False
        now_ms = self._now_ms()
        is_due = self._last_batch_ms is None or now_ms - self._last_batch_ms >= self._delay_ms
        if is_due or sum(latest[each] - start.get(each, 0) for each in latest) >= self._minimum:
            self._last_batch_ms = now_ms
            return False
        return True

    def limited(self, start: Position, latest: Position) -> dict[TopicPartition, int]:
        """The end of a batch with about `maxOffsetsPerTrigger` records, in proportion to what each partition has.
        `start` has all partitions of `latest` that can be read."""
        if self._maximum is None:
            return dict(latest)
        sizes = {each: end - start[each] for each, end in latest.items() if each in start and end > start[each]}
        total = sum(sizes.values())
        if total < 1:
            return dict(latest)
        ends = dict(latest)
        for partition, size in sizes.items():
            share = self._maximum * size / total
            # A small partition gets one record a batch at least.
            step = int(share) if share >= 1 else 1
            ends[partition] = min(latest[partition], start[partition] + step)
        return ends


def latest_offset(
    logs: LogQuestions,
    options: ReadOptions,
    known: StreamOffset,
    pause: Callable[[int], None],
) -> StreamOffset:
    """The ends of all logs. Where one is below a known offset of the same topic, the answer may be of a replica that
    has not caught up: the ends are requested again, for a bounded number of times."""
    for attempt in range(options.offset_attempts):
        if attempt:
            pause(options.offset_retry_ms)
        partitions = logs.partitions(options.subscription, missing_is_error=False)
        ids = dict(logs.topic_ids)
        found = logs.latest(partitions, read_committed=options.read_committed, missing_is_error=False)
        read = known.without(known.others(ids)).position
        below = [each for each, end in found.items() if end < read.get(each, 0)]
        if not below:
            break
        log.warning("%s ends at %d, below %d that was read: requested again", below[0], found[below[0]], read[below[0]])
    return StreamOffset(found, ids)


def stopped(latest: StreamOffset, stops: Position, known: Position) -> StreamOffset:
    """The ends of logs, but not behind the stream's own end, unless more was read already."""
    ends = {each: max(min(end, stops.get(each, end)), known.get(each, 0)) for each, end in latest.position.items()}
    return StreamOffset(ends, latest.ids) if stops else latest


def ranges_of_batch(
    logs: LogQuestions, options: ReadOptions, start: StreamOffset, end: StreamOffset, *, is_planned_anew: bool
) -> list[OffsetRange]:
    """What a batch reads. `is_planned_anew`: a process that has ended had planned it, so its topics may be others by
    now. Raises `StreamDataLoss`."""
    if is_planned_anew and end.ids:
        logs.partitions(options.subscription, missing_is_error=False)
        if replaced := end.others(logs.topic_ids):
            report_loss(_replaced(replaced[0], end.ids, logs.topic_ids), options)
            start, end = start.without(replaced), end.without(replaced)
    if replaced := start.others(end.ids):
        report_loss(_replaced(replaced[0], start.ids, end.ids), options)
        start = start.without(replaced)
    return ranges_between(logs, options, start.position, end.position)


def _replaced(topic: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    return (
        f"topic {topic} was deleted and created again: the query has read the one with the id {old[topic]}, and there "
        f"is now one with the id {new[topic]}, which is read from its start"
    )


def ranges_between(logs: LogQuestions, options: ReadOptions, start: Position, end: Position) -> list[OffsetRange]:
    """The ranges of a batch whose topics are the same at its start and its end. Raises `StreamDataLoss`."""
    new = [partition for partition in end if partition not in start]
    first = logs.earliest(new, missing_is_error=False) if new else {}
    deleted = [partition for partition in new if partition not in first]
    if deleted:
        report_loss(f"{_listed(deleted)} were added and deleted before they were read", options)
    for partition, offset in first.items():
        if offset:
            report_loss(f"{partition} was added, and its log starts at offset {offset} instead of 0", options)
    absent = [partition for partition in start if partition not in end]
    left = [partition for partition in absent if not options.subscription.includes(partition)]
    if left:
        problem = f"the query has read {_listed(left)}, which {options.subscription} does not name any more"
        report_loss(problem, options, _NOT_NAMED)
    lost = [partition for partition in absent if partition not in left]
    if lost:
        report_loss(f"{_listed(lost)} do not exist any more", options)
    ranges = []
    for partition, until in sorted(end.items()):
        at = start.get(partition, first.get(partition))
        if at is None:
            continue
        if until < at:
            report_loss(
                f"{partition} was read up to offset {at}, and its log now ends at {until}: the topic was deleted and "
                f"created again, or the starting offset is beyond its end",
                options,
            )
        elif until > at:
            ranges.append(OffsetRange(*partition, at, min(until, _MAX_OFFSET)))
    return ranges


def with_new(logs: LogQuestions, start: Position, latest: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """`start`, with the first offsets of partitions that were added."""
    new = [partition for partition in latest if partition not in start]
    return {**start, **logs.earliest(new, missing_is_error=False)} if new else dict(start)


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1 has no admission control of Python sources

    class _Absent:
        """Stands for classes of which no object is made."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = _Absent  # type: ignore


FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
ALL_COLUMNS: Final = StructType([*COLUMNS.fields, HEADERS])


def register_in(spark: SparkSession, *, push_filters: bool = False) -> None:
    """See `kalda.spark.register`. Warns where Spark's Python processes cannot import Kalda."""
    advice = python_advice(os.environ.get("PYSPARK_PYTHON") or "python3")
    if advice is not None:
        warnings.warn(advice, stacklevel=3)
    if push_filters:
        spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource if push_filters else KaldaSource)


def python_advice(program: str) -> str | None:
    """What to do where this Python, which Spark runs for tasks and for planning, has no Kalda; else None."""
    found = shutil.which(program)
    if found is None:
        problem = "is not there"
    elif found == sys.executable:
        return None
    else:
        find = "import sys, importlib.util as u; sys.exit(u.find_spec('kalda') is None)"
        if subprocess.run([found, "-c", find], capture_output=True, check=False).returncode == 0:
            return None
        problem = f"({found}) cannot import kalda"
    return (
        f"Spark runs tasks with {program}, which {problem}. Before the session is made, set the environment variable "
        f"PYSPARK_PYTHON={sys.executable} (on a cluster: the path of a Python with kalda on every worker)."
    )


class KaldaSource(DataSource):
    """Topics as a table. A schema with fewer columns may be given; the others are not made."""

    @classmethod
    def name(cls) -> str:
        return "kalda"

    def schema(self) -> StructType:
        with one_sentence():
            options = of_either(self.options)
            if options.checks_topics:
                admin(options).partitions(options.subscription, missing_is_error=True)
            return ALL_COLUMNS if options.include_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            return TopicReader(read_options(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        # An exception raised here would be replaced by PySpark's own, about a variable without a value.
        try:
            return TopicStream(read_options(self.options, is_streaming=True), check_schema(schema))
        except ValueError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kalda.spark.sink import TopicWriter
        from kalda.spark.sink_options import write_options

        with one_sentence():
            if overwrite:
                raise ValueError("save mode Overwrite is not allowed: rows of a topic are only appended; use Append")
            return TopicWriter(write_options(self.options, schema, is_streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from kalda.spark.sink import TopicStreamWriter
        from kalda.spark.sink_options import write_options

        with one_sentence():
            return TopicStreamWriter(write_options(self.options, schema, is_streaming=True))


class FilteringSource(KaldaSource):
    """The source for sessions that allow filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            return FilteringReader(read_options(self.options), check_schema(schema))


class RangePartition(InputPartition):
    """The ranges of offsets that one task reads, one after the other."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(tuple(tuple(one) for one in ranges))


class TopicReader(DataSourceReader):
    """`partitions` plans, once in one process; `read` is called in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = [(one.name, one.nullable) for one in schema]
        self.narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        with one_sentence():
            ranges = plan(admin(self.options), self.options, self.narrowing)
            return [RangePartition(task) for task in pack(ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.options, self.columns, partition)


class FilteringReader(TopicReader):
    """Reads only what the query's conditions allow."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.narrowing, left = narrow(filters)
        return left


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's reader: one object in a process of the driver decides on batches, copies of it read.

    Spark calls `latestOffset` once a batch, and `partitions` with what it has written to the checkpoint. It writes the
    ends of batches only, and calls `initialOffset` for the start of the first one, again and again until that has
    ended. So the first batch of a query that starts at the ends of the logs is empty: its end, which is written, is
    where the query has started."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = [(one.name, one.nullable) for one in schema]
        self._initial: dict[str, Any] | None = None
        """Where the query starts; None before Spark has called `initialOffset`, and in a query with ended batches."""
        self._has_begun = False
        """Whether the first batch of a query that starts at the ends of the logs was planned."""
        self._rate: BatchBounds | None = None
        """Made at the first batch: it holds a clock."""
        self._latest: StreamOffset | None = None
        """The ends of the logs when they were last requested."""
        self._available: StreamOffset | None = None
        """With Trigger.AvailableNow, the ends of the logs when the query was started."""
        self._end: Mapping[str, Any] = {}
        """The end of the last batch, for versions of Spark that do not hand it to `latestOffset`."""
        self._planned: Mapping[str, Any] | None = None
        """The end of the batch that this process has planned last."""
        self._committed: Position = {}
        """What the group of `kalda.commit.group` has."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with one_sentence():
            if self._initial is None:
                logs = admin(self.options)
                start = start_offsets(logs, self.options)
                self._end = self._initial = to_json(StreamOffset(start, dict(logs.topic_ids)))
            return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with one_sentence():
            self._available = latest_offset(admin(self.options), self.options, StreamOffset({}, {}), _pause)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with one_sentence():
            given = self._end if start is None else start
            known = from_json(given)
            self._commit(known.position)
            if self.options.start is Edge.LATEST and given == self._initial and not self._has_begun:
                self._has_begun = True
                if self._available is not None:  # the logs have grown since it was requested
                    grown = self._available.position | known.position
                    self._available = StreamOffset(grown, self._available.ids | known.ids)
                return dict(given)
            logs, options = admin(self.options), self.options
            latest = self._available
            if latest is None:
                latest = latest_offset(logs, options, known, _pause)
            latest = self._latest = stopped(latest, options.stops, known.without(known.others(latest.ids)).position)
            end = latest.position
            if not isinstance(limit, ReadAllAvailable):
                rate = self._rate = self._rate or BatchBounds(options, _now_ms)
                begin = with_new(logs, known.without(known.others(latest.ids)).position, end)
                if self._available is None and rate.is_delayed(begin, end):
                    return dict(given)
                end = rate.limited(begin, end)
            self._planned = to_json(StreamOffset(end, latest.ids))
            return dict(self._planned)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_sentence():
            self._end = end
            options = self.options
            if options.start is Edge.LATEST and start == self._initial and not self._has_begun:
                # The first batch, which was planned before the query was restarted: the start is that of now.
                return []
            ranges = ranges_of_batch(
                admin(options), options, from_json(start), from_json(end), is_planned_anew=end != self._planned
            )
            pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
            return [RangePartition(task) for task in pack(pieces, options)]

    def _commit(self, position: Position) -> None:
        """Give the group where the query is, so that other programs see its lag. The query itself continues from its
        checkpoint, so a failure is only logged."""
        group = self.options.commit_group
        if group is None or position == self._committed:
            return
        try:
            admin(self.options).alter_group_offsets(group, position).check()
            self._committed = position
        except KafkaError as error:
            log.warning("%s: the group %s has not got the query's offsets: %s", COMMIT_GROUP, group, error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.options, self.columns, partition)


class RefusedStream(DataSourceStreamReader):
    """Raises the error of the query's options when Spark first calls it."""

    def __init__(self, error: ValueError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with one_sentence():
            raise self.error

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(self.initialOffset())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield tuple(self.initialOffset())


def rows(
    options: ReadOptions, columns: Sequence[tuple[str, bool]], partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """The records of a task's ranges as record batches of the columns (name, nullable)."""
    from kalda.client.consumer.columns import SparkColumns
    from kalda.spark.range_reader import fetch

    exempt_modules()
    if partition is None or partition.value is None:  # where no range was planned, Spark runs one task
        return
    with one_sentence():
        made = SparkColumns(arrow_schema(columns), overflowing_times_are_null=options.overflowing_times_are_null)
        for offsets in partition.value:
            for taken in fetch(options, OffsetRange(*offsets)):
                yield from made.of(taken)


def admin(options: ReadOptions) -> SparkAdmin:
    """This process's client of the cluster."""
    from kalda.spark.cluster import admin_of

    return admin_of(options.kafka)


def of_either(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch, or else of a stream: Spark requests the schema before it says which it will be. Raises
    `OptionError` where both refuse them."""
    try:
        return read_options(given)
    except OptionError as error:
        try:
            return read_options(given, is_streaming=True)
        except OptionError:
            raise error from None


def _pause(pause_ms: int) -> None:
    time.sleep(pause_ms / 1000)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def check_schema(schema: StructType) -> StructType:
    """The schema itself. Raises `ValueError` for an unknown column, or one with another type."""
    for one in schema:
        known = next((field for field in ALL_COLUMNS if field.name == one.name), None)
        if known is None:
            raise ValueError(f"schema: there is no column {one.name}; there are {', '.join(ALL_COLUMNS.names)}")
        if known.dataType != one.dataType:
            raise ValueError(
                f"schema: column {one.name} is {known.dataType.simpleString()}, not {one.dataType.simpleString()}; "
                f"cast it after reading"
            )
    return schema


def arrow_schema(columns: Sequence[tuple[str, bool]]) -> pa.Schema:
    """The Arrow schema that PySpark derives from these columns (name, nullable)."""
    import pyarrow as pa

    from kalda.client.consumer.columns import TYPES

    return pa.schema([pa.field(name, TYPES[name], nullable) for name, nullable in columns])
