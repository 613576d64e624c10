"""A streaming job in a process of its own, which a test kills: `python crashing_job.py SERVERS CHECKPOINT MODE`.

It copies the topic `in` to the topic `out`. MODE is `once` (exactly-once sink) or `plain`; with `foreach`, rows and
offsets are in an SQLite file beside the checkpoint; with `load`, rows are in a lake at the checkpoint's place.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any

from kalda.pipeline.engine.runs import FlowReport
from kalda.pipeline.generators.load import Lake, LoadSettings
from kalda.pipeline.session import make_session
from kalda.spark import offset_ranges, session


def main() -> None:
    servers, checkpoint, mode = sys.argv[1:]
    if mode == "load":
        _load(servers, Lake(checkpoint))
        return
    spark = session(
        "crashing",
        "local[2,4]",  # a task whose worker is killed is run again, up to four times
        spark_ui_enabled=False,
        spark_log_level="ERROR",
        spark_driver_bindAddress="127.0.0.1",
        spark_driver_host="127.0.0.1",
    )
    stream = (
        spark.readStream.format("kalda")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .load()
    )
    if mode == "foreach":
        writer = stream.writeStream.foreachBatch(lambda frame, _batch: _store(checkpoint + ".db", frame))
    else:
        writer = stream.select("value").writeStream.format("kalda").option("kafka.bootstrap.servers", servers)
        writer = writer.option("topic", "out").option("kalda.exactly.once", str(mode == "once").lower())
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
    print("started", flush=True)
    while query.isActive:
        query.awaitTermination(1)
        progress = query.lastProgress
        if progress is not None:
            print("batch", progress.batchId, flush=True)
    query.awaitTermination()


def _load(servers: str, lake: Lake) -> None:
    spark = make_session("crashing", ("delta",), {"spark.log.level": "ERROR"}, "local[2,4]")
    wanted = LoadSettings(("in",), {"kafka.bootstrap.servers": servers}, rows_a_batch=2_000, every="0 seconds")
    print("started", flush=True)
    with lake.alone():
        lake.load(spark, lake.agreed(wanted), show=_report, follow=True)


def _report(flow: FlowReport) -> None:
    if flow.batches:
        print("batch", flow.batches, flush=True)
    time.sleep(1)  # as often as the other modes


def _store(file: str, frame: Any) -> None:
    rows, ranges = frame.select("value").collect(), offset_ranges(frame)
    with sqlite3.connect(file) as database:
        database.execute("create table if not exists rows (value blob)")
        database.execute("create table if not exists ends (topic, number, position, primary key (topic, number))")
        # A batch that is run again has offsets below those that were stored.
        stored = dict(database.execute("select number, position from ends").fetchall())
        if any(stored.get(each.partition, 0) >= each.end for each in ranges):
            return
        database.executemany("insert into rows values (?)", [(bytes(row.value),) for row in rows])
        database.executemany(
            "insert or replace into ends values (?, ?, ?)", [(one.topic, one.partition, one.end) for one in ranges]
        )


if __name__ == "__main__":
    main()
