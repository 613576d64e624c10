"""Kafka's StandardAuthorizer: allow or deny by the access control entries of the metadata.

The rules, in order: a principal of `super.users` may do everything. Otherwise an entry that denies the operation
decides, whatever others allow. Otherwise an entry that allows it decides. Otherwise the operation is denied where any
entry applies to the resource, also one for another principal, and else as `allow.everyone.if.no.acl.found` says.

An entry that allows READ, WRITE, DELETE or ALTER also allows DESCRIBE, and one that allows ALTER_CONFIGS also allows
DESCRIBE_CONFIGS. An entry that denies implies nothing. A host of an entry is `*`, one
address, or a range of addresses (KIP-1276).

Decisions are kept by principal, host, operation and resource, until an entry changes. What is allowed is in `allowed`
as well, where a request finds it without a call. Invariant: no decision that is kept was made without an entry of the
newest image. Their number is bounded: requests may name resources that do not exist.

Each decision is a line of the logger `kafka.authorizer.logger`: at INFO where a request is denied, at DEBUG where it is
allowed. A decision that only filters what a response lists is not logged.

Entries are kept by the resource that they apply to. An entry applies to a resource of its type in one of three ways:
its pattern is LITERAL and has the resource's name; its pattern is LITERAL and has the name `*`; or its pattern is
PREFIXED and has a name that the resource's name begins with. So a lookup takes one access for the name, one for each
length that prefixes have, and one for `*`, however many entries there are. Below each pattern the entries are grouped
by principal: a caller is concerned by two groups. Entries are added and removed by id. Two ids may have equal entries:
the removal of one leaves the other.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.texts import printable
from kalda.metadata.acls import (
    PATTERN_LITERAL,
    PATTERN_PREFIXED,
    PERMISSION_ALLOW,
    PERMISSION_DENY,
    WILDCARD,
    StandardAcl,
    is_from,
)
from kalda.protocol.access import Caller, Decided, audit
from kalda.protocol.messages.security import AclOperation, AclResourceType

ANY_USER = "User:*"
"""The principal of entries that apply to every caller."""


class IndexedAcl(NamedTuple):
    """An entry, and where it came from."""

    acl: StandardAcl
    offset: int
    """Of the first metadata image of this node that had it."""


Pattern = dict[str, dict[Uuid, IndexedAcl]]
"""Entries of one pattern: by principal, then by id."""


class _Resources:
    """The entries of one resource type."""

    __slots__ = ("literal", "prefixed", "principals", "size_counts", "sizes")

    def __init__(self) -> None:
        self.literal: dict[str, Pattern] = {}
        """By name; `*` is one of them."""
        self.prefixed: dict[str, Pattern] = {}
        """By prefix."""
        self.principals: Pattern = {}
        """The same entries whatever their pattern."""
        self.size_counts: dict[int, int] = {}
        """How many of `prefixed` have each length."""
        self.sizes: list[int] = []
        """These lengths, the longest first."""

    def add(self, acl_id: Uuid, entry: IndexedAcl) -> None:
        acl = entry.acl
        is_prefix = acl.pattern_type == PATTERN_PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        pattern = patterns.get(acl.resource_name)
        if pattern is None:
            pattern = patterns[acl.resource_name] = {}
            if is_prefix:
                self._count(len(acl.resource_name), 1)
        pattern.setdefault(acl.principal, {})[acl_id] = entry
        self.principals.setdefault(acl.principal, {})[acl_id] = entry

    def remove(self, acl_id: Uuid, acl: StandardAcl) -> None:
        is_prefix = acl.pattern_type == PATTERN_PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        pattern = patterns[acl.resource_name]
        _remove(pattern, acl.principal, acl_id)
        _remove(self.principals, acl.principal, acl_id)
        if not pattern:
            del patterns[acl.resource_name]
            if is_prefix:
                self._count(len(acl.resource_name), -1)

    def _count(self, size: int, change: int) -> None:
        count = self.size_counts.get(size, 0) + change
        if count:
            self.size_counts[size] = count
        else:
            del self.size_counts[size]
        if len(self.sizes) != len(self.size_counts):
            self.sizes = sorted(self.size_counts, reverse=True)


def _remove(pattern: Pattern, principal: str, acl_id: Uuid) -> None:
    group = pattern[principal]
    del group[acl_id]
    if not group:
        del pattern[principal]


class AclIndex:
    """All entries of a cluster."""

    def __init__(self) -> None:
        self.by_id: dict[Uuid, IndexedAcl] = {}
        self._types: dict[int, _Resources] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def apply(self, changes: Mapping[Uuid, StandardAcl | None], offset: int) -> None:
        """Add and remove entries; None removes one. `offset` is that of the image that has them."""
        for acl_id, acl in changes.items():
            known = self.by_id.get(acl_id)
            if known is not None:
                if known.acl == acl:
                    continue
                del self.by_id[acl_id]
                self._types[known.acl.resource_type].remove(acl_id, known.acl)
            if acl is not None:
                entry = self.by_id[acl_id] = IndexedAcl(acl, offset)
                self._types.setdefault(acl.resource_type, _Resources()).add(acl_id, entry)

    def patterns(self, resource_type: int, name: str) -> list[tuple[str, int, Pattern]]:
        """Name, type and entries of each pattern that applies to a resource: the exact name, then prefixes from the
        longest to the shortest, then `*`. Kafka's order."""
        resources = self._types.get(resource_type)
        if resources is None:
            return []
        found = []
        literal = resources.literal.get(name)
        if literal is not None and name != WILDCARD:
            found.append((name, PATTERN_LITERAL, literal))
        size = len(name)
        for prefix_size in resources.sizes:
            if prefix_size <= size:
                prefix = name[:prefix_size]
                prefixed = resources.prefixed.get(prefix)
                if prefixed is not None:
                    found.append((prefix, PATTERN_PREFIXED, prefixed))
        wildcard = resources.literal.get(WILDCARD)
        if wildcard is not None:
            found.append((WILDCARD, PATTERN_LITERAL, wildcard))
        return found

    def of_principals(self, resource_type: int, principal: str) -> Iterator[StandardAcl]:
        """The entries of one resource type for a principal and for every caller."""
        resources = self._types.get(resource_type)
        if resources is None:
            return
        for each in dict.fromkeys((principal, ANY_USER)):
            for entry in resources.principals.get(each, {}).values():
                yield entry.acl


def in_order(pattern: Pattern, principal: str) -> list[IndexedAcl]:
    """The entries of a pattern that concern a principal, in the order in which Kafka reads them."""
    own, common = pattern.get(principal), pattern.get(ANY_USER)
    if own is None or principal == ANY_USER:
        if common is None:
            return []
        entries = list(common.values())
    else:
        entries = list(own.values()) if common is None else [*own.values(), *common.values()]
    if len(entries) > 1:
        entries.sort(key=_order)
    return entries


def _order(entry: IndexedAcl) -> tuple[int, str, str, int]:
    acl = entry.acl
    return acl.operation, acl.principal, acl.host, acl.permission_type


_MAX_KEPT = 10_000
"""Decisions in one of the two tables that hold them, and in `allowed`."""
_IMPLIES: Mapping[int, frozenset[int]] = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)),
}
"""The operations of entries that allow an operation, where these are several."""
_PATTERNS = {PATTERN_LITERAL: "LITERAL", PATTERN_PREFIXED: "PREFIXED"}
_PERMISSIONS = {PERMISSION_DENY: "DENY", PERMISSION_ALLOW: "ALLOW"}
_OPERATIONS = {each.value: each.name for each in AclOperation}
_TYPES = {each.value: each.name for each in AclResourceType}
_TYPE_NAMES = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}


class AccessRule(Enum):
    """Why a decision was made."""

    SUPER_USER = "SuperUser"
    ENTRY = "MatchingAcl"
    DEFAULT_ALLOW = "DefaultAllow"
    DEFAULT_DENY = "DefaultDeny"


class AccessDecision(NamedTuple):
    """Whether an operation is allowed, and why."""

    is_allowed: bool
    rule: AccessRule
    acl: IndexedAcl | None = None
    """For `AccessRule.ENTRY`."""


_SUPER_USER = AccessDecision(True, AccessRule.SUPER_USER)
_DENIED = AccessDecision(False, AccessRule.DEFAULT_DENY)
_ALLOWED = AccessDecision(True, AccessRule.DEFAULT_ALLOW)
_Key: TypeAlias = tuple[str, str, int, int, str]


class Examined(NamedTuple):
    """An entry that a decision has read, and what it says of the request."""

    entry: IndexedAcl
    skipped: str | None
    """Why it does not apply; None where it does."""


class StandardAuthorizer:
    """An `Authorizer` (`kalda.protocol.access`)."""

    def __init__(self, super_users: Iterable[str] = (), *, allow_without_entries: bool = False) -> None:
        """`super_users` in text form, `User:alice`. `allow_without_entries`: whether everyone may use a resource that
        no entry applies to."""
        self.super_users = frozenset(super_users)
        self._default = _ALLOWED if allow_without_entries else _DENIED
        self.index = AclIndex()
        self.is_loaded = False
        """Whether the entries are known. Before, only super users are served."""
        self._version = 0
        self.offset = -1
        """Of the newest image that `load` or `apply` was called with."""
        self._kept: dict[_Key, AccessDecision] = {}
        self._kept_before: dict[_Key, AccessDecision] = {}
        """What `_kept` held when it was full. A decision that is found here is kept again."""
        self.allowed: set[Decided] = set()
        """Allowed since the last change of an entry."""

    # -- entries

    def apply(self, changes: Mapping[Uuid, StandardAcl | None], offset: int) -> None:
        """Take over the changes of an image; None stands for an entry that was removed."""
        self.offset = offset
        self.is_loaded = True
        if changes:
            self.index.apply(changes, offset)
            self._version += 1
            self._kept = {}
            self._kept_before = {}
            self.allowed = set()

    # -- decisions

    @property
    def version(self) -> int:
        """Grows with every change of entries: what was allowed at one version may be denied at the next. Negative while
        every decision is to be logged."""
        return -1 if audit.isEnabledFor(logging.DEBUG) else self._version

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        """Whether `caller` may do `operation` on that resource, which so many items of the request concern."""
        key = (caller.principal, caller.client_host, operation, resource, name)
        if key in self.allowed and not audit.isEnabledFor(logging.DEBUG):
            return True
        decision = self.decide(*key)
        if decision.is_allowed:
            if len(self.allowed) >= _MAX_KEPT:
                self.allowed = set()
            self.allowed.add(key)
            if audit.isEnabledFor(logging.DEBUG):
                audit.debug("%s", _audit_line(caller, operation, resource, name, decision, references))
            return True
        if logs_denial and audit.isEnabledFor(logging.INFO):
            audit.info("%s", _audit_line(caller, operation, resource, name, decision, references))
        return False

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        """Whether `caller` may do `operation` on at least one resource of that type, existing or not (KIP-679)."""
        if self.decide(caller.principal, caller.client_host, operation, resource, "hardcode").is_allowed:
            return True
        key = (caller.principal, caller.client_host, -operation, resource, "")
        decision = self._kept.get(key)
        if decision is None:
            allows = self._allows_on_any(caller.principal, address_text(caller.client_host), operation, resource)
            decision = _ALLOWED if allows else _DENIED
            self._keep(key, decision)
        return decision.is_allowed

    def operations(
        self, caller: Caller, resource: AclResourceType, name: str, operations: Sequence[AclOperation]
    ) -> int:
        """The bits of those of `operations` that `caller` may do on that resource (KIP-430). Logs nothing."""
        principal, host = caller.principal, caller.client_host
        return AclOperation.bits(
            *(each for each in operations if self.decide(principal, host, each, resource, name).is_allowed)
        )

    def decide(self, principal: str, host: str, operation: int, resource: int, name: str) -> AccessDecision:
        """The decision about a principal at an address; logs nothing. Raises `ApiError` while the entries are not
        known."""
        key = (principal, host, operation, resource, name)
        decision = self._kept.get(key)
        if decision is not None:
            return decision
        decision = self._kept_before.get(key)
        if decision is None:
            if principal in self.super_users:
                decision = _SUPER_USER
            elif not self.is_loaded:
                raise ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    "The authorizer is not ready: this node has not loaded the access control entries yet.",
                )
            else:
                decision = self._decide(principal, address_text(host), operation, resource, name)
        self._keep(key, decision)
        return decision

    def _keep(self, key: _Key, decision: AccessDecision) -> None:
        if len(self._kept) >= _MAX_KEPT:
            self._kept_before = self._kept
            self._kept = {}
        self._kept[key] = decision

    def _decide(self, principal: str, host: str, operation: int, resource: int, name: str) -> AccessDecision:
        allowed: IndexedAcl | None = None
        patterns = self.index.patterns(resource, name)
        for _, _, pattern in patterns:
            for entry in in_order(pattern, principal):
                if _mismatch(entry.acl, host, operation) is None:
                    if entry.acl.permission_type != PERMISSION_ALLOW:
                        return AccessDecision(False, AccessRule.ENTRY, entry)
                    allowed = entry
        if allowed is not None:
            return AccessDecision(True, AccessRule.ENTRY, allowed)
        return _DENIED if patterns else self._default

    def _allows_on_any(self, principal: str, host: str, operation: int, resource: int) -> bool:
        """Whether an entry allows the operation on some resource on which no entry denies it."""
        literal: dict[str, None] = {}
        prefixed: dict[str, None] = {}
        denied_literal: set[str] = set()
        denied_prefixed: set[str] = set()
        is_allowed_on_all = False
        for acl in self.index.of_principals(resource, principal):
            if not is_from(acl.host, host) or acl.operation not in (operation, AclOperation.ALL):
                continue
            is_prefix = acl.pattern_type == PATTERN_PREFIXED
            if acl.permission_type == PERMISSION_DENY:
                if not is_prefix and acl.resource_name == WILDCARD:
                    return False
                (denied_prefixed if is_prefix else denied_literal).add(acl.resource_name)
            elif not is_prefix and acl.resource_name == WILDCARD:
                is_allowed_on_all = True
            else:
                (prefixed if is_prefix else literal)[acl.resource_name] = None
        if is_allowed_on_all:
            return True
        for denied in denied_literal:
            literal.pop(denied, None)
        sizes = sorted({len(each) for each in denied_prefixed})
        return any(
            not any(name[:size] in denied_prefixed for size in sizes if size <= len(name))
            for name in (*literal, *prefixed)
        )

    # -- explanations

    def examined(
        self, principal: str, host: str, operation: int, resource: int, name: str
    ) -> Iterator[tuple[str, int, int, list[Examined]]]:
        """Each pattern that applies to a resource, in the order of `decide`: its name, its type, how many entries it
        has, and those of them that concern the principal."""
        address = address_text(host)
        for pattern_name, pattern_type, pattern in self.index.patterns(resource, name):
            entries = [
                Examined(entry, _mismatch(entry.acl, address, operation)) for entry in in_order(pattern, principal)
            ]
            yield pattern_name, pattern_type, sum(map(len, pattern.values())), entries


def _mismatch(acl: StandardAcl, host: str, operation: int) -> str | None:
    """Why an entry for the caller's principal does not apply to an operation; None where it does."""
    if not is_from(acl.host, host):
        return "another host"
    if acl.operation in (AclOperation.ALL, operation):
        return None
    if acl.permission_type == PERMISSION_ALLOW and acl.operation in _IMPLIES.get(operation, ()):
        return None
    return "another operation"


def address_text(host: str) -> str:
    """An address as Java writes it, and so as entries have it: that of IPv6 with all eight numbers, an IPv4 address in
    IPv6 as IPv4."""
    if ":" not in host:
        return host
    address, percent, zone = host.partition("%")
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":")) + percent + zone


def acl_text(acl: StandardAcl) -> str:
    """As Kafka's logs have it."""
    return (
        f"StandardAcl[resourceType={_TYPES.get(acl.resource_type, 'UNKNOWN')}, "
        f"resourceName={printable(acl.resource_name)}, patternType={_PATTERNS.get(acl.pattern_type, 'UNKNOWN')}, "
        f"principal={printable(acl.principal)}, host={printable(acl.host)}, "
        f"operation={_OPERATIONS.get(acl.operation, 'UNKNOWN')}, "
        f"permissionType={_PERMISSIONS.get(acl.permission_type, 'UNKNOWN')}]"
    )


def _audit_line(
    caller: Caller,
    operation: AclOperation,
    resource: AclResourceType,
    name: str,
    decision: AccessDecision,
    references: int,
) -> str:
    """Kafka's text: tools that read audit logs take it apart."""
    rule = decision.rule.value if decision.acl is None else f"MatchingAcl(acl={acl_text(decision.acl.acl)})"
    return (
        f"Principal = {printable(caller.principal)} is {'Allowed' if decision.is_allowed else 'Denied'} "
        f"operation = {operation.name} from host = {address_text(caller.client_host)} "
        f"on resource = {_TYPE_NAMES[resource]}:LITERAL:{printable(name)} for request = {caller.request_name} "
        f"with resourceRefCount = {references} based on rule {rule}"
    )


def parse_super_users(text: str) -> list[str]:
    """The principals of `super.users`, separated by semicolons. Raises `ValueError`."""
    principals = [each.strip() for each in text.split(";")]
    for each in principals:
        if each and ":" not in each:
            raise ValueError(f"super.users: {each!r} is not TYPE:NAME, as in User:alice")
    return [each for each in principals if each]


# Why a request is allowed or denied, as JSON: what was read in which order, and what decided.

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
        "operation": AclOperation(acl.operation).name if acl.operation in _KNOWN_OPERATIONS else str(acl.operation),
        "permission": "ALLOW" if acl.permission_type == PERMISSION_ALLOW else "DENY",
        "resource_name": acl.resource_name,
        "pattern_type": "PREFIXED" if acl.pattern_type == PATTERN_PREFIXED else "LITERAL",
        "offset": offset,
        "skipped": examined.skipped,
    }


_KNOWN_OPERATIONS = frozenset(AclOperation)
