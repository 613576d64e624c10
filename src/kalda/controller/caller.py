"""Who asks, and what they may do.

The controller itself authenticates nobody: what a principal may do, and what a client's mutations cost its quota
(KIP-599), is handed in with each request as two functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.messages.security import AclOperation, AclResourceType

CLUSTER_RESOURCE_NAME = "kafka-cluster"


def _allow(_operation: AclOperation, _resource: AclResourceType, _name: str) -> bool:
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
    allows: Callable[[AclOperation, AclResourceType, str], bool] = _allow
    charge_partitions: Callable[[int], None] = _free

    def allows_on_cluster(self, operation: AclOperation) -> bool:
        return self.allows(operation, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def require_on_cluster(self, operation: AclOperation) -> None:
        """Raises `ApiError` CLUSTER_AUTHORIZATION_FAILED."""
        if not self.allows_on_cluster(operation):
            raise ApiError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{self.principal} may not {operation.name} the cluster."
            )
