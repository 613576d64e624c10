"""A topic into a database by Spark, each record once: rows and offsets are written in one transaction of the database.

    python examples/spark_offsets.py --servers localhost:9092 --topic orders --database sqlite:orders.db
    python examples/spark_offsets.py ... --database postgresql://user@host/name          # needs psycopg

It reads what there is, stores it and ends; run again, it continues. There is no checkpoint to keep: the position is in
the database. A crash at any moment leaves neither rows without their offsets nor offsets without their rows.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from kalda import Admin
from kalda.spark import offset_ranges, session, starting_after

EARLIEST = -2
"""In startingOffsets, the first offset of the log."""
_TABLES = (
    "create table if not exists records (topic text, number integer, position bigint, value {blob})",
    "create table if not exists positions (topic text, number integer, position bigint, primary key (topic, number))",
)
_KEEP = (
    "insert into positions values ({mark}, {mark}, {mark}) "
    "on conflict (topic, number) do update set position = excluded.position"
)


class Database:
    """Rows and positions. `commit` makes both durable at once."""

    def __init__(self, connect: Callable[[], Any], mark: str, blob: str) -> None:
        self._connect = connect
        self._mark = mark
        with closing(connect()) as connection:
            cursor = connection.cursor()
            for table in _TABLES:
                cursor.execute(table.format(blob=blob))
            connection.commit()

    def positions(self) -> dict[tuple[str, int], int]:
        """The next offset of each partition."""
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("select topic, number, position from positions")
            return {(topic, number): position for topic, number, position in cursor.fetchall()}

    def store(self, rows: Iterable[Sequence[Any]], ranges: Iterable[Any]) -> None:
        """One transaction."""
        marks = ", ".join([self._mark] * 4)
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.executemany(f"insert into records values ({marks})", list(rows))
            cursor.executemany(
                _KEEP.format(mark=self._mark), [(each.topic, each.partition, each.end) for each in ranges]
            )
            connection.commit()


def open_database(name: str) -> Database:
    """By its URL: `sqlite:FILE` or `postgresql://...`."""
    if name.startswith("sqlite:"):
        return Database(lambda: sqlite3.connect(name.removeprefix("sqlite:")), "?", "blob")
    import psycopg

    return Database(lambda: psycopg.connect(name), "%s", "bytea")


def load(spark: Any, servers: str, topic: str, database: Database, limit: int) -> None:
    """Store what the topic has beyond the database's positions."""

    def store(frame: Any, _batch: int) -> None:
        rows = frame.select("topic", "partition", "offset", "value").collect()
        database.store([tuple(row) for row in rows], offset_ranges(frame))

    positions = database.positions()
    with Admin({"bootstrap.servers": servers}) as admin:
        partitions = [(topic, each.partition) for each in admin.describe_topics([topic]).value(topic).partitions]
    starts = {each: positions.get(each, EARLIEST) for each in partitions}
    stream = (
        spark.readStream.format("kalda")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", starting_after(starts))
        .option("maxOffsetsPerTrigger", limit)
        .load()
    )
    with tempfile.TemporaryDirectory() as scratch:  # Spark needs a checkpoint; the next run does not
        query = stream.writeStream.foreachBatch(store).option("checkpointLocation", scratch).trigger(availableNow=True)
        query.start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", default="sqlite:records.db")
    parser.add_argument("--limit", type=int, default=100_000, help="records in one transaction")
    options = parser.parse_args()
    load(session("offsets"), options.servers, options.topic, open_database(options.database), options.limit)


if __name__ == "__main__":
    main()
