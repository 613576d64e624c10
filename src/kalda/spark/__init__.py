"""Topics in Spark: `format("kalda")` for `read`, `readStream`, `write` and `writeStream`, without a jar.

Options, columns and their types are those of Spark's own Kafka connector, so a job changes only its format. Planning
turns options into ranges of offsets, one or more for each partition. A task fetches its range from the partition's
leader, decodes batches directly into Arrow columns, and passes these to the JVM. A range is fixed when a query or a
micro-batch is planned, so a task that is run again reads the same records. Rows are written from Arrow columns
likewise; `kalda.exactly.once=true` writes each batch of a streaming query once.

    from kalda.spark import register
    register(spark)
    spark.read.format("kalda").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "logs").load()

Reading:

- `options`: parsing and checking of the reader's options
- `partitions`: options and filters to ranges of offsets, ranges to tasks; which ranges a DataFrame reads
- `range_reader`: the records of a range, by the consumer of a worker process
- `source`: the classes that Spark calls to read

Writing:

- `sink_options`: parsing and checking of the writer's options and columns
- `row_writer`: rows to a producer, by topic and partition
- `exactly_once`: transactions of tasks, ended by the driver
- `sink`: the classes that Spark calls to write

Log directories:

- `segments`: the format `kalda-segments`, which reads log directories from disk without a node
- `segment_files`: log directories to pieces of segments
- `segment_batches`: their good batches as Arrow columns, and damage
- `segment_views`: batches, markers and internal topics as rows

And:

- `workers`: what a process that runs tasks does once
- `client_metrics`: what clients push to the brokers, as a table
- `cluster`: what planners and drivers request of a cluster
- `java`: the Java that Spark needs, and processes that get what others leave of the CPU and the disk
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kalda.base.ids import TopicPartition
    from kalda.spark.partitions import OffsetRange


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Register the format in this session.

    With `push_filters`, the conditions of batch queries on topic, partition, offset and timestamp reduce what is read.
    Each query then needs a frame of its own, from `load`: Spark keeps what one query has narrowed, and a later query of
    the same frame without a condition would read no more than that."""
    from kalda.spark.source import register_in

    register_in(spark, push_filters=push_filters)


def session(app_name: str = "kalda", master: str | None = None, **settings: object) -> SparkSession:
    """A Spark session with the format registered; `spark_ui_enabled=False` sets `spark.ui.enabled`. Without `master`:
    that of spark-submit, or all cores of this machine. `sc://HOST:PORT` is a server of Spark Connect. Unless a setting
    says otherwise, Java and the Python processes exchange rows over Unix domain sockets, and on this machine alone a
    shuffle has as many partitions as it has cores. Raises `RuntimeError` where Java is missing."""
    from kalda.spark.java import new_session

    return new_session(app_name, master, settings)


def offset_ranges(frame: DataFrame) -> list[OffsetRange]:
    """What a DataFrame reads: (topic, partition, start, end) of each partition, `end` exclusive. In `foreachBatch`: of
    the micro-batch. Raises `ValueError` where it reads nothing by this format."""
    from kalda.spark.partitions import offset_ranges_of

    return offset_ranges_of(frame)


def starting_after(stored: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> str:
    """The value of `startingOffsets` that continues at stored offsets: by topic and partition, the next to read; -2 is
    the first of the log, -1 its end."""
    from kalda.spark.partitions import starting_after as offsets_after

    return offsets_after(stored)


def reading(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Options that read exactly these ranges. Raises `ValueError` where there are none."""
    from kalda.spark.partitions import reading as options_of

    return options_of(ranges)


def offsets_behind(source: Any) -> dict[str, float]:
    """How many offsets of its partitions a streaming query had not read when a batch was planned, as the metrics of
    Spark's own connector are named: minOffsetsBehindLatest, maxOffsetsBehindLatest, avgOffsetsBehindLatest. `source` is
    one of `progress.sources`, as an object or as in the JSON of a progress. Empty where Spark does not report the ends
    of the logs. Raises `ValueError` for a source that has no topics."""
    from kalda.spark.partitions import behind_latest

    return behind_latest(source)
