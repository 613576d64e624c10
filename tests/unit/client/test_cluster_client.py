"""The cluster's view against a broker that fails on purpose."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from scripted_broker import TOPIC_ID, ScriptedBroker

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.client.admin.configs import Resource, describe_configs
from kalda.client.admin.groups import describe_group
from kalda.client.admin.offsets import list_offsets
from kalda.client.admin.reassignments import alter_reassignments
from kalda.client.admin.topics import NewTopic, create_topics, delete_topics
from kalda.client.cluster_client import ClusterClient
from kalda.client.errors import Unreachable, refused
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.configs import DescribeConfigsResponse, DescribeConfigsResult
from kalda.protocol.messages.fetch import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetSpec,
)
from kalda.protocol.messages.groups import (
    DescribedGroupMember,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    FindCoordinatorResponse,
)
from kalda.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsResponse,
    CreatableTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)


def test_metadata_tells_of_what_is_and_what_is_not(cluster: ClusterClient) -> None:
    metadata = cluster.metadata(["logs", "nothing"])
    assert metadata.cluster_id == "scripted"
    assert [partition.leader for partition in metadata.topics["logs"].partitions] == [1, 1]
    assert metadata.topics["nothing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_that_is_elected_meanwhile_is_waited_for(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.topics["logs"] = [1, -1]
    answer = broker.answers[ApiKey.METADATA]

    def elect(request: Any, version: int) -> Any:
        response = answer(request, version)
        broker.topics["logs"] = [1, 1]
        return response

    broker.answers[ApiKey.METADATA] = elect
    assert cluster.leader("logs", 1).node_id == 1
    assert len(broker.requests(ApiKey.METADATA)) == 2


def test_a_broker_that_tells_of_a_former_leader_is_not_believed(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    """It may be cut off from the controllers. Of a topic that was made anew it tells what is."""
    assert cluster.leader("logs", 1).epoch == 5
    for epoch, topic_id, known in ((4, TOPIC_ID, 5), (6, TOPIC_ID, 6), (5, TOPIC_ID, 6), (0, Uuid(bytes(16 * [9])), 0)):
        broker.leader_epoch, broker.topic_id = epoch, topic_id
        cluster.forget(["logs"])
        assert cluster.leader("logs", 1).epoch == known


def test_a_partition_that_is_not_there_is_said_with_what_is(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError, match="logs has no partition 7; it has 2") as raised:
        cluster.leader("logs", 7)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lost_connection_is_made_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    answer = broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.METADATA] = lambda request, version: (
        None if len(broker.requests(ApiKey.METADATA)) == 1 else answer(request, version)
    )
    assert set(cluster.metadata().topics) == {"logs"}


def test_what_the_broker_does_not_have_is_said_at_once(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError) as raised:
        cluster.any_broker(DescribeClusterRequest())
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_of_controllers_the_active_one_is_asked(broker: ScriptedBroker) -> None:
    """And looked up anew when it is another."""
    with ScriptedBroker(2) as other:

        def describe(request: Any, version: int) -> DescribeClusterResponse:
            assert request.endpoint_type == 2
            active = 1 if len(broker.requests(ApiKey.DESCRIBE_CLUSTER)) == 1 else 2
            nodes = [
                DescribeClusterBroker(broker_id=each.node_id, host="127.0.0.1", port=each.port)
                for each in (broker, other)
            ]
            return DescribeClusterResponse(endpoint_type=2, cluster_id="c", controller_id=active, brokers=nodes)

        broker.answers[ApiKey.DESCRIBE_CLUSTER] = other.answers[ApiKey.DESCRIBE_CLUSTER] = describe
        refusal = AlterPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        broker.answers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda request, version: refusal
        done = AlterPartitionReassignmentsResponse()
        other.answers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda request, version: done
        with ClusterClient(broker.address, timeout_ms=5_000, of_controllers=True) as view:
            alter_reassignments(view, {TopicPartition("logs", 0): (1, 2)})
        assert len(other.requests(ApiKey.ALTER_PARTITION_REASSIGNMENTS)) == 1


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with (
        ClusterClient(f"127.0.0.1:{port}", timeout_ms=200) as cluster,
        pytest.raises(Unreachable, match=f"127.0.0.1:{port}"),
    ):
        cluster.metadata()


def test_a_controllers_listener_is_none_of_a_brokers(broker: ScriptedBroker) -> None:
    """It is what people give by mistake, and it has no metadata."""
    del broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda request, version: DescribeClusterResponse()
    with (
        ClusterClient(broker.address) as cluster,
        pytest.raises(ApiError, match=f"{broker.address} answers no client; it may be a controller's listener"),
    ):
        cluster.metadata([])


def test_a_broker_that_is_not_alive(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError, match="broker 9 is not alive; those alive are 1") as raised:
        cluster.broker(9, DescribeClusterRequest())
    assert raised.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_offsets_are_asked_again_of_the_partition_that_failed(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    moved = {1}

    def list_some(request: Any, version: int) -> ListOffsetsResponse:
        partitions = []
        for asked in request.topics[0].partitions:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if asked.partition_index in moved else ErrorCode.NONE
            partitions.append(
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=code, offset=10 + asked.partition_index
                )
            )
        moved.clear()
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="logs", partitions=partitions)])

    broker.answers[ApiKey.LIST_OFFSETS] = list_some
    wanted = {TopicPartition("logs", 0): OffsetSpec.LATEST, TopicPartition("logs", 1): OffsetSpec.LATEST}
    assert [found.offset for found in list_offsets(cluster, wanted).values()] == [10, 11]
    asked = [[p.partition_index for p in r.topics[0].partitions] for r in broker.requests(ApiKey.LIST_OFFSETS)]
    assert asked == [[0, 1], [1]]
    assert len(broker.requests(ApiKey.METADATA)) == 2


def test_a_coordinator_that_has_moved_is_found_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    codes = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE]

    def describe(request: Any, version: int) -> DescribeGroupsResponse:
        group = DescribeGroupsResponseDescribedGroup(
            error_code=codes.pop(0),
            group_id="g",
            group_state="Stable",
            protocol_type="consumer",
            protocol_data="range",
            members=[DescribedGroupMember(member_id="m", client_host="/h", member_assignment=b"\xff")],
        )
        return DescribeGroupsResponse(groups=[group])

    broker.answers[ApiKey.DESCRIBE_GROUPS] = describe
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda request, version: FindCoordinatorResponse(
        node_id=1, host="127.0.0.1", port=broker.port
    )
    group = describe_group(cluster, "g")
    assert (group.state, group.assignor, group.members[0].member_id) == ("Stable", "range", "m")
    assert group.members[0].partitions == ()
    assert len(broker.requests(ApiKey.FIND_COORDINATOR)) == 2


def test_a_topic_that_exists_is_refused_with_the_brokers_words(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="logs", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="no!")]
    )
    with pytest.raises(ApiError, match="topic logs: no!"):
        create_topics(cluster, [NewTopic("logs", 3, 1, {"a": "b"})])
    (request,) = broker.requests(ApiKey.CREATE_TOPICS)
    assert (request.topics[0].num_partitions, request.topics[0].configs[0].value) == (3, "b")


def test_deleting_what_is_not_there_is_not_tried_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answers[ApiKey.DELETE_TOPICS] = lambda request, version: DeleteTopicsResponse(
        responses=[DeletableTopicResult(name="gone", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    )
    with pytest.raises(ApiError, match="topic gone"):
        delete_topics(cluster, ["gone"])
    assert len(broker.requests(ApiKey.DELETE_TOPICS)) == 1


def test_configs_of_a_topic_that_is_not_there_are_not_asked_for_until_the_deadline(
    broker: ScriptedBroker, cluster: ClusterClient
) -> None:
    """Not at once, since the broker that is asked may not know yet of a topic that was just created."""
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="gone")]
    )
    with pytest.raises(ApiError, match=r"topic gone: gone$"):
        describe_configs(cluster, Resource(ConfigResourceType.TOPIC, "gone"))
    assert len(broker.requests(ApiKey.DESCRIBE_CONFIGS)) > 1


def test_codes_without_words_get_advice() -> None:
    assert "members" in refused(ErrorCode.NON_EMPTY_GROUP, "group 'g'").message
    assert refused(ErrorCode.INVALID_PRODUCER_EPOCH, "it").message == "it: invalid producer epoch"
    assert refused(31_000, "it").code is ErrorCode.UNKNOWN_SERVER_ERROR
