"""Reads, writes and streams between two topics, in a session of any kind: `python round_trip_job.py SETTINGS`.

SETTINGS is JSON: `servers`, `checkpoint`, `options` (of source and sink), `spark` (the session's configuration), and
`master` or `remote` (Spark Connect). The topic `in` is read in a batch and as a stream, and written to `out` once as
each. Prints one line of JSON with what was counted.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kalda.spark import register


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = _session(settings)
    register(spark)
    options = {"kafka.bootstrap.servers": settings["servers"], **settings.get("options", {})}
    once = {**options, "topic": "out", "kalda.exactly.once": "true"}

    def read(topic: str) -> Any:
        reader = spark.read.format("kalda").options(**options).option("subscribe", topic)
        return reader.option("kafka.isolation.level", "read_committed").load()

    found: dict[str, Any] = {"version": spark.version}
    rows = read("in")
    found["rows"] = rows.count()
    executors = rows.selectExpr("partition").mapInArrow(_directories, "directory string").distinct()
    found["directories"] = executors.count()
    rows.select("value").write.format("kalda").mode("append").options(**once).save()
    found["written"] = _counts(read("out"))
    stream = spark.readStream.format("kalda").options(**options).option("subscribe", "in")
    stream = stream.option("startingOffsets", "earliest")
    if not spark.version.startswith("4.1"):  # which ends such a query after one batch
        stream = stream.option("maxOffsetsPerTrigger", 200)
    writer = stream.load().select("value").writeStream.format("kalda").options(**once)
    query = writer.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    found["streamed"] = _counts(read("out"))
    print(json.dumps(found), flush=True)
    spark.stop()


def _session(settings: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote(settings["remote"]) if "remote" in settings else builder.master(settings["master"])
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        **settings.get("spark", {}),
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _directories(batches: Any) -> Any:
    """Where each task runs: an executor of a cluster has a directory of its own."""
    import os

    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"directory": [os.getcwd()]})


def _counts(frame: Any) -> list[int]:
    """Rows, and different values."""
    return list(frame.selectExpr("count(*)", "count(distinct value)").first())


if __name__ == "__main__":
    main()
