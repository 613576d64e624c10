"""The table of API keys: names, versions, listeners, and where their messages are declared.

The table has all of the protocol. A node advertises the part of it for which it has handlers.
"""

from __future__ import annotations

from enum import Flag, IntEnum, auto
from functools import cache
from importlib import import_module
from typing import NamedTuple

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import Request, Response


class ApiKey(IntEnum):
    """API keys by wire value."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class Listener(Flag):
    """The kinds of listener on which an API is served."""

    BROKER = auto()
    CONTROLLER = auto()


BROKER = Listener.BROKER
CONTROLLER = Listener.CONTROLLER
BOTH = BROKER | CONTROLLER


class Api(NamedTuple):
    """One API: `lowest` to `highest` are the versions that are decoded; `flexible_from` is the first flexible one."""

    key: ApiKey
    name: str
    module: str
    lowest: int
    highest: int
    flexible_from: int | None
    listeners: Listener
    advertised_from: int | None = None
    """The lowest version announced, where it is below the lowest one served: librdkafka disables features where Produce
    0 is not announced (KAFKA-18659)."""
    unstable_latest: bool = False
    """The highest version is not stable: it is served only under `unstable.api.versions.enable`."""
    forwarded: bool = False
    """Brokers forward these requests to the active controller."""

    def is_flexible(self, version: int) -> bool:
        """True where both headers and bodies use compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def response_header_version(self, version: int) -> int:
        """1 for flexible versions, else 0; always 0 for ApiVersions: a client reads its response before it has the
        broker's versions (KIP-511)."""
        return 1 if self.is_flexible(version) and self.key is not ApiKey.API_VERSIONS else 0

    def highest_served(self, unstable: bool) -> int:
        """The highest version to announce."""
        return self.highest - 1 if self.unstable_latest and not unstable else self.highest


API: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, "Produce", "partitions", 3, 13, 9, BROKER, advertised_from=0),
        Api(ApiKey.FETCH, "Fetch", "partitions", 4, 18, 12, BOTH),
        Api(ApiKey.LIST_OFFSETS, "ListOffsets", "partitions", 1, 11, 6, BROKER),
        Api(ApiKey.METADATA, "Metadata", "metadata", 0, 13, 9, BROKER),
        Api(ApiKey.OFFSET_COMMIT, "OffsetCommit", "groups", 2, 10, 8, BROKER),
        Api(ApiKey.OFFSET_FETCH, "OffsetFetch", "groups", 1, 10, 6, BROKER),
        Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", "groups", 0, 6, 3, BROKER),
        Api(ApiKey.JOIN_GROUP, "JoinGroup", "groups", 0, 9, 6, BROKER),
        Api(ApiKey.HEARTBEAT, "Heartbeat", "groups", 0, 4, 4, BROKER),
        Api(ApiKey.LEAVE_GROUP, "LeaveGroup", "groups", 0, 5, 4, BROKER),
        Api(ApiKey.SYNC_GROUP, "SyncGroup", "groups", 0, 5, 4, BROKER),
        Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", "groups", 0, 6, 5, BROKER),
        Api(ApiKey.LIST_GROUPS, "ListGroups", "groups", 0, 5, 3, BROKER),
        Api(ApiKey.SASL_HANDSHAKE, "SaslHandshake", "security", 0, 1, None, BOTH),
        Api(ApiKey.API_VERSIONS, "ApiVersions", "metadata", 0, 5, 3, BOTH),
        Api(ApiKey.CREATE_TOPICS, "CreateTopics", "topics", 2, 7, 5, BOTH, forwarded=True),
        Api(ApiKey.DELETE_TOPICS, "DeleteTopics", "topics", 1, 6, 4, BOTH, forwarded=True),
        Api(ApiKey.DELETE_RECORDS, "DeleteRecords", "partitions", 0, 2, 2, BROKER),
        Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", "transactions", 0, 6, 2, BROKER, unstable_latest=True),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", "partitions", 2, 4, 4, BROKER),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", "transactions", 0, 5, 3, BROKER),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", "transactions", 0, 4, 3, BROKER),
        Api(ApiKey.END_TXN, "EndTxn", "transactions", 0, 5, 3, BROKER),
        Api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", "transactions", 1, 2, 1, BROKER),
        Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", "transactions", 0, 6, 3, BROKER),
        Api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", "security", 1, 3, 2, BOTH),
        Api(ApiKey.CREATE_ACLS, "CreateAcls", "security", 1, 3, 2, BOTH, forwarded=True),
        Api(ApiKey.DELETE_ACLS, "DeleteAcls", "security", 1, 3, 2, BOTH, forwarded=True),
        Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", "admin", 1, 4, 4, BOTH),
        Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", "admin", 0, 2, 2, BOTH, forwarded=True),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", "admin", 1, 2, 2, BROKER),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", "admin", 1, 5, 2, BROKER),
        Api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", "security", 0, 2, 2, BOTH),
        Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", "topics", 0, 3, 2, BOTH, forwarded=True),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, "CreateDelegationToken", "security", 1, 3, 2, BOTH, forwarded=True),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, "RenewDelegationToken", "security", 1, 2, 2, BOTH, forwarded=True),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", "security", 1, 2, 2, BOTH, forwarded=True),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", "security", 1, 3, 2, BOTH),
        Api(ApiKey.DELETE_GROUPS, "DeleteGroups", "groups", 0, 3, 2, BROKER),
        Api(ApiKey.ELECT_LEADERS, "ElectLeaders", "topics", 0, 2, 2, BOTH, forwarded=True),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", "admin", 0, 1, 1, BOTH, forwarded=True),
        Api(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", "topics", 0, 1, 0, BOTH, forwarded=True
        ),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", "topics", 0, 0, 0, BOTH, forwarded=True),
        Api(ApiKey.OFFSET_DELETE, "OffsetDelete", "groups", 0, 0, None, BROKER),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", "admin", 0, 1, 1, BROKER),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", "admin", 0, 1, 1, BOTH, forwarded=True),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", "security", 0, 0, 0, BOTH),
        Api(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", "security", 0, 0, 0, BOTH, forwarded=True
        ),
        Api(ApiKey.VOTE, "Vote", "quorum", 0, 2, 0, CONTROLLER),
        Api(ApiKey.BEGIN_QUORUM_EPOCH, "BeginQuorumEpoch", "quorum", 0, 1, 1, CONTROLLER),
        Api(ApiKey.END_QUORUM_EPOCH, "EndQuorumEpoch", "quorum", 0, 1, 1, CONTROLLER),
        Api(ApiKey.DESCRIBE_QUORUM, "DescribeQuorum", "quorum", 0, 2, 0, BOTH, forwarded=True),
        Api(ApiKey.ALTER_PARTITION, "AlterPartition", "brokers", 2, 3, 2, CONTROLLER),
        Api(ApiKey.UPDATE_FEATURES, "UpdateFeatures", "admin", 0, 2, 0, BOTH, forwarded=True),
        Api(ApiKey.ENVELOPE, "Envelope", "brokers", 0, 0, 0, CONTROLLER),
        Api(ApiKey.FETCH_SNAPSHOT, "FetchSnapshot", "quorum", 0, 1, 0, CONTROLLER),
        Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", "metadata", 0, 2, 0, BOTH),
        Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", "transactions", 0, 0, 0, BROKER),
        Api(ApiKey.BROKER_REGISTRATION, "BrokerRegistration", "brokers", 0, 4, 0, CONTROLLER),
        Api(ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", "brokers", 0, 2, 0, CONTROLLER),
        Api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", "brokers", 0, 0, 0, BOTH, forwarded=True),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", "transactions", 0, 0, 0, BROKER),
        Api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", "transactions", 0, 2, 0, BROKER),
        Api(ApiKey.ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", "brokers", 0, 0, 0, CONTROLLER, forwarded=True),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", "groups", 0, 1, 0, BROKER),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", "groups", 0, 1, 0, BROKER),
        Api(ApiKey.CONTROLLER_REGISTRATION, "ControllerRegistration", "brokers", 0, 0, 0, CONTROLLER),
        Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, "GetTelemetrySubscriptions", "admin", 0, 0, 0, BROKER),
        Api(ApiKey.PUSH_TELEMETRY, "PushTelemetry", "admin", 0, 0, 0, BROKER),
        Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, "AssignReplicasToDirs", "brokers", 0, 0, 0, CONTROLLER),
        Api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", "admin", 0, 1, 0, BROKER),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", "metadata", 0, 0, 0, BROKER),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", "share", 1, 1, 1, BROKER),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, "ShareGroupDescribe", "share", 1, 1, 1, BROKER),
        Api(ApiKey.SHARE_FETCH, "ShareFetch", "share", 1, 2, 1, BROKER),
        Api(ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge", "share", 1, 2, 1, BROKER),
        Api(ApiKey.ADD_RAFT_VOTER, "AddRaftVoter", "quorum", 0, 1, 0, BOTH, forwarded=True),
        Api(ApiKey.REMOVE_RAFT_VOTER, "RemoveRaftVoter", "quorum", 0, 0, 0, BOTH, forwarded=True),
        Api(ApiKey.UPDATE_RAFT_VOTER, "UpdateRaftVoter", "quorum", 0, 0, 0, CONTROLLER),
        Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState", "share", 0, 0, 0, BROKER),
        Api(ApiKey.READ_SHARE_GROUP_STATE, "ReadShareGroupState", "share", 0, 0, 0, BROKER),
        Api(ApiKey.WRITE_SHARE_GROUP_STATE, "WriteShareGroupState", "share", 0, 1, 0, BROKER),
        Api(ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState", "share", 0, 0, 0, BROKER),
        Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadShareGroupStateSummary", "share", 0, 1, 0, BROKER),
        Api(ApiKey.STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat", "streams", 0, 1, 0, BROKER),
        Api(ApiKey.STREAMS_GROUP_DESCRIBE, "StreamsGroupDescribe", "streams", 0, 1, 0, BROKER),
        Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets", "share", 0, 1, 0, BROKER),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets", "share", 0, 0, 0, BROKER),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets", "share", 0, 0, 0, BROKER),
        Api(
            ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
            "StreamsGroupTopologyDescriptionUpdate",
            "streams",
            0,
            0,
            0,
            BROKER,
        ),
        Api(ApiKey.UNREGISTER_CONTROLLER, "UnregisterController", "brokers", 0, 0, 0, BOTH, forwarded=True),
    )
}


def api_of(key: int) -> Api:
    """The API of a key from the wire. Raises `InvalidRequest` for a key that Kafka 4.4 does not have."""
    api = API.get(key)
    if api is None:
        raise InvalidRequest(f"API key {key} is unknown")
    return api


@cache
def request_class(key: int) -> type[Request]:
    """The request's class, loaded on first use."""
    api = api_of(key)
    cls: type[Request] = getattr(import_module(f"kalda.protocol.messages.{api.module}"), f"{api.name}Request")
    return cls


@cache
def response_class(key: int) -> type[Response]:
    """The response's class, loaded on first use."""
    api = api_of(key)
    cls: type[Response] = getattr(import_module(f"kalda.protocol.messages.{api.module}"), f"{api.name}Response")
    return cls
