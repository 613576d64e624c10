"""ShareFetch and ShareAcknowledge at one broker: sessions, waits, acknowledgements, locks, leaders."""

from __future__ import annotations

from typing import Any

import pytest
from data_path_world import SELF, Assigned
from share_world import Member, ShareWorld, acquired, errors

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.base.share_states import AcknowledgeType
from kalda.records.builder import build_batch
from kalda.replication.markers import append_marker
from kalda.replication.share.share_fetch import ShareFetch
from kalda.replication.share.share_partition import READ_BYTES
from kalda.replication.share.share_partitions import LATEST
from kalda.storage.values import TransactionEnd

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


@pytest.fixture
def world() -> ShareWorld:
    """Topic `a` has two batches of ten records."""
    made = ShareWorld(lock_duration_ms=1_000)
    made.assign("a")
    made.produce("a", 10)
    made.produce("a", 10)
    return made


def failure(call: Any) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    assert not isinstance(caught.value, InvalidRequest), "it would close the connection, and end its sessions"
    return caught.value.code.name


# -- reading and waiting


def test_members_share_the_records_of_a_partition(world: ShareWorld) -> None:
    first, second = Member(world, "m1"), Member(world, "m2")
    assert acquired(world, first.fetch("a", records=10)) == {"a": [(0, 9, 1)]}
    assert acquired(world, second.fetch("a", records=10)) == {"a": [(10, 19, 1)]}
    response = first.fetch(acks={"a": [(0, 9, ACCEPT)]})
    assert errors(response) == {0: ("NONE", "NONE")}
    assert response.acquisition_lock_timeout_ms == 1_000
    assert world.share_of("a").in_flight.start == 10
    assert world.counted == {ACCEPT: 10}


def test_a_fetch_reads_about_what_it_may_hand_out(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.assign("b").log
    for _ in range(100):
        world.produce("b", 100, size=30)
    sizes: list[int] = []
    read_one = ShareFetch._read_one

    def counted(fetch: ShareFetch, *arguments: Any) -> Any:
        found = read_one(fetch, *arguments)
        sizes.append(found.size_bytes)
        return found

    monkeypatch.setattr(ShareFetch, "_read_one", counted)
    member = Member(world, "m")
    for at in range(0, 10_000, 100):
        done = {"b": [(at - 100, at - 1, ACCEPT)]} if at else None
        assert acquired(world, member.fetch("b", records=100, acks=done)) == {"b": [(at, at + 99, 1)]}
    assert max(sizes) <= READ_BYTES < log.size_bytes // 2


def test_other_groups_get_the_same_records(world: ShareWorld) -> None:
    assert acquired(world, Member(world, group="g").fetch("a")) == {"a": [(0, 19, 1)]}
    assert acquired(world, Member(world, group="h").fetch("a")) == {"a": [(0, 19, 1)]}


def test_a_fetch_without_records_waits_for_an_append(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a")
    waiting = member.fetch(wait_ms=500)
    assert isinstance(waiting, Pending)
    assert not waiting.done
    world.produce("a", 3)
    world.advance(0)
    assert acquired(world, waiting) == {"a": [(20, 22, 1)]}
    waiting = member.fetch(wait_ms=500)
    world.advance(499)
    assert not waiting.done
    world.advance(1)
    assert acquired(world, waiting) == {}
    assert world.share_of("a").waiters == {}


def test_one_of_several_waiting_members_gets_what_there_is(world: ShareWorld) -> None:
    Member(world).fetch("a")
    members = [Member(world, f"m{number}") for number in range(3)]
    waiting = [member.fetch("a", wait_ms=500) for member in members]
    world.produce("a", 1)
    world.advance(0)
    assert [each.done for each in waiting].count(True) == 1
    world.produce("a", 1)
    world.produce("a", 1)
    world.advance(0)
    got = [acquired(world, each)["a"][0][0] for each in waiting]
    assert sorted(got) == [20, 21, 22]


def test_a_wait_ends_when_records_come_back(world: ShareWorld) -> None:
    holder, member = Member(world, "m1"), Member(world, "m2")
    holder.fetch("a")
    world.advance(10)
    waiting = member.fetch("a", wait_ms=5_000)
    assert holder.acknowledge("a", (0, 4, RELEASE), (5, 9, REJECT)) == "NONE"
    world.advance(0)
    assert acquired(world, waiting) == {"a": [(0, 4, 2)]}
    waiting = member.fetch(wait_ms=5_000)
    world.advance(989)
    assert not waiting.done
    world.advance(1)
    assert acquired(world, waiting) == {"a": [(10, 19, 2)]}, "the lock of the other member has ended"


def test_a_fetch_goes_on_where_its_connection_is_gone(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a")
    waiting = member.fetch(wait_ms=500)
    waiting.abandon()
    assert world.share_of("a").waiters == {}


def test_min_bytes_are_waited_for(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a")
    waiting = member.fetch(wait_ms=500, min_bytes=500)
    world.produce("a", 1)
    world.advance(0)
    assert not waiting.done
    world.produce("a", 60)
    world.advance(0)
    assert acquired(world, waiting) == {"a": [(20, 80, 1)]}


def test_the_state_is_read_before_the_first_record_is_given_out(world: ShareWorld) -> None:
    world.persister.holds = True
    waiting = Member(world).fetch("a", wait_ms=500)
    assert not waiting.done
    world.persister.holds = False
    world.persister.settle()
    world.advance(0)
    assert acquired(world, waiting) == {"a": [(0, 19, 1)]}


def test_a_state_that_cannot_be_read_fails_its_partition_alone(world: ShareWorld) -> None:
    world.persister.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    member = Member(world)
    assert errors(member.fetch("a", wait_ms=500)) == {0: ("COORDINATOR_NOT_AVAILABLE", "NONE")}
    world.persister.failure = None
    assert acquired(world, member.fetch()) == {"a": [(0, 19, 1)]}, "the next fetch reads it"


def test_a_record_limit_is_kept_to_the_record(world: ShareWorld) -> None:
    member = Member(world)
    assert acquired(world, member.fetch("a", records=4, mode=1)) == {"a": [(0, 3, 1)]}
    assert acquired(world, member.fetch(records=4, mode=1)) == {"a": [(4, 7, 1)]}
    assert acquired(world, member.fetch(records=4)) == {"a": [(8, 19, 1)]}
    assert failure(lambda: member.fetch(mode=2)) == "INVALID_REQUEST"


def test_the_records_of_all_partitions_together_are_limited(world: ShareWorld) -> None:
    world.assign("b")
    world.produce("b", 10)
    member = Member(world)
    got = acquired(world, member.fetch("a", "b", records=10))
    assert len(got) == 1
    got.update(acquired(world, member.fetch(records=10)))
    assert got == {"a": [(0, 9, 1)], "b": [(0, 9, 1)]}, "another partition comes first"


def test_groups_begin_where_their_policy_says(world: ShareWorld) -> None:
    world.first_time = LATEST
    member = Member(world)
    assert acquired(world, member.fetch("a")) == {}
    world.produce("a", 2)
    assert acquired(world, member.fetch()) == {"a": [(20, 21, 1)]}
    world.advance(60_000)
    world.produce("a", 2)
    world.first_time = world.now_ms - 1_000
    assert acquired(world, Member(world, group="h").fetch("a")) == {"a": [(22, 23, 1)]}


@pytest.mark.parametrize("read_committed", [False, True])
def test_aborted_records_are_given_out_by_isolation(read_committed: bool) -> None:
    world = ShareWorld(read_committed=read_committed)
    partition = world.assign("a")
    batch = build_batch(
        [(world.now_ms, b"k", b"v", ()) for _ in range(5)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    partition.append(batch, -1, world.now_ms)
    member = Member(world)
    expected = {} if read_committed else {"a": [(0, 4, 1)]}
    assert acquired(world, member.fetch("a")) == expected
    append_marker(partition, TransactionEnd(7, 0, False, 0, 1), world.now_ms)
    world.produce("a", 3)
    expected = {"a": [(5, 8, 1)]}
    assert acquired(world, member.fetch()) == expected, "the marker is a gap, which the member acknowledges"


def test_what_retention_has_deleted_is_passed_over(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a", records=10)
    partition = world.replicas.get("a", 0)
    partition.log.advance_log_start_offset(15)
    assert acquired(world, member.fetch()) == {"a": [(15, 19, 1)]}
    assert member.acknowledge("a", (0, 9, ACCEPT)) == "NONE"


# -- sessions


def test_a_session_is_begun_counted_and_ended(world: ShareWorld) -> None:
    member = Member(world)
    assert failure(lambda: member.fetch("a", epoch=1)) == "SHARE_SESSION_NOT_FOUND"
    assert failure(lambda: member.acknowledge("a", epoch=0)) == "INVALID_SHARE_SESSION_EPOCH"
    assert failure(lambda: member.acknowledge("a", epoch=-1)) == "SHARE_SESSION_NOT_FOUND"
    assert failure(lambda: member.fetch(acks={"a": [(0, 0, ACCEPT)]})) == "INVALID_REQUEST"
    member.fetch("a", records=10)
    for epoch in (2, 3, 100):
        assert failure(lambda epoch=epoch: member.fetch(epoch=epoch)) == "INVALID_SHARE_SESSION_EPOCH"
    assert member.acknowledge("a", (0, 4, ACCEPT)) == "NONE"
    assert failure(lambda: member.fetch(epoch=1)) == "INVALID_SHARE_SESSION_EPOCH", "that was the acknowledgement's"
    response = member.fetch(epoch=-1, acks={"a": [(5, 7, ACCEPT)]})
    assert errors(response) == {0: ("NONE", "NONE")}
    assert len(world.share_sessions) == world.share_sessions.partition_count == 0
    assert acquired(world, Member(world, "other").fetch("a")) == {"a": [(8, 9, 2), (10, 19, 1)]}


def test_a_session_that_ends_with_an_acknowledgement_releases_the_rest(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a")
    assert member.acknowledge("a", (0, 9, ACCEPT), epoch=-1) == "NONE"
    assert acquired(world, Member(world, "other").fetch("a")) == {"a": [(10, 19, 2)]}


def test_a_closed_connection_ends_its_sessions(world: ShareWorld) -> None:
    Member(world, connection=5).fetch("a")
    world.handlers.on_disconnect(Member(world, connection=6).context.connection)
    assert len(world.share_sessions) == 1
    world.handlers.on_disconnect(Member(world, connection=5).context.connection)
    assert len(world.share_sessions) == 0
    assert acquired(world, Member(world, "other").fetch("a")) == {"a": [(0, 19, 2)]}


def test_a_member_fetches_what_it_has_named_and_not_forgotten(world: ShareWorld) -> None:
    world.assign("b")
    world.produce("b", 1)
    member = Member(world)
    assert acquired(world, member.fetch("a")) == {"a": [(0, 19, 1)]}
    assert acquired(world, member.fetch("b")) == {"b": [(0, 0, 1)]}
    world.produce("a", 1)
    world.produce("b", 1)
    assert acquired(world, member.fetch(forget=("a",))) == {"b": [(1, 1, 1)]}
    assert world.share_sessions.partition_count == 1


def test_more_sessions_than_there_may_be_are_refused_after_a_pause() -> None:
    world = ShareWorld(most_sessions=1)
    world.assign("a")
    Member(world, "m1").fetch("a")
    waiting = Member(world, "m2").fetch("a", wait_ms=500)
    assert not waiting.done
    world.advance(500)
    assert ErrorCode(world.settle(waiting).error_code) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert acquired(world, Member(world, "m1").fetch("a")) == {}, "a member may begin its own anew"


# -- acknowledging


def test_an_answer_waits_until_its_acknowledgements_are_written(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a", records=10)
    world.persister.holds = True
    waiting = member.fetch(acks={"a": [(0, 9, ACCEPT)]})
    assert isinstance(waiting, Pending)
    world.persister.settle()
    assert acquired(world, waiting) == {"a": [(10, 19, 1)]}


def test_refused_acknowledgements_are_named_with_their_partition(world: ShareWorld) -> None:
    world.assign("b")
    member = Member(world)
    member.fetch("a", "b")
    acks = {"a": [(0, 4, ACCEPT)], "b": [(0, 4, ACCEPT)]}
    response = member.fetch(acks=acks)
    assert sorted(errors(response).values()) == [("NONE", "INVALID_RECORD_STATE"), ("NONE", "NONE")]
    assert member.acknowledge("a", (9, 5, ACCEPT)) == "INVALID_REQUEST"
    assert member.acknowledge("a", (5, 7, ACCEPT), (6, 9, ACCEPT)) == "INVALID_REQUEST"
    assert member.acknowledge("a", (5, 9, RENEW)) == "INVALID_REQUEST", "the request does not say that it renews"
    assert member.acknowledge("a") == "nothing"
    assert member.acknowledge("never-made", (0, 0, ACCEPT)) == "UNKNOWN_TOPIC_ID"


def test_a_renewal_fetches_nothing(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a", records=10)
    assert failure(lambda: member.fetch(renew=True, records=10, epoch=1)) == "INVALID_REQUEST"
    world.advance(600)
    response = member.fetch(
        acks={"a": [(0, 4, RENEW), (5, 6, ACCEPT)]}, renew=True, records=0, max_bytes=0, min_bytes=0
    )
    assert errors(response) == {0: ("NONE", "NONE")}
    assert acquired(world, response) == {}
    world.advance(400)
    assert acquired(world, member.fetch(records=1)) == {"a": [(7, 9, 2)]}
    assert member.acknowledge("a", (0, 4, RENEW), renew=True) == "NONE"


def test_topics_that_a_member_may_not_read(world: ShareWorld) -> None:
    world.assign("b")
    world.produce("b", 1)
    world.denied = {"a"}
    member = Member(world)
    response = member.fetch("a", "b", "never-made")
    assert acquired(world, response) == {"b": [(0, 0, 1)]}
    assert {each for each, _ in errors(response).values()} == {"NONE", "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_ID"}
    assert member.acknowledge("a", (0, 0, ACCEPT)) == "TOPIC_AUTHORIZATION_FAILED"


def test_requests_without_a_group_or_a_member_are_refused(world: ShareWorld) -> None:
    for member in (Member(world, ""), Member(world, "x" * 37)):
        assert failure(lambda member=member: member.fetch("a")) == "INVALID_REQUEST"
    nameless = Member(world)
    nameless.group = None  # type: ignore[assignment]
    assert failure(lambda: nameless.fetch("a")) == "INVALID_REQUEST"


def test_nothing_is_served_while_the_feature_is_off(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a")
    world.is_enabled = False
    assert failure(lambda: member.fetch("a")) == "UNSUPPORTED_VERSION"
    assert failure(lambda: member.acknowledge("a", (0, 0, ACCEPT))) == "UNSUPPORTED_VERSION"


# -- leaders


def test_a_leader_that_was_elected_goes_on_from_what_was_written(world: ShareWorld) -> None:
    member = Member(world)
    member.fetch("a", records=10)
    member.acknowledge("a", (0, 4, ACCEPT), (5, 5, RELEASE))
    waiting = Member(world, "m2").fetch("a", wait_ms=500)
    assert acquired(world, waiting) == {"a": [(5, 5, 2), (10, 19, 1)]}
    waiting = Member(world, "m2").fetch("a", wait_ms=500)
    world.assign("a", assigned=Assigned(2, 1, (SELF, 2), (SELF, 2)))
    world.advance(0)
    assert errors(world.settle(waiting)) == {0: ("NOT_LEADER_OR_FOLLOWER", "NONE")}
    assert member.acknowledge("a", (6, 6, ACCEPT)) == "NOT_LEADER_OR_FOLLOWER"
    world.assign("a", assigned=Assigned(SELF, 2, (SELF,), (SELF,)))
    assert member.acknowledge("a", (6, 6, ACCEPT)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert acquired(world, member.fetch()) == {"a": [(5, 5, 2), (6, 19, 1)]}, "locks are not written"


@pytest.mark.parametrize("is_led", [True, False])
def test_a_former_leader_writes_nothing_when_its_locks_end(world: ShareWorld, is_led: bool) -> None:
    Member(world).fetch("a", records=10)
    writes = world.persister.writes
    if not is_led:
        world.assign("a", assigned=Assigned(2, 1, (SELF, 2), (SELF, 2)))
        world.assign("a", assigned=Assigned(SELF, 2, (SELF,), (SELF,)))
    world.advance(60_000)
    assert (world.persister.writes > writes) is is_led


def test_share_partitions_are_dropped_with_the_leadership(world: ShareWorld) -> None:
    world.assign("b")
    Member(world).fetch("a")
    world.replicas.remove(TopicPartition("a", 0))
    Member(world).fetch("b")
    assert [share.key.topic_id for share in world.shares] == [world.id_of("b")]
