"""Which access control entries the filters of one deletion match, in steps.

A filter that names a resource or a principal is compared with the entries of that name or principal alone, from the
second filter on: a deletion of 1,000 filters would compare each with all of 10,000 entries otherwise. The entries are
those at the time of the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kalda.base.background import Steps
from kalda.base.ids import Uuid
from kalda.metadata.acl_filters import PATTERN_MATCH, PATTERN_PREFIXED, WILDCARD, AclFilter, filter_matcher
from kalda.metadata.acls import StandardAcl

Entry: TypeAlias = tuple[Uuid, StandardAcl]
_STEP_ENTRIES = 2_000
"""Entries that are compared with a filter in one step."""


class AclMatcher:
    """The entries, by name and by principal."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        self._filters = 0
        """How many have been compared."""
        self._by_name: dict[str, list[Entry]] = {}
        self._prefix_sizes: list[int] = []
        """The lengths that prefixes have."""
        self._by_principal: dict[str, list[Entry]] = {}
        self._compared = 0

    def matching(self, entry_filter: AclFilter) -> Steps[list[Entry]]:
        """The entries that a filter matches. Raises `ApiError` INVALID_REQUEST for a filter with unknown parts."""
        matches = filter_matcher(entry_filter)
        self._filters += 1
        if self._filters == 2:
            yield from self._index()
        found: list[Entry] = []
        for candidates in self._candidates(entry_filter):
            for entry in candidates:
                if matches(entry[1]):
                    found.append(entry)
                self._compared += 1
                if self._compared % _STEP_ENTRIES == 0:
                    yield
        return found

    def _index(self) -> Steps[None]:
        sizes: set[int] = set()
        for number, entry in enumerate(self._entries, 1):
            acl = entry[1]
            self._by_name.setdefault(acl.resource_name, []).append(entry)
            self._by_principal.setdefault(acl.principal, []).append(entry)
            if acl.pattern_type == PATTERN_PREFIXED:
                sizes.add(len(acl.resource_name))
            if number % _STEP_ENTRIES == 0:
                yield
        self._prefix_sizes = sorted(sizes)

    def _candidates(self, entry_filter: AclFilter) -> list[Sequence[Entry]]:
        """Lists of entries of which no other can match."""
        name, principal = entry_filter.resource_name_filter, entry_filter.principal_filter
        if self._filters == 1 or (name is None and principal is None):
            return [self._entries]
        of_principal = self._entries if principal is None else self._by_principal.get(principal, [])
        if name is None:
            return [of_principal]
        names = [name]
        if entry_filter.pattern_type_filter == PATTERN_MATCH:
            names += [name[:size] for size in self._prefix_sizes if size < len(name)]
            names += [] if name == WILDCARD or WILDCARD in names else [WILDCARD]
        of_name: list[Sequence[Entry]] = [self._by_name[each] for each in names if each in self._by_name]
        return of_name if sum(map(len, of_name)) < len(of_principal) else [of_principal]
