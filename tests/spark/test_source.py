"""`spark.read.format("kalda")` in a real session with a real node: the rows are the records that were produced."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kalda.client.admin.offsets import delete_records
from kalda.client.cluster_client import ClusterClient
from kalda.client.sender import Sender
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.testing import Cluster

pytestmark = pytest.mark.spark

NewRecord = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
BASE_MS = 1_704_067_200_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as one:
        yield one


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    with ClusterClient(cluster.bootstrap_servers) as one:
        yield one


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from kalda.spark import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


class World:
    """Produces records to topics, and reads the topics with Spark."""

    def __init__(self, cluster: Cluster, client: ClusterClient, spark: Any) -> None:
        self.cluster = cluster
        self.client = client
        self.spark = spark

    def create(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        names = {name.replace("_", "."): value for name, value in configs.items()}
        names["retention.ms"] = -1  # the records have old timestamps
        self.cluster.create_topic(topic, partitions=partitions, configs=names)

    def produce(self, topic: str, partition: int, records: Sequence[NewRecord], **options: Any) -> None:
        with Sender(self.client) as sender:
            sender.send(topic, partition, build_batch(records, **options))

    def number(self, topic: str, counts: Sequence[int], batch: int = 10) -> None:
        """Create the topic, with `counts[n]` records in partition n; the value of each is its offset."""
        self.create(topic, len(counts))
        for partition, count in enumerate(counts):
            for first in range(0, count, batch):
                offsets = range(first, min(count, first + batch))
                self.produce(topic, partition, [(BASE_MS + one, None, str(one).encode(), ()) for one in offsets])

    def frame(self, schema: str | None = None, **options: Any) -> Any:
        reader = self.spark.read.format("kalda").option("kafka.bootstrap.servers", self.cluster.bootstrap_servers)
        reader = reader.schema(schema) if schema else reader
        for name, value in options.items():
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            reader = reader.option(name.replace("__", "."), text)
        return reader.load()

    def read(self, **options: Any) -> list[Any]:
        return sorted(self.frame(**options).collect(), key=lambda row: (row.topic, row.partition, row.offset))

    def offsets(self, **options: Any) -> dict[int, list[int]]:
        """The offsets read, by partition."""
        found: dict[int, list[int]] = {}
        for row in self.read(**options):
            assert row.value == str(row.offset).encode()
            found.setdefault(row.partition, []).append(row.offset)
        return found


@pytest.fixture(scope="module")
def world(cluster: Cluster, client: ClusterClient, spark: Any) -> World:
    made = World(cluster, client, spark)
    made.number("numbers", [30, 0, 5])
    return made


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
        world.produce("codecs", codec, records, compression=codec)
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
    frame = world.frame(subscribe="numbers")
    narrowed = frame.filter("partition = 0 and offset >= 12 and offset < 15")
    assert sorted(row.offset for row in narrowed.collect()) == [12, 13, 14]
    assert narrowed.rdd.getNumPartitions() == 1
    late = frame.filter("timestamp >= timestamp '2024-01-01 00:00:00.004'")
    assert Counter(row.partition for row in late.collect()) == {0: 26, 2: 1}
    assert frame.filter("topic = 'others'").count() == 0


def test_a_schema_of_fewer_columns(world: World) -> None:
    frame = world.frame(schema="offset bigint, value binary", subscribe="numbers")
    assert frame.columns == ["offset", "value"]
    assert frame.selectExpr("sum(offset)", "sum(cast(cast(value as string) as int))").first() == (445, 445)


def test_deleted_records(world: World) -> None:
    world.number("deleted", [20])
    assert delete_records(world.client, {world.client.partitions("deleted")[0]: 8}) != {}
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


def test_a_streaming_query_is_refused_in_one_sentence(world: World) -> None:
    reader = world.spark.readStream.format("kalda").option("subscribe", "numbers")
    stream = reader.option("kafka.bootstrap.servers", world.cluster.bootstrap_servers).load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="streaming queries are not supported") as caught:
        query.awaitTermination(60)
    assert "Traceback" not in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
