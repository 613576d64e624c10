"""Projects of `pyspark.pipelines` without Java: the file, definitions in Python and SQL, what is wrong with them."""

from __future__ import annotations

import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark.pipelines", exc_type=ImportError)
pytest.importorskip("grpc", exc_type=ImportError)

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kalda.clientcore.connections.errors import Backoff
from kalda.pipeline.engine.engine import Engine, interval_s, running_alone, table_columns
from kalda.pipeline.engine.query import StopEvent
from kalda.pipeline.engine.runs import FlowReport, FlowState, Restarts
from kalda.pipeline.projects.check import problems_without_spark, read_project
from kalda.pipeline.projects.definitions import ChangeFlow, SqlQuery, references_of, statements_of
from kalda.pipeline.projects.graph import downstream, ordered
from kalda.pipeline.projects.specification import read_specification
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.changes import names_of
from kalda.pipeline.tables.contracts import difference

TOPIC = """
def topic(name):
    return spark.readStream.format("kalda").option("kafka.bootstrap.servers", "nowhere:1").option("subscribe", name)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "definitions").mkdir()
    write(tmp_path, "spark-pipeline.yml", "name: p\nstorage: s\nlibraries: [{glob: {include: 'definitions/**'}}]\n")
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / name).write_text(textwrap.dedent(text), encoding="utf-8")


def define(project: Path, python: str) -> None:
    head = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession, functions as F\n"
    write(project, "definitions/a.py", head + "spark = SparkSession.active()\n" + TOPIC + textwrap.dedent(python))


def problems(project: Path) -> list[str]:
    found = problems_without_spark(read_specification(project), ask=False)
    return [each.replace(str(project / "definitions") + "/", "") for each in found]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "an object with name, storage"),
        ("name: p\nstorage: s\nother: 1", "has no field other"),
        ("name: p", "storage is None"),
        ("name: p\nstorage: ftp://bucket/x", "neither a directory nor a URI of s3, s3a, gs"),
        ("name: p\nstorage: s\nconfiguration: {a: 1}", "a is 1; write it in quotes"),
        ("name: p\nstorage: s\nlibraries: [x.py]", "libraries has 'x.py'"),
        ("name: p\nstorage: s\nlibraries: [{glob: {include: 'a/**/*.py'}}]", "a folder with /\\*\\* behind it"),
        ("name: p\nstorage: s\ncatalog: other", "catalog is 'other'"),
        ("name: [", "expected"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, "spark-pipeline.yml", text)
    with pytest.raises(PipelineError, match=problem):
        read_specification(tmp_path)


def test_places(tmp_path: Path) -> None:
    write(tmp_path, "spark-pipeline.yaml", f"name: p\nstorage: file://{tmp_path}/a%20b\nschema: Sales\n")
    specification = read_specification(tmp_path)
    assert specification.storage == tmp_path / "a b"
    assert specification.place("sales.orders") == tmp_path / "spark-warehouse" / "sales.db" / "orders"
    assert specification.place("default.orders") == tmp_path / "spark-warehouse" / "orders"


def test_flows_are_read_without_java(project: Path) -> None:
    define(
        project,
        """
        @dp.table
        def late():
            return spark.readStream.table("words").withWatermark("t", "1 minute").drop("p").where(F.col("word") != "")

        @dp.table
        def words():
            return topic("in").load().selectExpr("cast(value as string) AS word", "timestamp")

        @dp.materialized_view
        def counts():
            return spark.sql("SELECT word FROM words").groupBy("word").count()

        @dp.materialized_view
        def asks():
            return spark.table("counts").select(*spark.table("counts").columns)
        """,
    )
    found = read_project(read_specification(project))
    assert found is not None
    readings = found[1]
    assert readings["late"].tables == {"words": True}
    assert readings["words"].sources[0].options["subscribe"] == "in"
    assert readings["words"].columns == ("word", "timestamp")
    assert readings["counts"].sql_tables == {"words": False}
    assert readings["asks"].unknown is not None
    assert problems(project) == []


def test_what_is_wrong_is_told_without_java(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(
        project,
        """
        @dp.table
        def first():
            return spark.readStream.table("missing")

        @dp.materialized_view
        def a():
            return spark.read.table("b")

        @dp.materialized_view
        def b():
            return spark.read.table("a")

        @dp.table
        def c():
            return spark.readStream.table("a")

        dp.create_sink("out", "kalda", {"kafka.bootstrap.servers": "nowhere:1", "topic": "t"})

        @dp.append_flow(target="out")
        def publish():
            return topic("in").option("startingOfsets", "latest").load().select("key", "topic")

        dp.create_sink("ice", "iceberg", {"path": "db.t"})

        @dp.append_flow(target="ice")
        def freeze():
            return spark.readStream.format("iceberg").load("db.s")
        """,
    )
    monkeypatch.setattr("kalda.pipeline.session._spark_version", lambda: "4.2.1")
    found = problems(project)
    assert found[0] == "a.py:8: first reads missing, which the project does not define"
    assert "a.py:20: c reads a as a stream" in found[1]
    assert "default.a -> default.b -> default.a" in found[2] or "default.b -> default.a -> default.b" in found[2]
    assert "the nearest is startingOffsets" in found[3]
    assert found[4] == "a.py:26: sink out needs a column value; publish has key, topic"
    assert found[5].startswith("a.py:32: no jar of iceberg is known for PySpark 4.2.1: there is one for PySpark 4.1")
    assert found[6].startswith("a.py:30: sink ice: no jar of iceberg is known for PySpark 4.2.1")
    assert len(found) == 7
    name = "org.example:iceberg-of-another-version:1"
    with (project / "spark-pipeline.yml").open("a", encoding="utf-8") as file:
        file.write(f"configuration: {{spark.jars.packages: '{name}'}}\n")
    assert not any("iceberg" in each for each in problems(project))


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("nothing", "a.py:7: NameError"),
        ("def (", "a.py:7"),
        ("dp.create_streaming_table('t')", "a.py:7: no flow writes t"),
        ("@dp.append_flow(target='x')\ndef f(): ...", "a.py:7: flow f has the target x"),
        ("dp.create_streaming_table('t', format='parquet')", "t has format parquet"),
        ("@dp.table\ndef t(): ...\n@dp.table(name='T')\ndef u(): ...", "a.py:9: default.t is defined in .*a.py:7"),
    ],
)
def test_wrong_definitions_have_a_place(project: Path, python: str, problem: str) -> None:
    define(project, python)
    with pytest.raises(PipelineError, match=problem):
        problems(project)


def test_statements() -> None:
    found = list(
        statements_of(
            """
            SET spark.x = 'y'; -- a comment; with a sign
            CREATE OR REFRESH STREAMING TABLE a.b (x INT COMMENT 'k)', y STRING) USING delta PARTITIONED BY (x)
                TBLPROPERTIES ('kalda.keys' = 'x;y', plain.key = "it''s") AS SELECT ';' AS x FROM STREAM c;
            CREATE MATERIALIZED VIEW IF NOT EXISTS v COMMENT 'it''s' AS SELECT 1;
            CREATE TEMPORARY VIEW t AS SELECT 2;
            CREATE STREAMING TABLE target;
            CREATE FLOW f AS INSERT INTO target BY NAME SELECT * FROM STREAM(a.b);
            CREATE FLOW g AS AUTO CDC INTO target FROM STREAM(t) KEYS (id, `other one`)
                APPLY AS DELETE WHEN op IN ('d', 't') SEQUENCE BY struct(ts, n) COLUMNS * EXCEPT (op)
                STORED AS SCD TYPE 2;
            """,
            "x.sql",
        )
    )
    outputs = [output for output, _ in found]
    flows = [flow for _, flow in found]
    table, view = outputs[0], outputs[1]
    assert isinstance(table, StreamingTable)
    assert (table.name, table.schema, table.partition_cols) == ("a.b", "x INT COMMENT 'k)', y STRING", ["x"])
    assert table.table_properties["kalda.keys"] == "x;y"
    assert table.source_code_location.line_number == 3
    assert isinstance(view, MaterializedView)
    assert view.comment == "it's"
    assert isinstance(outputs[2], TemporaryView)
    assert flows[0] is not None
    assert isinstance(flows[0], Flow)
    assert flows[0].spark_conf == {"spark.x": "y"}
    assert flows[0].func == SqlQuery("SELECT ';' AS x FROM STREAM c")
    assert flows[3] is None
    changes = flows[5]
    assert isinstance(changes, ChangeFlow)
    assert names_of(changes.keys) == ["id", "other one"]
    assert str(changes.apply_as_deletes) == "op IN ('d', 't')"
    assert str(changes.sequence_by) == "struct(ts, n)"
    assert str(changes.stored_as_scd_type) == "2"


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT 1", "x.sql:1: a statement of a pipeline begins with CREATE or SET"),
        ("\nCREATE TABLE x", "x.sql:2: STREAMING TABLE"),
        ("CREATE MATERIALIZED VIEW v", "a query is expected"),
        ("CREATE STREAMING TABLE t (x INT", "ends too soon"),
        ("CREATE FLOW f AS INSERT INTO t SELECT 1", "BY is expected, and there is SELECT"),
        ("CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a)", "SEQUENCE BY expression"),
        ("CREATE STREAMING TABLE t LIKE x", "LIKE is not expected"),
    ],
)
def test_wrong_statements(sql: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        list(statements_of(sql, "x.sql"))


def test_references() -> None:
    sql = "WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN STREAM(x.y) ON 1=1 JOIN explode(z) WHERE 'FROM q' = 1"
    assert references_of(sql) == [("a", False), ("x.y", True)]


def test_the_order_and_what_is_behind() -> None:
    inputs = {"c": {"b"}, "b": {"a"}, "a": set(), "d": {"a"}}
    found = ordered(inputs)
    assert [found.index(name) for name in "abc"] == sorted(found.index(name) for name in "abc")
    assert downstream(inputs, {"b"}) == {"c"}
    with pytest.raises(PipelineError, match="read each other in a circle"):
        ordered({"a": {"b"}, "b": {"a"}})


def test_a_second_run_is_refused_by_name(project: Path) -> None:
    specification = read_specification(project)
    with (
        running_alone(specification),
        pytest.raises(PipelineError, match=r"project p .*another run"),
        running_alone(specification),
    ):
        pass
    with running_alone(specification):
        pass


LOST = ConnectionError("no broker is reached")


def test_what_would_fail_again_is_not_started_again() -> None:
    restarts = Restarts(Backoff(1_000, 5_000, lambda: 0.5))
    assert restarts.pause_s(PipelineError("no such table"), 0) is None
    assert restarts.pause_s(RuntimeError("[STREAM_FAILED] org.apache.spark.sql.AnalysisException: x"), 0) is None
    assert restarts.pause_s(LOST, 0) == 1.0


def test_pauses_double_until_a_batch_ends() -> None:
    restarts = Restarts(Backoff(1_000, 5_000, lambda: 0.5), 5)
    assert [restarts.pause_s(LOST, 0) for _ in range(3)] == [1.0, 2.0, 4.0]
    assert restarts.pause_s(LOST, 1) == 1.0
    assert [restarts.pause_s(LOST, 1) for _ in range(4)] == [2.0, 4.0, 5.0, None]


def test_flows_that_fail_together_start_again_at_different_moments() -> None:
    numbers = Random(7)
    flows = [Restarts(Backoff(1_000, 60_000, numbers.random)) for _ in range(20)]
    pauses = [flow.pause_s(LOST, 0) for flow in flows]
    assert len(set(pauses)) > 15
    assert all(0.8 <= pause <= 1.2 for pause in pauses if pause is not None)
    assert None not in pauses


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_differences_of_columns() -> None:
    within = columns(x=IntegerType())
    table = columns(a=IntegerType(), b=StringType(), c=within, d=DecimalType(10, 2), e=FloatType())
    frame = columns(
        A=LongType(), b=IntegerType(), c=columns(x=IntegerType(), y=IntegerType()), d=DecimalType(12, 2), e=FloatType(),
        f=DateType(),
    )  # fmt: skip
    found = difference(table, frame)
    assert [field.name for field in found.new] == ["c", "f"]
    assert [field.name for field in found.wider] == ["A", "d"]
    assert [field.name for field in found.other] == ["b"]
    assert difference(frame, columns(a=IntegerType())).text == ""


def test_columns_of_a_table() -> None:
    declared, free = (
        StreamingTable("t", None, SourceCodeLocation("x.py", 1), {}, None, None, schema, None)
        for schema in (columns(a=IntegerType()), None)
    )
    needed = StructType([StructField("a", IntegerType(), nullable=False), StructField("b", StringType())])
    shapes = [needed, columns(a=LongType(), c=DateType())]
    assert table_columns(free, shapes, "evolve") == columns(a=LongType(), b=StringType(), c=DateType())
    assert table_columns(declared, shapes, "freeze") == columns(a=IntegerType())
    assert table_columns(declared, shapes, "rescue") == columns(a=IntegerType(), _rescued=StringType())


def test_intervals() -> None:
    assert interval_s("5 seconds", "k") == 5
    assert interval_s("250 ms", "k") == 0.25
    with pytest.raises(PipelineError, match="k is 'soon'"):
        interval_s("soon", "k")


def test_flows_are_stopped_beside_each_other() -> None:
    together = threading.Barrier(2, timeout=30)
    reports = [FlowReport(name, name, "StreamingTable", FlowState.RUNNING) for name in ("a", "b")]
    runs = [SimpleNamespace(report=each, stop=together.wait) for each in reports]
    engine = SimpleNamespace(runs=runs, threads=ThreadPoolExecutor(1), upkeep=SimpleNamespace(close=lambda: None))
    stopped = StopEvent()
    stopped.set()
    Engine._run(cast(Any, engine), stopped, lambda **_: None)
    assert [each.error for each in reports] == [None, None]
