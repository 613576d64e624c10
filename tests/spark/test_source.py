"""`spark.read.format("kalda")` in a real session with a real node: the rows are the records that were produced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from topics import BASE_MS, NewRecord, World, cluster_of_tests

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.client.producer.producer import Producer
from kalda.clientcore.administration import ANY, Ask, single
from kalda.protocol.messages.admin import GetTelemetrySubscriptionsRequest
from kalda.records.compression import Compression
from kalda.spark.client_metrics import client_metrics
from kalda.spark.partitions import LEAST_TASKS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: Any) -> Iterator[World]:
    with cluster_of_tests() as cluster, World(cluster, spark) as made:
        made.number("numbers", [30, 0, 5])
        yield made


def span(start: int, end: int) -> list[int]:
    return list(range(start, end))


def test_the_schema_is_that_of_sparks_own_source(world: World) -> None:
    columns = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    headers = ", headers array<struct<key: string, value: binary>>"
    from pyspark.sql.types import StructType

    assert world.frame(subscribe="numbers").schema == StructType.fromDDL(columns)
    assert world.frame(subscribe="numbers", includeHeaders="true").schema == StructType.fromDDL(columns + headers)


def test_records_of_every_codec(world: World) -> None:
    """Each codec has a partition, with the same records."""
    world.create("codecs", len(Compression))
    records: list[NewRecord] = [
        (BASE_MS, b"k", b"v" * 300, [("a", b"1"), ("b", None)]),
        (BASE_MS + 1, None, b"", ()),
        (BASE_MS + 2, b"", None, [("a", b"")]),
    ]
    for codec in Compression:
        world.produce("codecs", codec, records, compression=codec.name.lower())
    frame = world.frame(subscribe="codecs", includeHeaders="true").withColumnRenamed("timestamp", "at")
    found = sorted(
        frame.selectExpr("*", "unix_millis(at) as ms").collect(), key=lambda row: (row.partition, row.offset)
    )
    assert [
        (r.partition, r.offset, r.ms, r.key, r.value, r.headers and [tuple(one) for one in r.headers]) for r in found
    ] == [
        (int(codec), offset, ms, key, value, list(headers) or None)
        for codec in Compression
        for offset, (ms, key, value, headers) in enumerate(records)
    ]
    assert {(r.topic, r.timestampType) for r in found} == {("codecs", 0)}


def test_timestamps_of_log_append_time(world: World) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    world.produce("stamped", 0, [(5, None, b"x", ())])
    row = world.read(subscribe="stamped")[0]
    assert row.timestampType == 1
    assert row.timestamp.year > 2000


def test_a_topic_with_an_empty_partition(world: World) -> None:
    assert world.offsets(subscribe="numbers") == {0: span(0, 30), 2: span(0, 5)}


def test_ranges_of_offsets(world: World) -> None:
    start, end = {"numbers": {"0": 7, "1": -2, "2": 2}}, {"numbers": {"0": 23, "1": 0, "2": -1}}
    assert world.offsets(subscribe="numbers", startingOffsets=start, endingOffsets=end) == {
        0: span(7, 23),
        2: span(2, 5),
    }


def test_ranges_of_time(world: World) -> None:
    options = {"startingOffsetsByTimestampStrategy": "latest", "subscribe": "numbers"}
    found = world.offsets(startingTimestamp=BASE_MS + 3, endingTimestamp=BASE_MS + 12, **options)
    assert found == {0: span(3, 12), 2: span(3, 5)}
    times = {"numbers": {"0": BASE_MS + 29, "1": BASE_MS, "2": BASE_MS + 4}}
    assert world.offsets(startingOffsetsByTimestamp=times, **options) == {0: [29], 2: [4]}


@pytest.mark.parametrize("options", [{"minPartitions": 7}, {"maxRecordsPerPartition": 4}])
def test_a_partition_in_several_tasks(world: World, options: dict[str, int]) -> None:
    frame = world.frame(subscribe="numbers", **options)
    assert frame.rdd.getNumPartitions() >= 7
    assert world.offsets(subscribe="numbers", **options) == {0: span(0, 30), 2: span(0, 5)}


def test_assigned_partitions_and_patterns(world: World) -> None:
    assert world.offsets(assign={"numbers": [2]}) == {2: span(0, 5)}
    assert world.offsets(subscribePattern="num.*") == {0: span(0, 30), 2: span(0, 5)}
    assert world.offsets(subscribePattern="none-.*") == {}


def test_conditions_reduce_what_is_read(world: World) -> None:
    """Each query has a frame of its own, as `register` demands."""
    from kalda.spark import register
    from kalda.spark.source import FILTER_PUSHDOWN

    register(world.spark, push_filters=True)
    try:
        narrowed = world.frame(subscribe="numbers").filter("partition = 0 and offset >= 12 and offset < 15")
        assert sorted(row.offset for row in narrowed.collect()) == [12, 13, 14]
        assert narrowed.rdd.getNumPartitions() == 1
        late = world.frame(subscribe="numbers").filter("timestamp >= timestamp '2024-01-01 00:00:00.004'")
        assert Counter(row.partition for row in late.collect()) == {0: 26, 2: 1}
        assert world.frame(subscribe="numbers").filter("topic = 'others'").count() == 0
    finally:
        world.spark.conf.set(FILTER_PUSHDOWN, "false")
        register(world.spark)


def test_a_frame_has_all_its_rows_after_a_query_with_a_condition(world: World) -> None:
    """Spark keeps what a query has pushed down, for later queries of the same frame."""
    frame = world.frame(subscribe="numbers")
    assert [frame.filter("offset < 3").count(), frame.count()] == [6, 35]


def test_a_schema_of_fewer_columns(world: World) -> None:
    frame = world.frame(schema="offset bigint, value binary", subscribe="numbers")
    assert frame.columns == ["offset", "value"]
    assert frame.selectExpr("sum(offset)", "sum(cast(cast(value as string) as int))").first() == (445, 445)


def test_deleted_records(world: World) -> None:
    world.number("deleted", [20])
    world.admin.delete_records({("deleted", 0): 8}).check()
    assert world.offsets(subscribe="deleted") == {0: span(8, 20)}
    lost = {"deleted": {"0": 2}}
    with pytest.raises(Exception, match=r"offset 2 was requested, but the log has 8 to 20.*failOnDataLoss"):
        world.read(subscribe="deleted", startingOffsets=lost)
    assert world.offsets(subscribe="deleted", startingOffsets=lost, failOnDataLoss="false") == {0: span(8, 20)}
    late = {"deleted": {"0": 99}}
    assert world.offsets(subscribe="deleted", endingOffsets=late, failOnDataLoss="false") == {0: span(8, 20)}


def test_read_committed(world: World) -> None:
    assert world.offsets(subscribe="numbers", kafka__isolation__level="read_committed") == {
        0: span(0, 30),
        2: span(0, 5),
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"subscribe": "numbers", "startingoffset": "earliest"},
            "option startingoffset = 'earliest': there is no such",
        ),
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"assign": {"numbers": [3]}}, "numbers has no partition 3; it has 3, numbered from 0"),
        (
            {"subscribe": "numbers", "startingOffsets": {"numbers": {"0": 1}}},
            "startingOffsets lacks numbers partition 1, numbers partition 2",
        ),
        ({"subscribe": "numbers", "startingTimestamp": BASE_MS * 2}, "all records are older than"),
        ({"subscribe": "numbers", "schema": "nothing int"}, "there is no column nothing"),
        ({"subscribe": "numbers", "schema": "offset int"}, "column offset is bigint, not int"),
    ],
)
def test_errors_name_the_problem(world: World, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        world.frame(**options).count()


def test_spark_finds_the_format_without_registration(world: World) -> None:
    """`pyspark_kalda` is for sessions in which it was not registered; these do not push filters."""
    from pyspark_kalda import DefaultSource

    assert DefaultSource.name() == "kalda"
    reader = DefaultSource({"kafka.bootstrap.servers": world.cluster.bootstrap_servers, "subscribe": "numbers"})
    assert len(reader.reader(reader.schema()).partitions()) == 2


def test_a_wrong_option_is_one_sentence(world: World) -> None:
    with pytest.raises(Exception, match="option minPartitions = 'x'") as caught:
        world.frame(subscribe="numbers", minPartitions="x")
    assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="topic no-such-topic does not exist") as caught:
        world.frame(subscribe="no-such-topic").count()
    assert "Traceback" not in str(caught.value)


@pytest.mark.skipif("KALDA_SPARK_SESSIONS" not in os.environ, reason="takes a minute: set KALDA_SPARK_SESSIONS=1")
def test_ten_thousand_partitions(world: World, spark: Any, tmp_path: Path) -> None:
    """A record in each; partitions with few records share tasks. Read in a batch and in a stream, written back in
    transactions, and loaded."""
    world.create("many", 5_000)
    world.admin.create_partitions({"many": 10_000}).check()  # a controller makes no more at once
    with Producer({"bootstrap.servers": world.servers}) as producer:
        for partition in range(10_000):
            producer.send("many", b"0", partition=partition)
    frame = world.frame(subscribe="many")
    assert frame.rdd.getNumPartitions() <= 2 * LEAST_TASKS
    assert frame.selectExpr("count(*)", "count(distinct partition)").first()[:] == (10_000, 10_000)
    # Not by foreachBatch: py4j calls select, which takes no descriptors above 1,023, and the node is in this process.
    stream = world.stream(subscribe="many", startingOffsets="earliest").writeStream
    query = stream.format("memory").queryName("streamed")
    assert (
        query.option("checkpointLocation", str(tmp_path / "stream"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination(300)
    )
    assert spark.table("streamed").count() == 10_000
    written = frame.select("partition", "value").write.format("kalda").mode("append")
    written.options(**world.options(topic="many", kalda__exactly__once="true")).save()  # to where each came from
    assert world.frame(subscribe="many").groupBy("partition").count().where("count = 2").count() == 10_000
    command = ["pipeline", "load", "many", "--to", str(tmp_path / "lake"), "--bootstrap-server", world.servers]
    subprocess.run([sys.executable, "-m", "kalda.cli.main", *command, "--foreground"], check=True, timeout=600)
    partitions = DeltaTable(tmp_path / "lake" / "records").to_pyarrow_table(columns=["partition"])["partition"]
    assert Counter(partitions.to_pylist()) == dict.fromkeys(range(10_000), 2)


def _is_announced(servers: str) -> bool:
    with CommandAdmin(servers) as client:
        try:
            client.run("the subscriptions", single(Ask(ANY, GetTelemetrySubscriptionsRequest())))
        except ApiError:
            return False
        return True


@pytest.mark.skipif("KALDA_SPARK_SERVERS" in os.environ, reason="Apache Kafka has no topic of client metrics")
def test_what_clients_push_is_a_table(world: World, spark: Any) -> None:
    servers, found = world.servers, []
    with CommandAdmin(servers) as client:
        subscription = ConfigResource(ConfigResourceType.CLIENT_METRICS, "all")
        client.set_configs(subscription, {"metrics": "org.apache.kafka.producer.", "interval.ms": "100"})
        while not _is_announced(servers):
            pass  # the broker applies the subscription a moment after the controller's answer
        with Producer({"bootstrap.servers": servers, "client.id": "measured"}) as producer:
            producer.send("numbers", value=b"1").result(30)
            client.topic("__client_metrics")
            while not found:
                table = client_metrics(spark, servers).where("client_id = 'measured' and is_monotonic")
                found = table.where("name = 'org.apache.kafka.producer.record.send.total'").limit(1).collect()
        client.set_configs(subscription, {})
    ((row,), types) = (found, dict(table.dtypes))
    assert (row.kind, row.temporality, row.broker_id) == ("sum", "delta", 1)
    assert row.value in (0.0, 1.0)
    assert row.client_software_name == "kalda"
    assert {types[name] for name in ("time", "received")} == {"timestamp"}
    assert (types["value"], types["attributes"], types["client_port"]) == ("double", "map<string,string>", "int")
    assert abs((row.received - row.time).total_seconds()) < 3_600
