"""The admin client of commands against a broker that fails on purpose."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_broker import ScriptedBroker

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource, topic_overrides
from kalda.client.admin.nodes import supported_apis
from kalda.client.admin.topics import NewTopic
from kalda.clientcore.connections.errors import UnknownTopic, Unreachable, refused
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
    DescribedGroupMember,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    FindCoordinatorResponse,
)
from kalda.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from kalda.protocol.messages.partitions import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetSpec,
)
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseMember,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTaskIds,
    StreamsGroupDescribeResponseTopology,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsResponse,
    CreatableTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)

LAST = TopicPartition("logs", 1)


def test_existing_topics_are_described_and_others_have_an_error(admin: CommandAdmin) -> None:
    found = admin.topics(["logs", "nothing"])
    assert [partition.leader for partition in found.value("logs").partitions] == [1, 1]
    assert found.errors["nothing"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_new_topic_is_waited_for(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    answer = broker.answers[ApiKey.METADATA]
    asked = []

    def create(request: Any, version: int) -> Any:
        response = answer(request, version)
        if request.topics:
            asked.append(len(broker.topics))
            broker.topics["new"] = [1, 1, 1]
        return response

    broker.answers[ApiKey.METADATA] = create
    assert len(admin.partitions("new")) == 3
    assert asked == [1, 2]


def test_an_unknown_topic_is_waited_for_only_a_moment(admin: CommandAdmin) -> None:
    with pytest.raises(UnknownTopic, match="topic nothing does not exist; check the name, or create it first"):
        admin.topic("nothing")


def test_an_election_is_waited_for(broker: ScriptedBroker, admin: CommandAdmin) -> None:
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
    admin.wait_for_leaders([LAST])
    assert told == [-1, 1]


def test_the_error_for_an_unknown_partition_has_the_partition_count(admin: CommandAdmin) -> None:
    with pytest.raises(ApiError, match="logs has no partition 7; it has 2") as raised:
        admin.wait_for_leaders([TopicPartition("logs", 7)])
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lost_connection_is_opened_again(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    answer = broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.METADATA] = lambda request, version: (
        None if len(broker.requests(ApiKey.METADATA)) == 1 else answer(request, version)
    )
    assert set(admin.list_topics()) == {"logs"}


def test_an_api_that_the_broker_does_not_support_is_not_retried(admin: CommandAdmin) -> None:
    with pytest.raises(ApiError) as raised:
        admin.describe_cluster()
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
        with CommandAdmin(broker.address, timeout_ms=5_000, of_controllers=True) as client:
            client.alter_reassignments({TopicPartition("logs", 0): (1, 2)})
        assert len(other.requests(ApiKey.ALTER_PARTITION_REASSIGNMENTS)) == 1


@pytest.mark.parametrize("timeout_ms", [200, 600_000])
def test_a_cluster_that_is_not_running_is_unreachable(timeout_ms: int) -> None:
    """At the deadline, and long before it: the address may be wrong."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with (
        CommandAdmin(f"127.0.0.1:{port}", timeout_ms=timeout_ms) as admin,
        pytest.raises(Unreachable, match=f"cannot connect to the cluster at 127.0.0.1:{port}"),
    ):
        admin.list_topics()


def test_the_listener_of_a_controller_is_refused(broker: ScriptedBroker) -> None:
    """Users give its address by mistake. It does not support Metadata."""
    del broker.answers[ApiKey.METADATA]
    broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda request, version: DescribeClusterResponse()
    with (
        CommandAdmin(broker.address) as admin,
        pytest.raises(ApiError, match=f"{broker.address} answers no client; it may be a controller's listener"),
    ):
        admin.list_topics()


def test_a_broker_that_is_not_alive(admin: CommandAdmin) -> None:
    with pytest.raises(ApiError, match="broker 9 is not alive; those alive are 1") as raised:
        admin.run("the versions of a broker", supported_apis(9))
    assert raised.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_offsets_of_a_failed_partition_are_requested_again(broker: ScriptedBroker, admin: CommandAdmin) -> None:
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
    partitions = [TopicPartition("logs", 0), LAST]
    assert admin.offsets_at(partitions, OffsetSpec.LATEST) == dict(zip(partitions, [10, 11], strict=True))
    indexes = [[p.partition_index for p in r.topics[0].partitions] for r in broker.requests(ApiKey.LIST_OFFSETS)]
    assert indexes == [[0, 1], [1]]


def test_a_coordinator_that_has_moved_is_looked_up_again(broker: ScriptedBroker, admin: CommandAdmin) -> None:
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
    group = admin.describe_groups(["g"]).value("g")
    assert group.coordinator == 1
    assert (group.state, group.assignor, group.members[0].member_id) == ("Stable", "range", "m")
    assert group.members[0].partitions == ()
    keys = [key for key, _, _ in broker.received]
    first = keys.index(ApiKey.DESCRIBE_GROUPS)
    describing = [ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.DESCRIBE_GROUPS]
    asked = [key for key in keys[first + 1 :] if key is not ApiKey.METADATA]
    assert asked[:3] == describing, "not while the coordinator loads"


def test_a_group_of_the_new_protocol_has_epochs_and_targets(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    def assignment(*partitions: int) -> ConsumerGroupDescribeResponseAssignment:
        topic = ConsumerGroupDescribeResponseTopicPartitions(topic_name="logs", partitions=list(partitions))
        return ConsumerGroupDescribeResponseAssignment(topic_partitions=[topic])

    def describe(request: Any, version: int) -> ConsumerGroupDescribeResponse:
        members = [
            ConsumerGroupDescribeResponseMember(
                member_id="m",
                member_epoch=3,
                assignment=assignment(1),
                target_assignment=assignment(1, 0),
                member_type=1,
            ),
            ConsumerGroupDescribeResponseMember(member_id="old", member_epoch=4, member_type=0),
        ]
        group = ConsumerGroupDescribeResponseDescribedGroup(
            group_id="g", group_state="Reconciling", group_epoch=5, assignment_epoch=4, members=members
        )
        return ConsumerGroupDescribeResponse(groups=[group])

    broker.answers[ApiKey.CONSUMER_GROUP_DESCRIBE] = describe
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda request, version: FindCoordinatorResponse(
        node_id=1, host="127.0.0.1", port=broker.port
    )
    group = admin.describe_groups(["g"]).value("g")
    assert (group.type, group.state, group.epoch, group.assignment_epoch) == ("consumer", "Reconciling", 5, 4)
    member, old = group.members
    assert (member.epoch, member.partitions, member.upgraded) == (3, (LAST,), True)
    assert member.target == (TopicPartition("logs", 0), LAST)
    assert (old.epoch, old.target, old.upgraded) == (4, (), False)
    shown = CliRunner().invoke(cli, ["groups", "describe", "g", "--members", "--bootstrap-server", broker.address])
    assert shown.output.splitlines()[1].split()[-4:] == ["consumer", "3", "logs-1", "logs-0,logs-1"]


def test_a_streams_group_has_tasks(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    def tasks(subtopology: str, *partitions: int) -> list[StreamsGroupDescribeResponseTaskIds]:
        return [StreamsGroupDescribeResponseTaskIds(subtopology_id=subtopology, partitions=list(partitions))]

    def no_consumer_group(request: Any, version: int) -> ConsumerGroupDescribeResponse:
        group = ConsumerGroupDescribeResponseDescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        return ConsumerGroupDescribeResponse(groups=[group])

    def describe(request: Any, version: int) -> StreamsGroupDescribeResponse:
        assignment = StreamsGroupDescribeResponseAssignment(active_tasks=tasks("0", 1), standby_tasks=tasks("1", 0, 2))
        member = StreamsGroupDescribeResponseMember(
            member_id="m", member_epoch=4, process_id="p", assignment=assignment, target_assignment=assignment
        )
        subtopology = StreamsGroupDescribeResponseSubtopology(subtopology_id="0", source_topics=["logs"])
        group = StreamsGroupDescribeResponseDescribedGroup(
            group_id="g",
            group_state="Stable",
            group_epoch=4,
            assignment_epoch=4,
            assignor_name="sticky",
            topology=StreamsGroupDescribeResponseTopology(subtopologies=[subtopology]),
            members=[member],
        )
        return StreamsGroupDescribeResponse(groups=[group])

    broker.answers[ApiKey.CONSUMER_GROUP_DESCRIBE] = no_consumer_group
    broker.answers[ApiKey.STREAMS_GROUP_DESCRIBE] = describe
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda request, version: FindCoordinatorResponse(
        node_id=1, host="127.0.0.1", port=broker.port
    )
    group = admin.describe_groups(["g"]).value("g")
    assert (group.type, group.state, group.assignor, group.epoch) == ("streams", "Stable", "sticky", 4)
    (member,) = group.members
    assert (member.partitions, member.epoch, member.process_id) == ((LAST,), 4, "p")
    assert member.tasks == (("0_1",), ("1_0", "1_2"), ())
    shown = CliRunner().invoke(cli, ["groups", "describe", "g", "--members", "--bootstrap-server", broker.address])
    assert shown.output.splitlines()[1].split()[-6:-1] == ["p", "4", "0_1", "1_0,", "1_2"], shown.output
    asked = ["groups", "describe", "g", "--members", "--json", "--bootstrap-server", broker.address]
    (document,) = json.loads(CliRunner().invoke(cli, asked).output)
    assert document["members"][0]["tasks"] == {"active": ["0_1"], "standby": ["1_0", "1_2"], "warmup": []}


def test_a_refusal_has_the_brokers_message(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="logs", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="no!")]
    )
    with pytest.raises(ApiError, match="topic logs: no!"):
        admin.create_topics([NewTopic("logs", 3, 1, {"a": "b"})]).check()
    (request,) = broker.requests(ApiKey.CREATE_TOPICS)
    assert (request.topics[0].num_partitions, request.topics[0].configs[0].value) == (3, "b")


def test_deleting_an_unknown_topic_is_not_retried(broker: ScriptedBroker, admin: CommandAdmin) -> None:
    broker.answers[ApiKey.DELETE_TOPICS] = lambda request, version: DeleteTopicsResponse(
        responses=[DeletableTopicResult(name="old", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    )
    with pytest.raises(ApiError, match="topic old"):
        admin.delete_topics(["old"]).check()
    assert len(broker.requests(ApiKey.DELETE_TOPICS)) == 1


def test_configs_of_an_unknown_topic_are_retried_but_not_until_the_deadline(
    broker: ScriptedBroker, admin: CommandAdmin
) -> None:
    """A broker may not have replayed the record of a topic that was created a moment ago."""
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                resource_type=2,
                resource_name="old",
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="deleted",
            )
        ]
    )
    old = ConfigResource(ConfigResourceType.TOPIC, "old")
    with pytest.raises(ApiError, match=r"topic old: deleted$"):
        admin.describe_configs([old]).value(old)
    assert len(broker.requests(ApiKey.DESCRIBE_CONFIGS)) > 1


def test_overrides_of_many_topics_are_described_in_few_requests(broker: ScriptedBroker, admin: CommandAdmin) -> None:
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
    overrides = admin.run("describing configs", topic_overrides([f"t{number}" for number in range(250)]))
    assert len(broker.requests(ApiKey.DESCRIBE_CONFIGS)) == 3
    assert [len(overrides), overrides["t0"], overrides["t1"]] == [250, {}, {"retention.ms": "7"}]
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[DescribeConfigsResult(resource_name="t1", error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    )
    with pytest.raises(ApiError, match="topic t1"):
        admin.run("describing configs", topic_overrides(["t1"]))


def test_error_codes_without_a_message_get_advice() -> None:
    assert "members" in refused(ErrorCode.NON_EMPTY_GROUP, "group 'g'").message
    assert refused(ErrorCode.INVALID_PRODUCER_EPOCH, "it").message == "it: invalid producer epoch"
    assert refused(31_000, "it").code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_broker_that_has_left_the_metadata_is_not_retried_until_the_deadline(
    broker: ScriptedBroker, admin: CommandAdmin
) -> None:
    """The client's metadata still lists the broker; no process listens at its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    broker.nodes[2] = port
    admin.list_topics()
    del broker.nodes[2]
    with pytest.raises(ApiError, match="broker 2 is not alive; those alive are 1") as caught:
        admin.run("the versions of a broker", supported_apis(2))
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
