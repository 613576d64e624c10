"""The latest value of each key of a topic as a table, as a compacted log would have it.

A record without a value deletes its key.

    TABLE/v=N/*.parquet        one version of the table: partition, key, value, offset, timestamp, headers
    TABLE/current              a link to the latest version
    TABLE/_kalda/snapshot.json which version that is, and the offsets up to which it has the topic

A run reads only the records since the last one and merges them into a new version, then one rename makes it the
current one. The topic is read from its start instead where the difference would not be whole: the topic was made anew,
records since the last run were deleted, or the last run is longer ago than the topic's delete.retention.ms, after which
compaction removes the records that delete keys. Rows of records that the log has no more, because its start has moved
(DeleteRecords, or cleanup.policy=compact,delete), are left out of the next version.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.base.ids import TopicPartition
from kalda.pipeline.files import OWN, check_directory, locked, read_state, replace_text
from kalda.pipeline.load import ISOLATION, SOURCE, STARTS, TIMES, from_json, to_json
from kalda.pipeline.session import PipelineError, refuse_options
from kalda.pipeline.topics import Ends, TopicQuestions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETE_RETENTION_MS: Final = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms."""
_BOUNDS: Final = (*STARTS, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_OWN_OPTIONS: Final = {
    "subscribe": "name the topic as an argument",
    "includeHeaders": "a snapshot always has the headers",
    ISOLATION: "a snapshot is read with read_committed",
    **dict.fromkeys(_BOUNDS, "a snapshot continues where the last one ended, up to the topic's end"),
}
"""Options of the source that a snapshot sets itself, and why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run has made."""

    version: int
    keys: int
    records: int
    """Records that were read."""
    without_key: int
    """Of these, records that have no key: they are no part of the table."""
    rebuilt: str | None
    """Why the topic was read from its start; None where the last version was extended."""


class SnapshotTable:
    """One table. Its directory is made by the first run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = os.fspath(path)
        self.path = Path(path).absolute()
        self._file = self.path / OWN / "snapshot.json"

    def state(self) -> dict[str, Any] | None:
        """What the last run has made; None before the first. Raises `PipelineError` where it is damaged."""
        return read_state(
            self._file, {"topic": str, "topic_id": str, "version": int, "offsets": dict, "read_ms": int, "keys": int}
        )

    def check(self) -> None:
        """Raises `PipelineError` where the directory cannot be a table of a snapshot."""
        check_directory(self._given, self._file, "snapshot")

    def locked(self, spark: SparkSession | None = None) -> AbstractContextManager[None]:
        """Held while a version is made, by `spark`. Raises `PipelineError` where another process holds it, or the
        directory cannot be a table."""
        self.check()
        refusal = f"{self.path}: another process is bringing it up to date; wait for its end"
        return locked(self._file.with_name("lock"), refusal, spark)

    def version(self, number: int) -> Path:
        return self.path / f"v={number}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The current version. Raises `PipelineError` before the first run."""
        state = self.state()
        if state is None:
            raise PipelineError(f"{self.path}: there is no snapshot yet")
        return spark.read.parquet(str(self.version(state["version"])))

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make a version the current one, and delete those before its predecessor."""
        replace_text(self._file, json.dumps(state, indent=1, sort_keys=True) + "\n")
        self.point_to(state["version"])
        for old in self.path.glob("v=*"):
            if old.name[2:].isdigit() and int(old.name[2:]) < state["version"] - 1:
                shutil.rmtree(old)

    def point_to(self, version: int) -> None:
        """Let `current` be this version: a run that was killed may have left it behind the state."""
        current, target = self.path / "current", f"v={version}"
        if current.is_symlink() and os.readlink(current) == target:
            return
        link = self.path / ".current"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        os.replace(link, current)


def take_snapshot(
    spark: SparkSession, table: SnapshotTable, topic: str, options: Mapping[str, str], now_ms: int | None = None
) -> Snapshot:
    """Bring the table up to the topic's end of now. Raises `PipelineError`."""
    refuse_options(options, _OWN_OPTIONS)
    with table.locked(spark):
        return _take(spark, table, topic, options, int(time.time() * 1000) if now_ms is None else now_ms)


def _take(spark: SparkSession, table: SnapshotTable, topic: str, options: Mapping[str, str], now_ms: int) -> Snapshot:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    state = table.state()
    if state is not None:
        if state["topic"] != topic:
            raise PipelineError(f"{table.path} is a snapshot of topic {state['topic']}, not {topic}")
        table.point_to(state["version"])
    options = {**TIMES, **options, ISOLATION: "read_committed"}
    with TopicQuestions(options) as topics:
        topic_id, ends = topics.topic_id(topic), topics.ends([topic])
        retention = topics.config(topic, "delete.retention.ms")
    done = {} if state is None else from_json(state["offsets"])
    reason = _reason(state, topic_id, ends, done, now_ms, int(retention or DELETE_RETENTION_MS))
    upto = {partition: each.end for partition, each in ends.items()}
    starts = {partition: each.start for partition, each in ends.items()}
    version = 0 if state is None else state["version"]
    has_all_rows = state is not None and state.get("starts") == to_json(starts)
    if reason is None and done == upto and has_all_rows:
        return Snapshot(version, state["keys"] if state else 0, 0, 0, None)
    since = {one: each.start if reason is not None else done.get(one, each.start) for one, each in ends.items()}
    records = (
        spark.read.format(SOURCE)
        .options(**options)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("startingOffsets", json.dumps(to_json(since)))
        .option("endingOffsets", json.dumps(to_json(upto)))
        .load()
    )
    counts = Observation()
    records = records.observe(counts, f.count("*").alias("records"), f.count_if(f.col("key").isNull()).alias("without"))
    rows = records.where("key IS NOT NULL").select(*_COLUMNS)
    if reason is None:
        known = table.frame(spark).select(*_COLUMNS)
        rows = rows.unionByName(known if has_all_rows else _from(known, starts))
    target = table.version(version + 1)
    latest(rows).write.mode("overwrite").parquet(str(target))
    counted = counts.get
    keys = spark.read.parquet(str(target)).count()
    table.commit(
        {
            "topic": topic,
            "topic_id": topic_id,
            "version": version + 1,
            "offsets": to_json(upto),
            "starts": to_json(starts),
            "read_ms": now_ms,
            "keys": keys,
        }
    )
    return Snapshot(version + 1, keys, counted["records"], counted["without"], reason)


_COLUMNS: Final = ("partition", "key", "value", "offset", "timestamp", "headers")


def _from(rows: DataFrame, starts: Mapping[TopicPartition, int]) -> DataFrame:
    """The rows of records that are not before the start of their partition's log. A join: there may be ten thousand
    partitions."""
    from pyspark.sql import functions as f

    first = rows.sparkSession.createDataFrame(
        [(one.partition, start) for one, start in starts.items()], "partition int, _start long"
    )
    return rows.join(f.broadcast(first), "partition").where("offset >= _start").select(*_COLUMNS)


def latest(rows: DataFrame) -> DataFrame:
    """Of each partition and key the row with the largest offset, unless that has no value."""
    from pyspark.sql import functions as f

    kept = f.struct("value", "offset", "timestamp", "headers")
    newest = rows.groupBy("partition", "key").agg(f.max_by(kept, "offset").alias("newest"))
    return newest.select("partition", "key", "newest.*").where("value IS NOT NULL").select(*_COLUMNS)


def _reason(
    state: Mapping[str, Any] | None,
    topic_id: str,
    ends: Mapping[TopicPartition, Ends],
    done: Mapping[TopicPartition, int],
    now_ms: int,
    retention_ms: int,
) -> str | None:
    """Why the table cannot be extended."""
    if state is None:
        return "it is the first run"
    if state["topic_id"] != topic_id:
        return "the topic was deleted and made again"
    if now_ms - int(state["read_ms"]) > retention_ms:
        return f"the last run is longer ago than delete.retention.ms ({retention_ms})"
    for partition, each in ends.items():
        offset = done.get(partition, each.start)
        if not each.start <= offset <= each.end:
            return f"{partition} has offsets {each.start} to {each.end}, the table has those before {offset}"
    return None
