"""Why a request is allowed or denied, as JSON: what was read in which order, and what decided."""

from __future__ import annotations

from typing import Any

from kalda.metadata.acls import PATTERN_PREFIXED, PERMISSION_ALLOW
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.security.standard_authorizer import AccessRule, Examined, StandardAuthorizer

_MAX_SHOWN = 1_000
"""Entries of one explanation."""


def explain(
    authorizer: StandardAuthorizer,
    principal: str,
    host: str,
    operation: AclOperation,
    resource: AclResourceType,
    name: str,
) -> dict[str, Any]:
    """The decision about one operation, and how it came about. Changes nothing, and logs nothing. Raises `ApiError`
    while the entries are not known."""
    decision = authorizer.decide(principal, host, operation, resource, name)
    found: dict[str, Any] = {
        "principal": principal,
        "host": host,
        "operation": operation.name,
        "resource_type": resource.name,
        "resource_name": name,
        "allowed": decision.is_allowed,
        "rule": decision.rule.value,
        "decided_by": None if decision.acl is None else _entry(Examined(decision.acl, None)),
        "offset": authorizer.offset,
        "version": authorizer.version,
        "entries": len(authorizer.index),
        "patterns": [],
    }
    if decision.rule is AccessRule.SUPER_USER:
        return found
    left = _MAX_SHOWN
    for pattern_name, pattern_type, count, entries in authorizer.examined(principal, host, operation, resource, name):
        shown = []
        is_denied = False
        for examined in entries[:left]:
            shown.append(_entry(examined))
            is_denied = examined.skipped is None and examined.entry.acl.permission_type != PERMISSION_ALLOW
            if is_denied:
                break
        left -= len(shown)
        found["patterns"].append(
            {
                "name": pattern_name,
                "type": "PREFIXED" if pattern_type == PATTERN_PREFIXED else "LITERAL",
                "of_others": count - len(entries),
                "entries": shown,
            }
        )
        if is_denied or left <= 0:
            break
    return found


def _entry(examined: Examined) -> dict[str, Any]:
    acl, offset = examined.entry
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name if acl.operation in _OPERATIONS else str(acl.operation),
        "permission": "ALLOW" if acl.permission_type == PERMISSION_ALLOW else "DENY",
        "resource_name": acl.resource_name,
        "pattern_type": "PREFIXED" if acl.pattern_type == PATTERN_PREFIXED else "LITERAL",
        "offset": offset,
        "skipped": examined.skipped,
    }


_OPERATIONS = frozenset(AclOperation)
