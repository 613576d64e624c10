"""A member of a KIP-848 group in virtual time, beside a coordinator whose targets the tests set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from consumer_world import ASSIGNED, LOST, REVOKED, Cluster, Member

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.consumer import SubscriptionPattern
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import ConsumerGroupHeartbeatResponse

KEYS = {"group.id": "g", "group.protocol": "consumer"}
P = [TopicPartition("t", index) for index in range(4)]


def cluster_of(*names: str) -> tuple[Cluster, list[Member]]:
    cluster = Cluster()
    cluster.add_topic("t", 4)
    return cluster, [Member(cluster, name, **KEYS).subscribe("t") for name in names]


def poll_until(members: list[Member], condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        for member in members:
            member.poll(10)
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        if condition():
            return
    raise AssertionError("it did not happen")


def test_it_takes_what_it_is_assigned_and_says_so() -> None:
    cluster, (member,) = cluster_of("a")
    cluster.modern.targets["id-a"] = {P[0], P[1]}
    poll_until([member], lambda: cluster.modern.owned.get("id-a") == {P[0], P[1]})
    assert member.calls == [(ASSIGNED, [P[0], P[1]])]
    assert cluster.modern.subscribed["id-a"] == (["t"], None)


def test_a_partition_moves_after_its_owner_gave_it_up() -> None:
    cluster, members = cluster_of("a", "b")
    first, second = members
    cluster.modern.targets["id-a"] = set(P)
    poll_until(members, lambda: first.owned == set(P))
    cluster.modern.targets = {"id-a": {P[0], P[1]}, "id-b": {P[2], P[3]}}
    poll_until(members, lambda: second.owned == {P[2], P[3]})
    assert (REVOKED, [P[2], P[3]]) in first.calls
    assert first.owned == {P[0], P[1]}


def test_positions_are_committed_before_partitions_are_given_up() -> None:
    cluster, (member,) = cluster_of("a")
    cluster.append("t", 0, b"x", b"y")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: len(member.got) == 2)
    committed: list[bool] = []
    member.on_call = lambda call, _: committed.append(
        call == REVOKED and any(key.name == "OFFSET_COMMIT" for _, key, _ in cluster.requests)
    )
    cluster.modern.targets["id-a"] = {P[1]}
    poll_until([member], lambda: member.owned == {P[1]})
    assert committed[0]


def test_a_fenced_member_loses_its_partitions_and_joins_again() -> None:
    cluster, (member,) = cluster_of("a")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: member.owned == {P[0]})
    cluster.modern.fenced.add("id-a")
    poll_until([member], lambda: (LOST, [P[0]]) in member.calls and member.owned == {P[0]})
    assert [call for call, _ in member.calls] == [ASSIGNED, LOST, ASSIGNED]


def test_a_member_whose_joins_are_refused_asks_less_often_each_time() -> None:
    cluster, (member,) = cluster_of("a")

    def refuse(_request: object) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)

    cluster.modern.heartbeat = refuse  # type: ignore[method-assign]
    member.poll(20_000)
    assert 10 <= sum(key is ApiKey.CONSUMER_GROUP_HEARTBEAT for _, key, _ in cluster.requests) <= 40


def test_a_member_that_does_not_poll_leaves_and_comes_back() -> None:
    cluster = Cluster()
    cluster.add_topic("t", 4)
    member = Member(cluster, "a", **KEYS, **{"max.poll.interval.ms": 5_000}).subscribe("t")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: member.owned == {P[0]})
    cluster.run(20_000)
    assert cluster.modern.left == [("id-a", -1)]
    poll_until([member], lambda: (LOST, [P[0]]) in member.calls and member.owned == {P[0]})


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_it_leaves_when_it_is_closed(instance: str | None, epoch: int) -> None:
    cluster = Cluster()
    cluster.add_topic("t", 4)
    static = {} if instance is None else {"group.instance.id": instance}
    member = Member(cluster, "a", **KEYS, **static).subscribe("t")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: member.owned == {P[0]})
    operation = member.core.begin_leave(None)
    assert operation is not None
    member.poll(1_000)  # as a blocking consumer waits in its close
    cluster.run(20_000)
    assert operation.is_done
    assert cluster.modern.left == [("id-a", epoch)]
    beats = [request for _, key, request in cluster.requests if key is ApiKey.CONSUMER_GROUP_HEARTBEAT]
    assert beats[-1].member_epoch == epoch, "it does not join again"


def test_a_member_that_is_closed_while_it_joins_leaves_too() -> None:
    """Else the group would keep partitions for it until its session ends."""
    cluster, (member,) = cluster_of("a")
    beats: list[int] = []
    heartbeat = cluster.modern.heartbeat

    def closed_meanwhile(request: Any) -> ConsumerGroupHeartbeatResponse:
        beats.append(request.member_epoch)
        if beats == [0]:
            member.core.begin_leave(None)
        return heartbeat(request)

    cluster.modern.heartbeat = closed_meanwhile  # type: ignore[method-assign]
    member.poll(1_000)
    cluster.run(20_000)
    assert cluster.modern.left == [("id-a", -1)]
    assert not member.owned


def test_a_pattern_is_evaluated_by_the_coordinator() -> None:
    cluster = Cluster()
    cluster.add_topic("t", 4)
    member = Member(cluster, "a", **KEYS)
    member.core.subscribe_pattern(SubscriptionPattern("t.*"))
    cluster.modern.targets["id-a"] = {P[2]}
    poll_until([member], lambda: member.owned == {P[2]})
    assert cluster.modern.subscribed["id-a"] == ([], "t.*")


def test_a_lost_heartbeat_is_repeated_with_all_that_it_said() -> None:
    from kalda.protocol.apis import ApiKey

    cluster, (member,) = cluster_of("a")
    cluster.modern.targets["id-a"] = {P[0]}
    cluster.lose_next[ApiKey.CONSUMER_GROUP_HEARTBEAT] = 1
    poll_until([member], lambda: cluster.modern.owned.get("id-a") == {P[0]})


def test_an_assignment_in_a_lost_answer_is_asked_for_again() -> None:
    """With all fields: only such a request is answered with what the member has already, as the coordinator sees it."""
    cluster, (member,) = cluster_of("a")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: cluster.modern.owned.get("id-a") == {P[0]})
    heartbeat, requests = cluster.modern.heartbeat, list[Any]()

    def fail_once(request: Any) -> ConsumerGroupHeartbeatResponse:
        requests.append(request)
        if len(requests) == 1:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        return heartbeat(request)

    cluster.modern.heartbeat = fail_once  # type: ignore[method-assign]
    poll_until([member], lambda: len(requests) > 1)
    assert (requests[0].rebalance_timeout_ms, requests[0].topic_partitions) == (-1, None)
    assert requests[1].rebalance_timeout_ms > 0
    assert requests[1].subscribed_topic_names == ["t"]
    assert [each.partitions for each in requests[1].topic_partitions] == [[0]]


def test_a_member_of_a_group_that_has_changed_its_kind_joins_again() -> None:
    """It was removed before that, so it is no member of the classic group, which does not know it."""
    cluster, (member,) = cluster_of("a")
    cluster.modern.targets["id-a"] = {P[0]}
    poll_until([member], lambda: cluster.modern.owned.get("id-a") == {P[0]})
    heartbeat, requests = cluster.modern.heartbeat, list[Any]()

    def refuse_once(request: Any) -> ConsumerGroupHeartbeatResponse:
        requests.append(request)
        if len(requests) == 1:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        return heartbeat(request)

    cluster.modern.heartbeat = refuse_once  # type: ignore[method-assign]
    poll_until([member], lambda: len(requests) > 1)
    assert requests[1].member_epoch == 0
