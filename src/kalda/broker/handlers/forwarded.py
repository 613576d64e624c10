"""Requests that only the active controller answers: a broker forwards the request, and returns the response.

The handler of these APIs on a broker is `Forwarding.forward`; on a controller the active controller or the quorum
answers. Both kinds of listener report in the same way that the whole request failed.

CreateTopics (19), DeleteTopics (20), CreateAcls (30), DeleteAcls (31), AlterConfigs (33), CreatePartitions (37),
ElectLeaders (43), IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46),
AlterClientQuotas (49), AlterUserScramCredentials (51), DescribeQuorum (55), UpdateFeatures (57), UnregisterBroker (64),
AddRaftVoter (80), RemoveRaftVoter (81), UnregisterController (94).
"""

from __future__ import annotations

from kalda.base.durations import quantile_sensors
from kalda.base.errors import ApiError
from kalda.base.sensors import NO_TAGS
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.acls import create_acls_failed, delete_acls_failed
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.requests.rows import Authorization, QuotaClass, Row, message_of
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    AlterClientQuotasResponse,
    UpdateFeaturesResponse,
)
from kalda.protocol.messages.brokers import UnregisterBrokerResponse, UnregisterControllerResponse
from kalda.protocol.messages.configs import (
    AlterConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from kalda.protocol.messages.quorum import (
    AddRaftVoterResponse,
    DescribeQuorumResponse,
    RemoveRaftVoterResponse,
)
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

_FIRST_ELECTION_ERROR_ON_TOP = 1
_AT_CONTROLLER = Authorization.AT_CONTROLLER
_MUTATION = QuotaClass.CONTROLLER_MUTATION
_REQUEST = QuotaClass.REQUEST


def forwarded_rows(forwarding: Forwarding) -> list[Row]:
    """A broker's rows of the APIs that it forwards unread. It reads AlterConfigs and IncrementalAlterConfigs first:
    those rows are in `configs`."""
    forward = forwarding.forward
    return [
        Row(ApiKey.CREATE_TOPICS, forward, create_topics_failed, _AT_CONTROLLER, _MUTATION, True),
        Row(ApiKey.DELETE_TOPICS, forward, delete_topics_failed, _AT_CONTROLLER, _MUTATION, True),
        Row(ApiKey.CREATE_PARTITIONS, forward, create_partitions_failed, _AT_CONTROLLER, _MUTATION, True),
        Row(ApiKey.ALTER_CLIENT_QUOTAS, forward, alter_client_quotas_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, forward, alter_scram_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.CREATE_ACLS, forward, create_acls_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.DELETE_ACLS, forward, delete_acls_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.UPDATE_FEATURES, forward, error_on_top(UpdateFeaturesResponse), _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.ELECT_LEADERS, forward, elect_leaders_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, forward, reassign_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, forward, list_reassignments_failed, _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.UNREGISTER_BROKER, forward, error_on_top(UnregisterBrokerResponse), _AT_CONTROLLER, _REQUEST, True),
        Row(
            ApiKey.UNREGISTER_CONTROLLER,
            forward,
            error_on_top(UnregisterControllerResponse),
            _AT_CONTROLLER,
            _REQUEST,
            True,
        ),
        Row(ApiKey.DESCRIBE_QUORUM, forward, error_on_top(DescribeQuorumResponse), _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.ADD_RAFT_VOTER, forward, error_on_top(AddRaftVoterResponse), _AT_CONTROLLER, _REQUEST, True),
        Row(ApiKey.REMOVE_RAFT_VOTER, forward, error_on_top(RemoveRaftVoterResponse), _AT_CONTROLLER, _REQUEST, True),
    ]


# Topics and partitions


create_topics_failed = error_on_items(CreateTopicsResponse, "topics")


def delete_topics_failed(request: DeleteTopicsRequest, version: int, error: ApiError) -> DeleteTopicsResponse:
    """The error of every topic, by name or id as the request has it."""
    response = DeleteTopicsResponse()
    for topic in request.topics:
        response.responses.append(
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=message_of(error)
            )
        )
    for name in request.topic_names:
        response.responses.append(
            DeletableTopicResult(name=name, error_code=error.code, error_message=message_of(error))
        )
    return response


create_partitions_failed = error_on_items(CreatePartitionsResponse, "results", "topics")


elect_leaders_failed = error_on_items(
    ElectLeadersResponse, "replica_election_results.partition_result", "topic_partitions.partitions", on_top=True
)


reassign_failed = error_on_items(
    AlterPartitionReassignmentsResponse, "responses.partitions", "topics.partitions", on_top=True
)


list_reassignments_failed = error_on_items(
    ListPartitionReassignmentsResponse, "topics.partitions", "topics.partition_indexes", on_top=True
)


# Configs, quotas, credentials, features


alter_configs_failed = error_on_items(AlterConfigsResponse, "responses", "resources")


incremental_alter_configs_failed = error_on_items(IncrementalAlterConfigsResponse, "responses", "resources")


alter_client_quotas_failed = error_on_items(AlterClientQuotasResponse, "entries.entity")


def alter_scram_failed(
    request: AlterUserScramCredentialsRequest, version: int, error: ApiError
) -> AlterUserScramCredentialsResponse:
    """The error of every user, each once."""
    users = {each.name for each in request.deletions} | {each.name for each in request.upsertions}
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=message_of(error))
            for user in sorted(users)
        ]
    )


# Nodes and the quorum


_METRICS = "kafka.server:type=ForwardingManager"


class ForwardingModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        node_id = context.config.node_id
        self.forwarding = Forwarding(
            context.channel.beside(f"broker-{node_id}-forwarding"),
            context.host.clock.mono_ms,
            context.channel.beside(f"broker-{node_id}-voters"),
        )
        context.sensors.gauge(_METRICS, "QueueLength", read=lambda: self.forwarding.under_way)
        times = self.forwarding.times
        context.sensors.add_source(lambda: quantile_sensors(_METRICS, "RemoteTimeMs", NO_TAGS, times))

    def rows(self) -> list[Row]:
        """The APIs that are forwarded without a check of this broker."""
        return forwarded_rows(self.forwarding)
