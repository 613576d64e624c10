"""Access rules, and filters of them."""

from __future__ import annotations

from typing import NamedTuple


class Acl(NamedTuple):
    """One access rule; numbers are Kafka's: of resource types, pattern types, operations and permissions."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which rules; None and ANY (1) match everything."""

    resource_type: int = 1
    resource_name: str | None = None
    pattern_type: int = 1
    principal: str | None = None
    host: str | None = None
    operation: int = 1
    permission: int = 1


ANY_ACL = AclFilter()
