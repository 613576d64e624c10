"""A consumer's machines in virtual time, beside a model of brokers and Kalda's own group coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_world import ASSIGNED, LOST, REVOKED, Cluster, Member, values

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.consumer_errors import (
    CommitFailed,
    LogTruncated,
    NoOffset,
    OffsetOutOfRange,
    Operation,
    UndecodableRecord,
)
from kalda.clientcore.consuming.subscription import OffsetAndEpoch, Status
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import ListOffsetsResponse
from kalda.records.compression import Compression

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def cluster_of(partitions: int = 2, **options: Any) -> Cluster:
    cluster = Cluster(**options)
    cluster.add_topic("t", partitions)
    return cluster


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def drain(member: Member, count: int, limit: int = 500) -> list[bytes]:
    got: list[bytes] = []
    for _ in range(200):
        got += values(member.poll(100, limit))
        if len(got) >= count:
            return got
    raise AssertionError(f"only {len(got)} of {count} records came")


# -- positions and fetches


def test_reads_assigned_partitions_from_their_beginning_in_order() -> None:
    cluster = cluster_of()
    for start in range(0, 100, 10):
        cluster.append("t", 0, *numbered(10, start))
    member = Member(cluster).assign(T0)
    assert drain(member, 100, limit=7) == numbered(100)
    assert member.core.subscription.positions()[T0].offset == 100


def test_latest_skips_what_is_there() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, b"old")
    member = Member(cluster, **{"auto.offset.reset": "latest"}).assign(T0)
    assert member.poll(300) == []
    cluster.append("t", 0, b"new")
    assert values(member.poll(300)) == [b"new"]


def test_by_duration_begins_at_the_first_record_of_that_time() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(10))
    cluster.wall_ms = 2_000
    member = Member(cluster, **{"auto.offset.reset": "by_duration:PT0.996S"}).assign(T0)
    assert drain(member, 6) == numbered(6, 4)


def test_without_a_policy_a_missing_offset_is_raised() -> None:
    cluster = cluster_of()
    member = Member(cluster, **{"auto.offset.reset": "none"}).assign(T0)
    with pytest.raises(NoOffset) as raised:
        drain(member, 1)
    assert raised.value.partitions == [T0]
    member.core.subscription.state(T0).seek(OffsetAndEpoch(0))
    cluster.append("t", 0, b"a")
    assert drain(member, 1) == [b"a"]


def test_a_seek_after_the_assignment_mends_a_missing_offset() -> None:
    """The I/O thread may look for an offset between the two calls."""
    cluster = cluster_of()
    cluster.append("t", 0, b"a")
    member = Member(cluster, **{"auto.offset.reset": "none"}).assign(T0)
    cluster.run(1_000)
    assert member.core.has_error
    member.core.subscription.state(T0).seek(OffsetAndEpoch(0))
    assert not member.core.has_error
    assert drain(member, 1) == [b"a"]


def test_an_offset_out_of_range_is_reset_or_raised() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(5))
    member = Member(cluster).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(77))
    assert drain(member, 5) == numbered(5)
    strict = Member(cluster, "strict", **{"auto.offset.reset": "none"}).assign(T0)
    strict.core.subscription.state(T0).seek(OffsetAndEpoch(77))
    with pytest.raises(OffsetOutOfRange) as raised:
        drain(strict, 1)
    assert raised.value.positions == {T0: 77}


def test_a_seek_drops_what_is_buffered_and_in_flight() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(50))
    member = Member(cluster).assign(T0)
    drain(member, 5, limit=5)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(40))
    assert drain(member, 10) == numbered(10, 40)


def test_a_paused_partition_returns_nothing_and_keeps_its_buffer() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(20))
    cluster.append("t", 1, b"other")
    member = Member(cluster).assign(T0, T1)
    first = values(member.poll(300, limit=5))
    state = member.core.subscription.state(T0)
    state.is_paused = True
    rest = values(member.poll(300)) + values(member.poll(300))
    assert rest == [b"other"]
    fetches = sum(key is ApiKey.FETCH for _, key, _ in cluster.requests)
    state.is_paused = False
    assert first + drain(member, 15) == numbered(20)
    assert sum(key is ApiKey.FETCH for _, key, _ in cluster.requests) <= fetches + 3


def test_no_fetch_is_sent_for_records_beyond_the_end_of_a_range() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster).assign(T0)
    member.core.subscription.state(T0).until = 10
    assert drain(member, 10) == numbered(10)
    fetches = sum(key is ApiKey.FETCH for _, key, _ in cluster.requests)
    cluster.append("t", 0, b"beyond")
    assert values(member.poll(2_000)) == []
    assert sum(key is ApiKey.FETCH for _, key, _ in cluster.requests) == fetches


def test_buffers_are_bounded() -> None:
    cluster = cluster_of(1)
    for _ in range(100):
        cluster.append("t", 0, *[b"x" * 100] * 10)
    member = Member(cluster, **{"max.partition.fetch.bytes": 5_000}).assign(T0)
    member.poll(300, limit=1)
    cluster.run(5_000)
    assert 5_000 <= member.core.fetcher.buffered_bytes <= 10_000 + 1_200
    assert len(drain(member, 999)) == 999


def test_the_session_names_changed_partitions_only() -> None:
    cluster = cluster_of(4, brokers=1)
    member = Member(cluster).assign(*(("t", index) for index in range(4)))
    member.poll(2_000)
    cluster.append("t", 2, b"a")
    assert drain(member, 1) == [b"a"]
    member.poll(1_000)
    fetches = [request for _, key, request in cluster.requests if key is ApiKey.FETCH]
    assert sum(len(topic.partitions) for topic in fetches[0].topics) == 4
    named = [[each.partition for topic in request.topics for each in topic.partitions] for request in fetches[1:]]
    assert [2] in named
    assert all(each in ([], [2]) for each in named)
    assert [request.session_epoch for request in fetches] == list(range(len(fetches)))


def test_a_lost_fetch_begins_a_new_session_and_loses_no_record() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    cluster.lose_next[ApiKey.FETCH] = 2
    member = Member(cluster).assign(T0)
    assert drain(member, 10) == numbered(10)


def test_follows_a_leader_that_moves() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster).assign(T0)
    drain(member, 10)
    log = cluster.logs[T0]
    log.leader, log.epoch = 1, 1
    cluster.append("t", 0, *numbered(10, 10))
    assert drain(member, 10) == numbered(10, 10)
    assert {node for node, key, _ in cluster.requests if key is ApiKey.FETCH} == {0, 1}


def test_a_dead_leader_is_replaced_by_the_one_in_new_metadata() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster).assign(T0)
    drain(member, 10)
    log = cluster.logs[T0]
    cluster.lists_dead = True
    cluster.down.add(0)
    member.cut(0)
    member.poll(5_000)
    log.leader, log.epoch = 1, 1
    cluster.append("t", 0, *numbered(10, 10))
    assert drain(member, 10) == numbered(10, 10)


def test_a_leader_that_is_missing_is_asked_for_without_another_event() -> None:
    """It is found missing after the turn's request for metadata was decided: the next turn is due at once."""
    cluster = cluster_of(partitions=2, brokers=1)
    cluster.logs[T1].leader, cluster.logs[T1].epoch = -1, 1
    member = Member(cluster).assign(T0)
    member.poll(10_000)
    member.assign(T0, T1)
    member.turn()
    assert member.core.deadline_ms(cluster.now_ms, True) == cluster.now_ms


def test_reads_from_the_replica_that_the_leader_names() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    cluster.logs[T0].preferred = 1
    member = Member(cluster, **{"client.rack": "r1"}).assign(T0)
    assert drain(member, 10) == numbered(10)
    nodes = [node for node, key, _ in cluster.requests if key is ApiKey.FETCH]
    assert nodes[0] == 0
    assert nodes[1] == 1
    assert member.core.subscription.state(T0).replica == 1


def test_a_topic_made_again_is_read_from_its_beginning() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(3))
    member = Member(cluster).assign(T0)
    drain(member, 3)
    cluster.ids.remove("t")
    cluster.run(1_000)
    cluster.add_topic("t", 1, generation=2)
    cluster.append("t", 0, *numbered(9, 100))
    assert drain(member, 9) == numbered(9, 100)


@pytest.mark.parametrize("codec", Compression)
def test_compressed_batches(codec: Compression) -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(30), compression=codec)
    member = Member(cluster).assign(T0)
    assert drain(member, 30, limit=7) == numbered(30)


def test_a_corrupt_batch_is_raised_and_can_be_passed() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(3))
    cluster.append("t", 0, *numbered(3, 3))
    log = cluster.logs[T0]
    log.batches[0] = log.batches[0][:-1] + b"\xff"
    member = Member(cluster).assign(T0)
    with pytest.raises(UndecodableRecord) as raised:
        drain(member, 1)
    assert raised.value.offset == 0
    member.core.subscription.state(T0).seek(OffsetAndEpoch(3))
    assert drain(member, 3) == numbered(3, 3)


@pytest.mark.parametrize(("at", "value"), [(23, 0x80), (22, 0x20), (7, 0)])
def test_a_batch_whose_damaged_header_names_other_records_is_not_passed_over(at: int, value: int) -> None:
    """By its header it ends before it begins, or is a marker, or is below the position."""
    cluster = cluster_of(1)
    for first in (0, 3, 6):
        cluster.append("t", 0, *numbered(3, first))
    log = cluster.logs[T0]
    damaged = bytearray(log.batches[1])
    damaged[at] = value
    log.batches[1] = bytes(damaged)
    member = Member(cluster).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(1))
    with pytest.raises(UndecodableRecord):
        drain(member, 5)


def test_a_deserializer_that_fails_names_the_record_after_those_before_it() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, b"1", b"x", b"3")
    member = Member(cluster, **{"value.deserializer": int}).assign(T0)
    assert drain(member, 1) == [1]
    with pytest.raises(UndecodableRecord) as raised:
        member.poll(300)
    assert raised.value.offset == 1
    with pytest.raises(UndecodableRecord):
        member.poll(300)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(2))
    assert drain(member, 1) == [3]


# -- truncation


def test_truncation_below_the_position_is_detected() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(5))
    cluster.append("t", 0, *numbered(5, 5))
    member = Member(cluster).assign(T0)
    drain(member, 10)
    cluster.logs[T0].truncate(5)
    cluster.append("t", 0, *numbered(7, 50))
    assert drain(member, 7) == numbered(7, 50)


def test_truncation_without_a_policy_is_raised_with_the_divergent_offset() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(5))
    cluster.append("t", 0, *numbered(5, 5))
    member = Member(cluster, **{"auto.offset.reset": "none"}).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(0))
    drain(member, 10)
    cluster.logs[T0].truncate(5)
    cluster.append("t", 0, *numbered(7, 50))
    with pytest.raises(LogTruncated) as raised:
        drain(member, 1)
    assert raised.value.divergent == {T0: 5}


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_position_within_a_batch_has_the_epoch_of_that_batch(in_chunks: bool) -> None:
    """A poll ends within the first batch of a new leader, and then the leader changes again: nothing was truncated."""
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(5))
    cluster.logs[T0].epoch += 1
    cluster.append("t", 0, *numbered(10, 5))
    member = Member(cluster, **{"auto.offset.reset": "none"}).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(0))
    assert values(member.poll(100, 2)) == numbered(2)
    if in_chunks:
        assert [(taken.start, taken.end) for taken in member.core.fetcher.take_chunks(3)] == [(2, None)]
        assert [(taken.start, taken.end) for taken in member.core.fetcher.take_chunks(4)] == [(5, 9)]
    else:
        assert drain(member, 7, 7) == numbered(7, 2)
    assert member.core.subscription.positions()[T0] == OffsetAndEpoch(9, 1)
    cluster.logs[T0].epoch += 1
    cluster.append("t", 0, *numbered(3, 15))
    assert drain(member, 9) == numbered(9, 9)


def test_a_former_leader_does_not_decide_that_the_log_was_truncated() -> None:
    """A leader that is cut off from the controllers does not know the epoch of an offset that a reader of its successor
    has committed."""
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(5))
    member = Member(cluster, **{"auto.offset.reset": "none"}).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(5, 1))
    assert member.poll(3_000) == []
    cluster.logs[T0].epoch = 1
    cluster.append("t", 0, *numbered(2, 5))
    assert drain(member, 2) == numbered(2, 5)


def test_an_epoch_that_no_leader_knows_is_of_another_topic() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(5))
    member = Member(cluster, **{"auto.offset.reset": "none", "request.timeout.ms": 7_000}).assign(T0)
    member.core.subscription.state(T0).seek(OffsetAndEpoch(5, 1))
    assert member.poll(6_000) == []
    with pytest.raises(LogTruncated):
        member.poll(2_000)


# -- offsets


def test_offsets_by_time_and_ends() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster).assign(T0)
    operation = Operation("times", cluster.now_ms + 10_000)
    member.core.at(cluster.now_ms)
    member.core.positions.list_offsets({T0: 1_004, T1: 1_004}, operation)
    found = member.wait(operation)
    assert (found[T0].offset, found[T1].offset) == (4, -1)


@pytest.mark.parametrize("kind", ["without a topic's name", "without a topic", "of another partition"])
def test_an_answer_that_leaves_partitions_out_is_asked_for_again_after_a_pause(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the position of a partition, and for the application. It raises nothing."""
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(3))
    answer, wrong = cluster._list_offsets, 4

    def list_offsets(request: Any) -> ListOffsetsResponse:
        nonlocal wrong
        response = answer(request)
        if wrong:
            wrong -= 1
            if kind == "without a topic":
                response.topics = []
            elif kind == "of another partition":
                response.topics[0].partitions[0].partition_index = 7
            else:
                response.topics[0].name = ""
        return response

    monkeypatch.setattr(cluster, "_list_offsets", list_offsets)
    member = Member(cluster).assign(T0)
    began_ms = cluster.now_ms
    assert drain(member, 3) == numbered(3)
    assert cluster.now_ms - began_ms >= 400
    wrong, began_ms = 4, cluster.now_ms
    operation = Operation("ends", cluster.now_ms + 10_000)
    member.core.at(cluster.now_ms)
    member.core.positions.list_offsets({T0: -1}, operation)
    assert member.wait(operation)[T0].offset == 3
    assert cluster.now_ms - began_ms >= 400


def test_a_commit_is_repeated_and_read_back() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster, **{"group.id": "g"}).subscribe("t")
    drain(member, 10)
    cluster.lose_next[ApiKey.OFFSET_COMMIT] = 1
    member.commit()
    operation = Operation("committed", cluster.now_ms + 10_000)
    member.core.committing.read([T0, T1], operation)
    assert member.wait(operation) == {T0: OffsetAndEpoch(10, 0), T1: OffsetAndEpoch(0, 0)}


@pytest.mark.parametrize("listed", [["t"], []])
def test_a_member_gives_up_at_once_a_partition_that_was_deleted(listed: list[str]) -> None:
    """A topic is made again with fewer partitions, as producers do by auto.create.topics.enable, or is not. The commit
    before the rebalance, of the partition that is not there, delays neither the rebalance nor the consumer's end."""
    cluster = cluster_of()
    cluster.append("t", 1, *numbered(10))
    member = Member(cluster, **{"group.id": "g", "metadata.max.age.ms": 1_000}).subscribe("t")
    drain(member, 10)
    cluster.remove_topic("t")
    for topic in listed:
        cluster.add_topic(topic, 1, generation=2)
    left = {TopicPartition(topic, 0) for topic in listed}
    began_ms = cluster.now_ms
    while member.owned != left:
        member.poll(100)
        assert cluster.now_ms < began_ms + 10_000
    member.close()
    assert cluster.now_ms < began_ms + 11_000


def test_a_topic_made_again_is_read_from_its_beginning_also_where_that_makes_the_group_rebalance() -> None:
    cluster = cluster_of()
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster, **{"group.id": "g", "metadata.max.age.ms": 1_000}).subscribe("t")
    drain(member, 10)
    cluster.remove_topic("t")
    cluster.add_topic("t", 1, generation=2)
    cluster.append("t", 0, b"new-0")
    cluster.at(10_000, lambda: cluster.append("t", 0, *numbered(20)))
    assert drain(member, 21) == [b"new-0", *numbered(20)]


def test_a_commit_that_is_repeated_is_not_made_for_another_topic_of_that_name() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster, **{"group.id": "g", "enable.auto.commit": False}).subscribe("t")
    drain(member, 10)
    cluster.remove_topic("t")
    operation = Operation("the commit", cluster.now_ms + 10_000)
    member.core.commit({T0: OffsetAndEpoch(10, 0)}, operation, repeats=True)
    cluster.at(50, lambda: cluster.add_topic("t", 1, generation=2))
    with pytest.raises(ApiError, match="was deleted"):
        member.wait(operation)
    assert cluster.world.fetch({"t": [0]}) == {("t", 0): -1}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("is_deletion_seen", [False, True])
def test_a_commit_is_not_made_for_a_topic_made_again_that_the_metadata_does_not_have_yet(
    protocol: str, is_deletion_seen: bool
) -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    keys = {"group.id": "g", "group.protocol": protocol, "enable.auto.commit": False, "metadata.max.age.ms": 1_000}
    member = Member(cluster, **keys).assign(T0)
    drain(member, 10)
    cluster.remove_topic("t")
    if is_deletion_seen:
        cluster.run_until(lambda: not member.core.metadata.partitions_of("t"))
    cluster.add_topic("t", 1, generation=2)
    operation = Operation("the commit", cluster.now_ms + 10_000)
    member.core.commit({T0: OffsetAndEpoch(10, 0)}, operation, repeats=True)
    with pytest.raises(ApiError, match="was deleted"):
        member.wait(operation)
    assert cluster.world.fetch({"t": [0]}) == {("t", 0): -1}


def test_a_topic_made_again_is_read_from_its_beginning_where_it_is_longer_already() -> None:
    """The former position is within the new log."""
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    member = Member(cluster, **{"group.id": "g"}).subscribe("t")
    drain(member, 10)
    cluster.remove_topic("t")
    cluster.add_topic("t", 1, generation=2)
    cluster.append("t", 0, *numbered(30))
    assert drain(member, 30) == numbered(30)


def test_auto_commit_commits_what_the_next_poll_says_is_processed() -> None:
    cluster = cluster_of(1)
    cluster.append("t", 0, *numbered(10))
    keys = {"group.id": "g", "auto.commit.interval.ms": 1_000}
    member = Member(cluster, **keys).subscribe("t")
    drain(member, 4, limit=4)
    cluster.run(30_000)
    member.kill()
    cluster.run(60_000)
    again = Member(cluster, "again", **keys).subscribe("t")
    assert drain(again, 10) == numbered(10)  # nobody polled after the four: they may not be processed
    cluster.run(2_000)
    again.poll(100)
    again.close()
    assert cluster.world.fetch({"t": [0]}) == {("t", 0): 10}


# -- groups


def test_members_share_the_partitions() -> None:
    cluster = cluster_of(4)
    members = [Member(cluster, f"m{n}", **{"group.id": "g"}).subscribe("t") for n in range(2)]
    settle(cluster, members, 4)
    assert sorted(len(member.owned) for member in members) == [2, 2]


def settle(cluster: Cluster, members: list[Member], partitions: int, limit_ms: int = 200_000) -> None:
    end_ms = cluster.now_ms + limit_ms
    while True:
        for member in members:
            member.poll(20)
        owned = [partition for member in members for partition in member.owned]
        is_settled = all(m.core._membership.is_settled for m in members)  # type: ignore[union-attr]
        if is_settled and len(owned) == len(set(owned)) == partitions:
            return
        assert cluster.now_ms < end_ms, [(m.name, m.owned) for m in members]


def test_eager_members_give_up_all_and_cooperative_ones_what_moves() -> None:
    for strategy, revoked in (("range", [0, 1, 2, 3]), ("cooperative-sticky", [2, 3])):
        cluster = cluster_of(4)
        keys = {"group.id": "g", "partition.assignment.strategy": strategy}
        first = Member(cluster, "a", **keys).subscribe("t")
        settle(cluster, [first], 4)
        second = Member(cluster, "b", **keys).subscribe("t")
        settle(cluster, [first, second], 4)
        calls = [(call, sorted(p.partition for p in partitions)) for call, partitions in first.calls]
        assert (REVOKED, revoked) in calls
        assert calls[0] == (ASSIGNED, [0, 1, 2, 3])


def test_a_member_that_does_not_poll_leaves_and_loses_its_partitions() -> None:
    cluster = cluster_of(2)
    keys = {
        "group.id": "g",
        "max.poll.interval.ms": 10_000,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
    }
    slow, quick = (Member(cluster, name, **keys).subscribe("t") for name in ("slow", "quick"))
    settle(cluster, [slow, quick], 2)
    end_ms = cluster.now_ms + 30_000
    while cluster.now_ms < end_ms:
        quick.poll(100)
    assert len(quick.owned) == 2
    settle(cluster, [slow, quick], 2)
    assert LOST in [call for call, _ in slow.calls]
    assert len(slow.owned) == len(quick.owned) == 1


def test_heartbeats_go_on_while_the_application_works() -> None:
    cluster = cluster_of(2)
    member = Member(cluster, **{"group.id": "g"}).subscribe("t")
    settle(cluster, [member], 2)
    cluster.run(200_000)
    assert cluster.world.state() == "Stable 1"
    member.commit({T0: 1})


def test_a_killed_member_is_replaced_after_its_session() -> None:
    cluster = cluster_of(2)
    keys = {"group.id": "g", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
    first, second = (Member(cluster, name, **keys).subscribe("t") for name in ("a", "b"))
    settle(cluster, [first, second], 2)
    first.kill()
    killed_ms = cluster.now_ms
    settle(cluster, [second], 2)
    assert 5_000 <= cluster.now_ms - killed_ms <= 9_000, "a session, and the member's next heartbeat"
    assert second.owned == {T0, TopicPartition("t", 1)}


def test_a_static_member_returns_without_a_rebalance() -> None:
    cluster = cluster_of(2)
    keys = {"group.id": "g", "partition.assignment.strategy": "range"}
    one = Member(cluster, "a", **keys, **{"group.instance.id": "i1"}).subscribe("t")
    two = Member(cluster, "b", **keys, **{"group.instance.id": "i2"}).subscribe("t")
    settle(cluster, [one, two], 2)
    owned, state = one.owned, cluster.world.state()
    one.close()
    again = Member(cluster, "a2", **keys, **{"group.instance.id": "i1"}).subscribe("t")
    settle(cluster, [again, two], 2)
    assert again.owned == owned
    assert cluster.world.state() == state


def test_the_elder_of_two_with_one_instance_id_is_fenced() -> None:
    cluster = cluster_of(2)
    keys = {"group.id": "g", "group.instance.id": "i"}
    elder = Member(cluster, "a", **keys).subscribe("t")
    settle(cluster, [elder], 2)
    younger = Member(cluster, "b", **keys).subscribe("t")
    settle(cluster, [younger], 2)
    cluster.run(5_000)
    with pytest.raises(Exception, match="FENCED_INSTANCE_ID"):
        elder.poll(5_000)


def test_a_commit_of_a_fenced_member_fails_and_is_not_repeated() -> None:
    cluster = cluster_of(1)
    keys = {"group.id": "g", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 5_000}
    member = Member(cluster, **keys).subscribe("t")
    settle(cluster, [member], 1)
    cluster.world.pass_time(7_000)  # the coordinator hears nothing, and removes it
    with pytest.raises(CommitFailed):
        member.commit({T0: 5})
    settle(cluster, [member], 1)
    assert LOST in [call for call, _ in member.calls]


def test_polls_that_end_with_buffered_records_take_a_rebalance_on() -> None:
    """The background thread runs the turns while the application works, and those are in no poll."""
    cluster = cluster_of()
    for partition in (0, 1):
        cluster.append("t", partition, *numbered(500))
    first = Member(cluster, "a", **{"group.id": "g"}).subscribe("t")
    drain(first, 1, limit=1)
    second = Member(cluster, "b", **{"group.id": "g"}).subscribe("t")
    for _ in range(100):
        first.poll_buffers(1)
        cluster.run(100)
        second.poll(1)
        if second.owned:
            return
    raise AssertionError("the first member did not join the rebalance")


def test_a_commit_during_a_rebalance_fails_and_says_to_poll() -> None:
    member = Member(cluster_of(1), **{"group.id": "g"}).subscribe("t")
    with pytest.raises(CommitFailed, match=r"the group is rebalancing\. Poll") as raised:
        member.commit({T0: 5})
    assert raised.value.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_pattern_takes_in_topics_that_come_later() -> None:
    cluster = cluster_of(1)
    member = Member(cluster, **{"group.id": "g", "metadata.max.age.ms": 5_000}).subscribe_pattern("t|u.*")
    settle(cluster, [member], 1)
    cluster.add_topic("users", 2)
    cluster.add_topic("v", 2)
    cluster.run(6_000)
    settle(cluster, [member], 3)
    assert {partition.topic for partition in member.owned} == {"t", "users"}


def test_more_partitions_are_assigned_when_the_leader_sees_them() -> None:
    cluster = cluster_of(1)
    member = Member(cluster, **{"group.id": "g", "metadata.max.age.ms": 5_000}).subscribe("t")
    settle(cluster, [member], 1)
    assert member.owned == {T0}
    cluster.add_topic("t", 3)
    cluster.run(6_000)
    settle(cluster, [member], 3)
    assert member.owned == {TopicPartition("t", index) for index in range(3)}


def test_the_coordinator_is_looked_up_again_when_its_node_dies() -> None:
    cluster = cluster_of(1)
    cluster.logs[T0].leader = 1
    member = Member(cluster, **{"group.id": "g"}).subscribe("t")
    settle(cluster, [member], 1)
    cluster.down.add(0)
    member.cut(0)
    cluster.run(1_000)
    member.commit({T0: 3})
    assert cluster.world.fetch({"t": [0]}) == {("t", 0): 3}


def test_a_lost_join_or_sync_is_repeated() -> None:
    for key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FIND_COORDINATOR, ApiKey.METADATA, ApiKey.OFFSET_FETCH):
        cluster = cluster_of(2)
        cluster.append("t", 0, b"a")
        cluster.lose_next[key] = 1
        member = Member(cluster, **{"group.id": "g", "session.timeout.ms": 6_000}).subscribe("t")
        settle(cluster, [member], 2)
        state = member.core.subscription.state(T0)
        cluster.run_until(lambda: state.status is Status.FETCHING)  # noqa: B023
        assert cluster.lose_next[key] == 0, "a response was lost"
        assert sum(sent is key for _, sent, _ in cluster.requests) >= 2, "its request was repeated"


def test_a_refusal_of_the_group_is_raised_once() -> None:
    cluster = cluster_of(2)
    member = Member(cluster, **{"group.id": "g", "session.timeout.ms": 3_500_000}).subscribe("t")
    with pytest.raises(Exception, match=ErrorCode.INVALID_SESSION_TIMEOUT.name):
        member.poll(5_000)


def test_what_has_become_due_since_the_last_turn_is_due_now() -> None:
    """Between a turn and the look for the next deadline, time passes: the more, the busier the machine is."""
    cluster = cluster_of(1)
    member = Member(cluster, **{"group.id": "g", "heartbeat.interval.ms": 1_000}).subscribe("t")
    settle(cluster, [member], 1)
    due_ms = member.core.deadline_ms(cluster.now_ms, False)
    assert due_ms is not None
    for now_ms in (due_ms, due_ms + 1, due_ms + 50):
        assert member.core.deadline_ms(now_ms, False) == now_ms
