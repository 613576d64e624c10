"""A Python data source for Spark without a broker: the ceiling of any Python reader or writer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from harness.sparks import VALUE_BYTES
from kalda.spark.source import COLUMNS


def register_ceiling(spark: SparkSession) -> None:
    """Register the format `ceiling` in this session. Spark's processes cannot import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(CeilingSource)


class CeilingSource(DataSource):
    """Rows like those that `fill` writes, without a broker."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(schema.names, int(self.options["rows"]), int(self.options["partitions"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return CeilingStream(schema.names, int(self.options["rows"]), int(self.options["partitions"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return CeilingWriter()


class CeilingWriter(DataSourceArrowWriter):
    """Takes rows as Kalda's writer does, and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class CeilingReader(DataSourceReader):
    def __init__(self, columns: list[str], rows: int, partitions: int) -> None:
        self.columns = columns
        self.rows = rows
        self.count = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return evenly(self.rows, self.count)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return batches(self.columns, partition.value)


class CeilingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same rows as a stream, in batches of a quarter."""

    def __init__(self, columns: list[str], rows: int, partitions: int) -> None:
        self.columns = columns
        self.rows = rows
        self.count = partitions

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.rows // 4)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"row": min(self.rows, start["row"] + self.rows // 4)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return evenly(end["row"] - start["row"], self.count)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return batches(self.columns, partition.value)


def evenly(rows: int, count: int) -> list[InputPartition]:
    """As many rows for each task."""
    edges = [rows * index // count for index in range(count + 1)]
    return [InputPartition(edges[index + 1] - edges[index]) for index in range(count)]


def batches(names: list[str], left: int) -> Iterator[pa.RecordBatch]:
    """`left` rows, in record batches as large as the reader's."""
    from kalda.client.consumer.columns import TYPES, SparkColumns
    from kalda.clientcore.consuming.fetcher import Taken
    from kalda.records.builder import build_batch

    values = os.urandom(VALUE_BYTES * 10_000)
    rows = [(1_700_000_000_000, None, values[at : at + VALUE_BYTES], ()) for at in range(0, len(values), VALUE_BYTES)]
    buffer = b"".join(build_batch(rows, base_offset=10_000 * index) for index in range(3))
    columns = SparkColumns(pa.schema([(name, TYPES[name]) for name in names]))
    (batch,) = columns.of(Taken("rows", 0, memoryview(buffer), 0, None, None))
    while left > 0:
        yield batch.slice(0, min(left, batch.num_rows))
        left -= batch.num_rows
