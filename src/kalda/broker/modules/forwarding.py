"""Requests that only the active controller answers: this broker forwards the request, and returns the response."""

from __future__ import annotations

from kalda.broker.forwarding import Forwarding
from kalda.broker.modules.module import BrokerContext, Handlers, Module
from kalda.protocol.apis import ApiKey

FORWARDED = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
)


class ForwardingModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self.forwarding = Forwarding(context.channel)

    def handlers(self) -> Handlers:
        """The APIs that are forwarded without a check of this broker."""
        return dict.fromkeys(FORWARDED, self.forwarding.forward)
