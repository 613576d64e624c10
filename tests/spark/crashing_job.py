"""A streaming job in a process of its own, which a test kills: `python crashing_job.py SERVERS CHECKPOINT MODE`.

It copies the topic `in` to the topic `out`. MODE is `once` (exactly-once sink) or `plain`; with `foreach`, rows and
offsets are in an SQLite file beside the checkpoint.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from kalda.spark import offset_ranges, session


def main() -> None:
    servers, checkpoint, mode = sys.argv[1:]
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
        .option("maxOffsetsPerTrigger", 300)
        .load()
    )
    if mode == "foreach":
        writer = stream.writeStream.foreachBatch(lambda frame, _batch: _store(checkpoint + ".db", frame))
    else:
        writer = stream.select("value").writeStream.format("kalda").option("kafka.bootstrap.servers", servers)
        writer = writer.option("topic", "out").option("kalda.exactly.once", str(mode == "once").lower())
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
    query.awaitTermination()


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
