"""The state of share partitions: written, read by the next leader, fenced, snapshotted, pruned, carried over."""

from __future__ import annotations

from typing import Any

import pytest
from share_state_world import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    ORDERS,
    PAYMENTS,
    ShareWorld,
    batches_in,
    outcome,
)

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.share import shard
from kalda.protocol.messages.share import (
    ReadShareGroupStateRequest,
    ReadStateData,
    WriteShareGroupStateRequest,
    WriteShareGroupStateRequestPartitionData,
    WriteStateData,
)

HOUR_MS = 3_600_000


@pytest.fixture
def world() -> ShareWorld:
    """A share partition is initialized."""
    made = ShareWorld()
    assert made.initialize().error_code == 0
    return made


def test_what_a_leader_writes_the_next_one_reads(world: ShareWorld) -> None:
    read = world.read(leader_epoch=3)
    assert (read.state_epoch, read.start_offset, batches_in(read)) == (1, -1, [])
    world.write((10, 19, ACKNOWLEDGED, 1), (20, 29, AVAILABLE, 1), leader_epoch=3, start=10)
    world.write((15, 15, ARCHIVED, 5), leader_epoch=3, start=12, count=8)
    expected = [(12, 14, ACKNOWLEDGED, 1), (15, 15, ARCHIVED, 5), (16, 19, ACKNOWLEDGED, 1), (20, 29, AVAILABLE, 1)]
    read = world.read(leader_epoch=4)
    assert (read.start_offset, batches_in(read)) == (12, expected)
    summary = world.summarize()
    assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (1, 4, 12)
    assert summary.delivery_complete_count == 8


def test_another_coordinator_has_the_same_state_out_of_the_log(world: ShareWorld) -> None:
    world.read(leader_epoch=2)
    for offset in range(0, 40, 4):
        world.write((offset, offset + 2, ACKNOWLEDGED, 1 + offset % 3), leader_epoch=2, start=offset // 2, count=offset)
    world.initialize(topic=PAYMENTS, start=7)
    world.delete(topic=PAYMENTS)
    before = world.state()
    world.elect()
    assert before is not None
    assert world.state() == before
    assert world.state(PAYMENTS) is None
    assert world.write(leader_epoch=1) == "FENCED_LEADER_EPOCH"


def test_a_former_leader_is_fenced_when_the_next_one_has_read(world: ShareWorld) -> None:
    world.read(leader_epoch=5)
    assert world.write((0, 1, ACKNOWLEDGED, 1), leader_epoch=5).error_code == 0
    world.read(leader_epoch=6)
    assert world.write((0, 1, ARCHIVED, 2), leader_epoch=5) == "FENCED_LEADER_EPOCH"
    assert world.read(leader_epoch=5) == "FENCED_LEADER_EPOCH"
    assert batches_in(world.read(leader_epoch=6)) == [(0, 1, ACKNOWLEDGED, 1)]
    assert world.write((0, 1, ARCHIVED, 2), leader_epoch=-1).error_code == 0, "an unknown epoch is not checked"


def test_a_read_in_a_known_epoch_writes_nothing(world: ShareWorld) -> None:
    world.read(leader_epoch=5)
    assert world.kinds == "Su"
    for epoch in (5, -1):
        world.read(leader_epoch=epoch)
    assert world.kinds == "Su"


def test_a_later_state_epoch_begins_anew_and_fences_the_former_one(world: ShareWorld) -> None:
    world.read(leader_epoch=5)
    world.write((0, 9, ACKNOWLEDGED, 1), leader_epoch=5, start=0)
    assert world.initialize(state_epoch=2, start=40).error_code == 0
    assert world.write((10, 19, ACKNOWLEDGED, 1), leader_epoch=5, state_epoch=1) == "FENCED_STATE_EPOCH"
    assert world.initialize(state_epoch=1) == "FENCED_STATE_EPOCH"
    read = world.read(leader_epoch=5)
    assert (read.state_epoch, read.start_offset, batches_in(read)) == (2, 40, [])
    assert world.write(leader_epoch=4, state_epoch=2) == "FENCED_LEADER_EPOCH", "the leader epoch fences as before"
    assert world.summarize().delivery_complete_count == 0


def test_an_initialization_that_is_sent_again_changes_nothing(world: ShareWorld) -> None:
    world.write((5, 9, ACKNOWLEDGED, 1), leader_epoch=0)
    assert world.initialize().error_code == 0
    assert world.kinds == "Su"
    assert batches_in(world.read()) == [(5, 9, ACKNOWLEDGED, 1)]


def test_a_write_that_was_late_moves_no_start_offset_back(world: ShareWorld) -> None:
    world.write((20, 29, ACKNOWLEDGED, 1), start=20, count=10)
    world.write((0, 4, ACKNOWLEDGED, 1), (18, 21, ARCHIVED, 2), start=0, count=5)
    read = world.read()
    assert (read.start_offset, batches_in(read)) == (20, [(20, 21, ARCHIVED, 2), (22, 29, ACKNOWLEDGED, 1)])
    assert world.summarize().delivery_complete_count == 10
    world.write(start=20, count=3)
    assert world.summarize().delivery_complete_count == 10, "for one start offset the count only grows"
    world.write(start=25, count=4)
    assert world.summarize().delivery_complete_count == 4


def test_a_snapshot_follows_so_many_updates() -> None:
    world = ShareWorld(updates_per_snapshot=2)
    world.initialize()
    for offset in range(7):
        world.write((offset, offset, ACKNOWLEDGED, 1), start=0)
    assert world.kinds == "SuuSuuSu"
    values: list[Any] = [record.value for record in world.records]
    assert [value.snapshot_epoch for value in values] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [(each.first_offset, each.last_offset) for each in values[6].state_batches] == [(0, 5)]
    world.elect()
    assert batches_in(world.read()) == [(0, 6, ACKNOWLEDGED, 1)]


def test_a_limit_of_no_updates_writes_snapshots_alone() -> None:
    world = ShareWorld(updates_per_snapshot=0)
    world.initialize()
    world.write(start=1)
    world.write(start=2)
    assert world.kinds == "SSS"


def test_answers_wait_for_the_commit(world: ShareWorld) -> None:
    world.log.replicated = False
    written, read = world.write((0, 9, ACKNOWLEDGED, 1), start=0), world.read()
    assert isinstance(written, Pending)
    assert isinstance(read, Pending), "a leader does not begin with what may be taken back"
    world.replicate()
    assert outcome(written).error_code == 0
    assert batches_in(outcome(read)) == [(0, 9, ACKNOWLEDGED, 1)]


def test_what_is_not_committed_in_time_fails_and_may_be_sent_again(world: ShareWorld) -> None:
    world.log.replicated = False
    written = world.write((0, 9, ACKNOWLEDGED, 1), start=0)
    world.pass_time(4_999)
    assert not written.done
    world.pass_time(1)
    assert outcome(written) == "COORDINATOR_NOT_AVAILABLE"
    world.replicate()
    world.write((0, 9, ACKNOWLEDGED, 1), start=0)
    world.replicate()
    world.log.replicated = True
    assert batches_in(world.read()) == [(0, 9, ACKNOWLEDGED, 1)]


def test_a_coordinator_that_lost_the_partition_sends_its_callers_on(world: ShareWorld) -> None:
    world.log.replicated = False
    written = world.write((0, 9, ACKNOWLEDGED, 1))
    world.runtime.on_resigned(0)
    assert outcome(written) == "NOT_COORDINATOR"
    for answer in (world.write(), world.read(), world.initialize(), world.delete(), world.summarize()):
        assert answer == "NOT_COORDINATOR"


def test_a_log_that_refuses_appends_changes_nothing(world: ShareWorld) -> None:
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.write((0, 9, ACKNOWLEDGED, 1), start=0) == "COORDINATOR_NOT_AVAILABLE"
    world.log.failure = None
    assert batches_in(world.read()) == []


def test_what_was_not_initialized_is_refused() -> None:
    world = ShareWorld()
    assert world.write() == "INVALID_REQUEST"
    assert world.read() == "INVALID_REQUEST"
    summary = world.summarize()
    assert (summary.error_code, summary.start_offset, summary.delivery_complete_count) == (0, -1, -1)
    assert world.delete().error_code == 0
    assert world.kinds == ""


def test_after_its_deletion_a_share_partition_begins_from_nothing(world: ShareWorld) -> None:
    world.read(leader_epoch=9)
    assert world.delete().error_code == 0
    assert world.kinds == "Sut"
    assert world.read(leader_epoch=9) == "INVALID_REQUEST"
    assert world.initialize(state_epoch=1).error_code == 0
    assert world.read(leader_epoch=2).state_epoch == 1


@pytest.mark.parametrize(("topic", "partition"), [(ORDERS, 4), (Uuid(b"none".ljust(16, b".")), 0)])
def test_partitions_that_do_not_exist_are_refused(world: ShareWorld, topic: Uuid, partition: int) -> None:
    for request in (world.initialize, world.summarize, world.delete):
        assert request(topic=topic, partition=partition) == "UNKNOWN_TOPIC_OR_PARTITION"
    world.topics.clear()
    assert world.read() == "UNKNOWN_TOPIC_OR_PARTITION"
    assert world.write() == "UNKNOWN_TOPIC_OR_PARTITION"


def test_forged_requests_are_refused(world: ShareWorld) -> None:
    for request in (world.initialize, world.write, world.read, world.summarize, world.delete):
        assert request(partition=-1) == "INVALID_REQUEST"
    assert world.write((5, 4, ACKNOWLEDGED, 1)) == "INVALID_REQUEST"
    assert world.write((-3, 4, ACKNOWLEDGED, 1)) == "INVALID_REQUEST"
    assert world.kinds == "S"


def test_a_request_that_names_nothing_is_answered_with_nothing(world: ShareWorld) -> None:
    read, write = world.coordinator.read, world.coordinator.write
    partitions = [WriteShareGroupStateRequestPartitionData()]
    for answered in (
        read(ReadShareGroupStateRequest(group_id="g"), world.now),
        read(ReadShareGroupStateRequest(group_id="g", topics=[ReadStateData(topic_id=ORDERS)]), world.now),
        write(WriteShareGroupStateRequest(topics=[WriteStateData(topic_id=ORDERS, partitions=partitions)]), world.now),
    ):
        assert run_to_end(answered).results == []


def test_one_request_has_an_answer_for_each_partition(world: ShareWorld) -> None:
    request = WriteShareGroupStateRequest(
        group_id="g",
        topics=[
            WriteStateData(
                topic_id=ORDERS,
                partitions=[
                    WriteShareGroupStateRequestPartitionData(partition=each, state_epoch=1, start_offset=3)
                    for each in (0, 1, 9)
                ],
            )
        ],
    )
    (result,) = run_to_end(world.coordinator.write(request, world.now)).results
    codes = [(each.partition, each.error_code) for each in result.partitions]
    assert codes == [(0, 0), (1, ErrorCode.INVALID_REQUEST), (9, ErrorCode.INVALID_REQUEST)]
    assert world.coordinator.writes.total.measure(world.now) == 3


# -- what time brings


def test_records_below_all_latest_snapshots_are_deleted() -> None:
    world = ShareWorld(updates_per_snapshot=1, cold_snapshot_interval_ms=HOUR_MS)
    world.initialize()  # 0
    world.initialize(topic=PAYMENTS)  # 1
    world.pass_time(300_000)
    assert world.pruned == [], "nothing is redundant"
    for _ in range(4):  # 2 to 5, the last of them a snapshot
        world.write(start=1)
    world.pass_time(300_000)
    assert world.pruned == [1], "the other share partition's first snapshot counts still"
    for _ in range(2):  # 6, 7
        world.write(topic=PAYMENTS, start=1)
    world.pass_time(600_000)
    assert world.pruned == [1, 5], "once for each offset"


def test_all_is_deleted_where_no_share_partition_is_left(world: ShareWorld) -> None:
    world.delete()
    world.pass_time(300_000)
    assert world.pruned == [2]


def test_nothing_is_deleted_for_a_snapshot_that_may_be_taken_back() -> None:
    world = ShareWorld(updates_per_snapshot=0, cold_snapshot_interval_ms=HOUR_MS)
    world.initialize()
    world.log.replicated = False
    world.write(start=1)
    world.pass_time(300_000)
    assert world.pruned == []
    world.replicate()
    world.pass_time(300_000)
    assert world.pruned == [1]


def test_a_deletion_that_failed_is_tried_again(world: ShareWorld) -> None:
    world.delete()
    world.prune_failure = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.pass_time(300_000)
    world.prune_failure = None
    world.pass_time(300_000)
    assert world.pruned == [2]


def test_a_share_partition_at_rest_holds_up_no_deletion() -> None:
    world = ShareWorld(updates_per_snapshot=0)
    world.initialize(topic=PAYMENTS)
    world.initialize()
    world.pass_time(200_000)
    world.write(start=1)  # 2
    world.pass_time(100_000)
    assert world.kinds == "SSSS", "the one that had no snapshot for five minutes"
    assert world.records[3].key.topic_id == PAYMENTS
    world.pass_time(300_000)
    assert world.pruned[-1] >= 2
    world.elect()
    assert world.state(PAYMENTS) is not None


def test_a_topic_at_rest_is_left_alone(world: ShareWorld) -> None:
    world.pass_time(HOUR_MS)
    assert world.kinds == "SS", "one snapshot that is written anew, and no more"


def test_the_state_of_deleted_topics_goes_with_them(world: ShareWorld) -> None:
    world.initialize(topic=PAYMENTS)
    world.initialize(topic=PAYMENTS, partition=1)
    world.runtime.on_topics_deleted({"payments": PAYMENTS})
    assert world.kinds == "SSStt"
    assert world.state(PAYMENTS) is None
    assert world.state() is not None


def test_timers_end_with_the_leadership(world: ShareWorld) -> None:
    world.runtime.on_resigned(0)
    world.pass_time(HOUR_MS)
    assert world.pruned == []
    assert world.kinds == "S"


def test_a_fault_in_one_share_partition_keeps_no_other_from_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ShareWorld()
    world.initialize()
    world.initialize(topic=PAYMENTS)
    snapshot_anew = shard._snapshot_anew
    faults = iter([RuntimeError("thrown on purpose")])

    def faulty(state: Any, now_ms: int) -> Any:
        for fault in faults:
            raise fault
        return snapshot_anew(state, now_ms)

    monkeypatch.setattr(shard, "_snapshot_anew", faulty)
    world.pass_time(300_000)
    assert world.kinds == "SSS"
    assert world.records[2].key.topic_id == PAYMENTS
    world.pass_time(300_000)
    assert world.records[3].key.topic_id == ORDERS, "the next pass has no fault"
