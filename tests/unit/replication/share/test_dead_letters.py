"""Records that a group gives up are archived when their dead letters are written (KIP-1191)."""

from __future__ import annotations

import pytest
from share_partition_world import A, C, D, K, PartitionWorld, X

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.share_states import AcknowledgeType, StateBatch
from kalda.replication.share.dead_letters import Cause, DeadRecords

ACCEPT, RELEASE, REJECT, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.GAP,
)


def _world(**settings: object) -> PartitionWorld:
    return PartitionWorld(dead_letter_topic="dlq.g", **settings)  # type: ignore[arg-type]


def test_a_rejected_record_holds_the_start_until_its_letter_is_written() -> None:
    world = _world()
    world.fetch()
    assert world.acknowledge(0, 9, REJECT, REJECT, *[ACCEPT] * 8) is None
    assert world.dead_letters.begun == [DeadRecords(0, 1, 1, Cause.REJECTED)]
    assert world.written == [(0, 1, D, 1), (2, 9, K, 1)]
    assert (world.share.in_flight.start, world.runs) == (0, [(0, 1, D, 1), (2, 9, K, 1)])
    world.dead_letters.acknowledge()
    assert world.written == [(0, 1, X, 1)]
    assert (world.share.in_flight.start, world.runs) == (10, [])


def test_a_letter_begins_when_the_rejection_is_written() -> None:
    world = _world()
    world.fetch()
    world.persister.holds = True
    assert world.acknowledge(0, 9, REJECT) == "waiting"
    assert world.dead_letters.begun == []
    world.persister.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (world.dead_letters.begun, world.runs) == ([], [(0, 9, C, 1)]), "the member has the records as before"
    assert world.acknowledge(0, 9, REJECT) == "waiting"
    world.persister.settle()
    assert world.dead_letters.begun == [DeadRecords(0, 9, 1, Cause.REJECTED)]


def test_records_that_were_delivered_too_often_become_letters() -> None:
    world = _world(delivery_count_limit=2)
    world.fetch()
    world.acknowledge(0, 9, RELEASE)
    world.fetch(records=1, strict=True)
    assert world.dead_letters.begun == []
    world.time.advance(30_000)
    assert world.dead_letters.begun == [DeadRecords(0, 0, 2, Cause.DELIVERED_TOO_OFTEN)]
    assert world.runs == [(0, 0, D, 2), (1, 9, A, 1)]
    world.fetch("other", records=1, strict=True)
    world.outcome(world.share.release("other"))
    assert world.dead_letters.begun[1:] == [DeadRecords(1, 1, 2, Cause.DELIVERED_TOO_OFTEN)]
    world.dead_letters.acknowledge()
    assert world.share.in_flight.start == 2


def test_the_end_of_a_lock_is_written_before_the_letter() -> None:
    world = _world(delivery_count_limit=2)
    world.fetch()
    world.acknowledge(0, 9, RELEASE)
    world.fetch(records=1, strict=True)
    world.persister.holds = True
    world.time.advance(30_000)
    assert (world.written, world.dead_letters.begun) == ([(0, 0, D, 2)], [])
    world.persister.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert len(world.dead_letters.begun) == 1, "the lock has ended whether that is written or not"


def test_gaps_are_no_dead_letters_and_neither_are_records_of_groups_without_a_topic() -> None:
    world = _world()
    world.fetch()
    world.acknowledge(0, 9, GAP)
    other = PartitionWorld()
    other.fetch()
    other.acknowledge(0, 9, REJECT)
    assert world.dead_letters.begun == other.dead_letters.begun == []
    assert world.share.in_flight.start == other.share.in_flight.start == 10


def test_the_next_leader_writes_the_letters_again() -> None:
    batches = (StateBatch(0, 4, D, 1), StateBatch(5, 9, D, 5), StateBatch(10, 19, K, 1))
    world = PartitionWorld(batches=batches)
    assert world.dead_letters.begun == [
        DeadRecords(0, 4, 1, Cause.REJECTED),
        DeadRecords(5, 9, 5, Cause.DELIVERED_TOO_OFTEN),
    ]
    assert world.fetch() == [(20, 29, 1)]
    world.dead_letters.acknowledge()
    assert world.runs == [(20, 29, C, 1)]


def test_letters_count_against_the_records_in_flight() -> None:
    world = _world(max_record_locks=10)
    world.fetch()
    world.acknowledge(0, 9, REJECT)
    assert not world.share.can_acquire
    assert world.fetch() == []
    world.dead_letters.acknowledge()
    assert world.fetch() == [(10, 19, 1)]


def test_a_leader_that_was_fenced_archives_nothing() -> None:
    world = _world()
    world.fetch()
    world.acknowledge(0, 9, REJECT)
    ((is_wanted, answer),) = world.dead_letters.waiting
    assert is_wanted()
    world.share.end_as_fenced(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not is_wanted()
    writes = len(world.persister.writes)
    answer.complete(None)
    assert len(world.persister.writes) == writes


def test_a_letter_of_records_that_the_log_has_lost_archives_nothing() -> None:
    world = _world()
    world.fetch()
    world.acknowledge(0, 9, REJECT)
    world.share.move_start(15)
    world.dead_letters.acknowledge()
    assert (world.share.in_flight.start, world.runs) == (15, [])


def test_locks_end_after_a_fault_in_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PartitionWorld()
    world.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(world.persister, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.time.advance(30_000)
    world.fetch("other")
    world.time.advance(60_000)
    assert world.runs == [(0, 9, A, 2)]
