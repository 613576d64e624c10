"""Filters of access control entries: those of DescribeAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.metadata.acls import StandardAcl
from kalda.protocol.messages.security import AclOperation, AclResourceType

PATTERN_ANY, PATTERN_MATCH, PATTERN_LITERAL, PATTERN_PREFIXED = 1, 2, 3, 4
PERMISSION_ANY, PERMISSION_DENY, PERMISSION_ALLOW = 1, 2, 3
WILDCARD = "*"


class AclEntryFilter(Protocol):
    """The fields of a filter. None matches every value."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def filter_matcher(entry_filter: AclEntryFilter) -> Callable[[StandardAcl], bool]:
    """A predicate over entries. Raises `ApiError` INVALID_REQUEST for a filter with unknown parts."""
    if entry_filter.resource_type_filter not in range(
        AclResourceType.ANY, AclResourceType.USER + 1
    ) or entry_filter.pattern_type_filter not in range(PATTERN_ANY, PATTERN_PREFIXED + 1):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if entry_filter.operation not in range(
        AclOperation.ANY, AclOperation.TWO_PHASE_COMMIT + 1
    ) or entry_filter.permission_type not in range(PERMISSION_ANY, PERMISSION_ALLOW + 1):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")

    def matches(acl: StandardAcl) -> bool:
        f = entry_filter
        return (
            f.resource_type_filter in (AclResourceType.ANY, acl.resource_type)
            and _pattern_matches(f.pattern_type_filter, f.resource_name_filter, acl)
            and f.principal_filter in (None, acl.principal)
            and f.host_filter in (None, acl.host)
            and f.operation in (AclOperation.ANY, acl.operation)
            and f.permission_type in (PERMISSION_ANY, acl.permission_type)
        )

    return matches


def _pattern_matches(pattern_type: int, name: str | None, acl: StandardAcl) -> bool:
    """MATCH matches every entry that applies to the resource `name`. The other types compare patterns."""
    if pattern_type not in (PATTERN_ANY, PATTERN_MATCH, acl.pattern_type):
        return False
    if name is None:
        return True
    if pattern_type != PATTERN_MATCH:
        return name == acl.resource_name
    if acl.pattern_type == PATTERN_PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)
