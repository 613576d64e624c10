"""Who asks, and by what settings the controller answers.

The controller itself authenticates nobody: what a principal may do, and what a client's mutations cost its quota
(KIP-599), is handed in with each request as two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.metadata.features import VersionRange, supported_ranges

MAX_RECORDS_PER_USER_OPERATION = 10_000


class Operation(IntEnum):
    """Kafka's ids of what can be allowed on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ids of what can be authorized."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_RESOURCE_NAME = "kafka-cluster"


def _allow(_operation: Operation, _resource: ResourceType, _name: str) -> bool:
    return True


def _free(_partitions: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request's caller.

    `allows(operation, resource type, name)` authorizes. `charge_partitions(count)` accounts for partitions that the
    request creates or deletes, and raises `ApiError` THROTTLING_QUOTA_EXCEEDED where the client has no more of them.
    """

    principal: str = "User:ANONYMOUS"
    api_version: int = 0
    allows: Callable[[Operation, ResourceType, str], bool] = _allow
    charge_partitions: Callable[[int], None] = _free

    def allows_on_cluster(self, operation: Operation) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def require_on_cluster(self, operation: Operation) -> None:
        """Raises `ApiError` CLUSTER_AUTHORIZATION_FAILED."""
        if not self.allows_on_cluster(operation):
            raise ApiError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{self.principal} may not {operation.name} the cluster."
            )


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the node's properties say to its controller; a key's name is given where it differs."""

    node_id: int
    cluster_id: str
    default_replication_factor: int = 1
    num_partitions: int = 1
    broker_session_timeout_ms: int = 9_000
    leader_imbalance_check_interval_ms: int | None = 300_000
    """`leader.imbalance.check.interval.seconds`; None where `auto.leader.rebalance.enable` is off."""
    metadata_max_idle_interval_ms: int | None = 500
    unclean_leader_election_interval_ms: int = 300_000
    delete_topic_enable: bool = True
    max_records_per_batch: int = 10_000
    incarnation_id: Uuid | None = None
    """This process, as its own broker registers it."""
    inter_broker_listener_name: str = "PLAINTEXT"
    dead_process_detection_enable: bool = True
    """`kalda.dead.process.detection.enable`."""
    supported_features: Mapping[str, VersionRange] = field(default_factory=supported_ranges)


def error_fields(error: ApiError | None) -> dict[str, Any]:
    """Keyword arguments `error_code` and `error_message` of a response struct."""
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.message or None}


def check_batch_size(count: int) -> None:
    """A user's operation makes one batch at most. Raises `ApiError` POLICY_VIOLATION, as Kafka does."""
    if count > MAX_RECORDS_PER_USER_OPERATION:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
