"""Access control entries by the resource that they apply to.

An entry applies to a resource of its type in one of three ways: its pattern is LITERAL and has the resource's name; its
pattern is LITERAL and has the name `*`; or its pattern is PREFIXED and has a name that the resource's name begins with.
So a lookup takes one access for the name, one for each length that prefixes have, and one for `*`, however many entries
there are. Below each pattern the entries are grouped by principal: a caller is concerned by two groups.

Entries are added and removed by id. Two ids may have equal entries: the removal of one leaves the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kalda.base.ids import Uuid
from kalda.metadata.acl_filters import PATTERN_LITERAL, PATTERN_PREFIXED, WILDCARD
from kalda.metadata.acls import StandardAcl

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
