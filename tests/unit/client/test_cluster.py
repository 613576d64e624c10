"""The client of a cluster against a broker that fails on purpose."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from scripted_broker import TOPIC_ID, ScriptedBroker

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.client.admin.configs import Resource, describe_configs, topic_overrides
from kalda.client.admin.groups import describe_group
from kalda.client.admin.offsets import list_offsets
from kalda.client.admin.reassignments import alter_reassignments
from kalda.client.admin.topics import NewTopic, create_topics, delete_topics
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import Unreachable, refused
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
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


def test_metadata_has_existing_topics_and_errors_of_unexpected_ones(cluster: ClusterClient) -> None:
    metadata = cluster.metadata(["logs", "nothing"])
    assert metadata.cluster_id == "scripted"
    assert [partition.leader for partition in metadata.topics["logs"].partitions] == [1, 1]
    assert metadata.topics["nothing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_waits_for_an_election(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.topics["logs"] = [1, -1]
    answer = broker.answers[ApiKey.METADATA]
    told = []

    def elect(request: Any, version: int) -> Any:
        response = answer(request, version)
        if request.topics:  # the client asks for the brokers alone, too, and as often as its timers say
            told.append(broker.topics["logs"][1])
            broker.topics["logs"] = [1, 1]
        return response

    broker.answers[ApiKey.METADATA] = elect
    assert cluster.leader("logs", 1).node_id == 1
    assert told == [-1, 1]


def test_an_older_leader_epoch_does_not_replace_a_later_one(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    """A broker that is cut off from the controllers answers with former leaders. A topic that was deleted and created
    again has another id, and its epochs begin at 0."""
    assert cluster.leader("logs", 1).epoch == 5
    for epoch, topic_id, expected in (
        (4, TOPIC_ID, 5),
        (6, TOPIC_ID, 6),
        (5, TOPIC_ID, 6),
        (0, Uuid(bytes(16 * [9])), 0),
    ):
        broker.leader_epoch, broker.topic_id = epoch, topic_id
        assert cluster.leader("logs", 1).epoch == expected


def test_the_error_for_an_unknown_partition_has_the_partition_count(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError, match="logs has no partition 7; it has 2") as raised:
        cluster.leader("logs", 7)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lost_connection_is_opened_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    answer = broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.METADATA] = lambda request, version: (
        None if len(broker.requests(ApiKey.METADATA)) == 1 else answer(request, version)
    )
    assert set(cluster.metadata().topics) == {"logs"}


def test_an_api_that_the_broker_does_not_support_is_not_retried(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError) as raised:
        cluster.any_broker(DescribeClusterRequest())
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_requests_to_controllers_go_to_the_active_one(broker: ScriptedBroker) -> None:
    """It is looked up again after NOT_CONTROLLER."""
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
        with ClusterClient(broker.address, timeout_ms=5_000, of_controllers=True) as client:
            alter_reassignments(client, {TopicPartition("logs", 0): (1, 2)})
        assert len(other.requests(ApiKey.ALTER_PARTITION_REASSIGNMENTS)) == 1


def test_a_cluster_that_is_not_running_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with (
        ClusterClient(f"127.0.0.1:{port}", timeout_ms=200) as cluster,
        pytest.raises(Unreachable, match=f"127.0.0.1:{port}"),
    ):
        cluster.metadata()


def test_the_listener_of_a_controller_is_refused(broker: ScriptedBroker) -> None:
    """Users give its address by mistake. It does not support Metadata."""
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


def test_offsets_of_a_failed_partition_are_requested_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    moved = {1}

    def list_some(request: Any, version: int) -> ListOffsetsResponse:
        partitions = []
        for requested in request.topics[0].partitions:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if requested.partition_index in moved else ErrorCode.NONE
            partitions.append(
                ListOffsetsPartitionResponse(
                    partition_index=requested.partition_index, error_code=code, offset=10 + requested.partition_index
                )
            )
        moved.clear()
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="logs", partitions=partitions)])

    broker.answers[ApiKey.LIST_OFFSETS] = list_some
    specs = {TopicPartition("logs", 0): OffsetSpec.LATEST, TopicPartition("logs", 1): OffsetSpec.LATEST}
    assert [found.offset for found in list_offsets(cluster, specs).values()] == [10, 11]
    indexes = [[p.partition_index for p in r.topics[0].partitions] for r in broker.requests(ApiKey.LIST_OFFSETS)]
    assert indexes == [[0, 1], [1]]
    assert len([request for request in broker.requests(ApiKey.METADATA) if request.topics]) == 2


def test_a_coordinator_that_has_moved_is_looked_up_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
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
    keys = [key for key, _, _ in broker.received]
    first = keys.index(ApiKey.DESCRIBE_GROUPS)
    describing = [ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.DESCRIBE_GROUPS]
    asked = [key for key in keys[first + 1 :] if key is not ApiKey.METADATA]
    assert asked[:3] == describing, "not while the coordinator loads"


def test_a_refusal_has_the_brokers_message(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="logs", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="no!")]
    )
    with pytest.raises(ApiError, match="topic logs: no!"):
        create_topics(cluster, [NewTopic("logs", 3, 1, {"a": "b"})])
    (request,) = broker.requests(ApiKey.CREATE_TOPICS)
    assert (request.topics[0].num_partitions, request.topics[0].configs[0].value) == (3, "b")


def test_deleting_an_unknown_topic_is_not_retried(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answers[ApiKey.DELETE_TOPICS] = lambda request, version: DeleteTopicsResponse(
        responses=[DeletableTopicResult(name="old", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    )
    with pytest.raises(ApiError, match="topic old"):
        delete_topics(cluster, ["old"])
    assert len(broker.requests(ApiKey.DELETE_TOPICS)) == 1


def test_configs_of_an_unknown_topic_are_retried_but_not_until_the_deadline(
    broker: ScriptedBroker, cluster: ClusterClient
) -> None:
    """A broker may not have replayed the record of a topic that was created a moment ago."""
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="deleted")]
    )
    with pytest.raises(ApiError, match=r"topic old: deleted$"):
        describe_configs(cluster, Resource(ConfigResourceType.TOPIC, "old"))
    assert len(broker.requests(ApiKey.DESCRIBE_CONFIGS)) > 1


def test_overrides_of_many_topics_are_described_in_few_requests(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    def describe(request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        results = [
            DescribeConfigsResult(
                resource_type=2,
                resource_name=each.resource_name,
                configs=[
                    DescribeConfigsResourceResult(name="retention.ms", value="7", config_source=1),
                    DescribeConfigsResourceResult(name="cleanup.policy", value="delete", config_source=5),
                ],
            )
            for each in request.resources
        ]
        results[0] = DescribeConfigsResult(
            resource_type=2,
            resource_name=request.resources[0].resource_name,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
        return DescribeConfigsResponse(results=results)

    broker.answers[ApiKey.DESCRIBE_CONFIGS] = describe
    overrides = topic_overrides(cluster, [f"t{number}" for number in range(250)])
    assert len(broker.requests(ApiKey.DESCRIBE_CONFIGS)) == 3
    assert [len(overrides), overrides["t0"], overrides["t1"]] == [250, {}, {"retention.ms": "7"}]
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[DescribeConfigsResult(resource_name="t1", error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    )
    with pytest.raises(ApiError, match="topic t1"):
        topic_overrides(cluster, ["t1"])


def test_error_codes_without_a_message_get_advice() -> None:
    assert "members" in refused(ErrorCode.NON_EMPTY_GROUP, "group 'g'").message
    assert refused(ErrorCode.INVALID_PRODUCER_EPOCH, "it").message == "it: invalid producer epoch"
    assert refused(31_000, "it").code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_broker_that_has_left_the_metadata_is_not_retried_until_the_deadline(
    broker: ScriptedBroker, cluster: ClusterClient
) -> None:
    """The client's metadata still lists the broker; no process listens at its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    broker.nodes[2] = port
    cluster.metadata(())
    del broker.nodes[2]
    with pytest.raises(ApiError, match="broker 2 is not alive; those alive are 1") as caught:
        cluster.broker(2, DescribeClusterRequest())
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
