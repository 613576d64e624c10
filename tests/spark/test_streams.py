"""Streaming queries: every record once, across limits, restarts, new partitions, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from topics import World, cluster_of_tests

from kalda import Producer
from kalda.spark import offsets_behind

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: Any) -> Iterator[World]:
    with cluster_of_tests() as cluster, World(cluster, spark) as made:
        yield made


class Query:
    """A streaming query on topics, run until it has read what there is, each time from the same checkpoint."""

    def __init__(self, world: World, directory: Path, **options: Any) -> None:
        self.world = world
        self.checkpoint = str(directory / "checkpoint")
        self.options = {"startingOffsets": "earliest", **options}
        self.progress: list[Any] = []

    def run(self, **more: Any) -> list[list[tuple[int, int]]]:
        """(partition, offset) of each record, by batch; Spark begins a query with a batch even where it is empty."""
        batches: list[list[tuple[int, int]]] = []

        def keep(frame: Any, _number: int) -> None:
            found = frame.select("partition", "offset", "value").collect()
            assert all(row.value == str(row.offset).encode() for row in found)
            if found:
                batches.append(sorted((row.partition, row.offset) for row in found))

        writer = self.world.stream(**self.options, **more).writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        self.progress = query.recentProgress
        return batches


def numbers(*counts: int, first: int = 0) -> list[tuple[int, int]]:
    return [(partition, first + index) for partition, count in enumerate(counts) for index in range(count)]


def test_batches_are_limited_and_continue_across_restarts_and_new_partitions(world: World, tmp_path: Path) -> None:
    world.number("grown", [20, 0, 4])
    query = Query(world, tmp_path, subscribe="grown", maxOffsetsPerTrigger=10)
    batches = query.run()
    assert sorted(row for batch in batches for row in batch) == numbers(20, 0, 4)
    assert [len(batch) for batch in batches] == [9, 10, 5]
    last = query.progress[-1].sources[0]
    assert last.endOffset == last.latestOffset
    assert offsets_behind(last) == dict.fromkeys(["minOffsetsBehindLatest", "maxOffsetsBehindLatest"], 0) | {
        "avgOffsetsBehindLatest": 0.0
    }
    behind = [offsets_behind(report.sources[0])["maxOffsetsBehindLatest"] for report in query.progress[:2]]
    assert behind == [12, 4]
    assert '"grown": {"0": 20, "1": 0, "2": 4}' in last.endOffset
    assert query.run() == []
    world.admin.create_partitions({"grown": 4}).check()
    world.number_on("grown", [3], first=20)
    world.produce("grown", 1, [(0, None, b"0", ())])
    world.produce("grown", 3, [(0, None, b"0", ()), (0, None, b"1", ())])
    (batch,) = query.run(startingTimestamp=2**60)  # a restarted query does not look at its starting offsets
    assert batch == [(0, 20), (0, 21), (0, 22), (1, 0), (3, 0), (3, 1)]


def test_a_stream_starts_at_the_end_unless_it_is_told_where(world: World, tmp_path: Path) -> None:
    world.number("started", [5])
    late = Query(world, tmp_path / "late", subscribe="started", startingOffsets="latest")
    at = Query(world, tmp_path / "at", assign={"started": [0]}, startingOffsets={"started": {"0": 3}})
    assert late.run() == []
    assert at.run() == [[(0, 3), (0, 4)]]
    world.number_on("started", [2], first=5)
    assert late.run() == at.run() == [[(0, 5), (0, 6)]]


def test_small_batches_wait_and_a_run_to_the_end_does_not(world: World, tmp_path: Path) -> None:
    world.number("small", [3])
    query = Query(world, tmp_path, subscribe="small", minOffsetsPerTrigger=100)
    assert query.run() == [numbers(3)]
    world.number_on("small", [1], first=3)
    assert query.run() == [[(0, 3)]]


def test_records_deleted_before_they_were_read(world: World, tmp_path: Path) -> None:
    world.number("deleted", [30])
    query = Query(world, tmp_path, subscribe="deleted")
    assert query.run() == [numbers(30)]
    world.number_on("deleted", [10], first=30)
    world.admin.delete_records({("deleted", 0): 35}).check()
    with pytest.raises(Exception, match=r"deleted-0: offset 30 of 30 to 40 is lost: the log has 35 to 40.*failOnData"):
        query.run()
    assert query.run(failOnDataLoss="false") == [[(0, offset) for offset in range(35, 40)]]


def test_a_topic_that_is_deleted_or_created_again(world: World, tmp_path: Path) -> None:
    world.number("first", [4])
    world.number("second", [9])
    query = Query(world, tmp_path, subscribePattern="first|second")
    assert query.run() == [sorted([*numbers(4), *numbers(9)])]
    world.admin.delete_topics(["first", "second"]).check()
    world.number("second", [2])
    words = r"topic second was deleted and created again: .* set option failOnDataLoss to false"
    with pytest.raises(Exception, match=words) as caught:
        query.run()
    assert "Traceback" not in str(caught.value)
    assert query.run(failOnDataLoss="false") == [[(0, 0), (0, 1)]]
    world.number_on("second", [1], first=2)
    assert query.run(failOnDataLoss="false") == [[(0, 2)]]


def test_aborted_transactions_and_markers_are_never_rows(world: World, tmp_path: Path) -> None:
    world.create("transactions", 2)
    config = {"bootstrap.servers": world.servers, "transactional.id": "t"}
    with Producer(config) as producer:
        producer.init_transactions()
        for outcome in ("abort", "commit", "abort"):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("transactions", outcome.encode(), partition=partition)
            producer.flush()  # an abort drops what was not sent
            producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
    seen: list[tuple[int, int, bytes]] = []

    def keep(frame: Any, _number: int) -> None:
        seen.extend((row.partition, row.offset, bytes(row.value)) for row in frame.collect())

    given = {"subscribe": "transactions", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    for isolation, expected in (("read_committed", [b"commit"]), ("read_uncommitted", [b"abort", b"commit", b"abort"])):
        seen.clear()
        stream = world.stream(**given, kafka__isolation__level=isolation).writeStream.foreachBatch(keep)
        query = stream.option("checkpointLocation", str(tmp_path / isolation)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        for partition in (0, 1):
            assert [value for index, _, value in sorted(seen) if index == partition] == expected


def test_a_wrong_option_of_a_stream_is_one_sentence(world: World) -> None:
    query = world.stream(subscribe="none", endingOffsets="latest").writeStream.format("noop").start()
    with pytest.raises(
        Exception, match="option endingOffsets = 'latest': an end is not valid in a streaming"
    ) as caught:
        query.awaitTermination(60)
    assert "Traceback" not in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
