"""A producer with several requests in flight: one is refused, and the broker could take the next ones.

These may not be taken, nor answered as a gap, before the refused one has come again."""

from __future__ import annotations

import pytest
from data_path_world import SELF, Assigned, World

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.batch import MAX_INT32
from kalda.records.builder import build_batch
from kalda.replication import produce, replica_manager

LEADS, FOLLOWS = (Assigned(leader, epoch, (SELF, 2), (SELF, 2)) for leader, epoch in ((SELF, 1), (2, 0)))
ALONE = Assigned(SELF, 0, (SELF, 2, 3), (SELF,))
OK, NOT_LEADER, GAP = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def send(
    world: World,
    sequence: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    records: int = 1,
    acks: int = 1,
    name: str = "a",
    topic_id: bytes = bytes(16),
) -> ErrorCode:
    """How a batch is answered, at once."""
    rows = [(world.now_ms, None, b"v", ())] * records
    batch = build_batch(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    topic = TopicProduceData(topic_id=Uuid(topic_id), partition_data=[PartitionProduceData(index=0, records=batch)])
    done = produce.run(world.replicas, ProduceRequest(acks=acks, topic_data=[topic]), [name], world.now_ms)
    return ErrorCode(done.response.responses[0].partition_responses[0].error_code)


def test_those_behind_wait_for_the_one_that_the_new_leader_refused() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    assert send(world, 0, records=5) is OK
    world.assign("a", assigned=Assigned(2, 1, (SELF, 2), (SELF, 2)))
    assert [send(world, 5), send(world, 6)] == [NOT_LEADER, NOT_LEADER]
    log = world.assign("a", assigned=Assigned(SELF, 2, (SELF, 2), (SELF, 2))).log
    assert [send(world, 7), send(world, 8)] == [NOT_LEADER, NOT_LEADER]
    assert log.log_end_offset == 5
    assert [send(world, each) for each in (5, 6, 7, 8)] == [OK] * 4
    assert not world.replicas.refused.notes


def test_nor_are_they_the_first_ones_of_a_producer_that_the_partition_does_not_know() -> None:
    """With any sequence a producer's first batch is appended: then the one before could not follow."""
    world = World()
    world.assign("a", assigned=FOLLOWS)
    assert send(world, 0, records=3) is NOT_LEADER
    world.assign("a", assigned=LEADS)
    assert send(world, 3) is NOT_LEADER
    assert [send(world, 0, records=3), send(world, 3)] == [OK, OK]


def test_a_partition_that_was_unknown() -> None:
    by_name, by_id = World(), World()
    assert send(by_name, 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_name.assign("a")
    assert send(by_name, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [send(by_name, 0), send(by_name, 1)] == [OK, OK]

    topic_id = World().assign("a").topic_id  # that of every world
    assert send(by_id, 0, name="", topic_id=topic_id) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_id.assign("a").topic_id == topic_id
    assert send(by_id, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [send(by_id, 0), send(by_id, 1)] == [OK, OK]


def test_too_few_in_sync() -> None:
    world = World()
    world.assign("a", assigned=ALONE, min_insync_replicas="2")
    assert send(world, 0, acks=-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(world, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [send(world, 0), send(world, 1)] == [OK, OK]


def test_others_are_not_held_up() -> None:
    """Other producers, other partitions, and the same producer in its next epoch."""
    world = World()
    world.assign("a", assigned=FOLLOWS)
    world.assign("b")
    assert send(world, 5) is NOT_LEADER
    world.assign("a", assigned=LEADS)
    assert [send(world, 6, producer=8), send(world, 6, name="b"), send(world, 6)] == [OK, OK, NOT_LEADER]
    assert [send(world, 0, epoch=1), send(world, 1, epoch=1)] == [OK, OK]
    assert send(world, 6) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_next_epoch_does_not_wait_for_a_batch_of_the_one_before() -> None:
    world = World()
    world.assign("a", assigned=FOLLOWS)
    assert [send(world, 5), send(world, 0, epoch=1), send(world, 4)] == [NOT_LEADER] * 3
    world.assign("a", assigned=LEADS)
    assert send(world, 1, epoch=1) is NOT_LEADER
    assert [send(world, 0, epoch=1), send(world, 1, epoch=1)] == [OK, OK]


def test_a_batch_that_was_given_up_counts_as_a_gap_in_the_end() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    assert send(world, 0) is OK
    world.assign("a", assigned=Assigned(2, 1, (SELF, 2), (SELF, 2)))
    assert send(world, 1) is NOT_LEADER
    world.assign("a", assigned=Assigned(SELF, 2, (SELF, 2), (SELF, 2)))
    world.advance(replica_manager.MAX_MS - 1)
    assert send(world, 2) is NOT_LEADER
    world.advance(1)
    assert send(world, 2) is GAP
    assert not world.replicas.refused.notes


def test_a_true_gap_is_one_at_once() -> None:
    world = World()
    world.assign("a", assigned=FOLLOWS)
    assert send(world, 1) is NOT_LEADER
    world.assign("a", assigned=LEADS)
    assert [send(world, 0), send(world, 1), send(world, 3)] == [OK, OK, GAP]


def test_sequences_begin_again_after_the_largest() -> None:
    world = World()
    world.assign("a", assigned=FOLLOWS)
    assert send(world, MAX_INT32) is NOT_LEADER
    world.assign("a", assigned=LEADS)
    assert send(world, 0) is NOT_LEADER
    assert [send(world, MAX_INT32), send(world, 0)] == [OK, OK]


@pytest.mark.parametrize("sequence", [-1, 0])
def test_batches_without_a_producer_are_independent(sequence: int) -> None:
    world = World()
    world.assign("a", assigned=FOLLOWS)
    assert send(world, sequence, producer=-1, epoch=-1) is NOT_LEADER
    assert not world.replicas.refused.notes


def test_notes_are_bounded() -> None:
    world = World()
    world.assign("a", assigned=FOLLOWS)
    for producer in range(replica_manager.MAX_NOTES + 5):
        send(world, 0, producer=producer)
    notes = world.replicas.refused.notes
    assert len(notes) == replica_manager.MAX_NOTES
    assert min(producer for _, _, producer in notes) == 5


@pytest.mark.parametrize("passed_ms", [replica_manager.MAX_MS, -1])
def test_old_notes_cost_nothing(passed_ms: int) -> None:
    """Any batch drops them, also where the clock was set back."""
    world = World()
    world.assign("a", assigned=FOLLOWS)
    world.assign("b")
    for producer in range(3):
        send(world, 0, producer=producer)
    assert len(world.replicas.refused.notes) == 3
    world.now_ms += passed_ms
    assert send(world, -1, producer=-1, epoch=-1, name="b") is OK
    assert not world.replicas.refused.notes


def test_a_name_that_no_topic_can_have_is_not_kept() -> None:
    world = World()
    assert send(world, 0, name="n" * 30_000) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not world.replicas.refused.notes
