"""The classes that Spark calls: the data source, its readers, and the input of a task.

Spark makes the source in a separate Python process, calls `partitions` there, and pickles the reader for the tasks.
`read` imports what a task needs, so that a worker that only unpickles a reader stays small.

PySpark refuses a reader with `pushFilters` where the session does not allow it, so there are two sources. `register`
allows it and registers the one with filters; the one that Spark discovers (`pyspark_kalda`) has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
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

from kalda.base.errors import ApiError
from kalda.spark.filters import Narrowing, narrow
from kalda.spark.options import FetchSettings, ReadOptions, read_options
from kalda.spark.planning import DataLoss, OffsetRange, plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kalda.client.cluster_client import ClusterClient

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


def register_in(spark: SparkSession) -> None:
    """See `kalda.spark.register`. Warns where Spark's Python processes cannot import Kalda."""
    advice = python_advice(os.environ.get("PYSPARK_PYTHON") or "python3")
    if advice is not None:
        warnings.warn(advice, stacklevel=3)
    spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource)


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
    except (ValueError, DataLoss, ApiError, NotImplementedError):
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
            return ALL_COLUMNS if read_options(self.options).include_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            return TopicReader(read_options(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return NoStream()


class FilteringSource(KaldaSource):
    """The source for sessions that allow filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            return FilteringReader(read_options(self.options), check_schema(schema))


class NoStream(DataSourceStreamReader):
    """Refuses a streaming query when Spark requests its first offset.

    An exception of `streamReader` itself would be hidden by another one, of PySpark.
    """

    def initialOffset(self) -> NoReturn:  # noqa: N802
        with one_sentence():
            raise NotImplementedError(
                'streaming queries are not supported: read with spark.read.format("kalda"), from the offsets at which '
                "the last run ended (option startingOffsets)"
            )

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802
        self.initialOffset()

    def partitions(self, start: object, end: object) -> NoReturn:
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        self.initialOffset()


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(tuple(offsets))


class TopicReader(DataSourceReader):
    """`partitions` plans, once in one process; `read` is called in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = [(one.name, one.nullable) for one in schema]
        self.narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        with one_sentence(), connect(self.options.fetch) as cluster:
            return [RangePartition(one) for one in plan(cluster, self.options, self.narrowing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kalda.client.columns import SparkColumns

        if partition.value is None:  # where no range was planned, Spark runs one task with None
            return
        offsets = OffsetRange(*partition.value)
        columns = SparkColumns(arrow_schema(self.columns))
        for fetched in fetch(self.options, offsets):
            yield from columns.of(fetched)


class FilteringReader(TopicReader):
    """Reads only what the query's conditions allow."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.narrowing, left = narrow(filters)
        return left


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


def connect(settings: FetchSettings, **more: Any) -> ClusterClient:
    """A client of the cluster. Where a query is planned, a wrong address fails soon."""
    from kalda.client.cluster_client import ClusterClient

    return ClusterClient(settings.bootstrap, client_id=settings.client_id, timeout_ms=settings.timeout_ms, **more)


def fetch(options: ReadOptions, offsets: OffsetRange) -> Iterator[Any]:
    """The batches of the range, as `Fetched`, from the partition's leader. A task was planned with this address, so it
    retries for the whole timeout where no broker answers: they may be restarting."""
    from kalda.client.consumer_fetcher import ConsumerFetcher, OutOfRange, Slice

    settings = options.fetch
    with (
        connect(settings, first_contact_ms=settings.timeout_ms) as cluster,
        ConsumerFetcher(
            cluster,
            [Slice(*offsets)],
            read_committed=settings.read_committed,
            max_wait_ms=settings.max_wait_ms,
            max_bytes=settings.max_bytes,
            partition_max_bytes=settings.partition_max_bytes,
            on_out_of_range=OutOfRange.ERROR if options.fail_on_data_loss else OutOfRange.EARLIEST,
            check_crcs=settings.check_crcs,
            rack=settings.rack,
        ) as fetcher,
    ):
        yield from fetcher
