"""Who gets which records of a share partition, for how long, how often, and what is written of it."""

from __future__ import annotations

import pytest
from share_partition_world import NEVER_READ, A, C, K, PartitionWorld, X

from kalda.base.errors import ErrorCode
from kalda.base.share_states import AcknowledgeType, StateBatch
from kalda.replication.share.share_partition import Phase

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
    AcknowledgeType.GAP,
)


# -- acquiring


def test_no_two_members_get_the_same_records() -> None:
    world = PartitionWorld()
    assert world.fetch("a") == [(0, 9, 1)]
    assert world.fetch("b") == [(10, 19, 1)]
    assert world.runs == [(0, 9, C, 1), (10, 19, C, 1)]


def test_whole_batches_are_acquired_unless_the_number_is_a_limit() -> None:
    world = PartitionWorld()
    assert world.fetch(records=14) == [(0, 19, 1)]
    assert world.fetch(records=14, strict=True) == [(20, 33, 1)]
    assert world.fetch(records=14, strict=True) == [(34, 47, 1)], "the rest of that batch comes first"
    assert world.fetch(records=1) == [(48, 49, 1)]


def test_records_come_in_portions_of_whole_batches() -> None:
    world = PartitionWorld()
    assert world.fetch(records=50, portion=15) == [(0, 19, 1), (20, 39, 1), (40, 49, 1)]
    assert world.fetch(records=20, portion=1) == [(50, 59, 1), (60, 69, 1)]


def test_no_more_records_are_locked_than_the_group_may() -> None:
    world = PartitionWorld(max_record_locks=30)
    assert world.fetch(records=100, strict=True) == [(0, 29, 1)]
    assert not world.share.can_acquire
    assert world.fetch(records=100) == []
    world.acknowledge(5, 9)
    assert world.share.can_acquire, "what needs no delivery does not count"
    assert world.fetch(records=100, strict=True) == [(30, 34, 1)]
    world.acknowledge(10, 14, RELEASE)
    assert world.share.can_acquire, "what has come back is delivered again, though there is no room"
    assert world.fetch(records=100) == [(10, 14, 2)]


def test_batches_that_compaction_has_removed_hold_nothing_up() -> None:
    world = PartitionWorld()
    world.fetch(records=30)
    world.acknowledge(0, 29, RELEASE)
    assert world.fetch(records=100, size=40, missing=range(20)) == [(20, 29, 2), (30, 39, 1)]
    assert world.share.in_flight.start == 20
    assert world.fetch(records=100, missing=range(40, 60)) == [(60, 159, 1)]
    world.acknowledge(20, 39)
    assert world.share.in_flight.start == 60


def test_records_of_aborted_transactions_are_not_delivered() -> None:
    world = PartitionWorld()
    assert world.fetch(records=100, size=50, aborted=((10, 19), (30, 39))) == [(0, 9, 1), (20, 29, 1), (40, 49, 1)]
    assert world.runs[1] == (10, 19, X, 0)
    world.acknowledge(0, 9)
    assert world.share.in_flight.start == 20
    assert world.fetch(records=10, size=50, aborted=((50, 59), (60, 69))) == [(70, 79, 1)]
    assert world.fetch(records=10, size=20, aborted=((80, 89), (90, 99))) == []
    assert world.share.in_flight.next_fetch_offset == 100, "the fetch after it goes on behind them"


def test_a_limit_within_a_transaction_passes_over_nothing() -> None:
    world = PartitionWorld()
    assert world.fetch(records=5, strict=True, aborted=((10, 19),)) == [(0, 4, 1)]
    assert world.fetch(records=5, strict=True, aborted=((10, 19),)) == [(5, 9, 1)]
    assert world.fetch(records=5, strict=True, aborted=((10, 19),)) == [(20, 24, 1)]


# -- acknowledging


def test_what_is_acknowledged_moves_the_start_when_it_is_written() -> None:
    world = PartitionWorld()
    world.fetch(records=30)
    world.persister.holds = True
    assert world.acknowledge(0, 9) == "waiting"
    assert world.share.in_flight.start == 0
    assert world.acknowledge(0, 9) == "INVALID_RECORD_STATE", "once is enough"
    world.persister.settle()
    assert world.share.in_flight.start == 10
    write = world.persister.writes[0]
    assert (write.start_offset, write.leader_epoch, write.state_epoch, write.delivery_complete_count) == (0, 7, 1, 10)
    assert world.written == [(0, 9, K, 1)]
    assert world.acknowledge(0, 9) is None, "the answer may have been lost"
    assert len(world.persister.writes) == 1


def test_each_record_may_have_its_own_type() -> None:
    world = PartitionWorld()
    world.fetch()
    assert world.acknowledge(0, 5, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, ACCEPT) is None
    assert world.written == [(0, 1, K, 1), (2, 2, A, 1), (3, 4, X, 1), (5, 5, K, 1)]
    assert world.runs == [(2, 2, A, 1), (3, 4, X, 1), (5, 5, K, 1), (6, 9, C, 1)]
    assert world.fetch("b") == [(2, 2, 2), (10, 19, 1)]


def test_one_wrong_range_undoes_all_others() -> None:
    world = PartitionWorld()
    world.fetch("a")
    world.fetch("b")
    assert world.acknowledge(5, 14, member="a") == "INVALID_RECORD_STATE"
    assert world.acknowledge(5, 9, member="b") == "INVALID_RECORD_STATE"
    assert world.acknowledge(15, 20, member="b") == "INVALID_REQUEST"
    assert world.acknowledge(15, 15, *[AcknowledgeType.ACCEPT]) == "INVALID_RECORD_STATE"
    assert world.persister.writes == []
    assert world.acknowledge(0, 9, member="a") is None


def test_a_type_that_does_not_exist_is_refused() -> None:
    world = PartitionWorld()
    world.fetch()
    assert world.acknowledge(0, 9, 5) == "INVALID_REQUEST"  # type: ignore[arg-type]


def test_what_was_never_delivered_cannot_be_acknowledged() -> None:
    world = PartitionWorld()
    assert world.acknowledge(0, 0) == "INVALID_RECORD_STATE"
    world.fetch()
    assert world.acknowledge(0, 10**15) == "INVALID_REQUEST"


def test_a_member_keeps_its_records_where_the_write_fails() -> None:
    world = PartitionWorld()
    world.fetch()
    world.persister.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.acknowledge(0, 9) == "COORDINATOR_NOT_AVAILABLE"
    assert world.runs == [(0, 9, C, 1)]
    world.persister.failure = None
    assert world.acknowledge(0, 9) is None
    assert world.runs == []


def test_a_lock_that_ended_during_a_failed_write_is_over() -> None:
    world = PartitionWorld(lock_duration_ms=1_000)
    world.fetch()
    world.persister.holds = True
    world.acknowledge(0, 4)
    world.time.advance(1_000)
    assert world.runs == [(0, 4, K, 1), (5, 9, A, 1)], "the lock of the others has ended"
    world.persister.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.runs == [(0, 9, A, 1)]


# -- locks


def test_a_lock_that_ends_releases_its_records() -> None:
    world = PartitionWorld(lock_duration_ms=1_000)
    world.fetch("a")
    world.time.advance(500)
    world.fetch("b")
    world.time.advance(500)
    assert world.runs == [(0, 9, A, 1), (10, 19, C, 1)]
    assert world.written == [(0, 9, A, 1)]
    assert world.acknowledge(0, 9, member="a") == "INVALID_RECORD_STATE"
    assert world.fetch("c") == [(0, 9, 2)]
    world.time.advance(500)
    assert world.runs == [(0, 9, C, 2), (10, 19, A, 1)]


def test_a_renewed_lock_lasts_longer_and_writes_nothing() -> None:
    world = PartitionWorld(lock_duration_ms=1_000)
    world.fetch()
    world.time.advance(900)
    assert world.acknowledge(0, 3, RENEW) is None
    assert world.persister.writes == []
    world.time.advance(100)
    assert world.runs == [(0, 3, C, 1), (4, 9, A, 1)]
    world.time.advance(900)
    assert world.runs == [(0, 9, A, 1)]
    world.settings = world.settings._replace(renew_enabled=False)
    world.fetch()
    assert world.acknowledge(0, 3, RENEW) == "INVALID_RECORD_STATE"


def test_a_failed_write_leaves_the_lock_in_force() -> None:
    world = PartitionWorld(lock_duration_ms=1_000)
    world.fetch(records=1, strict=True)
    world.persister.holds = True
    world.acknowledge(0, 0)
    world.time.advance(999)
    world.persister.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.runs == [(0, 0, C, 1)]
    world.time.advance(1)
    assert world.runs == [(0, 0, A, 1)]


def test_records_that_were_delivered_too_often_are_given_up() -> None:
    world = PartitionWorld(delivery_count_limit=2, lock_duration_ms=1_000)
    assert world.fetch(records=1, strict=True) == [(0, 0, 1)]
    world.time.advance(1_000)
    assert world.fetch(records=1, strict=True) == [(0, 0, 2)]
    world.time.advance(1_000)
    assert world.written == [(0, 0, X, 2)]
    assert world.fetch(records=1, strict=True) == [(1, 1, 1)]
    assert world.share.in_flight.start == 1


def test_one_bad_record_takes_no_others_with_it() -> None:
    """A member fails whenever it has record 37; every other record is processed."""
    world = PartitionWorld(batch=100, end=100)
    processed: set[int] = set()
    for _ in range(200):
        for first, last, _ in world.fetch(records=100):
            if first <= 37 <= last:
                world.acknowledge(first, last, RELEASE)
            else:
                processed |= set(range(first, last + 1))
                world.acknowledge(first, last)
    assert processed == set(range(100)) - {37}
    assert world.share.in_flight.start == 100


def test_all_that_a_member_has_is_released_with_its_session() -> None:
    world = PartitionWorld(delivery_count_limit=2)
    world.fetch("a")
    world.fetch("b")
    assert world.outcome(world.share.release("a")) is None
    assert world.runs == [(0, 9, A, 1), (10, 19, C, 1)]
    world.fetch("a", records=1)
    world.share.release("a")
    assert world.written[0][2] == X
    assert world.outcome(world.share.release("nobody")) is None


# -- leaders


def test_a_new_leader_goes_on_where_the_former_one_was() -> None:
    batches = (StateBatch(20, 29, K, 1), StateBatch(35, 39, A, 2), StateBatch(40, 44, X, 5))
    world = PartitionWorld(start=10, batches=batches)
    assert world.runs == [(10, 19, A, 0), (20, 29, K, 1), (30, 34, A, 0), (35, 39, A, 2), (40, 44, X, 5)]
    assert world.fetch(records=100, size=50) == [(10, 19, 1), (30, 34, 1), (35, 39, 3), (45, 59, 1)]


def test_acknowledged_records_below_what_was_persisted_are_not_delivered() -> None:
    world = PartitionWorld(start=10, batches=(StateBatch(5, 14, K, 1),))
    assert world.share.in_flight.start == 15
    assert world.fetch() == [(15, 29, 1)]


def test_a_group_begins_where_its_policy_says() -> None:
    world = PartitionWorld(start=NEVER_READ)
    assert world.fetch() == [(500, 509, 1)]


def test_state_that_cannot_be_read_is_read_anew_by_the_next_one() -> None:
    world = PartitionWorld()
    world.persister.failure = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    failed = world.made()
    assert failed.phase is Phase.FAILED
    assert failed.failure is not None
    assert failed.failure.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.outcome(failed.acknowledge("m", [])) == "COORDINATOR_LOAD_IN_PROGRESS"


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH])
def test_a_leader_that_is_fenced_serves_no_more(code: ErrorCode) -> None:
    world = PartitionWorld()
    world.fetch()
    world.persister.failure = code
    assert world.acknowledge(0, 9) == "NOT_LEADER_OR_FOLLOWER"
    assert world.share.phase is Phase.FENCED
    assert world.fetch() == []
    assert world.time.timers == 0


def test_what_the_log_has_deleted_is_forgotten() -> None:
    world = PartitionWorld()
    world.fetch(records=30)
    world.acknowledge(10, 19)
    world.share.move_start(15)
    assert world.share.in_flight.start == 20
    assert world.acknowledge(0, 29) is None, "the member could not know"
    world.share.move_start(100)
    assert world.fetch() == [(100, 109, 1)]
