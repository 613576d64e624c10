"""The classes that Spark calls: the data source, its readers, and the input of a task.

Spark makes the source in a separate Python process, calls `partitions` there, and pickles the reader for the tasks.
`read` imports what a task needs, so that a worker that only unpickles a reader stays small.

PySpark refuses a reader with `pushFilters` where the session does not allow it, so there are two sources. `register`
allows it and registers the one with filters; the one that Spark discovers (`pyspark_kalda`) has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
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

from kalda.spark.filters import Narrowing, narrow
from kalda.spark.options import FetchSettings, ReadOptions, read_options
from kalda.spark.planning import OffsetRange, plan

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
    """See `kalda.spark.register`."""
    spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource)


class KaldaSource(DataSource):
    """Topics as a table. A schema with fewer columns may be given; the others are not made."""

    @classmethod
    def name(cls) -> str:
        return "kalda"

    def schema(self) -> StructType:
        return ALL_COLUMNS if read_options(self.options).include_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(read_options(self.options), check_schema(schema))


class FilteringSource(KaldaSource):
    """The source for sessions that allow filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(read_options(self.options), check_schema(schema))


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
        with connect(self.options.fetch) as cluster:
            return [RangePartition(one) for one in plan(cluster, self.options, self.narrowing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kalda.spark.columns import SparkColumns

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

    from kalda.spark.columns import TYPES

    return pa.schema([pa.field(name, TYPES[name], nullable) for name, nullable in columns])


def connect(settings: FetchSettings) -> ClusterClient:
    from kalda.client.cluster_client import ClusterClient

    return ClusterClient(settings.bootstrap, client_id=settings.client_id, timeout_ms=settings.timeout_ms)


def fetch(options: ReadOptions, offsets: OffsetRange) -> Iterator[Any]:
    """The batches of the range, as `Fetched`, from the partition's leader."""
    from kalda.client.consumer_fetcher import ConsumerFetcher, OutOfRange, Slice

    settings = options.fetch
    with (
        connect(settings) as cluster,
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
