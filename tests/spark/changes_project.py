"""A topic of changes, a project whose tables come from it, and what those must have, for readers that are not Spark.

The topic `in` has changes, as JSON: `{"k": 3, "v": 7, "at": 41, "gone": false}`, in three partitions. `at` is another
number in each, and grows. Some were in transactions that were aborted: their `at` is negative.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
from deltalake import DeltaTable
from jars import delta_jars

from kalda import Consumer, Producer, Record, TopicPartition
from kalda.pipeline.engine.query import offsets_of

KEYS = 200
PARTITIONS = 3
ROWS_A_BATCH = 300
Offsets = Mapping[TopicPartition, int]
Logged = dict[TopicPartition, list[Record]]
DEFINITIONS = """
from pyspark import pipelines as dp
from kalda.pipeline import create_auto_cdc_flow, expect_or_drop

SERVERS = {{"kafka.bootstrap.servers": {servers!r}}}


def topic():
    options = {{**SERVERS, "subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "{rows}"}}
    options["kafka.isolation.level"] = "read_committed"
    return spark.readStream.format("kalda").options(**options).load()


@dp.temporary_view
def changes():
    parsed = "from_json(cast(value as string), 'k int, v int, at bigint, gone boolean') AS c"
    return topic().selectExpr("partition", "offset", parsed).select("partition", "offset", "c.*")
"""
FLOWS = {
    "append": """
@dp.table
def appended():
    return spark.readStream.table("changes")
""",
    "ruled": """
@dp.table
@expect_or_drop("even", "v % 2 = 0")
def ruled():
    return spark.readStream.table("changes")
""",
    "sink": """
dp.create_sink("out", "kalda", {**SERVERS, "topic": "out"})


@dp.append_flow(target="out")
def published():
    return topic().select("value")
""",
} | {
    f"scd{kind}": f"""
dp.create_streaming_table("{name}")
create_auto_cdc_flow("{name}", "changes", keys=["k"], sequence_by="at", apply_as_deletes="gone",
                     except_column_list=["at", "gone", "partition", "offset"], stored_as_scd_type={kind})
"""
    for kind, name in ((1, "newest"), (2, "history"))
}
NAMES = {"append": "appended", "ruled": "ruled", "sink": "published", "scd1": "newest", "scd2": "history"}
SPECIFICATION = {
    "storage": "storage",
    "libraries": [{"glob": {"include": "flows.py"}}],
    "configuration": {
        "kalda.trigger": "0 seconds", "kalda.restart.backoff.max.ms": "2000", "kalda.optimize.commits": "8",
    },
}  # fmt: skip
LIGHT = {"SPARK_MASTER": "local[2]", "SPARK_JARS_PROVIDED": "1"}
"""The environment of a command whose jars are given."""
LIGHT_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",  # a process lives for a few batches of a few rows
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def light_settings() -> list[str]:
    """Of a command, for processes that are short-lived: with the jars of Delta, and with little to compile."""
    settings = {**LIGHT_SPARK, "spark.jars": ",".join(delta_jars())}
    return [part for name, value in settings.items() for part in ("--spark", f"{name}={value}")]


def logged(servers: str, topic: str) -> Logged:
    """The committed records of a topic."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = [TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic).partitions]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets()
        found: Logged = {each: [] for each in partitions}
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(0.2, max_records=10_000):
                found[TopicPartition(topic, record.partition)].append(record)
        return found


def ends_of(servers: str, topic: str) -> Offsets:
    """Where a reader of committed records ends."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        return consumer.end_offsets(*(TopicPartition(topic, number) for number in range(PARTITIONS)))


def fill(servers: str, randomly: random.Random, first: int, count: int) -> None:
    """Produce changes with `at` from `first` on, in transactions, one of them aborted."""
    with Producer({"bootstrap.servers": servers, "transactional.id": "changes"}) as producer:
        producer.init_transactions()
        for begin in (-1, *range(first, first + count, 250)):
            producer.begin_transaction()
            for at in range(-50, 0) if begin < 0 else range(begin, min(begin + 250, first + count)):
                change = {"k": randomly.randrange(KEYS), "v": randomly.randrange(1000), "at": at}
                change["gone"] = randomly.random() < 0.15
                headers = [("n", str(at).encode())]
                value, key = json.dumps(change).encode(), str(change["k"]).encode()
                producer.send("in", value, key, randomly.randrange(PARTITIONS), headers=headers)
            producer.flush()  # what is aborted before it is sent is in no log
            producer.abort_transaction() if begin < 0 else producer.commit_transaction()


class Change(NamedTuple):
    partition: int
    offset: int
    k: int
    v: int
    at: int
    gone: bool


def changes(log: Logged, ends: Offsets | None = None) -> list[Change]:
    """Those before these offsets, or all, in the order of `at`."""
    found = [
        Change(record.partition, record.offset, **json.loads(record.value or b""))
        for partition, records in log.items()
        for record in records
        if ends is None or record.offset < ends.get(partition, 0)
    ]
    return sorted(found, key=lambda change: change.at)


def newest(given: Iterable[Change]) -> list[tuple[Any, ...]]:
    """SCD type 1: of each key its newest values, and since when."""
    last = {change.k: change for change in given}
    return sorted((each.k, each.v, each.at) for each in last.values() if not each.gone)


def history(given: Iterable[Change]) -> list[tuple[Any, ...]]:
    """SCD type 2: of each key all its values, with their begins and ends."""
    of_key: dict[int, list[Change]] = {}
    for change in given:
        of_key.setdefault(change.k, []).append(change)
    found = [
        (one.k, one.v, one.at, later.at if later else -1)
        for moments in of_key.values()
        for one, later in zip(moments, [*moments[1:], None], strict=True)
        if not one.gone
    ]
    return sorted(found)


class Snapshot(NamedTuple):
    """A table of Delta as deltalake finds it: the offsets of the commit, and the rows."""

    offsets: Offsets
    table: DeltaTable

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.table.to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted(tuple(-1 if row[name] is None else row[name] for name in columns) for row in rows)


def snapshot(path: Path) -> Snapshot | None:
    """None where there is no table yet."""
    if not (path / "_delta_log" / f"{0:020}.json").exists():
        return None
    table = DeltaTable(path)
    # A merge of small files has no offsets, a change of columns a sentence; what empties the table begins anew.
    for version in range(table.version(), -1, -1):
        for line in (path / "_delta_log" / f"{version:020}.json").read_text().splitlines():
            commit = json.loads(line).get("commitInfo", {})
            text = commit.get("userMetadata")
            if text and text.startswith("{") and (sources := json.loads(text).get("offsets")):
                return Snapshot({key: end for each in sources for key, end in offsets_of(each).items()}, table)
            if commit.get("operationParameters", {}).get("mode") == "Overwrite":
                return Snapshot({}, table)
    return Snapshot({}, table)


class Project:
    """A project with the flows of some of these kinds: append, ruled, scd1, scd2, sink."""

    def __init__(self, directory: Path, servers: str, kinds: Sequence[str]) -> None:
        self.directory, self.kinds = directory, kinds
        directory.mkdir()
        specification = {"name": directory.name, **SPECIFICATION}
        (directory / "spark-pipeline.yml").write_text(json.dumps(specification))
        text = DEFINITIONS.format(servers=servers, rows=ROWS_A_BATCH)
        (directory / "flows.py").write_text(text + "".join(FLOWS[kind] for kind in kinds))
        checkpoints = directory / "storage" / "kalda" / "checkpoints"
        self.checkpoints = [checkpoints / NAMES[kind] for kind in kinds]
        self.state = checkpoints.parent

    def table(self, name: str) -> Path:
        return self.directory / "spark-warehouse" / name

    def judge(self, log: Logged, kind: str, *, is_end: bool) -> None:
        """At each moment the table has what the changes before its commit's offsets give; at the end, what all give."""
        found = snapshot(self.table(NAMES[kind]))
        assert found is not None or not is_end
        if found is None:
            return
        before = changes(log) if is_end else changes(log, found.offsets)
        columns, expected = {
            "append": (("partition", "offset", "k", "v", "at", "gone"), sorted(map(tuple, before))),
            "scd1": (("k", "v", "__sequence"), newest(before)),
            "scd2": (("k", "v", "__START_AT", "__END_AT"), history(before)),
        }[kind]
        assert found.rows(*columns) == expected, f"{kind} at version {found.table.version()}"
        if is_end:
            dataset = duckdb.from_arrow(found.table.to_pyarrow_dataset())
            rows = dataset.project(", ".join(f'"{name}"' for name in columns)).fetchall()
            assert sorted(tuple(-1 if each is None else each for each in row) for row in rows) == expected
