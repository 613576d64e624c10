"""Brokers that send a consumer to and fro for ever: the first redirect is followed at once, others ever later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from consumer_world import Cluster, Member

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import HeartbeatResponse, JoinGroupResponse, OffsetFetchResponse
from kalda.protocol.messages.metadata import MetadataResponse
from kalda.protocol.messages.partitions import FetchableTopicResponse, FetchResponse, FetchResponsePartitionData

T0 = TopicPartition("t", 0)
Answer = Callable[[Any], Any]


def to_another_leader(cluster: Cluster) -> Answer:
    """Each Fetch is answered with a leader of a later epoch."""

    def answer(_request: Any) -> FetchResponse:
        log = cluster.logs[T0]
        log.leader, log.epoch = 1 - log.leader, log.epoch + 1
        data = FetchResponsePartitionData(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data.current_leader.leader_id, data.current_leader.leader_epoch = log.leader, log.epoch
        return fetched(cluster, data)

    return answer


def to_a_replica_and_back(cluster: Cluster) -> Answer:
    """The leader names a replica, which does not have the offset."""
    named = [False]

    def answer(_request: Any) -> FetchResponse:
        named[0] = not named[0]
        if named[0]:
            return fetched(cluster, FetchResponsePartitionData(partition_index=0, preferred_read_replica=1))
        return fetched(cluster, FetchResponsePartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))

    return answer


def to_replica_after_replica(cluster: Cluster) -> Answer:
    """Each node names the other."""
    named = [0]

    def answer(_request: Any) -> FetchResponse:
        named[0] = 1 - named[0]
        return fetched(cluster, FetchResponsePartitionData(partition_index=0, preferred_read_replica=named[0]))

    return answer


def to_a_new_session(_cluster: Cluster) -> Answer:
    return lambda _request: FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)


def fetched(cluster: Cluster, data: FetchResponsePartitionData) -> FetchResponse:
    topic = FetchableTopicResponse(topic_id=cluster.ids.id_of("t"), partitions=[data])
    return FetchResponse(session_id=7, responses=[topic])


FETCHES = [to_another_leader, to_a_replica_and_back, to_replica_after_replica, to_a_new_session]


@pytest.mark.parametrize("redirect", FETCHES, ids=lambda each: each.__name__)
def test_endless_redirects_of_fetches_are_followed_ever_later(
    redirect: Callable[[Cluster], Answer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    cluster.add_topic("t", 1)
    cluster.append("t", 0, b"a")
    member = Member(cluster, **{"client.rack": "r1"}).assign(("t", 0))
    answer = redirect(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(member, "_fetch", lambda _id, _node, request, send, _end: send(answer(request)))
        assert member.poll(30_000) == []
    sent = [key for _, key, _ in cluster.requests]
    assert 20 <= sent.count(ApiKey.FETCH) <= 60
    assert len(sent) <= 200
    assert ("Fetches in a row were redirected" in caplog.text) == (redirect is not to_a_new_session)
    cluster.logs[T0].leader = 0
    assert [record.value for record in member.poll(10_000)] == [b"a"]


ELSEWHERE = {
    ApiKey.JOIN_GROUP: lambda: JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR),
    ApiKey.HEARTBEAT: lambda: HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR),
    ApiKey.OFFSET_FETCH: lambda: OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR),
    ApiKey.METADATA: lambda: MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED),
}


@pytest.mark.parametrize("key", ELSEWHERE)
def test_endless_redirects_of_a_group_are_followed_ever_later(key: ApiKey) -> None:
    cluster = Cluster()
    cluster.add_topic("t", 1)
    cluster.append("t", 0, b"a")
    member = Member(cluster, **{"group.id": "g", "heartbeat.interval.ms": 1_000}).subscribe("t")
    answer = cluster.answer

    def elsewhere(node: int, version: int, asked: ApiKey, request: Any) -> Any:
        if asked is not key:
            return answer(node, version, asked, request)
        cluster.requests.append((node, key, request))
        return ELSEWHERE[key]()

    cluster.answer = elsewhere  # type: ignore[method-assign]
    member.poll(30_000)
    member.poll(30_000)
    sent = [api for _, api, _ in cluster.requests]
    assert sent.count(key) <= 600, "one in retry.backoff.ms"
    assert len(sent) <= 2_000
    cluster.answer = answer  # type: ignore[method-assign]
    cluster.run(5_000)
    member.poll(10_000)
    assert [record.value for record in member.got] == [b"a"]
