"""Who sent a request: the one notion that handlers, coordinators and the controller share.

A `Caller` is made for each request, from the connection it came over or from the envelope that a broker forwarded it
in (KIP-590). It authenticates nobody and decides nothing by itself. The request pipeline gives it an `Authorizer`,
which decides what the principal may do, and a function that charges the client's mutation quota (KIP-599). Without
them everything is allowed and free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.messages.security import AclOperation, AclResourceType

ANONYMOUS = "User:ANONYMOUS"
CLUSTER_RESOURCE_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides what a caller may do."""

    def allows(self, caller: Caller, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        """Whether `caller` may do `operation` on the resource of that type and name."""
        ...


class Caller:
    """Who sent one request, and by which version of its API.

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
        charge: Callable[[int], None] | None = None,
    ) -> None:
        self.api_version = api_version
        self.principal = principal
        self.client_host = client_host
        self.client_id = client_id
        self.listener_name = listener_name
        self.forwarded_by = forwarded_by
        self.authorizer = authorizer
        self.charge = charge

    def allows(self, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        """Whether this caller may do `operation` on that resource."""
        return self.authorizer is None or self.authorizer.allows(self, operation, resource, name)

    def allows_on_cluster(self, operation: AclOperation) -> bool:
        """Whether this caller may do `operation` on the cluster as a whole."""
        return self.allows(operation, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def require_on_cluster(self, operation: AclOperation) -> None:
        """Raises `ApiError` CLUSTER_AUTHORIZATION_FAILED."""
        if not self.allows_on_cluster(operation):
            raise ApiError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{self.principal} may not {operation.name} the cluster."
            )

    def charge_partitions(self, count: int) -> None:
        """Account for partitions that the request creates or deletes (KIP-599). Raises `ApiError`
        THROTTLING_QUOTA_EXCEEDED where the client's quota allows no more of them."""
        if self.charge is not None:
            self.charge(count)
