"""Projects of `pyspark.pipelines` on Kalda's engine, with Delta tables that are read without Spark."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from databases import Postgres, missing
from pyspark.pipelines.output import StreamingTable
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql import functions as f
from pyspark.sql.types import ByteType, LongType, StringType, StructField, StructType, TimestampType
from topics import BASE_MS, World, cluster_of_tests

from kalda import TopicPartition
from kalda.client.transport.config_files import profiles_path
from kalda.pipeline import connection
from kalda.pipeline.engine import redrive as redrive_module
from kalda.pipeline.engine.engine import RunOptions, redrive_rows, run_project
from kalda.pipeline.engine.redrive import Wanted
from kalda.pipeline.engine.runs import FlowReport, RunReport, TableUpkeep
from kalda.pipeline.engine.status import statuses
from kalda.pipeline.engine.upkeep import Keeping, Upkeep
from kalda.pipeline.formats import registry
from kalda.pipeline.formats.registry import RegisteredSchema, Subject
from kalda.pipeline.generators.redriven_letters import Letters, LettersDirectory
from kalda.pipeline.jdbc import JdbcTable
from kalda.pipeline.projects.definitions import ChangeFlow
from kalda.pipeline.projects.specification import Specification, read_specification
from kalda.pipeline.session import PipelineError, Unavailable, prepare
from kalda.pipeline.tables.changes import Changes
from kalda.pipeline.tables.contracts import Expectation, ExpectationFailed, fit, judge
from kalda.pipeline.tables.tables import Batch, Tables
from kalda.testing.schema_registry import SchemaRegistry

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: Any, has_delta: bool) -> Iterator[World]:
    if not has_delta:
        pytest.skip("needs the jars of Delta, see KALDA_DELTA_JARS")
    prepare(spark)
    with cluster_of_tests() as cluster, World(cluster, spark) as world:
        yield world


class Project:
    """A project in a directory, whose definition file a test writes."""

    def __init__(self, directory: Path, spark: Any, servers: str) -> None:
        self.directory = directory
        self._spark = spark
        text = "name: shop\nstorage: storage\nlibraries: [{glob: {include: 'definitions/**'}}]\n"
        # Spark gives a Python process 10 s to start.
        text += "configuration: {kalda.restart.attempts: '6', kalda.openlineage.url: events.jsonl}\n"
        (directory / "spark-pipeline.yml").write_text(text, encoding="utf-8")
        (directory / "definitions").mkdir()
        # Definitions have the name of the cluster alone.
        profiles_path().write_text(f"[shop]\nbootstrap.servers = {servers!r}\nacks = 'all'\n", encoding="utf-8")

    @property
    def specification(self) -> Specification:
        return read_specification(self.directory)

    def define(self, python: str = "", sql: str = "") -> None:
        head = "from pyspark import pipelines as dp\nSERVERS = {'kalda.connection': 'shop'}\n"
        head += "def topic(name, group=''):\n    return (spark.readStream.format('kalda').options(**SERVERS)"
        head += ".option('subscribe', name).option('startingOffsets', 'earliest')"
        head += ".option('kalda.commit.group', group).load())\n"
        (self.directory / "definitions" / "a.py").write_text(head + textwrap.dedent(python), encoding="utf-8")
        (self.directory / "definitions" / "b.sql").write_text(sql, encoding="utf-8")

    def run(self, **options: Any) -> dict[str, FlowReport]:
        reports: dict[str, FlowReport] = {}

        def keep(report: RunReport) -> None:
            reports.update(report.flows)

        run_project(self._spark, self.specification, RunOptions(**options), keep)
        return reports

    def good_run(self, **options: Any) -> dict[str, FlowReport]:
        reports = self.run(**options)
        assert [(each.flow, each.error) for each in reports.values() if each.state != "done"] == []
        return reports

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """As a reader that is not Spark has them, sorted."""
        from deltalake import DeltaTable

        found = DeltaTable(self.directory / "spark-warehouse" / table).to_pyarrow_table()
        rows = [tuple(row[name] for name in columns or found.column_names) for row in found.to_pylist()]
        return sorted(rows, key=repr)

    def lineage(self, flow: str) -> list[tuple[str, list[str], list[str]]]:
        """Of each event of a flow: its kind, and the names of what the flow reads and writes."""
        events = map(json.loads, (self.directory / "events.jsonl").read_text(encoding="utf-8").splitlines())
        return [
            (each["eventType"], *([Path(one["name"]).name for one in each[side]] for side in ("inputs", "outputs")))
            for each in events
            if each["job"]["name"] == f"shop.{flow}"
        ]

    def files(self, table: str) -> list[str]:
        from deltalake import DeltaTable

        return DeltaTable(self.directory / "spark-warehouse" / table).file_uris()


@pytest.fixture
def project(tmp_path: Path, spark: Any, world: World) -> Project:
    return Project(tmp_path, spark, world.servers)


def produce(world: World, topic: str, values: Sequence[dict[str, Any]]) -> None:
    records = [(BASE_MS + n, None, json.dumps(value).encode(), ()) for n, value in enumerate(values)]
    world.produce(topic, 0, records)


def test_tables_views_and_sinks(project: Project, world: World) -> None:
    """Definitions in any order; a function asks its input for its columns before there is a row. A second run has only
    what is new."""
    world.create("words")
    world.create("published")
    project.define(
        python="""
        @dp.materialized_view
        def counts():
            words = spark.read.table("words")
            assert words.columns == ["word", "number"]
            return words.groupBy("word").count()

        @dp.table
        def late():
            return spark.readStream.table("stamped").withWatermark("timestamp", "1 minute").drop("timestamp")

        @dp.table
        def words():
            return spark.readStream.table("parsed").drop("timestamp")

        @dp.table
        def stamped():
            return spark.readStream.table("parsed")

        @dp.temporary_view
        def parsed():
            return topic("words", group="shop").selectExpr("timestamp",
                "from_json(cast(value as string), 'word string, number int') as v").select("v.*", "timestamp")

        dp.create_sink("out", "kalda", {**SERVERS, "topic": "published"})

        @dp.append_flow(target="out")
        def publish():
            return spark.readStream.table("words").selectExpr("upper(word) as value")
        """,
        sql="""
        -- What is said most.
        CREATE MATERIALIZED VIEW top COMMENT 'most; often' AS SELECT word FROM counts WHERE count > 1;
        CREATE STREAMING TABLE evens AS SELECT word FROM STREAM words WHERE number % 2 = 0
        """,
    )
    produce(world, "words", [{"word": "a", "number": 1}, {"word": "b", "number": 2}])
    reports = project.good_run()
    assert reports["words"].rows == 2
    assert project.rows("words", "word", "number") == [("a", 1), ("b", 2)]
    assert project.rows("counts", "word", "count") == [("a", 1), ("b", 1)]
    assert project.rows("top") == []
    produce(world, "words", [{"word": "b", "number": 4}])
    project.good_run()
    assert project.rows("words", "word", "number") == [("a", 1), ("b", 2), ("b", 4)]
    assert project.rows("late", "word") == [("a",), ("b",), ("b",)]
    assert project.rows("top") == [("b",)]
    assert project.rows("evens") == [("b",), ("b",)]
    assert [row.value for row in world.read(subscribe="published", kafka__isolation__level="read_committed")] == [
        b"A",
        b"B",
        b"B",
    ]
    committed = world.admin.list_group_offsets("shop").value(TopicPartition("words", 0))
    assert committed.offset == 3
    for flow, source, target in (("words", "words", "words"), ("publish", "words", "published")):
        events = project.lineage(flow)
        assert (events[0], events[-1]) == (("START", [source], [target]), ("COMPLETE", [source], [target]))
    project.good_run(full_refresh=("evens", "top"))
    assert project.rows("evens") == [("b",), ("b",)]
    with pytest.raises(PipelineError, match="the sink out would get all rows again"):
        project.run(full_refresh=("words",))


def test_a_failure_ends_no_other_flow(project: Project, world: World) -> None:
    world.number("mixed", [3])
    project.define(
        python="""
        @dp.table
        def good():
            return topic("mixed").selectExpr("cast(value as string) as value")

        @dp.table(table_properties={"kalda.restart.backoff.ms": "1", "kalda.restart.attempts": "3"})
        def bad():
            return topic("mixed").selectExpr("assert_true(offset < 0) is null as value")

        @dp.materialized_view
        def behind():
            return spark.read.table("bad")
        """
    )
    reports = project.run()
    assert {name: str(each.state) for name, each in reports.items()} == {
        "good": "done",
        "bad": "failed",
        "behind": "skipped",
    }
    assert reports["bad"].restarts == 2
    assert "is not true" in str(reports["bad"].error)
    assert project.rows("good") == [("0",), ("1",), ("2",)]


def test_a_run_that_was_killed_while_it_made_a_table(project: Project) -> None:
    """Delta makes a table's log before its first commit, and refuses a place that has such a log."""
    project.define(
        """
        @dp.materialized_view
        def numbers():
            return spark.range(3)
        """
    )
    (project.directory / "spark-warehouse/numbers/_delta_log/_staged_commits").mkdir(parents=True)
    project.good_run()
    assert project.rows("numbers") == [(0,), (1,), (2,)]


def test_modes_and_a_contract_that_evolves(project: Project, world: World, spark: Any) -> None:
    """Sums are updated in place, or replaced as a whole. A table gets new columns, and wider ones where its property
    lets it; the changes are in its history and in `status`."""
    world.create("sums")
    text = """
        COLUMNS, WIDENS = {columns!r}, {widens!r}

        @dp.temporary_view
        def parsed():
            return topic("sums").selectExpr(f"from_json(cast(value as string), '{{COLUMNS}}') as v").select("v.*")

        @dp.table(table_properties={{"kalda.output.mode": "update", "kalda.keys": "word"}})
        def updated():
            sums = spark.readStream.table("parsed").groupBy("word").agg({{"n": "sum"}})
            return sums.withColumnRenamed("sum(n)", "total")

        @dp.table(table_properties={{"kalda.output.mode": "complete"}})
        def complete():
            return spark.readStream.table("parsed").groupBy("word").count()

        @dp.table(table_properties={{"delta.enableTypeWidening": WIDENS}})
        def evolving():
            return spark.readStream.table("parsed")
        """
    project.define(text.format(columns="word string, n int", widens="false"))
    produce(world, "sums", [{"word": "a", "n": 1}, {"word": "a", "n": 2}, {"word": "b", "n": 3}])
    project.good_run()
    assert project.rows("updated") == [("a", 3), ("b", 3)]
    assert project.rows("complete") == [("a", 2), ("b", 1)]
    assert project.rows("evolving") == [("a", 1), ("a", 2), ("b", 3)]
    project.define(text.format(columns="word string, n bigint, of string", widens="false"))
    produce(world, "sums", [{"word": "b", "n": 1 << 40, "of": "x"}])
    with pytest.raises(PipelineError, match=r"n bigint is wider, .* set delta.enableTypeWidening to true"):
        project.run(refresh=("evolving",))
    project.define(text.format(columns="word string, n bigint, of string", widens="true"))
    project.good_run()
    assert project.rows("updated") == [("a", 3), ("b", 3 + (1 << 40))]
    assert project.rows("complete") == [("a", 2), ("b", 2)]
    path = str(project.directory / "spark-warehouse" / "evolving")
    rows = sorted(map(tuple, spark.read.format("delta").load(path).collect()))
    assert rows == [("a", 1, None), ("a", 2, None), ("b", 3, None), ("b", 1 << 40, "x")]
    change = "of string is new, n bigint is wider"
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("userMetadata").collect()
    assert f"schema: {change}" in [row.userMetadata for row in history]
    (status,) = (each for each in statuses(project.directory, {}, asks=False) if each.name == "evolving")
    assert change in status.notes


def test_dead_letters_are_given_again_once(world: World, spark: Any, tmp_path: Path) -> None:
    """To the partition that they come from, without the headers that say so."""
    world.create("letters")
    world.create("origin", 2)

    def letter(n: int, partition: int, message: str, **of_connect: str) -> tuple[int, bytes, bytes, Any]:
        names = {"topic": "origin", "partition": str(partition)}
        headers = {f"__{'connect' if of_connect else 'dlq'}.errors.{name}": value for name, value in names.items()}
        headers["__connect.errors.exception.message" if of_connect else "__dlq.errors.message"] = message
        return BASE_MS + n, b"k%d" % n, b"v%d" % n, [*((k, v.encode()) for k, v in headers.items()), ("own", b"h")]

    given = [letter(0, 1, "late", connector="c"), letter(1, 1, "late"), letter(2, 0, "bad")]
    world.produce("letters", 0, [*given, (BASE_MS, b"k3", b"late", ())])
    options = {"kafka.bootstrap.servers": world.servers}
    letters = Letters(
        "letters", options, "message = 'late' OR string(value) = 'late'", {"value": "upper(string(value))"}
    )
    state = LettersDirectory(tmp_path / "redrive")
    for more, kept in (((), 1), ((letter(4, 0, "late"),), 0)):
        world.produce("letters", 0, more)
        with state.alone():
            flow, done = state.give(spark, letters, state.agreed(letters))
        assert (done.is_good, flow.error, sum(flow.failing.values())) == (True, None, kept)
    rows = world.read(subscribe="origin", includeHeaders="true", kafka__isolation__level="read_committed")
    assert [(row.partition, row.key, row.value) for row in rows] == [
        (0, b"k4", b"V4"), (1, b"k0", b"V0"), (1, b"k1", b"V1"),
    ]  # fmt: skip
    assert {tuple(header.key for header in row.headers) for row in rows} == {("own",)}
    with pytest.raises(PipelineError, match="is of other letters"):
        state.agreed(replace(letters, where="true"))
    with pytest.raises(PipelineError, match="--set headers: of a dead letter there are key and value"):
        replace(letters, changes={"headers": "null"})


def test_changes_that_come_late(project: Project, spark: Any) -> None:
    """Also behind a delete, behind one that a change of its own batch has overtaken, and twice: types 1 and 2 have what
    the changes in their order have."""
    place = SourceCodeLocation("a.py", 1)
    first = "('a', 1, 1, 'u'), ('b', 1, 2, 'u'), ('a', 2, 5, 'u'), ('b', 1, 6, 'd'), ('c', 1, 5, 'd'), ('c', 2, 7, 'u')"
    late = "('a', 3, 3, 'u'), ('b', 7, 4, 'u'), ('c', 3, 6, 'u')"
    with Tables(spark, project.specification) as tables:
        for name, kind in (("newest", 1), ("history", 2)):
            flow = ChangeFlow(
                name=name, target=name, source="source", keys=["k"], sequence_by="at", apply_as_deletes="op = 'd'",
                except_column_list=["at", "op"], stored_as_scd_type=kind, source_code_location=place,
            )  # fmt: skip
            changes = Changes(flow, tables, f"default.{name}")
            for number, values in ((0, first), (1, late), (1, late)):
                shaped = changes.shaped(spark.sql(f"SELECT * FROM VALUES {values} AS t (k, v, at, op)"))
                if not number:
                    output = StreamingTable(name, None, place, {}, None, None, None, None)
                    tables.make(f"default.{name}", output, changes.columns(shaped.schema), "evolve")
                changes.apply(shaped, Batch(name, "app", number))
    assert project.rows("newest") == [("a", 2, 5), ("c", 2, 7)]
    assert project.rows("history") == [
        ("a", 1, 1, 3),
        ("a", 2, 5, None),
        ("a", 3, 3, 5),
        ("b", 1, 2, 4),
        ("b", 7, 4, 6),
        ("c", 2, 7, None),
        ("c", 3, 6, 7),
    ]


def test_the_upkeep_of_a_table(project: Project, spark: Any) -> None:
    """Small files become one, what is above half of the size is left alone, old rows and files are removed."""
    place = SourceCodeLocation("a.py", 1)
    properties = {"delta.logRetentionDuration": "interval 8 days"}
    output = StreamingTable("kept", None, place, properties, None, None, None, None)
    settings = {"kalda.optimize.commits": "3", "kalda.retention": "2 days", "kalda.retention.column": "moment"}
    columns = StructType([StructField("moment", TimestampType()), StructField("n", LongType())])
    now = [BASE_MS / 1000]
    with Tables(spark, project.specification) as tables:
        tables.make("default.kept", output, columns, "evolve")
        days = spark.range(3).selectExpr(f"timestamp_millis({BASE_MS} + id * 86400000) AS moment")
        for number in range(3):
            rows = days.selectExpr("moment", f"{number}L AS n")
            tables.append(rows, "default.kept", Batch("f", "app", number))
        keeping = Keeping.of(settings.get, "a.py:1")
        records: dict[str, TableUpkeep] = {}
        upkeep = Upkeep(spark, tables, {"default.kept": (keeping, keeping)}, records, lambda: now[0])
        path = project.directory / "spark-warehouse" / "kept"
        orphan = path / "part-00000-of-nobody.parquet"
        orphan.write_bytes(b"")
        os.utime(orphan, (0, 0))
        before = len(project.files("kept"))
        upkeep.finish()
        record = records["default.kept"]
        assert (record.error, record.merges, record.files_merged, record.merged_version) == (None, 1, before, 4)
        assert len(project.files("kept")) == 1
        assert len(project.rows("kept")) == 9
        upkeep.finish()
        assert record.merges == 1, "there is nothing new"
        now[0] += 3.5 * 86_400
        upkeep.finish()
        assert (record.error, record.rows_deleted, record.vacuums) == (None, 6, 1)
        assert len(project.rows("kept")) == 3
        assert not orphan.exists()
        output.table_properties["delta.logRetentionDuration"] = "interval 9 days"
        tables.make("default.kept", output, columns, "evolve")
    *_, text = (each.read_text(encoding="utf-8") for each in sorted((path / "_delta_log").glob("*.json")))
    assert '"delta.checkpointInterval":"50"' in text, "each of Delta's ten would stop a batch"
    assert '"delta.logRetentionDuration":"interval 9 days"' in text


def test_rows_are_given_again_once_whatever_is_killed(project: Project, spark: Any) -> None:
    """Killed before the work begins, after its rows are in the table, and after they are out of quarantine."""
    (project.directory / "in").mkdir()
    project.define(
        python=f"""
        from kalda.pipeline import expect_or_drop

        @dp.table
        @expect_or_drop("a total", "total > 0")
        def orders():
            return arriving()

        @dp.append_flow(target="orders", name="others")
        @expect_or_drop("a total", "total > 0")
        def flow():
            return arriving()

        def arriving():
            columns = "customer string, total int, at timestamp"
            return spark.readStream.schema(columns).json({str(project.directory / "in")!r})
        """
    )
    rules = [Expectation("a total", "total > 0", "expect_or_drop")]
    values = "('a', -1, timestamp_micros(1)), ('b', -2, NULL), ('c', 0, NULL), ('d', -4, NULL)"
    frame = spark.sql(f"SELECT * FROM VALUES {values} AS t (customer, total, at)")
    bad = judge(frame, rules, None, "orders", 3).bad
    assert bad is not None
    of_others = judge(frame.where("customer = 'd'").withColumn("customer", f.lit("e")), rules, None, "others", 3).bad
    assert of_others is not None
    with Tables(spark, project.specification) as tables:
        tables.append(bad, "default.orders__quarantine", Batch("orders", "app", 3))

    def redrive(where: str) -> dict[str, tuple[int, int]]:
        return redrive_rows(spark, project.specification, Wanted("orders", where, {"total": "-total"}))

    @contextmanager
    def killed_in(owner: Any, name: str, *, after: bool) -> Iterator[None]:
        real = getattr(owner, name)

        def die(*given: Any) -> None:
            if after:
                real(*given)
            raise SystemExit

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises(SystemExit):
                yield

    with killed_in(redrive_module, "replace_text", after=False):
        redrive("value.customer = 'a'")
    assert len(project.rows("orders__quarantine")) == 4
    with killed_in(Tables, "replace", after=False):
        redrive("value.customer = 'a'")
    assert project.rows("orders", "customer") == [("a",)]
    with killed_in(Tables, "replace", after=True):  # while it finishes the work before
        redrive("value.customer = 'b'")
    assert len(project.rows("orders__quarantine")) == 3
    with Tables(spark, project.specification) as tables:
        tables.append(of_others, "default.orders__quarantine", Batch("others", "another app", 3))
    assert redrive("reasons[0] = 'a total' AND batch = 3") == {"orders": (2, 1), "others": (1, 0)}
    micro = datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    assert project.rows("orders") == [("a", 1, micro), ("b", 2, None), ("d", 4, None), ("e", 4, None)]
    ((flow, batch, row),) = project.rows("orders__quarantine", "flow", "batch", "row")
    assert (flow, batch, row) == ("orders", 3, '{"customer":"c","total":0}')
    assert not (project.specification.state / "redrive.json").exists()
    with pytest.raises(PipelineError, match=r"redrive others: there are default\.orders"):
        redrive_rows(spark, project.specification, Wanted("others"))


def test_rows_that_a_table_does_not_take(project: Project, spark: Any) -> None:
    frame = spark.sql("SELECT * FROM VALUES ('a', 1, NULL), (NULL, 2, NULL), ('c', 300, 'x') AS t (k, v, more)")
    table = StructType([StructField("k", StringType()), StructField("v", ByteType())])
    rules = [Expectation("a key", "k IS NOT NULL", "expect_or_drop"), Expectation("small", "v < 2", "expect")]
    frozen = judge(frame, rules, fit(frame, table, "freeze"), "f", 0)
    assert frozen.counts == {"a key": 1, "small": 2, "kalda.schema.contract = freeze": 1}
    assert [tuple(row) for row in frozen.good.collect()] == [("a", 1)]
    assert frozen.bad is not None
    bad = {row["row"]: row["reasons"] for row in frozen.bad.collect()}
    assert bad == {'{"v":2}': ["a key"], '{"k":"c","v":300,"more":"x"}': ["kalda.schema.contract = freeze"]}
    rescued = judge(frame, (), fit(frame, table, "rescue"), "f", 0)
    assert [tuple(row) for row in rescued.good.collect()] == [
        ("a", 1, None),
        (None, 2, None),
        ("c", None, '{"v":300,"more":"x"}'),
    ]
    decoded = frame.withColumn("_rescued", f.lit("{}"))
    rescued = judge(decoded, (), fit(decoded, table, "rescue"), "f", 0)
    assert [row[2] for row in rescued.good.collect()] == ["{}", "{}", '{"v":300,"more":"x","_rescued":"{}"}']
    with pytest.raises(ExpectationFailed, match=r"small .* fails for 2 rows"):
        judge(frame, [Expectation("small", "v < 2", "expect_or_fail")], None, "f", 0)


def test_values_are_decoded(project: Project, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a registry's schemas, of which one is newer than the flow, and as Debezium's changes: what a value has more
    starts the flow again, with columns for it, and what is no value is in quarantine."""
    with SchemaRegistry() as schemas:
        client = SchemaRegistryClient({"url": schemas.url})
        kinds = [{"name": "n", "type": "int"}, {"name": "s", "type": ["null", "string"], "default": None}]
        texts = [json.dumps({"type": "record", "name": "R", "fields": kinds[:count]}) for count in (1, 2)]
        ids = [client.register_schema("coded-value", Schema(text, "AVRO")) for text in texts]
        prefix = [b"\0" + number.to_bytes(4, "big") for number in (*ids, 99)]
        stale = Subject("coded-value", RegisteredSchema("AVRO", texts[0]), frozenset(ids[:1]))
        answers = [stale, stale]  # of the graph and of the first start
        asked = registry.subject_of
        monkeypatch.setattr(registry, "subject_of", lambda url, name: answers.pop() if answers else asked(url, name))
        world.create("coded")
        values = [prefix[0] + b"\x02", prefix[1] + b"\x04\x02\x02x", prefix[2] + b"\x02", b"{", None]
        world.produce("coded", 0, [(BASE_MS, None, value, [("h", b"1")]) for value in values])
        world.create("changes")
        rows = [("c", {"id": 1, "name": "a"}), ("c", {"id": 2, "name": "b"}), ("u", {"id": 1, "name": "c"})]
        records = [(BASE_MS, None, change(op, row), ()) for op, row in [*rows, ("d", {"id": 2, "name": None})]]
        world.produce("changes", 0, [*records, (BASE_MS, None, None, ())])
        project.define(
            f"""
            from kalda.pipeline import debezium, decoded, expect_or_drop

            @dp.table(table_properties={{"kalda.restart.backoff.ms": "1"}})
            @expect_or_drop("decoded", "reason IS NULL")
            def rows():
                found = decoded(topic("coded"), "registry", registry={schemas.url!r}, subject="coded-value",
                    new_fields="restart")
                return found.select("value.*", "_rescued", "raw", "reason")

            @dp.temporary_view
            def changes():
                return debezium(topic("changes"), new_fields="restart").select("value.*", "deleted", "offset")

            dp.create_streaming_table("people")
            dp.create_auto_cdc_flow("people", "changes", keys=["id"], sequence_by="offset", apply_as_deletes="deleted",
                except_column_list=["deleted", "offset"])
            """
        )
        reports = project.good_run()
    assert reports["rows"].restarts == 1
    assert project.rows("rows", "n", "s") == [(1, None), (2, "x"), (None, None)]
    bad = [json.loads(row) for (row,) in project.rows("rows__quarantine", "row")]
    assert [each["reason"].partition(" begin")[0] for each in bad] == [
        "the schema registry has no schema with the id 99",
        "the value does not",
    ]
    assert project.rows("people", "id", "name") == [(1, "c")]


OUTSIDE = """
from kalda.pipeline import connection, expect_or_drop

@dp.temporary_view
def orders():
    return spark.readStream.schema("k string, v int").json(ARRIVING)

WAREHOUSE = {"kalda.connection": "warehouse"}
dp.create_sink("newest", "jdbc", {**WAREHOUSE, "dbtable": "newest", "kalda.keys": "k"})
dp.create_sink("all", "jdbc", {**WAREHOUSE, "dbtable": "public.all_orders"})
dp.create_sink("files", "parquet", {"path": "out"})

for sink in ("newest", "all", "files"):
    @dp.append_flow(target=sink, name=f"to_{sink}")
    def flow():
        return spark.readStream.table("orders")

@dp.table(table_properties={"kalda.incremental.column": "at"})
@expect_or_drop("a total", "total is not null")
def increments():
    return spark.read.format("jdbc").options(**connection("warehouse")).option("dbtable", "source").load()
"""


def test_a_database_and_files(project: Project, spark: Any, tmp_path: Path) -> None:
    """Batches into a table of PostgreSQL, once each and by keys, and from one, by a column that grows; files in and
    out. Definitions, plans and checkpoints have no password."""
    if (lacks := missing()) is not None:
        pytest.skip(lacks)
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "1.json").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": 2}\n', encoding="utf-8")
    with Postgres() as database:
        with profiles_path().open("a", encoding="utf-8") as file:
            file.write(f"[warehouse]\nurl = {database.url!r}\nuser = 'postgres'\npassword = 'a secret'\n")
        database.run("CREATE TABLE source (id int, at timestamptz, total numeric(10,2))")
        database.run("INSERT INTO source VALUES (1, '2026-01-01', 1.5), (2, '2026-01-02', NULL), (3, NULL, 3)")
        project.define(f"ARRIVING = {str(tmp_path / 'arriving')!r}\n" + OUTSIDE)
        project.good_run()
        assert database.run("SELECT * FROM newest ORDER BY 1") == [["a", "1"], ["b", "2"]]
        (tmp_path / "arriving" / "2.json").write_text('{"k": "b", "v": 3}\n', encoding="utf-8")
        database.run("INSERT INTO source VALUES (4, '2026-01-03', 4), (5, '2026-01-01', 5)")
        project.good_run()
        assert database.run("SELECT * FROM newest ORDER BY 1") == [["a", "1"], ["b", "3"]]
        assert database.run("SELECT * FROM all_orders ORDER BY 2") == [["a", "1"], ["b", "2"], ["b", "3"]]

        # A batch that is run again: with its number there, and without it, over what a killed run has left aside.
        table = JdbcTable(spark, {**connection("warehouse"), "dbtable": "all_orders"}, "here")
        rows = spark.sql("SELECT 'c' AS k, 9 AS v")
        table.write(rows, Batch("f", "app-1", 7))
        table.write(rows, Batch("f", "app-1", 7))
        assert database.run("SELECT k FROM all_orders WHERE v = 9") == [["c"]]
        aside = f"kalda_{sha256(b'app-1 all_orders').hexdigest()[:16]}"
        database.run(f"CREATE TABLE {aside} (x int)")
        table.write(rows, Batch("f", "app-1", 8))
        assert database.run("SELECT count(*) FROM all_orders WHERE v = 9") == [["2"]]
        with pytest.raises(PipelineError, match='here: table all_orders: ERROR: column "other" does not exist'):
            table.write(rows.withColumnRenamed("v", "other"), Batch("f", "app-1", 9))
    with pytest.raises(Unavailable, match=r"here: table all_orders: Connection to 127\.0\.0\.1:\d+ refused"):
        table.write(rows, Batch("f", "app-1", 9))
    assert [(row[0], str(row[1])) for row in project.rows("increments", "id", "total")] == [(1, "1.50"), (4, "4.00")]
    assert [json.loads(row)["id"] for (row,) in project.rows("increments__quarantine", "row")] == [2]
    assert sorted((row.k, row.v) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        ("a", 1),
        ("b", 2),
        ("b", 3),
    ]
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"a secret" in text]


def change(op: str, row: dict[str, Any]) -> bytes:
    """As Debezium's converter writes it, with the schema of the row."""
    columns = [{"field": "id", "type": "int32"}, {"field": "name", "type": "string"}]
    fields = [{"field": name, "type": "struct", "fields": columns} for name in ("before", "after")]
    parts = {"before": row if op == "d" else None, "after": None if op == "d" else row, "op": op}
    return json.dumps({"schema": {"fields": fields}, "payload": parts}).encode()
