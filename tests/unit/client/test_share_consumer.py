"""Share consumers: what is handed out, what is acknowledged when, and what happens when leaders, sessions and members
end."""

from __future__ import annotations

import pytest
from share_consumer_world import ShareCluster, offsets, world

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.share_consumer import share_consumer_config
from kalda.base.errors import ErrorCode, WrongState
from kalda.base.ids import TopicPartition
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.consuming.consumer_errors import UndecodableRecord
from kalda.protocol.apis import ApiKey

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EXPLICIT = {"share.acknowledgement.mode": "explicit"}
ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
    AcknowledgeType.GAP,
)


def done(cluster: ShareCluster, partition: TopicPartition = T0) -> dict[int, AcknowledgeType]:
    return cluster.share(partition).done


# -- implicit mode


def test_the_next_poll_accepts_what_was_returned_with_its_fetch() -> None:
    cluster, member_of = world()
    member = member_of()
    assert offsets(member.until_records()) == list(range(10))
    assert not done(cluster)
    member.poll()
    assert done(cluster) == dict.fromkeys(range(10), ACCEPT)
    assert not cluster.sent(ApiKey.SHARE_ACKNOWLEDGE), "the acknowledgements travel with the fetch"
    assert cluster.said == [(T0, 0, 9, (1,))]


def test_a_poll_of_fewer_records_accepts_those_alone() -> None:
    cluster, member_of = world()
    member = member_of()
    assert offsets(member.until_records(limit=4)) == [0, 1, 2, 3]
    assert offsets(member.poll(limit=4)) == [4, 5, 6, 7]
    cluster.run(100)
    assert sorted(done(cluster)) == [0, 1, 2, 3]
    assert len(cluster.sent(ApiKey.SHARE_FETCH)) == 1, "nothing is fetched while records are buffered"


def test_acknowledgements_of_several_polls_that_wait_are_one_request() -> None:
    cluster, member_of = world()
    member = member_of()
    member.until_records(limit=2)
    for _ in range(3):
        assert len(member.poll(limit=2)) == 2
    cluster.run(100)
    assert len(cluster.sent(ApiKey.SHARE_ACKNOWLEDGE)) == 1
    assert cluster.said == [(T0, 0, 5, (1,))]


def test_a_commit_accepts_and_answers_for_each_partition() -> None:
    cluster, member_of = world(2, 5)
    member = member_of()
    while len(member.got) < 10:
        member.until_records()
    assert all(error is None for error in member.sync().values())
    assert len(done(cluster, T0)) == len(done(cluster, T1)) == 5
    assert member.sync() == {}


def test_two_members_get_each_record_once() -> None:
    _, member_of = world(1, 40)
    one, two = member_of("one", **{"max.poll.records": "10"}), member_of("two", **{"max.poll.records": "10"})
    while len(one.got) + len(two.got) < 40:
        one.poll(50)
        two.poll(50)
    assert sorted(offsets(one.got + two.got)) == list(range(40))
    assert one.got
    assert two.got


def test_acknowledge_is_refused_in_implicit_mode() -> None:
    _, member_of = world()
    member = member_of()
    records = member.until_records()
    with pytest.raises(WrongState, match="implicit"):
        member.say(ACCEPT, records[0])


# -- explicit mode


def test_each_kind_of_acknowledgement() -> None:
    cluster, member_of = world(1, 4)
    member = member_of(**EXPLICIT)
    records = member.until_records()
    member.say(ACCEPT, records[0], records[3])
    member.say(RELEASE, records[1])
    member.say(REJECT, records[2])
    assert member.sync() == {T0: None}
    assert done(cluster) == {0: ACCEPT, 2: REJECT, 3: ACCEPT}
    assert cluster.said == [(T0, 0, 3, (1, 2, 3, 1))]
    assert [(each.offset, each.delivery_count) for each in member.until_records()] == [(1, 2)]


def test_a_poll_raises_where_a_record_was_not_acknowledged_and_sends_the_others() -> None:
    cluster, member_of = world(1, 3)
    member = member_of(**EXPLICIT)
    records = member.until_records()
    member.say(ACCEPT, records[0], records[2])
    with pytest.raises(WrongState, match="not all records of t-0"):
        member.poll()
    cluster.run(100)
    assert done(cluster) == {0: ACCEPT, 2: ACCEPT}
    with pytest.raises(WrongState, match="its acknowledgement was sent"):
        member.say(REJECT, records[0])
    member.say(ACCEPT, records[1])
    member.poll()
    assert sorted(done(cluster)) == [0, 1, 2]


def test_what_was_said_may_be_said_anew_before_it_is_sent() -> None:
    cluster, member_of = world(1, 1)
    member = member_of(**EXPLICIT)
    (record,) = member.until_records()
    member.say(REJECT, record)
    member.say(ACCEPT, record)
    member.sync()
    assert done(cluster) == {0: ACCEPT}


def test_a_record_that_was_never_returned_cannot_be_acknowledged() -> None:
    _, member_of = world(1, 1)
    member = member_of(**EXPLICIT)
    with pytest.raises(WrongState, match="before the first poll"):
        member.core.acknowledge(T0, 0, ACCEPT)
    member.until_records()
    for partition, offset in ((T0, 7), (TopicPartition("t", 5), 0)):
        with pytest.raises(WrongState, match="cannot be acknowledged"):
            member.core.acknowledge(partition, offset, ACCEPT)


def test_a_renewed_record_is_returned_again_and_has_to_be_acknowledged_again() -> None:
    cluster, member_of = world(1, 3)
    member = member_of(**EXPLICIT)
    records = member.until_records()
    member.say(RENEW, records[1])
    member.say(ACCEPT, records[0], records[2])
    assert member.until_records() == [records[1]]
    request = cluster.sent(ApiKey.SHARE_ACKNOWLEDGE)[0][1]
    assert request.is_renew_ack
    assert done(cluster) == {0: ACCEPT, 2: ACCEPT}
    with pytest.raises(WrongState, match="not all records"):
        member.poll()
    member.say(ACCEPT, records[1])
    member.sync()
    assert sorted(done(cluster)) == [0, 1, 2]


def test_a_renewal_that_fails_gives_the_record_up() -> None:
    cluster, member_of = world(1, 1)
    member = member_of(**EXPLICIT)
    (record,) = member.until_records()
    member.say(RENEW, record)
    cluster.acknowledge_errors.append(ErrorCode.INVALID_RECORD_STATE)
    outcome = member.sync()[T0]
    assert outcome is not None
    assert outcome.code is ErrorCode.INVALID_RECORD_STATE
    assert member.poll() == []


# -- what is not a record


def test_offsets_without_records_are_acknowledged_as_gaps() -> None:
    cluster, member_of = world(1, 0)
    cluster.append("t", 0, b"a", b"b")
    log = cluster.logs[T0]
    log.end = 5  # the batch of offsets 2 to 4 was compacted away
    cluster.append("t", 0, b"c")
    member = member_of()
    assert offsets(member.until_records()) == [0, 1, 5]
    member.poll()
    assert done(cluster) == {0: ACCEPT, 1: ACCEPT, 2: GAP, 3: GAP, 4: GAP, 5: ACCEPT}


def test_a_record_that_is_not_acquired_is_not_returned() -> None:
    cluster, member_of = world(1, 6)
    cluster.share(T0).owner.update(dict.fromkeys((0, 3), "another"))
    member = member_of()
    assert offsets(member.until_records()) == [1, 2, 4, 5]
    member.poll()
    assert sorted(done(cluster)) == [1, 2, 4, 5]


def _integer(data: bytes) -> int:
    return int(data)


def test_a_record_that_cannot_be_deserialized_is_released_behind_those_before_it() -> None:
    cluster, member_of = world(1, 0)
    cluster.append("t", 0, b"0", b"one", b"2")
    member = member_of(**{"value.deserializer": _integer})
    assert [record.value for record in member.until_records()] == [0]
    with pytest.raises(UndecodableRecord, match=r"offset 1 of t-0.*it was released"):
        member.poll()
    assert [record.value for record in member.until_records()] == [2]
    member.core.commit(None)
    cluster.run(100)
    assert sorted(done(cluster)) == [0, 2]
    assert cluster.share(T0).count[1] == 1


def test_the_application_may_reject_a_record_that_it_cannot_deserialize() -> None:
    cluster, member_of = world(1, 0)
    cluster.append("t", 0, b"one", b"2")
    member = member_of(**{"value.deserializer": _integer, **EXPLICIT})
    with pytest.raises(UndecodableRecord):
        member.until_records()
    member.core.acknowledge(T0, 0, REJECT)
    (record,) = member.until_records()
    member.say(ACCEPT, record)
    member.sync()
    assert done(cluster) == {0: REJECT, 1: ACCEPT}


def test_an_undecodable_record_of_another_member_is_passed_over() -> None:
    cluster, member_of = world(1, 0)
    cluster.append("t", 0, b"0", b"one", b"2")
    cluster.share(T0).owner[1] = "another"
    member = member_of(**{"value.deserializer": _integer})
    assert [record.value for record in member.until_records()] == [0, 2]


def test_a_damaged_batch_is_rejected() -> None:
    cluster, member_of = world(1, 2)
    cluster.append("t", 0, b"x", b"y")
    damaged = bytearray(cluster.logs[T0].batches[1])
    damaged[-2] ^= 1
    cluster.logs[T0].batches[1] = bytes(damaged)
    cluster.append("t", 0, b"z")
    member = member_of()
    assert offsets(member.until_records()) == [0, 1]
    with pytest.raises(UndecodableRecord, match=r"offset 2 of t-0.*rejected"):
        member.poll()
    assert offsets(member.until_records()) == [4]
    member.sync()
    assert done(cluster) == {0: ACCEPT, 1: ACCEPT, 2: REJECT, 3: REJECT, 4: ACCEPT}


# -- leaders and sessions


def test_acknowledgements_fail_where_the_leader_has_changed() -> None:
    cluster, member_of = world()
    member = member_of()
    member.until_records()
    cluster.move("t", 0, 1)
    assert member.until_records(), "the new leader hands the records out again"
    assert member.completed() == [({T0: frozenset(range(10))}, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    member.sync()
    assert len(done(cluster)) == 10


def test_acknowledgements_fail_where_the_session_has_ended() -> None:
    cluster, member_of = world()
    member = member_of()
    member.until_records()
    cluster.end_sessions(0)
    again = member.until_records()
    assert member.completed() == [({T0: frozenset(range(10))}, ErrorCode.SHARE_SESSION_NOT_FOUND)]
    assert [request.share_session_epoch for _, request in cluster.sent(ApiKey.SHARE_FETCH)] == [0, 1, 0]
    assert {record.delivery_count for record in again} == {2}


def test_acknowledgements_of_a_lost_connection_fail() -> None:
    cluster, member_of = world()
    member = member_of(**EXPLICIT)
    records = member.until_records()
    member.cut()
    cluster.end_sessions(0)
    member.say(ACCEPT, *records)
    outcome = member.sync()[T0]
    assert outcome is not None
    assert outcome.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.SHARE_SESSION_NOT_FOUND)
    assert offsets(member.until_records()) == list(range(10))


def test_a_failure_that_passes_is_repeated() -> None:
    cluster, member_of = world(1, 1)
    member = member_of()
    member.until_records()
    cluster.acknowledge_errors += [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert member.sync() == {T0: None}
    assert done(cluster) == {0: ACCEPT}


def test_a_partition_that_is_not_assigned_any_more_is_forgotten() -> None:
    cluster, member_of = world(2, 3)
    cluster.add_topic("u", 1)
    cluster.append("u", 0, b"u")
    member = member_of()
    while len(member.got) < 6:
        member.poll()
    member.subscribe("u")
    while member.got[-1].topic != "u":
        member.poll()
    cluster.run(1_000)
    assert len(done(cluster, T0)) == 3
    of_u = [request for node, request in cluster.sent(ApiKey.SHARE_FETCH) if node == 0][-1]
    assert cluster.sessions[0, "id-m"][1] == {TopicPartition("u", 0)}
    assert of_u.share_session_epoch > 0


def test_with_a_record_limit_one_broker_is_fetched_from_at_a_time() -> None:
    cluster, member_of = world(2, 20)
    member = member_of(**{"share.acquire.mode": "record_limit", "max.poll.records": "5"})
    while len(member.got) < 40:
        records = member.until_records(limit=5)
        assert len(records) <= 5
        held = sum(len(share.owner) for share in cluster.shares.values())
        assert held <= 10, "those that were returned, and those that the next fetch has brought"
    assert {record.partition for record in member.got[:10]} == {0, 1}, "the brokers take turns"


# -- membership


def test_a_fenced_member_joins_again_and_goes_on() -> None:
    cluster, member_of = world()
    member = member_of()
    member.until_records()
    cluster.fence("id-m")
    cluster.append("t", 0, b"more")
    assert offsets(member.until_records()) == [10]
    cluster.run(3_000)
    heartbeats = [request for _, request in cluster.sent(ApiKey.SHARE_GROUP_HEARTBEAT)]
    assert [each.member_epoch for each in heartbeats].count(0) == 2
    assert heartbeats[0].subscribed_topic_names == ["t"]
    assert "id-m" in cluster.epochs


def test_heartbeats_come_at_the_interval_of_the_coordinator() -> None:
    cluster, member_of = world()
    member_of().until_records()
    before = len(cluster.sent(ApiKey.SHARE_GROUP_HEARTBEAT))
    cluster.run(10_000)
    assert 9 <= len(cluster.sent(ApiKey.SHARE_GROUP_HEARTBEAT)) - before <= 11


def test_a_member_that_does_not_poll_leaves_and_comes_back_with_the_next_poll() -> None:
    cluster, member_of = world()
    member = member_of(**{"max.poll.interval.ms": "5000"})
    member.until_records()
    cluster.run(6_000)
    assert cluster.left == ["id-m"]
    cluster.append("t", 0, b"more")
    assert offsets(member.until_records()) == [10]


def test_close_sends_what_was_said_ends_the_sessions_and_leaves() -> None:
    cluster, member_of = world(1, 3)
    member = member_of(**EXPLICIT)
    records = member.until_records()
    member.say(ACCEPT, records[0])
    member.close()
    assert done(cluster) == {0: ACCEPT}
    assert not cluster.share(T0).owner, "the others are released"
    assert not cluster.sessions
    assert cluster.left == ["id-m"]


def test_close_in_implicit_mode_releases_the_last_poll() -> None:
    cluster, member_of = world()
    member = member_of()
    member.until_records()
    member.close()
    assert not done(cluster)
    assert not cluster.share(T0).owner


# -- configuration


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("auto.offset.reset", "earliest", "share.auto.offset.reset"),
        ("isolation.level", "read_committed", "share.isolation.level"),
        ("enable.auto.commit", "false", "of other consumers"),
        ("share.acquire.mode", "all", "BATCH_OPTIMIZED, RECORD_LIMIT"),
        ("share.acknowledgement.mode", "auto", "IMPLICIT, EXPLICIT"),
        ("group.id", None, "group.id is missing"),
    ],
)
def test_keys_that_a_share_consumer_does_not_have(key: str, value: str | None, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        share_consumer_config({"bootstrap.servers": "h:1", "group.id": "g", key: value}, {})
