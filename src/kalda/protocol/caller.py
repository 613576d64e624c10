"""Who sent a request: handlers, coordinators and the controller all receive it as a `Caller`.

A `Caller` is made for each request, from the connection it came over or from the envelope that a broker forwarded it in
(KIP-590). It authenticates no client and decides nothing by itself. The request pipeline sets its `Authorizer`, which
decides what the principal may do, and `charge`, which charges the client's mutation quota (KIP-599). Without them
everything is allowed and free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from typing import Protocol, TypeAlias

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
