"""Reading topics in Spark: `spark.read.format("kalda")`, a columnar Python data source that needs no jar.

Options, columns and their types are those of Spark's own Kafka source, so a query changes only its format. Planning
turns options into ranges of offsets, one or more for each partition. A task fetches its range from the partition's
leader, decodes batches directly into Arrow columns, and passes these to the JVM. A range is fixed when the query is
planned, so a task that is run again reads the same records.

Keys and values are columns of bytes, which queries decode. Streaming queries are not supported.

    from kalda.spark import register
    register(spark)
    spark.read.format("kalda").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "logs").load()

- `options`: parsing and checking of the user's options
- `filters`: conditions of a query that reduce what is read
- `planning`: options and filters to ranges of offsets, and ranges to tasks
- `source`: the classes that Spark calls
- `segments`: the format `kalda-segments`, which reads log directories from disk without a node
- `segment_files`, `segment_batches`: log directories to pieces of segments; their good batches, and damage
- `segment_columns`, `segment_views`: records as Arrow columns; batches, markers and internal topics as rows
- `segment_isolation`: aborted and open transactions of a partition's directory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format in this session, and allow Spark to pass the conditions of queries to it."""
    from kalda.spark.source import register_in

    register_in(spark)
