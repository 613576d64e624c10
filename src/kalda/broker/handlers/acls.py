"""Access control entries: DescribeAcls (29), which every node answers from its own metadata.

A node without an authorizer answers SECURITY_DISABLED: entries that nothing enforces would be taken for protection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.module import Module
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Row, on_cluster
from kalda.metadata.acls import StandardAcl, filter_matcher
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import (
    AclDescription,
    AclOperation,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_STEP_ITEMS = 2_000
"""Entries that are compared with the filter in one step."""


class AclHandlers(Module):
    """The entries of the newest image."""

    def __init__(self, acls: Callable[[], Iterable[StandardAcl]]) -> None:
        self._acls = acls

    def rows(self) -> list[Row]:
        """DescribeAcls."""
        return [
            Row(
                ApiKey.DESCRIBE_ACLS,
                self.describe_acls,
                error_on_top,
                on_cluster(AclOperation.DESCRIBE),
                has_large_answer=True,
            )
        ]

    def describe_acls(self, context: RequestContext, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
        """The entries that match the filter, by the resource pattern that they are of."""
        if context.authorizer is None:
            raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        matches = filter_matcher(request)
        resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
        for seen, acl in enumerate(self._acls(), 1):
            if seen % _STEP_ITEMS == 0:
                yield
            if not matches(acl):
                continue
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            resource = resources.get(pattern)
            if resource is None:
                resource = resources[pattern] = DescribeAclsResource(
                    resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
                )
            resource.acls.append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
            )
        return DescribeAclsResponse(resources=list(resources.values()))


# How each API reports that the whole request failed.
