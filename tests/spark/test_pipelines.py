"""Pipelines in a real session with a real node: every record of the log is in the table once, and the other way."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from deltalake import DeltaTable
from quick_spark import SETTINGS
from topics import append

from kalda import Admin, Consumer, Producer
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.pipeline import files, records_of
from kalda.pipeline.engine.engine import RunOptions, RunResult, run_project
from kalda.pipeline.engine.runs import FlowReport
from kalda.pipeline.engine.status import statuses
from kalda.pipeline.formats.values import ValueFormat, infer_schema, with_values
from kalda.pipeline.generators.conversion import convert
from kalda.pipeline.generators.derive import DerivedDirectory, read_derived
from kalda.pipeline.generators.load import QUARANTINE, Lake, LoadSettings
from kalda.pipeline.generators.replay import ReplaySettings, replay
from kalda.pipeline.generators.snapshot import Snapshot, SnapshotTable
from kalda.pipeline.session import PipelineError, prepare
from kalda.testing import Cluster

pytestmark = pytest.mark.spark
ROUNDS = int(os.environ.get("KALDA_PIPELINE_ROUNDS", "1"))
"""How often a load is killed."""
BIG_BYTES = 20_000_000
Logged = dict[tuple[int, int], tuple[bytes | None, bytes | None]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config={"message.max.bytes": BIG_BYTES + 100_000}) as one:
        yield one


@pytest.fixture(scope="module")
def session(spark: Any, has_delta: bool) -> Any:
    """The session of all tests of the suite, with what a pipeline's session has."""
    if not has_delta:
        pytest.skip("needs the jars of Delta, see KALDA_DELTA_JARS")
    prepare(spark)
    return spark


@pytest.fixture
def options(cluster: Cluster) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers}


def producer(cluster: Cluster, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, **more})


def logged(cluster: Cluster, topic: str, partitions: int) -> Logged:
    """Every record of the topic, by partition and offset, read by a plain consumer."""
    found: Logged = {}
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "isolation.level": "read_committed"}) as consumer:
        every = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(every)
        consumer.seek_to_beginning(*every)
        ends = consumer.end_offsets(*every)
        while any(consumer.position(one) < ends[one] for one in every):
            for record in consumer.poll(1.0):
                found[record.partition, record.offset] = (record.key, record.value)
    return found


def load(session: Any, lake: Lake, settings: LoadSettings) -> FlowReport:
    """Load to the topics' ends."""
    with lake.alone():
        flow, done = lake.load(session, lake.agreed(settings))
    assert flow.error is None
    assert done.is_good
    return flow


def assert_each_row_once(lake: Lake, log: Logged) -> None:
    """For readers that are not Spark."""
    found = DeltaTable(lake.table)
    places = {
        "deltalake": found.to_pyarrow_table(columns=["partition", "offset"]).to_pylist(),
        "pyarrow": found.to_pyarrow_dataset().to_table(columns=["partition", "offset"]).to_pylist(),
    }
    places["duckdb"] = (
        duckdb.from_arrow(found.to_pyarrow_dataset()).project('partition, "offset"').to_arrow_table().to_pylist()
    )
    for reader, rows in places.items():
        assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(log), reader


def test_a_load_has_every_record_once_and_quarantines_what_is_wrong(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("orders", partitions=3)
    with producer(cluster) as made:
        for n in range(300):
            bad = b"\xff\xfe" if n % 20 else b"{not JSON"
            headers = [("h", b"1"), ("n", None)] if n % 3 else None
            made.send("orders", bad if n % 10 == 0 else b'{"n": %d}' % n, b"k%d" % n, n % 2, headers=headers)
        made.send("orders", None, b"tombstone", 0)
    name = "a lake; é#1,$x"
    (tmp_path / "beside").mkdir()
    (tmp_path / "link").symlink_to(name)
    lake = Lake(tmp_path / "beside" / ".." / name)
    load(session, lake, LoadSettings(("orders",), options, value="json", schema="infer", rows_a_batch=160))
    assert lake.state()["schema"] == "n BIGINT"  # type: ignore[index]
    rows = {(row.partition, row.offset): row for row in lake.frame(session).collect()}
    bad_rows = {(row.partition, row.offset): row for row in lake.frame(session, QUARANTINE).collect()}
    log = logged(cluster, "orders", 3)
    assert not rows.keys() & bad_rows.keys()
    assert rows.keys() | bad_rows.keys() == log.keys()
    for place, row in rows.items():
        value = log[place][1]
        assert (bytes(row.key), row.value and row.value.n) == (log[place][0], value and json.loads(value)["n"])
    assert {(bytes(row.raw), row.reason) for row in bad_rows.values()} == {
        (b"\xff\xfe", "the value is not UTF-8: byte 0 is 0xff"),
        (b"{not JSON", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
    }
    assert {(one.key, one.value) for row in rows.values() for one in row.headers or ()} == {("h", b"1"), ("n", None)}

    with producer(cluster) as made:
        made.send("orders", b'{"n": 1000}', None, 2)
    assert load(session, Lake(tmp_path / "link"), LoadSettings((), options)).rows == 1
    counts = {(row["table"], row["partition"]): row["rows"] for row in lake.totals(session)}
    assert counts == {("events", 0): 121, ("quarantine", 0): 30, ("events", 1): 150, ("events", 2): 1}
    assert_each_row_once(lake, logged(cluster, "orders", 3))
    (status,) = statuses(lake.path, options)
    assert (status.lag, sum(status.done.values()), status.state) == (0, 302, "done")
    with pytest.raises(PipelineError, match="value is 'json', not 'string'"):
        load(session, lake, LoadSettings((), options, value="string"))
    wrong = Lake(tmp_path / "wrong")
    with pytest.raises(PipelineError, match="no-such-topic"):
        load(session, wrong, LoadSettings(("no-such-topic",), options))
    with pytest.raises(PipelineError, match=r"values as json: .*PARSE_SYNTAX_ERROR"):
        load(session, wrong, LoadSettings(("orders",), options, value="json", schema="n int!"))
    with pytest.raises(PipelineError, match="option startingOffsets: use --from"):
        load(session, wrong, LoadSettings(("orders",), options | {"startingoffsets": "latest"}))
    assert wrong.state() is None  # a misspelt topic, schema or option begins no lake
    # The project is the user's once it was edited: it runs as it stands.
    file = lake.path / "definitions" / "load.py"
    file.write_text(file.read_text().replace("'quarantine'", "'bad'"))
    with producer(cluster) as made:
        made.send("orders", b"{", None, 2)
    assert load(session, lake, LoadSettings((), options)).rows == 1
    assert lake.frame(session, "bad").count() == 1
    (lake.path / "_kalda" / "kalda" / "checkpoints" / "records").rename(tmp_path / "removed")
    with pytest.raises(PipelineError, match="its checkpoint was removed"):
        load(session, lake, LoadSettings((), options))
    assert lake.frame(session).count() == 272


def test_a_value_is_one_json_object_and_nothing_else(session: Any) -> None:
    """Spark's own parser ends behind the first object: the rest would be lost without an error."""
    good = ['{"n": 1}', ' {"n":1}\n', '{"n":1,"s":"x"}', '{"n":1,"new":[{}]}', '{"n":null}', "{}"]
    two = ['{"n":1}{"n":2}', '{"n":1},{"n":2}', '{"n":1},', '{"n":1}}', '{"n":1} x', '{"n":1}\0', '{"n":1}],"x":[2']
    none = ["", " ", "null", "5", '"x"', '[{"n":1}]', '{"n":1', '{"n":"x"}', '{"n":1,"o":{"p":"x"}}', '\ufeff{"n":1}']
    records = session.createDataFrame(
        [(bytearray(each, "utf-8"), datetime.now(UTC)) for each in good + two + none],
        "value binary, timestamp timestamp",
    )
    rows = with_values(records, ValueFormat("json", "n int, s string, `o` struct<p: int>")).collect()
    assert [bytes(row.raw or b"").decode() for row in rows if row.reason is not None] == [*two[:-1], *none]
    assert [row.value.n for row in rows if row.reason is None] == [1, 1, 1, 1, None, None, 1]
    assert all(row.value is None for row in rows if row.reason is not None)


def decimal(number: int) -> str:
    """As Debezium writes it: the bytes of two's complement in base64."""
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, signed=True)).decode()


def decoded(session: Any, schema: str, *values: object) -> list[Any]:
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    rows = [(None if text is None else bytearray(text, "utf-8"), datetime.now(UTC)) for text in texts]
    records = session.createDataFrame(rows, "value binary, timestamp timestamp")
    found: list[Any] = with_values(records, ValueFormat("json", schema)).collect()
    return found


def test_what_a_schema_does_not_have_is_rescued(session: Any) -> None:
    schema = "n int, o struct<p: int, q: array<struct<r: int>>>"
    rows = decoded(
        session,
        schema,
        {"n": 1, "o": {"p": 1, "q": [{"r": 1}]}},
        {"n": 1, "new": [{"x": None}], "m": "1"},
        {"n": 1, "o": {"p": 1, "new": 2}},
        {"o": {"p": 1, "q": [{"r": 1}, {"R": 2}]}},
        '{"n": 1, "m": 2, "m": 3}',
        {},
        None,
        '{"n" : 1, "o" : {"p"\t: 1, "z"\n:2}}',
        {"n": 1, "o": {"p": 1, "z": None}},
        {"n": None, "o": {"p": None, "q": [None, {"r": 3}]}},
    )
    assert [row.reason for row in rows] == [None] * len(rows)
    assert [row["_rescued"] and json.loads(row["_rescued"]) for row in rows] == [
        None,
        {"new": [{"x": None}], "m": "1"},
        {"o": {"p": 1, "new": 2}},
        {"o": {"p": 1, "q": [{"r": 1}, {"R": 2}]}},
        {"n": 1, "m": 3},
        None,
        None,
        {"o": {"p": 1, "z": 2}},
        {"o": {"p": 1, "z": None}},
        None,
    ]
    assert rows[4]["_rescued"] == '{"n": 1, "m": 2, "m": 3}'  # no field is taken for another one
    assert (rows[5].value.n, rows[6].value) == (None, None)  # an object without fields, and no value


def test_decimals_and_times_as_debezium_writes_them(session: Any) -> None:
    schema = (
        "amount decimal(12,2) comment 'base64', made timestamp comment 'micros', day date comment 'days', "
        "ms timestamp comment 'millis', ns timestamp comment 'nanos', "
        "w struct<big: decimal(38,3) comment 'base64', t: array<struct<d: date comment 'days'>>>"
    )
    big = 10**38 - 1
    good = {
        "amount": decimal(-12345),
        "made": 1_700_000_000_123_456,
        "day": -1,
        "ms": -1,
        "ns": 1_700_000_000_123_456_789,
    }
    bad = [
        {"amount": "!!"},
        {"amount": decimal(10**12)},
        {"day": 10**7},
        {"w": {"t": [{}, {"d": 10**8}]}},
        {"ms": 2**62},
    ]
    rows = decoded(session, schema, {**good, "w": {"big": decimal(-big), "t": [{"d": 0}, {}]}}, {"w": None}, *bad)
    assert rows[0].value.asDict(recursive=True) == {
        "amount": Decimal("-123.45"),
        "made": datetime(2023, 11, 14, 22, 13, 20, 123_456),
        "day": date(1969, 12, 31),
        "ms": datetime(1969, 12, 31, 23, 59, 59, 999_000),
        "ns": datetime(2023, 11, 14, 22, 13, 20, 123_456),
        "w": {"big": Decimal(-big).scaleb(-3, Context(prec=38)), "t": [{"d": date(1970, 1, 1)}, {"d": None}]},
    }
    assert [row.reason for row in rows] == [
        None,
        None,
        'field amount is "!!", not a decimal(12,2) in base64',
        f'field amount is "{decimal(10**12)}", not a decimal(12,2) in base64',
        "field day is 10000000, not a date in days since 1970 of the years 1 to 9999",
        "field w.t[1].d is 100000000, not a date in days since 1970 of the years 1 to 9999",
        f"field ms is {2**62}, not a timestamp in millis since 1970 of the years 1 to 9999",
    ]


def test_an_inferred_schema_has_names_of_any_letters(session: Any) -> None:
    text = '{"user-id": 1, "a`b": {"first name": "x", "c.d": [{"e-f": 2}]}}'
    records = session.createDataFrame(
        [(bytearray(text, "utf-8"), datetime.now(UTC))], "value binary, timestamp timestamp"
    )
    schema = infer_schema(records)
    (row,) = with_values(records, ValueFormat("json", schema)).collect()
    assert row.reason is None
    assert row.value.asDict(recursive=True) == json.loads(text)
    frame = session.createDataFrame([(1, "x")], ["user-id", "c.d"])
    (record,) = records_of(frame, "c.d").collect()
    assert (record.key, json.loads(record.value)) == (b"x", {"user-id": 1, "c.d": "x"})


def test_names_that_differ_in_case_and_very_many_end_in_quarantine(session: Any) -> None:
    """One such record kept a topic from ever being loaded: no table has two such columns, nor 20,000."""
    good = ['{"total": 1, "o": {"x": 1}}', '{"total": 2}', '{"total": 3, "o": {"x": 2, "X": 3}}']
    case = ['{"Total": 4}', '{"total": 5, "TOTAL": 6}']
    many = [json.dumps({f"f{n}": n for n in range(20_000)})]
    records = session.createDataFrame(
        [(bytearray(each, "utf-8"), datetime.now(UTC)) for each in good + case + many],
        "value binary, timestamp timestamp",
    )
    schema = infer_schema(records)
    assert schema == "o STRUCT<x: BIGINT>,total BIGINT"
    rows = with_values(records, ValueFormat("json", schema)).collect()
    assert [row.reason for row in rows] == [
        *([None] * len(good)),
        "field Total differs from total of the schema in case only",
        "field TOTAL differs from total of the schema in case only",
        "the object has more than 1000 fields",
    ]
    assert [row.value.total for row in rows[: len(good)]] == [1, 2, 3]
    assert [bytes(row.raw).decode() for row in rows[len(good) :]] == case + many


def test_the_columns_of_records_with_a_name_each(session: Any) -> None:
    texts = [json.dumps({f"user-{n}": n, "at": n}) for n in range(1_500)]
    records = session.createDataFrame(
        [(bytearray(each, "utf-8"), datetime.now(UTC)) for each in texts], "value binary, timestamp timestamp"
    )
    schema = infer_schema(records)
    assert schema.startswith("at BIGINT,")
    assert schema.count(",") == 999


def test_times_that_are_no_dates(session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path) -> None:
    """A time of no year with four digits has no date. A record whose time Spark does not have is in quarantine: it
    does not end a load, nor a query of a project, nor a snapshot."""
    anything = {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1}
    cluster.create_topic("times", configs=anything | {"cleanup.policy": "compact,delete"})
    cluster.create_topic("seen")
    last_ms = (2**63 - 1) // 1000
    times_ms = [0, -1, 1_700_000_000_000, 1_700_000_000_000_000, last_ms, -last_ms]
    records = [(time_ms, b"k%d" % n, b'{"n": %d}' % n, ()) for n, time_ms in enumerate(times_ms)]
    # Nanoseconds, and a tombstone of such a time.
    records += [(1_700_000_000_000_000_000, b"k6", b'{"n": 6}', ()), (2**63 - 1, b"k7", None, ())]
    append(cluster.bootstrap_servers, "times", records)
    lake = Lake(tmp_path / "lake")
    load(session, lake, LoadSettings(("times",), options, value="json"))
    found = lake.frame(session).selectExpr("offset", "cast(date as string) as date").collect()
    dates = {row.offset: row.date for row in found}  # Python has no times of the others
    assert dates == {0: "1970-01-01", 1: "1969-12-31", 2: "2023-11-14", 3: None, 4: None, 5: None}
    bad = {row.offset: (row.reason, row.raw, row.value) for row in lake.frame(session, QUARANTINE).collect()}
    reason = "the timestamp is too far from 1970 for Spark's microseconds"
    assert bad == {6: (reason, b'{"n": 6}', None), 7: (reason, None, None)}
    assert load(session, lake, LoadSettings((), options)).rows == 0

    assert take(session, SnapshotTable(tmp_path / "table"), "times", options).keys == 7
    path = tmp_path / "p.toml"
    path.write_text(
        f'[options]\n"kafka.bootstrap.servers" = "{cluster.bootstrap_servers}"\n'
        '[topics.times]\ntopic = "times"\nvalue = "json"\nschema = "n int"\n'
        '[derived.seen]\nsql = "SELECT offset, n, reason IS NULL AS good FROM times"\ntopic = "seen"\n'
    )
    derive(session, path)
    seen = [json.loads(value or b"") for _, value in logged(cluster, "seen", 1).values()]
    assert {row["offset"]: row["good"] for row in seen} == {offset: offset < 6 for offset in range(8)}


def test_a_load_with_bounds_has_only_what_is_within(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("bounded", configs={"retention.ms": -1})  # the records have old timestamps
    with producer(cluster) as made:
        for n in range(100):
            made.send("bounded", b"%d" % n, None, 0, 1_700_000_000_000 + n)
    lake = Lake(tmp_path / "lake")
    since, until = '{"bounded": {"0": 10}}', "1700000000050"
    load(session, lake, LoadSettings(("bounded",), options, value="string", since=since, until=until))
    assert sorted(row.offset for row in lake.frame(session).collect()) == list(range(10, 50))
    with producer(cluster) as made:
        made.send("bounded", b"later", None, 0, 1_700_000_000_020)
    assert load(session, lake, LoadSettings((), options)).rows == 0


def test_a_topic_whose_name_is_a_number(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("007")
    with producer(cluster) as made:
        made.send("007", b"x", None, 0)
    lake = Lake(tmp_path / "lake")
    load(session, lake, LoadSettings(("007",), options))
    ((row,), (total,)) = lake.frame(session).collect(), lake.totals(session)
    assert (row.topic, total["topic"], total["files"]) == ("007", "007", 1)


def test_large_records_empty_topics_and_gaps(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("empty", partitions=2)
    cluster.create_topic("large", configs={"max.message.bytes": BIG_BYTES + 100_000})
    value = os.urandom(1_000) * (BIG_BYTES // 1_000)
    with producer(cluster, **{"max.request.size": BIG_BYTES + 100_000, "buffer.memory": 3 * BIG_BYTES}) as made:
        made.send("large", value, None, 0)
        made.send("large", b"small", None, 0)
        # A transaction's marker takes an offset that no record has.
    with producer(cluster, **{"transactional.id": "gaps"}) as made:
        for _ in range(2):
            with made.transaction():
                made.send("large", b"x", None, 0)
        made.begin_transaction()
        made.send("large", b"aborted", None, 0).result(60)
        made.abort_transaction()
    lake = Lake(tmp_path / "lake")
    load(session, lake, LoadSettings(("empty", "large"), options))
    found = {(row.topic, row.offset): bytes(row.value) for row in lake.frame(session).collect()}
    assert found.keys() == {("large", 0), ("large", 1), ("large", 2), ("large", 4)}
    assert found["large", 0] == value


def assert_in(lake: Lake, log: Logged) -> None:
    """At any moment: no row twice, and none that is not in the log."""
    found = DeltaTable(lake.table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    rows = [(row["partition"], row["offset"]) for row in found]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= log.keys()


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_lake_of_an_earlier_version_is_continued(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path, kind: str
) -> None:
    """Its last batch is written, and not noted in the checkpoint; and files of a batch that was not committed are
    there."""
    topic = f"earlier-{kind}"
    cluster.create_topic(topic, partitions=2)

    def send(first: int, last: int) -> None:
        with producer(cluster) as made:
            for n in range(first, last):
                made.send(topic, b'{"n": %d}' % n if n % 9 else b"{", b"k", n % 2)

    path = tmp_path / "a lake; é#1,$x"
    for first in (0, 40):
        send(first, first + 40)
        stream = session.readStream.format("kalda").options(**options, subscribe=topic, startingOffsets="earliest")
        rows = with_values(stream.option("includeHeaders", "true").load(), ValueFormat("json", "n BIGINT"))
        rows = rows.selectExpr(
            "if(reason IS NULL, 'events', 'quarantine') AS table", "topic", "to_date(timestamp) AS date", "partition",
            "offset", "timestamp", "timestampType", "key", "value", "_rescued", "headers", "reason", "raw",
        )  # fmt: skip
        session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1")
        writer = rows.writeStream.format(kind).partitionBy("table", "topic", "date").trigger(availableNow=True)
        writer.option("checkpointLocation", str(path / "_kalda" / "checkpoint")).start(str(path)).awaitTermination()
    commits = path / "_kalda" / "checkpoint" / "commits"
    (commits / str(newest(commits))).unlink()
    (commits / f".{newest(commits) + 1}.crc").unlink(missing_ok=True)
    litter = next(path.glob("table=events/topic=*/date=*")) / "part-of-a-dead-task.parquet"
    litter.write_bytes(next(litter.parent.glob("*.parquet")).read_bytes())
    settings = {"topics": [topic], "format": kind, "value": "json", "schema": "n BIGINT", "key": "bytes"}
    settings |= {"since": {"startingOffsets": "earliest"}, "bootstrap": options["kafka.bootstrap.servers"]}
    (path / "_kalda" / "load.json").write_text(json.dumps(settings))
    lake = Lake(path)
    with pytest.raises(PipelineError, match="of an earlier version of Kalda: kalda pipeline convert"):
        lake.check()
    send(80, 90)
    assert "has 80 rows, and kalda pipeline load --to" in convert(path, {}, lambda: nullcontext(session))[-1]
    assert not litter.exists()
    load(session, lake, LoadSettings(()))
    load(session, lake, LoadSettings(()))  # behind the batch that was planned
    assert_each_row_once(lake, logged(cluster, topic, 2))
    assert lake.frame(session, QUARANTINE).count() == 10
    with pytest.raises(PipelineError, match="is a project already"):
        convert(path, {}, lambda: nullcontext(session))


def newest(directory: Path) -> int:
    """The number of the last batch that a log of Spark's has; -1 where there is none."""
    return max((int(path.stem) for path in directory.glob("[0-9]*")), default=-1)


def test_a_load_that_is_killed_continues_row_for_row(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the driver within a batch, in each round; then a load that runs to its end. Java, which outlives the
    driver, keeps the lake locked until it has ended."""
    cluster.create_topic("killed", partitions=4)

    def send(first: int, last: int) -> None:
        with producer(cluster, **{"linger.ms": 20}) as made:
            for n in range(first, last):
                made.send("killed", b"value-%d" % n, b"%d" % (n % 97), n % 4)

    lake = Lake(tmp_path / "lake")
    checkpoint = lake.path / "_kalda" / "kalda" / "checkpoints" / "records"
    command = [
        sys.executable, "-m", "kalda.cli.main", "pipeline", "load", "killed", "--to", str(lake.path),
        "--bootstrap-server", cluster.bootstrap_servers, "--rows-a-batch", "1500",
        "--spark", "spark.master=local[2]", "--foreground",
        *(part for name, value in SETTINGS.items() for part in ("--spark", f"{name}={value}")),
    ]  # fmt: skip
    for number in range(ROUNDS):
        send(12_000 * number, 12_000 * (number + 1))
        wanted = newest(checkpoint / "commits") + 2 + number % 2  # the second or third batch of this run
        killed = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        while killed.poll() is None:
            # That batch is planned, and not committed. Before Java is there, the batch is of the round before. To look
            # for children is to read all processes, which takes longer than the pause.
            if newest(checkpoint / "offsets") >= wanted and (children := psutil.Process(killed.pid).children()):
                (java,) = children
                java.suspend()
                killed.kill()
            with suppress(subprocess.TimeoutExpired):
                killed.wait(0.01)
        assert killed.returncode == -signal.SIGKILL
        assert_in(lake, logged(cluster, "killed", 4))
        with monkeypatch.context() as patched:
            patched.setattr(files, "JAVA_ENDS_S", 0)
            with pytest.raises(PipelineError, match="another run is writing its tables"):
                load(session, lake, LoadSettings(("killed",), options))
        java.resume()
    send(12_000 * ROUNDS, 12_400 * ROUNDS)  # behind the batch that was planned
    load(session, lake, LoadSettings(("killed",), options))
    log = logged(cluster, "killed", 4)
    found = lake.frame(session).collect()
    assert len(found) == len(log) == 12_400 * ROUNDS
    assert {(row.partition, row.offset): (bytes(row.key), bytes(row.value)) for row in found} == log
    assert_each_row_once(lake, log)


def take(
    session: Any, table: SnapshotTable, topic: str, options: dict[str, str], now_ms: int | None = None
) -> Snapshot:
    with table.alone():
        return table.take(session, topic, options, now_ms)


def derive(session: Any, path: Path, *names: str) -> RunResult:
    """Run what a file derives, up to the topics' ends."""
    directory = DerivedDirectory(file := read_derived(path))
    reports: dict[str, FlowReport] = {}
    with directory.alone():
        options = RunOptions(refresh=file.flows(names))
        done = run_project(session, directory.begin(), options, lambda report: reports.update(report.flows))
    assert [each.error for each in reports.values() if each.error] == []
    return done


def test_a_snapshot_is_what_a_compacted_log_gives(
    session: Any, cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("users", partitions=2, configs={"cleanup.policy": "compact,delete"})
    table = SnapshotTable(tmp_path / "users")

    def send(first: int, last: int) -> None:
        with producer(cluster) as made:
            for n in range(first, last):
                made.send("users", None if n % 7 == 0 else b"v%d" % n, b"k%d" % (n % 50), n % 2)

    def expected() -> dict[bytes, bytes]:
        newest: dict[bytes, bytes | None] = {}
        for _, (key, value) in sorted(logged(cluster, "users", 2).items(), key=lambda each: each[0][1]):
            assert key is not None
            newest[key] = value
        return {key: value for key, value in newest.items() if value is not None}

    def actual() -> dict[bytes, bytes]:
        rows = DeltaTable(table.table).to_pyarrow_table(columns=["key", "value"]).to_pylist()
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: row["value"] for row in rows}

    send(0, 500)
    first = take(session, table, "users", options)
    assert (first.records, first.rebuilt) == (500, "it is the first run")
    assert actual() == expected()
    send(500, 520)
    second = take(session, table, "users", options)
    assert (second.records, second.rebuilt) == (20, None)
    assert actual() == expected()
    with producer(cluster, **{"transactional.id": "users"}) as made:
        with made.transaction():
            made.send("users", b"open", b"k1", 1).result(60)
            assert take(session, table, "users", options).records == 0  # up to the open transaction
        third = take(session, table, "users", options)
        assert (third.records, third.rebuilt) == (1, None)
    send(520, 521)
    late = int(time.time() * 1000) + 25 * 60 * 60 * 1000
    assert "delete.retention.ms" in str(take(session, table, "users", options, late).rebuilt)
    assert actual() == expected()
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        admin.delete_records({TopicPartition("users", 1): 240}).check()
    assert take(session, table, "users", options, late).rebuilt is None
    assert actual() == expected()  # nothing that the log has no more, as where the topic is read from its start
    with pytest.raises(PipelineError, match="is a snapshot of topic users, not orders"):
        take(session, table, "orders", options)


def test_a_replay_keeps_order_and_continues(session: Any, cluster: Cluster, options: dict[str, str]) -> None:
    cluster.create_topic("before", partitions=2, configs={"retention.ms": -1})
    cluster.create_topic("after", partitions=2, configs={"retention.ms": -1})
    with producer(cluster) as made:
        for n in range(400):
            made.send("before", None if n == 5 else b"%d" % n, b"k%d" % n, n % 2, 1_700_000_000_000 + n)
    reader = session.read.format("kalda").options(**options).option("subscribe", "before")
    reader = reader.option("includeHeaders", "true")
    settings = ReplaySettings("after", "april", options)
    assert replay(reader.load().where("offset < 120"), settings).written == 240
    done = replay(reader.load(), settings)
    assert (done.written, done.skipped) == (160, 240)
    before, after = (logged(cluster, topic, 2) for topic in ("before", "after"))
    for partition in range(2):
        rows = [value for (number, _), value in sorted(before.items()) if number == partition]
        assert [value for (number, _), value in sorted(after.items()) if number == partition] == rows
    with pytest.raises(
        PipelineError, match=r'was begun with .*"by":\["partition","offset"\].* and now has .*"timestamp"'
    ):
        replay(reader.load(), replace(settings, order_by=("timestamp",)))


def test_a_replay_of_values_that_were_json(session: Any, cluster: Cluster, options: dict[str, str]) -> None:
    cluster.create_topic("objects", partitions=2)
    rows = session.sql(
        "select partition, offset, 'k' as key, value, _rescued from values (0, 0L, struct(1 as n, 'x' as s), null), "
        """(0, 1L, struct(2 as n, 'y' as s), '{"new":[1.5],"s":{"x":1}}'), """
        """(0, 2L, struct(3 as n, null as s), '{"n":3,"m":4,"m":5}'), """
        "(1, 0L, null, null) as t(partition, offset, value, _rescued)"
    )
    settings = ReplaySettings("objects", "json", {**options, "kafka.compression.type": "gzip"})
    assert replay(rows, settings).written == 4
    log = logged(cluster, "objects", 2)
    assert (log[0, 0], log[1, 0]) == ((b"k", b'{"n":1,"s":"x"}'), (b"k", None))
    assert json.loads(log[0, 1][1] or b"") == {"n": 2, "s": {"x": 1}, "new": [1.5]}
    assert log[0, 2][1] == b'{"n":3,"m":4,"m":5}'


@pytest.mark.parametrize(
    ("columns", "option", "words"),
    [
        ("1 as partition, 1 as value", {}, "column value is int: bytes, text, or objects for JSON are expected"),
        ("-1 as partition, '' as value", {}, "the table has rows of partition -1, and topic refusing has 2 partitions"),
        ("int(null) as partition, '' as value", {}, "the table has rows of partition None, and topic refusing has 2"),
        ("2 as partition, '' as value", {}, "the table has rows of partition 2, and topic refusing has 2 partitions"),
        ("1 as partition, '' as value", {"failOnDataLoss": "false"}, "option failOnDataLoss: a replay has the options"),
        ("1 as partition, '' as value", {"kafka.compression": "x"}, "there is no configuration compression; the near"),
    ],
)
def test_what_a_replay_refuses(
    session: Any, cluster: Cluster, options: dict[str, str], columns: str, option: dict[str, str], words: str
) -> None:
    with suppress(ApiError):  # the first of these tests makes it
        cluster.create_topic("refusing", partitions=2)
    with pytest.raises(PipelineError, match=words):
        replay(session.sql(f"select {columns}"), ReplaySettings("refusing", "r", options | option, ("value",)))


def test_a_replay_by_key_is_not_continued_with_more_partitions(
    session: Any, cluster: Cluster, options: dict[str, str]
) -> None:
    """A row's lane would be another one, and the rows that are skipped others than those that were written."""
    cluster.create_topic("grown", partitions=2)
    rows = session.range(100).selectExpr("id", "cast(cast(id as string) as binary) as key", "key as value")
    settings = ReplaySettings("grown", "import", options, ("id",), keeps_partitions=False)
    assert replay(rows.where("id < 50"), settings).written == 50
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        admin.create_partitions({"grown": 3}).check()
    with pytest.raises(PipelineError, match=r"key of 2.* and now has .*key of 3"):
        replay(rows, settings)
    assert len(logged(cluster, "grown", 3)) == 50


PROJECT = """
[options]
"kafka.bootstrap.servers" = "{servers}"
[topics.given]
topic = "given"
value = "json"
schema = "word string, n int"
[tables.names]
path = "names"
[derived.joined]
sql = "SELECT name, n FROM given JOIN names USING (word)"
[derived.doubled]
sql = "SELECT name, 2 * n AS n FROM joined"
topic = "doubled"
key = "name"
[derived.kept]
python = "{module}:kept"
path = "kept"
"""


def test_a_project_derives_topics_and_tables_once(
    session: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("given", "doubled"):
        cluster.create_topic(topic, partitions=2)
    module = f"project_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "def kept(spark):\n    return spark.table('given').select('word', 'partition', 'offset', 'reason')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    session.createDataFrame([("a", "anna")], "word string, name string").write.parquet(str(tmp_path / "names"))
    path = tmp_path / "p.toml"
    path.write_text(PROJECT.format(servers=cluster.bootstrap_servers, module=module))

    def run_once(first: int, last: int) -> tuple[list[tuple[bytes | None, Any]], int]:
        with producer(cluster) as made:
            for n in range(first, last):
                made.send("given", b'{"word": "%s", "n": %d}' % (b"a" if n % 2 else b"b", n), None, n % 2)
        derive(session, path)
        derived = [
            (key, json.loads(value or b"")["n"]) for (_, _), (key, value) in logged(cluster, "doubled", 2).items()
        ]
        return sorted(derived, key=lambda each: each[1]), session.read.parquet(str(tmp_path / "kept")).count()

    assert run_once(0, 20) == ([(b"anna", 2 * n) for n in range(1, 20, 2)], 20)
    assert run_once(20, 24) == ([(b"anna", 2 * n) for n in range(1, 24, 2)], 24)
    found = {status.name: (status.lag, sum(status.done.values())) for status in statuses(path, {})}
    assert found == {"doubled_out": (0, 24), "kept_out": (0, 24)}
    checkpoints = tmp_path / "p-pipeline" / "_kalda" / "kalda" / "checkpoints"
    (checkpoints / "kept_out").rename(tmp_path / "removed")
    with pytest.raises(AssertionError, match="was written by a query with"):
        derive(session, path, "kept")


STATEFUL = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Count(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        seen = self.count.get()[0] if self.count.exists() else 0
        self.count.update((seen + sum(1 for _ in rows),))
        yield Row(word=key[0], n=self.count.get()[0])

    def close(self):
        pass


def counted(spark):
    words = spark.table("given").groupBy("word")
    return words.transformWithState(Count(), "word string, n long", "update", "none")
"""


@pytest.mark.skipif(
    "KALDA_SPARK_SESSIONS" not in os.environ, reason="starts a process for each state: set KALDA_SPARK_SESSIONS=1"
)
def test_a_project_with_state_of_its_own(
    session: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformWithState, with the state in RocksDB, continued by a second run from its checkpoint."""
    for topic in ("stated", "totals"):
        cluster.create_topic(topic)
    module = f"stateful_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "p.toml"
    path.write_text(
        f'[options]\n"kafka.bootstrap.servers" = "{cluster.bootstrap_servers}"\n'
        '[topics.given]\ntopic = "stated"\nvalue = "json"\nschema = "word string"\n'
        f'[derived.totals]\npython = "{module}:counted"\ntopic = "totals"\nkey = "word"\nmode = "update"\n'
    )
    for total in (30, 60):
        with producer(cluster) as made:
            for n in range(30):
                made.send("stated", b'{"word": "%s"}' % (b"a" if n % 3 else b"b"), None, 0)
        derive(session, path)
        newest = {key: json.loads(value or b"")["n"] for key, value in logged(cluster, "totals", 1).values()}
        assert newest == {b"a": total * 2 // 3, b"b": total // 3}
    state = tmp_path / "p-pipeline" / "_kalda" / "kalda" / "checkpoints" / "totals_out" / "state"
    assert list(state.rglob("*.zip"))  # snapshots and change logs of RocksDB
