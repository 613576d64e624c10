"""Offsets that are committed in transactions: TxnOffsetCommit, markers, and what a consumer sees meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from groups_world import Client, World, settle

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending

AT = ("orders", 1)
ASKED = {"orders": [1]}
UNSTABLE = -ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_offsets_count_when_their_transaction_is_committed() -> None:
    world = World()
    assert world.commit({AT: 5}).error == "NONE"
    assert world.commit_in_transaction({AT: 9}).error == "NONE"
    assert world.fetch(ASKED) == {AT: 5}
    assert world.fetch(ASKED, stable=True) == {AT: UNSTABLE}
    assert world.end_transaction(commit=True).error is None
    assert world.fetch(ASKED, stable=True) == {AT: 9}


def test_offsets_of_an_aborted_transaction_are_dropped() -> None:
    world = World()
    world.commit({AT: 5})
    world.commit_in_transaction({AT: 9})
    world.end_transaction(commit=False)
    assert world.fetch(ASKED, stable=True) == {AT: 5}


def test_only_the_producers_own_marker_ends_its_transaction() -> None:
    world = World()
    world.commit_in_transaction({AT: 9}, producer=(7, 0))
    world.end_transaction((8, 0), commit=True)
    assert world.fetch(ASKED, stable=True) == {AT: UNSTABLE}


@pytest.mark.parametrize("commit", [True, False])
def test_the_successor_finds_transactions_open_or_ended_as_they_were(commit: bool) -> None:
    world = World()
    world.commit({AT: 5})
    world.commit_in_transaction({AT: 9})
    world.elect()
    assert world.fetch(ASKED, stable=True) == {AT: UNSTABLE}
    world.end_transaction(commit=commit)
    world.elect()
    assert world.fetch(ASKED, stable=True) == {AT: 9 if commit else 5}


def test_a_marker_is_answered_when_it_is_committed_and_reverted_with_its_leader() -> None:
    world = World()
    world.commit_in_transaction({AT: 9})
    world.log.replicated = False
    ended = world.end_transaction(commit=True)
    assert not ended.done
    assert world.fetch(ASKED) == {AT: -1}, "what is not committed is not shown"
    world.runtime.on_resigned(0)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.NOT_COORDINATOR


def test_a_marker_is_not_waited_for_without_end() -> None:
    world = World()
    world.log.replicated = False
    ended = world.end_transaction(commit=True)
    world.pass_time(world.config.commit_timeout_ms)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_marker_needs_the_coordinator_of_its_partition() -> None:
    world = World()
    world.runtime.on_resigned(0)
    refused = world.end_transaction(commit=True)
    assert refused.error is not None
    assert refused.error.code is ErrorCode.NOT_COORDINATOR


# -- who may commit (KIP-447)


def test_a_member_of_an_old_generation_is_fenced() -> None:
    world = World()
    member = Client(world, instance="i")
    settle(world, member)
    at = {"member": member.member_id, "generation": member.generation, "instance": "i"}
    assert world.commit_in_transaction({AT: 1}, **at).error == "NONE"
    assert world.commit_in_transaction({AT: 1}, **{**at, "generation": 0}).error == "ILLEGAL_GENERATION"
    assert world.commit_in_transaction({AT: 1}, **{**at, "member": "x"}).error == "FENCED_INSTANCE_ID"
    assert world.commit_in_transaction({AT: 1}, member="x", generation=1).error == "UNKNOWN_MEMBER_ID"
    assert world.commit_in_transaction({AT: 1}).error == "NONE", "producers before KIP-447 send no member"
    assert world.commit_in_transaction({AT: 1}, group="none", generation=1).error == "ILLEGAL_GENERATION"
    assert world.commit_in_transaction({AT: 1}, group="").error == "INVALID_GROUP_ID"


def test_each_partition_that_is_unknown_has_an_error_of_its_own() -> None:
    world = World()
    answer = world.commit_in_transaction({("nope", 0): 1, AT: 2, ("orders", 99): 3})
    assert answer.errors == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    world.end_transaction(commit=True)
    assert world.fetch() == {AT: 2}
    assert world.commit_in_transaction({AT: 1}, metadata="x" * 5000).error == "OFFSET_METADATA_TOO_LARGE"


def test_from_version_6_on_topics_are_named_by_id() -> None:
    world = World()
    answer = world.commit_in_transaction({("nope", 0): 1, AT: 2, ("orders", 99): 3}, version=6)
    assert answer.errors == ["UNKNOWN_TOPIC_ID", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [topic.topic_id for topic in answer.value.topics][1:] == [world.topics.ids["orders"]]
    world.end_transaction(commit=True)
    assert world.fetch() == {AT: 2}
    assert world.commit_in_transaction({AT: 1}, group="none", generation=1, version=6).error == "GROUP_ID_NOT_FOUND"
    failed = world.commit_in_transaction({("nope", 0): 1, AT: 2}, group="", version=6)
    assert failed.errors == ["UNKNOWN_TOPIC_ID", "INVALID_GROUP_ID"]


@pytest.mark.parametrize("producer", [(-1, 0), (7, -1)])
def test_a_commit_of_no_producer_writes_nothing(producer: tuple[int, int]) -> None:
    world = World()
    assert world.commit_in_transaction({AT: 9}, producer=producer).error == "UNKNOWN_SERVER_ERROR"
    assert world.log.appends == 0


# -- verification (KIP-890)


def test_the_first_commit_waits_for_the_coordinator_of_its_transaction() -> None:
    world, asked, guard = World(), [], Pending()

    def verify(index: int, request: Any, version: int) -> Pending[Any]:
        asked.append((index, request.transactional_id, version))
        return guard

    world.verify = verify
    answer = world.commit_in_transaction({AT: 9}, version=5)
    assert answer.waits
    assert asked == [(0, "t", 5)]
    guard.complete("the guard")
    assert answer.error == "NONE"
    assert world.log.guards == ["the guard"]


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 3, "INVALID_TXN_STATE"),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, "CONCURRENT_TRANSACTIONS"),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 3, "INVALID_PRODUCER_ID_MAPPING"),
        (ErrorCode.NETWORK_EXCEPTION, 5, "COORDINATOR_LOAD_IN_PROGRESS"),
        (ErrorCode.NETWORK_EXCEPTION, 1, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 5, "NOT_COORDINATOR"),
    ],
)
def test_a_commit_that_is_not_verified_writes_nothing(code: ErrorCode, version: int, expected: str) -> None:
    world = World()
    guard: Pending[Any] = Pending()
    world.verify = lambda *_: guard
    answer = world.commit_in_transaction({AT: 9, ("nope", 0): 1}, version=version)
    guard.fail(ApiError(code))
    assert answer.errors == [expected, "UNKNOWN_TOPIC_OR_PARTITION"]
    assert world.log.appends == 0


def test_nothing_is_verified_where_nothing_can_be_committed() -> None:
    world = World()
    world.verify = lambda *_: pytest.fail("no partition exists")
    assert world.commit_in_transaction({("nope", 0): 1}).errors == ["UNKNOWN_TOPIC_OR_PARTITION"]


def test_a_coordinator_that_resigns_while_it_waits_writes_nothing() -> None:
    world = World()
    guard: Pending[Any] = Pending()
    world.verify = lambda *_: guard
    answer = world.commit_in_transaction({AT: 9})
    world.runtime.on_resigned(0)
    guard.complete(None)
    assert answer.error == "NOT_COORDINATOR"


# -- pending offsets and the life of the group


def test_a_group_with_pending_offsets_does_not_expire() -> None:
    world = World()
    world.commit_in_transaction({AT: 9})
    world.pass_time(2 * world.config.offsets_retention_ms)
    assert world.state() == "Empty 0"
    world.end_transaction(commit=False)
    world.pass_time(2 * world.config.retention_check_interval_ms)
    assert world.state() == "Dead"


def test_a_tombstone_removes_pending_offsets() -> None:
    world = World()
    world.commit_in_transaction({AT: 9})
    world.topics.remove("orders")
    world.runtime.on_topics_deleted({"orders": b"\0" * 16})  # type: ignore[dict-item]
    world.end_transaction(commit=True)
    world.topics.add("orders", generation=2)
    assert world.fetch(ASKED) == {AT: -1}
