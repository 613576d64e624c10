"""The latest value of each key of a topic as a table, as a compacted log would have it: `kalda pipeline snapshot`
writes a project with one table of changes, SCD type 1, and runs it.

A record without a value deletes its key. A run reads the records since the last one. The topic is read from its start
instead where the difference would not be whole: the topic was made anew, records since the last run were deleted, or
the last run is longer ago than the topic's delete.retention.ms, after which compaction removes the records that delete
keys. Rows of records that the log has no more, because its start has moved (DeleteRecords, or
cleanup.policy=compact,delete), are removed from the table at the end of a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.base.ids import TopicPartition
from kalda.pipeline.engine.engine import RunOptions
from kalda.pipeline.engine.query import Checkpoint
from kalda.pipeline.generators.generated import GeneratedDirectory, GeneratedProject, literal
from kalda.pipeline.generators.load import ISOLATION, STARTS, TIMES
from kalda.pipeline.session import PipelineError, refuse_options
from kalda.pipeline.tables.contracts import quoted
from kalda.pipeline.tables.tables import retrying
from kalda.pipeline.topics import Ends, TopicQuestions
from kalda.spark import starting_after
from kalda.spark.options import STOP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = "current"
DELETE_RETENTION_MS: Final = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms."""
_OWN_OPTIONS: Final = {
    "subscribe": "name the topic as an argument",
    "includeHeaders": "a snapshot always has the headers",
    ISOLATION: "a snapshot is read with read_committed",
    STOP: "a snapshot ends at the topic's end",
    **dict.fromkeys(STARTS, "a snapshot continues where the last one ended"),
}
"""Options of the source that a snapshot sets itself, and why."""
_TEXT: Final = '''\
"""The latest value of each key of a topic as the table `current`. Written by `kalda pipeline snapshot`."""

from pyspark import pipelines as dp

from kalda.pipeline import create_auto_cdc_flow

OPTIONS = {options}


@dp.temporary_view
def records():
    rows = spark.readStream.format("kalda").options(**OPTIONS).load()
    return rows.select("partition", "key", "value", "offset", "timestamp", "headers")


dp.create_streaming_table("current")
create_auto_cdc_flow(
    target="current",
    source="records",
    keys=["partition", "key"],
    sequence_by="offset",
    apply_as_deletes="value IS NULL",
)
'''


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run has made."""

    version: int
    """Of the table of Delta; -1 where a signal has ended the run: the table is not read then."""
    keys: int
    """0 where a signal has ended the run."""
    records: int
    """Records that were read."""
    without_key: int
    """Of these, records that have no key: they are in quarantine."""
    rebuilt: str | None
    """Why the topic was read from its start; None where the table was extended."""
    signal: int | None
    """That has ended the run."""


def snapshot_project(topic: str, options: Mapping[str, str], name: str) -> GeneratedProject:
    """Raises `PipelineError`."""
    refuse_options(options, _OWN_OPTIONS)
    source = {
        **TIMES,
        **options,
        ISOLATION: "read_committed",
        "subscribe": topic,
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }
    return GeneratedProject(name, "snapshot", _TEXT.format(options=literal(source)), {"spark.sql.warehouse.dir": "."})


class SnapshotTable(GeneratedDirectory):
    """A directory with the table of a topic."""

    def __init__(self, given: Any) -> None:
        super().__init__(given, "snapshot", "snapshot", TABLE)

    def take(self, spark: SparkSession, topic: str, options: Mapping[str, str], now_ms: int | None = None) -> Snapshot:
        """Bring the table up to the topic's end of now, while `alone`. Raises `PipelineError`."""
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        state = self.state()
        if state is not None and state["topic"] != topic:
            raise PipelineError(f"{self.path} is a snapshot of topic {state['topic']}, not {topic}")
        project = snapshot_project(topic, options, self.path.name or "snapshot")
        with TopicQuestions({**options, ISOLATION: "read_committed"}) as topics:
            topic_id, ends = topics.topic_id(topic), topics.ends([topic])
            retention = topics.config(topic, "delete.retention.ms")
        starts = json.loads(starting_after({partition: each.start for partition, each in ends.items()}))
        known = {"topic": topic, "topic_id": topic_id, "read_ms": now_ms, "starts": starts}
        specification = self.write(project, known if state is None else {**state, "topic": topic})
        reason: str | None = "it is the first run"
        if state is not None:
            read = Checkpoint(specification.checkpoint(TABLE)).committed()
            reason = _reason(state, topic_id, ends, read, now_ms, int(retention or DELETE_RETENTION_MS))
        is_anew = reason is not None and state is not None
        flow, done = self.run(spark, specification, RunOptions(full_refresh=(TABLE,) if is_anew else ()))
        if not done.is_good:
            raise PipelineError(f"{self.path}: {flow.error}")
        without_key = sum(flow.failing.values())
        if done.signal is not None:
            return Snapshot(-1, 0, flow.rows, without_key, reason, done.signal)
        if state is not None and not is_anew and state["starts"] != starts:
            self._leave_out(spark, ends)
        self.keep({**(self.state() or {}), **known})
        return Snapshot(self._version(), self.rows(spark).count(), flow.rows, without_key, reason, None)

    def _version(self) -> int:
        return max(int(each.stem) for each in (self.table / "_delta_log").glob("[0-9]*.json"))

    def _leave_out(self, spark: SparkSession, ends: Mapping[TopicPartition, Ends]) -> None:
        """Remove the rows of records that are before the start of their partition's log. A MERGE: there may be ten
        thousand partitions."""
        first = spark.createDataFrame([(one.partition, each.start) for one, each in ends.items()], "p int, start long")
        first.createOrReplaceTempView("kalda_starts")
        same = "t.partition = s.p AND t.offset < s.start"
        into = f"delta.{quoted(str(self.table))} AS t"
        merge = f"MERGE INTO {into} USING kalda_starts AS s ON {same} WHEN MATCHED THEN DELETE"

        def leave_out() -> None:
            spark.sql(merge)

        retrying(leave_out)


def _reason(
    state: Mapping[str, Any],
    topic_id: str,
    ends: Mapping[TopicPartition, Ends],
    done: Mapping[TopicPartition, int],
    now_ms: int,
    retention_ms: int,
) -> str | None:
    """Why the table cannot be extended."""
    if state["topic_id"] != topic_id:
        return "the topic was deleted and made again"
    if now_ms - int(state["read_ms"]) > retention_ms:
        return f"the last run is longer ago than delete.retention.ms ({retention_ms})"
    for partition, each in ends.items():
        offset = done.get(partition, each.start)
        if not each.start <= offset <= each.end:
            return f"{partition} has offsets {each.start} to {each.end}, the table has those before {offset}"
    return None
