"""Who asks, and what they may do.

The controller itself authenticates nobody: what a principal may do, and what a client's mutations cost its quota
(KIP-599), is handed in with each request as two functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from kalda.base.errors import ApiError, ErrorCode


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
class Caller:
    """Who sent one request, and by which version of its API.

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
