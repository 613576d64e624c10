"""A member of a classic group against a scripted coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.cluster_client import ClusterClient
from kalda.client.core.consumer_protocol import read_assignment
from kalda.client.group import GroupMember
from kalda.protocol.apis import ApiKey
from kalda.protocol.codec import encode
from kalda.protocol.messages.client_protocol import ConsumerProtocolSubscription
from kalda.protocol.messages.groups import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    SyncGroupResponse,
)


class Coordinator:
    """Accepts every member, makes "me" the leader, and returns the assignments that the leader sent."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.generation = 0
        self.others: list[str] = []
        self.sync_failures: list[ErrorCode] = []
        self.heartbeats: list[ErrorCode] = []
        self.assigned: dict[str, tuple[TopicPartition, ...]] = {}
        broker.answers |= {
            ApiKey.FIND_COORDINATOR: lambda request, version: FindCoordinatorResponse(
                node_id=1, host="127.0.0.1", port=broker.port
            ),
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: lambda request, version: HeartbeatResponse(error_code=self.heartbeats.pop(0)),
            ApiKey.LEAVE_GROUP: lambda request, version: LeaveGroupResponse(),
        }

    def join(self, request: Any, version: int) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
        self.generation += 1
        subscription = (0).to_bytes(2, "big") + encode(ConsumerProtocolSubscription(topics=["logs"]), 0)
        members = [JoinGroupResponseMember(member_id="me", metadata=request.protocols[0].metadata)]
        members += [JoinGroupResponseMember(member_id=other, metadata=subscription) for other in self.others]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name="range",
            protocol_type="consumer",
            leader="me",
            member_id="me",
            members=members,
        )

    def sync(self, request: Any, version: int) -> SyncGroupResponse:
        code = self.sync_failures.pop(0) if self.sync_failures else ErrorCode.NONE
        assignments = {one.member_id: one.assignment for one in request.assignments}
        self.assigned = {member_id: read_assignment(data) for member_id, data in assignments.items()}
        return SyncGroupResponse(error_code=code, assignment=assignments["me"])


@pytest.fixture(autouse=True)
def three_partitions(broker: ScriptedBroker) -> None:
    broker.topics["logs"] = [1, 1, 1]


@pytest.fixture
def member(broker: ScriptedBroker) -> Iterator[GroupMember]:
    with ClusterClient(broker.address, timeout_ms=5_000) as cluster:
        yield GroupMember(cluster, "g", ["logs"], heartbeat_interval_ms=0)


def partitions(*indexes: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("logs", index) for index in indexes)


def test_joining_with_the_given_id_as_leader(broker: ScriptedBroker, member: GroupMember) -> None:
    coordinator = Coordinator(broker)
    coordinator.others = ["zoe"]
    assert member.join() == partitions(0, 1)
    assert coordinator.assigned == {"me": partitions(0, 1), "zoe": partitions(2)}
    assert (member.member_id, member.generation_id) == ("me", 1)


def test_a_rebalance_during_the_sync_joins_again(broker: ScriptedBroker, member: GroupMember) -> None:
    Coordinator(broker).sync_failures = [ErrorCode.REBALANCE_IN_PROGRESS]
    assert member.join() == partitions(0, 1, 2)
    assert member.generation_id == 2


def test_poll_is_false_when_the_member_has_to_join_again(broker: ScriptedBroker, member: GroupMember) -> None:
    Coordinator(broker).heartbeats = [
        ErrorCode.NONE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    member.join()
    assert member.poll()
    assert not member.poll()
    assert member.member_id == "me"
    assert not member.poll()
    assert member.member_id == ""
    with pytest.raises(ApiError):
        member.poll()


def test_leaving(broker: ScriptedBroker, member: GroupMember) -> None:
    Coordinator(broker)
    with member:
        member.join()
    (request,) = broker.requests(ApiKey.LEAVE_GROUP)
    assert request.members[0].member_id == "me"


def test_a_malformed_subscription_is_a_member_without_topics(broker: ScriptedBroker, member: GroupMember) -> None:
    coordinator = Coordinator(broker)
    answer = coordinator.join

    def with_malformed(request: Any, version: int) -> JoinGroupResponse:
        response = answer(request, version)
        response.members.append(JoinGroupResponseMember(member_id="malformed", metadata=b"\x00\x01\x7f\xff\xff"))
        return response

    broker.answers[ApiKey.JOIN_GROUP] = with_malformed
    assert member.join() == partitions(0, 1, 2)
    assert coordinator.assigned["malformed"] == ()
