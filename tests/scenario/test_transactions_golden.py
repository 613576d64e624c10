"""The log of `__transaction_state` that an Apache Kafka 4.3.1 node left behind, taken over."""

from __future__ import annotations

from pathlib import Path

import pytest
from transactions_world import World

from kalda.coordinator.transactions.metadata import decode_record, encode_record
from kalda.records.batch import iter_batches
from kalda.records.builder import Record, read_records

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator"
TOPICS = ("transactional", "compacted-txn", "__consumer_offsets", "orders")


def log_of(partition: int) -> bytes:
    return (GOLDEN / f"transaction_state-{partition}.log").read_bytes()


def batches_of(partition: int) -> list[bytes]:
    log = log_of(partition)
    return [log[at : at + header.size_bytes] for at, header in iter_batches(log)]


def records_of(partition: int) -> list[Record]:
    log = log_of(partition)
    return [record for at, header in iter_batches(log) for record in read_records(log, at, header)]


def taken_over(batches: list[bytes]) -> World:
    """A coordinator of one partition that loads these batches; all partitions have a leader."""
    world = World()
    world.leaders = {(topic, index): 0 for topic in TOPICS for index in range(4)}
    world.log.batches[0] = batches
    world.log.ends[0] = world.log.high_watermarks[0] = len(batches)
    world.elect()
    return world


@pytest.mark.parametrize("partition", [0, 1])
def test_every_record_is_written_with_the_same_bytes(partition: int) -> None:
    records = records_of(partition)
    assert len(records) > 20
    for record in records:
        assert record.key is not None
        assert encode_record(decode_record(record.key, record.value), 2) == (record.key, record.value), record.offset


def test_the_state_that_the_node_left() -> None:
    world = taken_over(batches_of(0))
    assert {name: (each.producer_id, each.producer_epoch, each.state.label) for name, each in _all(world).items()} == {
        "txn-a": (3, 25, "CompleteAbort"),
        "txn-compact": (5, 30, "CompleteCommit"),
    }
    assert world.begin((3, 25), 0, transactional_id="txn-a", topic="transactional") == "NONE"
    assert world.commit((3, 25), transactional_id="txn-a") == (3, 26)


@pytest.mark.parametrize("partition", [0, 1])
def test_taken_over_between_each_two_records(partition: int) -> None:
    """What is prepared is completed with the outcome that was decided; what is open stays open, and can be ended."""
    batches = batches_of(partition)
    for count in range(len(batches) + 1):
        world = taken_over(batches[:count])
        before = _all(world)
        world.settle()
        for name, metadata in _all(world).items():
            if before[name].state.is_prepared:
                assert metadata.state.label == before[name].state.label.replace("Prepare", "Complete")
                markers = [each for each in world.written if each.producer_id == metadata.producer_id]
                assert {(each.topic, each.partition) for each in markers} == {
                    (topic, index) for topic, numbers in before[name].partitions.items() for index in numbers
                }
            elif before[name].state.label == "Ongoing":
                producer = (metadata.producer_id, metadata.producer_epoch)
                assert world.abort(producer, transactional_id=name) == (producer[0], producer[1] + 1)
            else:
                assert metadata == before[name]


def _all(world: World):  # type: ignore[no-untyped-def]
    return dict(world.shard.transactions.items())
