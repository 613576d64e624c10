"""The classes that Spark calls to read: the data source, its batch and streaming readers, and the input of a task.

Spark makes the source in a separate Python process, calls `partitions` there, and pickles the reader for the tasks.
`read` imports what a task needs, so that a worker that only unpickles a reader stays small.

There are two sources, since PySpark refuses a reader with `pushFilters` where the session does not allow it. The one
with filters is registered where the user asks for it: Spark (seen with 4.3) keeps the narrowed partitions with the
relation that `load` has made, and a later query of the same frame that has no condition reads those only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
    """Whether Trigger.AvailableNow with `maxOffsetsPerTrigger` reads to the end of the topics. Spark 4.1 ends after one
    batch."""
except ImportError:  # Spark 4.1 has no admission control of Python sources
    HAS_ADMISSION_CONTROL = False

    class _Absent:
        """Stands for classes of which no object is made."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = _Absent  # type: ignore

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.spark.batches import (
    Rate,
    StreamDataLoss,
    from_json,
    latest_position,
    ranges_between,
    to_json,
    with_new,
)
from kalda.spark.filters import Narrowing, narrow
from kalda.spark.options import Edge, OptionError, ReadOptions, read_options
from kalda.spark.planning import DataLoss, OffsetRange, pack, plan, split, start_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kalda.spark.cluster import SparkAdmin

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


@contextmanager
def one_sentence() -> Iterator[None]:
    """In a Python process of Spark's planner, let the failures that a user can mend be shown without a traceback.

    The process ends with the exception, so the setting has no effect on other exceptions.
    """
    try:
        yield
    except (ValueError, DataLoss, StreamDataLoss, ApiError):
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class KaldaSource(DataSource):
    """Topics as a table. A schema with fewer columns may be given; the others are not made."""

    @classmethod
    def name(cls) -> str:
        return "kalda"

    def schema(self) -> StructType:
        with one_sentence():
            return ALL_COLUMNS if of_either(self.options).include_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            return TopicReader(read_options(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        # An exception raised here would be replaced by PySpark's own, about a variable without a value.
        try:
            return TopicStream(read_options(self.options, is_streaming=True), check_schema(schema))
        except ValueError as error:
            return Refused(error)

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
        self._rate: Rate | None = None
        """Made at the first batch: it holds a clock."""
        self._latest: dict[TopicPartition, int] | None = None
        """The ends of the logs when they were last requested."""
        self._available: dict[TopicPartition, int] | None = None
        """With Trigger.AvailableNow, the ends of the logs when the query was started."""
        self._end: Mapping[str, Any] = {}
        """The end of the last batch, for versions of Spark that do not hand it to `latestOffset`."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with one_sentence():
            if self._initial is None:
                self._end = self._initial = to_json(start_offsets(admin(self.options), self.options))
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
            self._available = latest_position(admin(self.options), self.options, {}, _pause)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with one_sentence():
            given = self._end if start is None else start
            begin = from_json(given)
            if self.options.start is Edge.LATEST and given == self._initial and not self._has_begun:
                self._has_begun = True
                if self._available is not None:  # the logs have grown since it was requested
                    self._available = self._available | begin
                return dict(given)
            logs, options = admin(self.options), self.options
            latest = self._available
            if latest is None:
                latest = latest_position(logs, options, begin, _pause)
            self._latest = latest
            end = dict(latest)
            if not isinstance(limit, ReadAllAvailable):
                rate = self._rate = self._rate or Rate(options, _now_ms)
                begin = with_new(logs, begin, latest)
                if self._available is None and rate.is_delayed(begin, latest):
                    return dict(given)
                end = rate.limited(begin, latest)
            return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_sentence():
            self._end = end
            options = self.options
            if options.start is Edge.LATEST and start == self._initial and not self._has_begun:
                # The first batch, which was planned before the query was restarted: the start is that of now.
                return []
            ranges = ranges_between(admin(options), options, from_json(start), from_json(end))
            pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
            return [RangePartition(task) for task in pack(pieces, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.options, self.columns, partition)


class Refused(DataSourceStreamReader):
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
    from kalda.client.columns import SparkColumns
    from kalda.spark.fetching import fetch
    from kalda.spark.workers import exempt_modules

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

    from kalda.client.columns import TYPES

    return pa.schema([pa.field(name, TYPES[name], nullable) for name, nullable in columns])
