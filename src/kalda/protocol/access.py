"""Who sent a request, and which operation on which resource it needs.

`Caller` is who sent it. Which operation on which resource each API needs, as Apache Kafka's `KafkaApis`,
`ControllerApis` and `AclApis` ask.

This is the one table of checks: rows of APIs and handlers, of brokers and of controllers, take their needs from here.
"whole" is checked before the handler is called; "each" is checked for each item of the request or of the response.

| API | need | where it is missing |
| --- | --- | --- |
| Produce | each topic WRITE; WRITE TransactionalId for transactional records | TOPIC_…, whole TRANSACTIONAL_ID_… |
| Fetch | each topic READ; of a follower CLUSTER_ACTION Cluster | TOPIC_… of each partition |
| ListOffsets | each topic DESCRIBE | TOPIC_… |
| Metadata | each topic DESCRIBE; a missing one is created with CREATE Cluster or CREATE Topic | TOPIC_…; of all \
topics those alone that the caller may describe |
| OffsetCommit | whole READ Group; each topic READ | GROUP_…, TOPIC_… |
| OffsetFetch | each group DESCRIBE; each topic DESCRIBE | GROUP_…; TOPIC_…, of all topics those alone that … |
| FindCoordinator | each DESCRIBE Group or DESCRIBE TransactionalId; share CLUSTER_ACTION | GROUP_…, \
TRANSACTIONAL_ID_… |
| JoinGroup, Heartbeat, LeaveGroup, SyncGroup | whole READ Group | GROUP_… |
| ShareGroupHeartbeat | whole READ Group; all topics named DESCRIBE | GROUP_…, TOPIC_… on top |
| ShareGroupDescribe | each DESCRIBE Group, whose members' topics DESCRIBE | GROUP_…, TOPIC_… |
| ShareFetch, ShareAcknowledge | whole READ Group; each topic READ | GROUP_…, TOPIC_… |
| DescribeShareGroupOffsets | each DESCRIBE Group; each topic DESCRIBE | GROUP_…; left out |
| AlterShareGroupOffsets | whole READ Group; each topic READ | GROUP_…, TOPIC_… |
| DeleteShareGroupOffsets | whole DELETE Group; each topic READ | GROUP_…, TOPIC_… |
| ConsumerGroupHeartbeat | whole READ Group; all topics named DESCRIBE | GROUP_…, TOPIC_… on top |
| ConsumerGroupDescribe | each DESCRIBE Group; of a group all topics DESCRIBE | GROUP_…, TOPIC_… of the group |
| StreamsGroupHeartbeat | whole READ Group; all topics of a topology DESCRIBE; internal topics are created with CREATE \
Cluster or each CREATE Topic | GROUP_…, TOPIC_… on top; a status |
| StreamsGroupDescribe | each DESCRIBE Group; of a group all topics DESCRIBE | GROUP_…, TOPIC_… of the group |
| StreamsGroupTopologyDescriptionUpdate | whole READ Group | GROUP_… |
| DescribeGroups | each DESCRIBE Group | GROUP_… |
| ListGroups | DESCRIBE Cluster lists all, else each DESCRIBE Group | left out |
| DeleteGroups | each DELETE Group | GROUP_… |
| OffsetDelete | whole DELETE Group; each topic READ | GROUP_…, TOPIC_… |
| DeleteRecords | each topic DELETE | TOPIC_… |
| InitProducerId | WRITE TransactionalId, with two-phase commit TWO_PHASE_COMMIT too; else IDEMPOTENT_WRITE Cluster or \
WRITE any Topic | TRANSACTIONAL_ID_…, CLUSTER_… |
| AddPartitionsToTxn | to version 3 WRITE TransactionalId and each topic WRITE; then CLUSTER_ACTION | \
TRANSACTIONAL_ID_…, TOPIC_…; CLUSTER_… |
| AddOffsetsToTxn, TxnOffsetCommit | WRITE TransactionalId, READ Group; TxnOffsetCommit each topic READ | \
TRANSACTIONAL_ID_…, GROUP_…, TOPIC_… |
| EndTxn | whole WRITE TransactionalId | TRANSACTIONAL_ID_… |
| WriteTxnMarkers | whole ALTER Cluster or CLUSTER_ACTION | CLUSTER_… |
| OffsetForLeaderEpoch | CLUSTER_ACTION Cluster, or each topic DESCRIBE | TOPIC_… |
| DescribeTopicPartitions | each topic DESCRIBE | TOPIC_…; of all topics those alone that … |
| DescribeProducers | each topic READ | TOPIC_… |
| DescribeTransactions | each DESCRIBE TransactionalId, its topics DESCRIBE | TRANSACTIONAL_ID_…; topics left out |
| ListTransactions | each DESCRIBE TransactionalId | left out |
| DescribeConfigs | DESCRIBE_CONFIGS of Topic, of Group, else of Cluster | TOPIC_…, GROUP_…, CLUSTER_… |
| AlterConfigs, IncrementalAlterConfigs | ALTER_CONFIGS likewise; of loggers on a controller CLUSTER_ACTION | likewise |
| ListConfigResources, DescribeClientQuotas | whole DESCRIBE_CONFIGS Cluster | CLUSTER_… |
| AlterClientQuotas | whole ALTER_CONFIGS Cluster | CLUSTER_… |
| DescribeLogDirs, DescribeUserScramCredentials, DescribeQuorum, ListPartitionReassignments, DescribeAcls | whole \
DESCRIBE Cluster | CLUSTER_… |
| AlterReplicaLogDirs, AlterUserScramCredentials, UpdateFeatures, ElectLeaders, AlterPartitionReassignments, \
UnregisterBroker, UnregisterController, AddRaftVoter, RemoveRaftVoter, CreateAcls, DeleteAcls \
| whole ALTER Cluster | CLUSTER_… |
| CreateTopics | CREATE Cluster or each CREATE Topic; configs are shown with DESCRIBE_CONFIGS Topic | TOPIC_… |
| DeleteTopics | DELETE Cluster or each DELETE Topic; the name of an id is shown with DESCRIBE Topic | TOPIC_… |
| CreatePartitions | each topic ALTER | TOPIC_… |
| DescribeCluster | on a broker none, on a controller ALTER Cluster; the operations are shown with DESCRIBE Cluster | \
CLUSTER_… |
| CreateDelegationToken | for another owner CREATE_TOKENS User | DELEGATION_TOKEN_AUTHORIZATION_FAILED |
| DescribeDelegationToken | each own token; others with DESCRIBE_TOKENS User of the owner or DESCRIBE \
DelegationToken | left out |
| RenewDelegationToken, ExpireDelegationToken | owner or renewer | DELEGATION_TOKEN_OWNER_MISMATCH |
| InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState, \
ReadShareGroupStateSummary | whole CLUSTER_ACTION Cluster | CLUSTER_… |
| Envelope, Fetch and all quorum APIs of controllers, BrokerRegistration, BrokerHeartbeat, ControllerRegistration, \
AlterPartition, AllocateProducerIds, AssignReplicasToDirs | whole CLUSTER_ACTION Cluster | CLUSTER_… |
| ApiVersions, SaslHandshake, SaslAuthenticate, GetTelemetrySubscriptions, PushTelemetry | none | |

`TOPIC_…` stands for TOPIC_AUTHORIZATION_FAILED, and so on. Authorized operations (KIP-430) are those of the caller; of
the cluster none without DESCRIBE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.messages.security import AclOperation, AclResourceType

ANONYMOUS = "User:ANONYMOUS"
CLUSTER_RESOURCE_NAME = "kafka-cluster"
audit = logging.getLogger("kafka.authorizer.logger")
"""The log of decisions, of which those that allow are at DEBUG. Kafka's name, so that a configuration of logs written
for Kafka applies."""
Decided: TypeAlias = tuple[str, str, AclOperation, AclResourceType, str]
"""Principal, host, operation, and the type and name of a resource."""


class Authorizer(Protocol):
    """Decides what a caller may do."""

    @property
    def version(self) -> int:
        """Another number than before whenever a decision may differ from the former one. Negative where every decision
        may."""
        ...

    @property
    def allowed(self) -> Container[Decided]:
        """For what `allows` is known to return True now. It needs no call where `audit` logs nothing at DEBUG."""
        ...

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        """Whether `caller` may do `operation` on the resource of that type and name. `logs_denial`: whether a denial is
        a line in the audit log, as it is for what a caller has named; not for what a response leaves out. `references`
        is how many items of the request concern the resource, for the audit log."""
        ...

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        """Whether `caller` may do `operation` on at least one resource of that type, existing or not (KIP-679)."""
        ...

    def operations(
        self, caller: Caller, resource: AclResourceType, name: str, operations: Sequence[AclOperation]
    ) -> int:
        """The bits of those of `operations` that `caller` may do on that resource (KIP-430)."""
        ...


class Caller:
    """Who sent a request: handlers, coordinators and the controller all receive it as a `Caller`.

    A `Caller` is made for each request, from the connection it came over or from the envelope that a broker forwarded
    it in (KIP-590). It authenticates no client and decides nothing by itself. The request pipeline sets its
    `Authorizer`, which decides what the principal may do, and `charge`, which charges the client's mutation quota
    (KIP-599). Without them everything is allowed and free.

    Who sent one request, and by which version of its API.

    `principal` is `type:name`, `client_host` an address as text without a port, `client_id` "" where the request has
    none. `forwarded_by` names the broker (its principal) whose envelope the request came in; None for a direct one.
    """

    __slots__ = (
        "api_version",
        "authorizer",
        "charge",
        "client_host",
        "client_id",
        "forwarded_by",
        "listener_name",
        "principal",
    )

    def __init__(
        self,
        api_version: int = 0,
        *,
        principal: str = ANONYMOUS,
        client_host: str = "",
        client_id: str = "",
        listener_name: str = "",
        forwarded_by: str | None = None,
        authorizer: Authorizer | None = None,
        charge: Callable[[Caller, int], None] | None = None,
    ) -> None:
        self.api_version = api_version
        self.principal = principal
        self.client_host = client_host
        self.client_id = client_id
        self.listener_name = listener_name
        self.forwarded_by = forwarded_by
        self.authorizer = authorizer
        self.charge = charge

    @property
    def request_name(self) -> str:
        """The API of the request, as Kafka writes it; empty where it is not known."""
        return ""

    @property
    def is_token_authenticated(self) -> bool:
        """Whether the caller has authenticated with a delegation token (KIP-48)."""
        return False

    @property
    def may_request_tokens(self) -> bool:
        """Whether the caller has authenticated in a way that allows delegation tokens to be requested."""
        return True

    def allows(self, operation: AclOperation, resource: AclResourceType, name: str, logs_denial: bool = True) -> bool:
        """Whether this caller may do `operation` on that resource."""
        return self.authorizer is None or self.authorizer.allows(self, operation, resource, name, logs_denial)

    def allows_on_any(self, operation: AclOperation, resource: AclResourceType) -> bool:
        """Whether this caller may do `operation` on at least one resource of that type."""
        return self.authorizer is None or self.authorizer.allows_on_any(self, operation, resource)

    def allows_on_cluster(self, operation: AclOperation) -> bool:
        """Whether this caller may do `operation` on the cluster as a whole."""
        return self.allows(operation, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def refusal_on_cluster(self, operation: AclOperation) -> ApiError | None:
        """CLUSTER_AUTHORIZATION_FAILED, or None where this caller may do `operation` on the cluster as a whole."""
        if self.allows_on_cluster(operation):
            return None
        return ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{self.principal} may not {operation.name} the cluster."
        )

    def require_on_cluster(self, operation: AclOperation) -> None:
        """Raises `ApiError` CLUSTER_AUTHORIZATION_FAILED."""
        refusal = self.refusal_on_cluster(operation)
        if refusal is not None:
            raise refusal

    def charge_partitions(self, count: int) -> None:
        """Account for partitions that the request creates or deletes (KIP-599). Raises `ApiError`
        THROTTLING_QUOTA_EXCEEDED where the client's quota allows no more of them."""
        if self.charge is not None:
            self.charge(self, count)


class Need(NamedTuple):
    """An operation on a resource of a type, and the error where the caller may not do it."""

    operation: AclOperation
    resource: AclResourceType
    error: ErrorCode

    def holds(self, caller: Caller, name: str, references: int = 1) -> bool:
        """Whether the caller may do it on the resource of that name, which so many items of the request concern."""
        authorizer = caller.authorizer
        return authorizer is None or authorizer.allows(caller, self.operation, self.resource, name, True, references)

    def holds_quietly(self, caller: Caller, name: str) -> bool:
        """As `holds`, without a line in the audit log where it does not: the caller has not named the resource."""
        return caller.authorizer is None or caller.authorizer.allows(caller, self.operation, self.resource, name, False)

    def refusal(self, caller: Caller, name: str) -> ApiError | None:
        """The error for the caller; None where the caller may."""
        if self.holds(caller, name):
            return None
        kind = self.resource.name.lower().replace("_", " ")
        return ApiError(self.error, f"{caller.principal} may not {self.operation.name} the {kind} {name}.")

    def refused(self, caller: Caller, references: Mapping[str, int]) -> frozenset[str] | None:
        """Those of the resources on which the caller may not do it; None where there is none. `references`: how many
        items of the request concern each resource."""
        authorizer = caller.authorizer
        if authorizer is None:
            return None
        refused: list[str] | None = None
        for name, count in references.items():
            if not authorizer.allows(caller, self.operation, self.resource, name, True, count):
                refused = refused or []
                refused.append(name)
        return None if refused is None else frozenset(refused)


def _topic(operation: AclOperation) -> Need:
    return Need(operation, AclResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _group(operation: AclOperation) -> Need:
    return Need(operation, AclResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _transactional_id(operation: AclOperation) -> Need:
    return Need(operation, AclResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


READ_TOPIC = _topic(AclOperation.READ)
WRITE_TOPIC = _topic(AclOperation.WRITE)
CREATE_TOPIC = _topic(AclOperation.CREATE)
DELETE_TOPIC = _topic(AclOperation.DELETE)
ALTER_TOPIC = _topic(AclOperation.ALTER)
DESCRIBE_TOPIC = _topic(AclOperation.DESCRIBE)
DESCRIBE_CONFIGS_OF_TOPIC = _topic(AclOperation.DESCRIBE_CONFIGS)
READ_GROUP = _group(AclOperation.READ)
DELETE_GROUP = _group(AclOperation.DELETE)
DESCRIBE_GROUP = _group(AclOperation.DESCRIBE)
DESCRIBE_CONFIGS_OF_GROUP = _group(AclOperation.DESCRIBE_CONFIGS)
WRITE_TRANSACTIONAL_ID = _transactional_id(AclOperation.WRITE)
DESCRIBE_TRANSACTIONAL_ID = _transactional_id(AclOperation.DESCRIBE)
TWO_PHASE_COMMIT = _transactional_id(AclOperation.TWO_PHASE_COMMIT)
CREATE_TOKENS = Need(AclOperation.CREATE_TOKENS, AclResourceType.USER, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
DESCRIBE_TOKENS = Need(
    AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
)
DESCRIBE_TOKEN = Need(
    AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
)

TOPIC_OPERATIONS: tuple[AclOperation, ...] = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
GROUP_OPERATIONS: tuple[AclOperation, ...] = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: tuple[AclOperation, ...] = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
_OPERATIONS = {
    AclResourceType.TOPIC: TOPIC_OPERATIONS,
    AclResourceType.GROUP: GROUP_OPERATIONS,
    AclResourceType.CLUSTER: CLUSTER_OPERATIONS,
}
_ALL_BITS = {resource: AclOperation.bits(*operations) for resource, operations in _OPERATIONS.items()}


def operations_on(caller: Caller, resource: AclResourceType, name: str) -> int:
    """The bits of the operations that a caller may do on a resource (KIP-430)."""
    if caller.authorizer is None:
        return _ALL_BITS[resource]
    return caller.authorizer.operations(caller, resource, name, _OPERATIONS[resource])


OMITTED_OPERATIONS = -(2**31)
"""The authorized operations of a response whose request does not include them."""


def cluster_operations(caller: Caller) -> int:
    """The bits of the operations that a caller may do on the cluster; none where it may not describe it."""
    if not caller.allows_on_cluster(AclOperation.DESCRIBE):
        return 0
    return operations_on(caller, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
