"""Scenarios of Spark's own Kafka suites (relation, micro-batch source, data loss, sink), restated: the same topics read
and written by `format("kalda")` and, where its jars are, by `format("kafka")`, with the same answers.

What Spark does not let a Python source do is not among them: `save()` without a mode, the output mode `update`, column
pruning, metrics of a source in the progress (`avgOffsetsBehindLatest`), continuous mode. A misspelt option is refused
here and ignored there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from topics import BASE_MS, World, append, cluster_of_tests

from kalda import Producer

pytestmark = pytest.mark.spark


class Formats:
    """The same scenario by each format."""

    def __init__(self, worlds: list[World], directory: Path) -> None:
        self.worlds = worlds
        self.first = worlds[0]
        self.directory = directory
        self._checkpoints = 0

    def same(self, scenario: Callable[[World], Any]) -> Any:
        """The answer of Kalda's format, after a comparison with the other one's."""
        answers = [scenario(world) for world in self.worlds]
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def refused(self, scenario: Callable[[World], Any]) -> str:
        """Every format fails. The text of Kalda's error; those of the other format have other words."""
        texts = []
        for world in self.worlds:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                scenario(world)
            texts.append(str(caught.value))
        return texts[0]

    def stream(self, world: World, checkpoint: str, **options: Any) -> list[tuple[int, int]]:
        """(partition, offset) of the rows that a run to the end reads, from a checkpoint of this format."""
        found: list[tuple[int, int]] = []

        def keep(frame: Any, _number: int) -> None:
            found.extend((row.partition, row.offset) for row in frame.select("partition", "offset").collect())

        directory = str(self.directory / f"{checkpoint}-{world.format_name}")
        writer = world.stream(**options).writeStream.foreachBatch(keep).option("checkpointLocation", directory)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        return sorted(found)


@pytest.fixture(scope="module")
def formats(spark: Any, has_connector: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Formats]:
    names = ["kalda", "kafka"] if has_connector else ["kalda"]
    with cluster_of_tests() as cluster:
        worlds = [World(cluster, spark, name) for name in names]
        worlds[0].number("rows", [10, 0, 4])
        yield Formats(worlds, tmp_path_factory.mktemp("conformance"))
        for world in worlds:
            world.admin.close()


def test_the_other_format_is_there(formats: Formats, has_connector: bool) -> None:
    if not has_connector:
        pytest.skip("Spark's own connector is not here: KALDA_SPARK_KAFKA_JARS names a folder with its jars")
    assert [world.format_name for world in formats.worlds] == ["kalda", "kafka"]


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "rows"},
        {"subscribePattern": "ro.s"},
        {"assign": {"rows": [0, 2]}},
        {"subscribe": "rows", "startingOffsets": {"rows": {"0": 3, "1": -2, "2": -2}}},
        {"subscribe": "rows", "endingOffsets": {"rows": {"0": 3, "1": -1, "2": -1}}},
        {"subscribe": "rows", "startingTimestamp": BASE_MS + 2, "endingTimestamp": BASE_MS + 4},
        {"subscribe": "rows", "startingOffsetsByTimestamp": {"rows": {"0": BASE_MS + 9, "1": 0, "2": BASE_MS}}},
        {"subscribe": "rows", "minPartitions": 6},
        {"subscribe": "rows", "maxRecordsPerPartition": 3},
        {"subscribe": "rows", "includeHeaders": "true", "kafka__isolation__level": "read_committed"},
    ],
)
def test_relation(formats: Formats, options: dict[str, Any]) -> None:
    given = {"startingOffsetsByTimestampStrategy": "latest", **options}
    rows = formats.same(lambda world: [tuple(row) for row in world.read(**given)])
    assert rows
    assert formats.same(lambda world: world.frame(**given).schema.json())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give one of assign, subscribe, subscribePattern, not none"),
        ({"subscribe": "rows", "assign": {"rows": [0]}}, "not assign and subscribe"),
        ({"subscribe": ""}, "option subscribe = '': name a topic"),
        ({"subscribe": "rows", "startingOffsets": "latest"}, "option startingOffsets = 'latest'"),
        ({"subscribe": "rows", "endingOffsets": "earliest"}, "option endingOffsets = 'earliest'"),
        ({"subscribe": "rows", "startingOffsets": {"rows": {"0": -1, "1": -2, "2": -2}}}, "rows, 0: -1"),
        ({"subscribe": "rows", "startingOffsets": {"rows": {"0": 1}}}, "option startingOffsets lacks rows partition 1"),
        ({"subscribe": "rows", "startingTimestamp": 2**52}, "all records are older than 4503599627370496 ms"),
        ({"subscribe": "rows", "minPartitions": "0"}, "option minPartitions = '0'"),
        ({"subscribe": "rows", "kafka__auto__offset__reset": "latest"}, "option kafka.auto.offset.reset = 'latest'"),
        ({"subscribe": "rows", "kafka__enable__auto__commit": "true"}, "option kafka.enable.auto.commit = 'true'"),
    ],
)
def test_relation_refuses(formats: Formats, options: dict[str, Any], words: str) -> None:
    assert words in formats.refused(lambda world: world.frame(**options).count())


def test_records_that_were_deleted(formats: Formats) -> None:
    formats.first.number("cut", [20])
    formats.first.admin.delete_records({("cut", 0): 8}).check()
    lost = {"subscribe": "cut", "startingOffsets": {"cut": {"0": 2}}}
    formats.refused(lambda world: world.frame(**lost).count())
    rows = formats.same(lambda world: [row.offset for row in world.read(**lost, failOnDataLoss="false")])
    assert rows == list(range(8, 20))


def test_times_that_spark_does_not_have(formats: Formats) -> None:
    anything = {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1}
    last_ms = (2**63 - 1) // 1000
    formats.first.create("times", **anything)
    append(formats.first.servers, "times", [(time_ms, None, b"", ()) for time_ms in (-1, 0, 2 * BASE_MS, last_ms)])

    def times(world: World) -> list[Any]:
        return [
            row.micros for row in world.frame(subscribe="times").selectExpr("unix_micros(timestamp) micros").collect()
        ]

    assert formats.same(times) == [-1000, 0, 2000 * BASE_MS, 1000 * last_ms]
    append(formats.first.servers, "times", [(last_ms + 1, None, b"", ())])
    words = f"times-0, offset 4: the timestamp {last_ms + 1} is too far from 1970"
    assert words in formats.refused(times)
    assert words in formats.refused(
        lambda world: formats.stream(world, "times", subscribe="times", startingOffsets="earliest")
    )


def test_transactions(formats: Formats) -> None:
    formats.first.create("transactions")
    config = {"bootstrap.servers": formats.first.servers, "transactional.id": "conformance"}
    with Producer(config) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send("transactions", str(number).encode())
            producer.flush()
            producer.commit_transaction() if number % 2 else producer.abort_transaction()
    for isolation, expected in (("read_committed", [b"1", b"3"]), ("read_uncommitted", [b"0", b"1", b"2", b"3"])):
        options = {"subscribe": "transactions", "kafka__isolation__level": isolation}
        rows = formats.same(lambda world, given=options: [bytes(row.value) for row in world.read(**given)])
        assert rows == expected
        streamed = formats.same(
            lambda world, given=options, name=isolation: formats.stream(
                world, name, startingOffsets="earliest", **given
            )
        )
        assert len(streamed) == len(expected)


def test_streams_continue_with_new_partitions_and_without_lost_records(formats: Formats) -> None:
    formats.first.number("continued", [8, 3])
    options = {"subscribe": "continued", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    first = formats.same(lambda world: formats.stream(world, "continued", **options))
    assert len(first) == 11
    formats.first.admin.create_partitions({"continued": 3}).check()
    formats.first.produce("continued", 2, [(0, None, b"0", ())])
    formats.first.number_on("continued", [4], first=8)
    formats.first.admin.delete_records({("continued", 0): 10}).check()
    rest = formats.same(lambda world: formats.stream(world, "continued", **options, failOnDataLoss="false"))
    assert rest == [(0, 10), (0, 11), (2, 0)]
    formats.first.admin.delete_topics(["continued"]).check()
    formats.first.number("continued", [2])
    formats.refused(lambda world: formats.stream(world, "continued", **options))


def test_sink(formats: Formats) -> None:
    for world in formats.worlds:
        world.create(f"written-{world.format_name}", 2)
    rows = "('k', 'v', 1, array(struct('h', cast('x' as binary)))), (null, null, 0, null)"

    def written(world: World) -> list[Any]:
        topic = f"written-{world.format_name}"
        frame = world.spark.sql(f"select * from values {rows} as t(key, value, partition, named)")
        columns = ("key", "value", "partition", "cast(named as array<struct<key:string,value:binary>>) as headers")
        writer = frame.selectExpr(*columns).write.format(world.format_name).mode("append")
        writer.options(**world.options(topic=topic)).save()
        found = formats.first.read(subscribe=topic, includeHeaders="true")
        return [(row.partition, row.key, row.value, row.headers) for row in found]

    assert len(formats.same(written)) == 2
    for columns in ("1 as value, 'a' as topic", "'v' as value", "'v' as value, cast(null as string) as topic"):

        def write(world: World, given: str = columns) -> None:
            frame = world.spark.range(1).selectExpr(*given.split(", "))
            frame.write.format(world.format_name).mode("append").options(**world.options()).save()

        formats.refused(write)
