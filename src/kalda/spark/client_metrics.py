"""The metrics that clients push to the brokers (KIP-714), as a table: the topic `__client_metrics` with typed columns.

    from kalda.spark.client_metrics import client_metrics
    table = client_metrics(spark, "localhost:9092")
    table.where("name LIKE '%latency%'").groupBy("client_id", "name").max("value").show()

A row is one data point: when it was measured (`time`), by which client, its name, value, unit and attributes. The topic
has JSON by default; records in Protobuf (`kalda.client.metrics.format=protobuf`) are rows whose columns are null, but
`partition`, `offset` and `received`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kalda.telemetry.client_metrics import SPARK_SCHEMA, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def client_metrics(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    streaming: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What clients have pushed; with `streaming`, also what they push from now on. `options` are further ones of the
    format `kalda`, such as `startingOffsets` or `kafka.security.protocol`. The format must be registered."""
    reader = (spark.readStream if streaming else spark.read).format("kalda")
    reader = reader.option("kafka.bootstrap.servers", bootstrap_servers).option("subscribe", TOPIC)
    return data_points(reader.options(**dict(options or {})).load())


def data_points(records: DataFrame) -> DataFrame:
    """Records of the topic as rows of typed columns; `received` is the broker's time, `time` the client's."""
    from pyspark.sql import functions as sql

    point = sql.from_json(records["value"].cast("string"), SPARK_SCHEMA)
    rows = records.select(
        point.alias("point"), records["partition"], records["offset"], records["timestamp"].alias("received")
    )
    time = sql.timestamp_millis(sql.col("point.time_ms")).alias("time")
    return rows.select(time, "point.*", "received", "partition", "offset")
