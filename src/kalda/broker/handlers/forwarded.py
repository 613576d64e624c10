"""Requests that only the active controller answers: a broker forwards the request, and returns the response.

The handler of these APIs on a broker is `Forwarding.forward`; on a controller the active controller or the quorum
answers. Both kinds of listener report in the same way that the whole request failed.

CreateTopics (19), DeleteTopics (20), CreateAcls (30), DeleteAcls (31), AlterConfigs (33), CreatePartitions (37),
ElectLeaders (43), IncrementalAlterConfigs (44), AlterPartitionReassignments (45), ListPartitionReassignments (46),
AlterClientQuotas (49), AlterUserScramCredentials (51), DescribeQuorum (55), UpdateFeatures (57), UnregisterBroker (64),
AddRaftVoter (80), RemoveRaftVoter (81), UnregisterController (94).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kalda.base.errors import ApiError
from kalda.base.sensors import NO_TAGS, quantile_sensors
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Authorization, QuotaClass, Row, message_of
from kalda.protocol.access import Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kalda.protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse


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


create_topics_failed = error_on_items("topics")
FORWARDED: Final[Mapping[ApiKey, tuple[Callable[[Any, int, ApiError], Any], QuotaClass]]] = {
    ApiKey.CREATE_TOPICS: (create_topics_failed, QuotaClass.CONTROLLER_MUTATION),
    ApiKey.DELETE_TOPICS: (delete_topics_failed, QuotaClass.CONTROLLER_MUTATION),
    ApiKey.CREATE_PARTITIONS: (error_on_items("results", "topics"), QuotaClass.CONTROLLER_MUTATION),
    ApiKey.ALTER_CLIENT_QUOTAS: (error_on_items("entries.entity"), QuotaClass.REQUEST),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (alter_scram_failed, QuotaClass.REQUEST),
    ApiKey.CREATE_ACLS: (error_on_items("results", "creations"), QuotaClass.REQUEST),
    ApiKey.DELETE_ACLS: (error_on_items("filter_results", "filters"), QuotaClass.REQUEST),
    ApiKey.UPDATE_FEATURES: (error_on_top, QuotaClass.REQUEST),
    ApiKey.ELECT_LEADERS: (
        error_on_items("replica_election_results.partition_result", "topic_partitions.partitions", on_top=True),
        QuotaClass.REQUEST,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        error_on_items("responses.partitions", "topics.partitions", on_top=True),
        QuotaClass.REQUEST,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        error_on_items("topics.partitions", "topics.partition_indexes", on_top=True),
        QuotaClass.REQUEST,
    ),
    ApiKey.UNREGISTER_BROKER: (error_on_top, QuotaClass.REQUEST),
    ApiKey.UNREGISTER_CONTROLLER: (error_on_top, QuotaClass.REQUEST),
    ApiKey.DESCRIBE_QUORUM: (error_on_top, QuotaClass.REQUEST),
    ApiKey.ADD_RAFT_VOTER: (error_on_top, QuotaClass.REQUEST),
    ApiKey.REMOVE_RAFT_VOTER: (error_on_top, QuotaClass.REQUEST),
}
"""The APIs that a broker forwards unread: how each reports that the whole request failed, and which quota it counts
against. It reads AlterConfigs and IncrementalAlterConfigs first: those are in `configs`."""
alter_configs_failed = error_on_items("responses", "resources")
"""Of both."""


def forwarded_row(
    key: ApiKey,
    handler: Callable[[RequestContext, Any], Any],
    authorize: Callable[[Caller, Any], ApiError | None] | Authorization = Authorization.AT_CONTROLLER,
) -> Row:
    """The row of one of them, on either kind of listener."""
    failed, quota = FORWARDED[key]
    return Row(key, handler, failed, authorize, quota, True)


def forwarded_rows(forwarding: Forwarding) -> list[Row]:
    """A broker's rows of all of them."""
    return [forwarded_row(key, forwarding.forward) for key in FORWARDED]


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
