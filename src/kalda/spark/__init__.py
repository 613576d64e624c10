"""Spark reads topics: `spark.read.format("kalda")`, a Python data source that stays in columns, without a jar.

Options, columns and their types are those of Spark's own Kafka source, so a query changes its format and nothing else.
Planning turns options into ranges of offsets, one or more for each partition; a task fetches its range from the
partition's leader, decodes batches straight into Arrow columns, and hands them to the JVM as they are. A task that
fails starts its range again, and reads the same records: a range is fixed when the query is planned.

It knows one client, offsets and columns; nothing of what a record's bytes mean, and nothing of streaming queries.

    from kalda.spark import register
    register(spark)
    spark.read.format("kalda").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "logs").load()

- `options`: what the user asked for, checked
- `filters`: conditions of a query that narrow what is read
- `planning`: options and filters to ranges of offsets, and ranges to tasks
- `columns`: Spark's columns out of decoded batches
- `source`: the classes that Spark calls
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format known to this session, and let Spark hand it the conditions of queries."""
    from kalda.spark.source import register_in

    register_in(spark)
