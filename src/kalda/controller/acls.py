"""Access control entries: created and deleted here, evaluated by each broker's authorizer.

The creation of an entry that exists already succeeds without a record: CreateAcls is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, UuidSource
from kalda.controller.answers import MAX_RECORDS_PER_USER_OPERATION, check_batch_size
from kalda.metadata.acls import (
    PATTERN_ANY,
    PATTERN_LITERAL,
    PATTERN_MATCH,
    PATTERN_PREFIXED,
    PERMISSION_ALLOW,
    PERMISSION_ANY,
    PERMISSION_DENY,
    WILDCARD,
    AclEntryFilter,
    StandardAcl,
    filter_matcher,
    host_range,
)
from kalda.metadata.features import MetadataVersion
from kalda.protocol.access import CLUSTER_RESOURCE_NAME
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclOperation,
    AclResourceType,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kalda.protocol.notation import maker
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

Entry: TypeAlias = tuple[Uuid, StandardAcl]
MAX_MATCHES: Final = 100_000
"""Of one deletion: matches of all its filters together, each of which is in the response. An entry with long names
counts again for each `_CHARACTERS_A_MATCH`, so that a response has some 50 MB at most."""
_CHARACTERS_A_MATCH: Final = 256
_STEP_ENTRIES: Final = 2_000
"""Entries that are compared with a filter in one step."""
_removal = maker(RemoveAccessControlEntryRecord, "id")
_matching_acl = maker(DeleteAclsMatchingAcl, "error_message", *StandardAcl._fields)


class AclControl:
    """Entries by id, and ids by entry."""

    def __init__(self, registry: SnapshotRegistry, new_id: UuidSource) -> None:
        self._new_id = new_id
        self.by_id: TimelineDict[Uuid, StandardAcl] = TimelineDict(registry)
        self._ids: TimelineDict[StandardAcl, Uuid] = TimelineDict(registry)

    def create(
        self, request: CreateAclsRequest, metadata_version: MetadataVersion
    ) -> Steps[Result[VersionedRecord, CreateAclsResponse]]:
        check_batch_size(len(request.creations))
        records: list[VersionedRecord] = []
        results: list[AclCreationResult] = []
        fresh: dict[StandardAcl, None] = {}
        for number, creation in enumerate(request.creations, 1):
            if number % ITEMS_A_STEP == 0:
                yield
            try:
                _validate_creation(creation)
                _validate_host(creation.host, metadata_version)
            except ApiError as error:
                results.append(AclCreationResult(error_code=error.code, error_message=error.message))
                continue
            acl = StandardAcl(
                creation.resource_type,
                creation.resource_name,
                creation.resource_pattern_type,
                creation.principal,
                creation.host,
                creation.operation,
                creation.permission_type,
            )
            if acl not in self._ids and acl not in fresh:
                fresh[acl] = None
                records.append(VersionedRecord(acl.to_record(self._fresh_id()), 0))
            results.append(AclCreationResult(error_code=ErrorCode.NONE, error_message=""))
        return Result(records, CreateAclsResponse(results=results), atomic=True)

    def delete(self, request: DeleteAclsRequest) -> Steps[Result[VersionedRecord, DeleteAclsResponse]]:
        """Remove what the filters match. An entry that several filters match is in the results of each. Raises
        `ApiError` INVALID_REQUEST where that is more than a batch may remove, or a response may name."""
        check_batch_size(len(request.filters))
        matcher = AclMatcher(self.by_id.items())
        removed: dict[Uuid, DeleteAclsMatchingAcl] = {}
        """With what responses say of the entry; the results share it."""
        results: list[DeleteAclsFilterResult] = []
        known: dict[tuple[object, ...], tuple[DeleteAclsFilterResult, int]] = {}
        matches = 0
        for number, entry_filter in enumerate(request.filters, 1):
            if number % ITEMS_A_STEP == 0:
                yield
            key = tuple(getattr(entry_filter, name) for name in DeleteAclsFilter.declared)
            if key not in known:
                known[key] = yield from _filter_result(entry_filter, matcher, removed)
            result, size = known[key]
            results.append(result)
            matches += size
            if matches > MAX_MATCHES:
                raise _invalid(
                    f"The filters match access control entries more than {MAX_MATCHES} times, or these have long "
                    "names: delete by fewer filters in one request"
                )
        records = [VersionedRecord(_removal(acl_id), 0) for acl_id in removed]
        return Result(records, DeleteAclsResponse(filter_results=results), atomic=True)

    def replay_entry(self, record: AccessControlEntryRecord) -> None:
        acl = StandardAcl.from_record(record)
        assert record.id not in self.by_id, f"ACL {record.id.hex()} exists already"
        self.by_id[record.id] = acl
        self._ids[acl] = record.id

    def replay_removal(self, record: RemoveAccessControlEntryRecord) -> None:
        acl = self.by_id.pop(record.id)
        self._ids.pop(acl, None)

    def replay_removals(self, records: Sequence[VersionedRecord], first: int) -> int:
        """Apply the removals from `records[first]` on, together: the effect of `replay_removal` for each, at a fraction
        of the cost. Returns how many; 0 where that record is another one. A record that cannot be applied so is left to
        `replay_removal`."""
        removed: dict[Uuid, StandardAcl] = {}
        for index in range(first, len(records)):
            record = records[index].record
            if type(record) is not RemoveAccessControlEntryRecord or record.id in removed:
                break
            acl = self.by_id.get(record.id)
            if acl is None:
                break
            removed[record.id] = acl
        if not removed:
            return 0
        self.by_id.remove_all(removed)
        self._ids.remove_all({acl for acl in removed.values() if acl in self._ids})
        return len(removed)

    def _fresh_id(self) -> Uuid:
        while True:
            acl_id = self._new_id()
            if acl_id not in self.by_id:
                return acl_id


class AclMatcher:
    """Which entries the filters of one deletion match, in steps.

    A filter that names a resource or a principal is compared with the entries of that name or principal alone, from the
    second filter on: a deletion of 1,000 filters would compare each with all of 10,000 entries otherwise."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        self._filters = 0
        """How many have been compared."""
        self._by_name: dict[str, list[Entry]] = {}
        self._prefix_sizes: list[int] = []
        """The lengths that prefixes have."""
        self._by_principal: dict[str, list[Entry]] = {}
        self._compared = 0

    def matching(self, entry_filter: AclEntryFilter) -> Steps[list[Entry]]:
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

    def _candidates(self, entry_filter: AclEntryFilter) -> list[Sequence[Entry]]:
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


def _filter_result(
    entry_filter: DeleteAclsFilter, matcher: AclMatcher, removed: dict[Uuid, DeleteAclsMatchingAcl]
) -> Steps[tuple[DeleteAclsFilterResult, int]]:
    """The result of one filter, and how much it counts. What it matches is added to `removed`."""
    try:
        found = yield from matcher.matching(entry_filter)
    except ApiError as error:
        return DeleteAclsFilterResult(error_code=error.code, error_message=error.message), 0
    _check_removals(len(found))
    for acl_id, acl in found:
        if acl_id not in removed:
            removed[acl_id] = _matching_acl(None, *acl)
    _check_removals(len(removed))
    size = sum(1 + (len(acl.resource_name) + len(acl.principal)) // _CHARACTERS_A_MATCH for _, acl in found)
    return DeleteAclsFilterResult(error_message=None, matching_acls=[removed[acl_id] for acl_id, _ in found]), size


def _check_removals(count: int) -> None:
    """Raises `ApiError` INVALID_REQUEST where one deletion has more than a batch may have."""
    if count > MAX_RECORDS_PER_USER_OPERATION:
        raise _invalid("Cannot remove more than 10000 acls in a single delete operation.")


def _validate_creation(creation: AclCreation) -> None:
    """Raises `ApiError` INVALID_REQUEST for an entry that cannot be evaluated."""
    name = creation.resource_name
    if creation.resource_type == AclResourceType.CLUSTER and name != CLUSTER_RESOURCE_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_RESOURCE_NAME}")
    if not name:
        raise _invalid("Invalid empty resource name")
    if creation.resource_type not in range(AclResourceType.TOPIC, AclResourceType.USER + 1):
        raise _invalid(f"Invalid resourceType {_name(AclResourceType, creation.resource_type)}")
    if creation.resource_pattern_type not in (PATTERN_LITERAL, PATTERN_PREFIXED):
        patterns = {PATTERN_ANY: "ANY", PATTERN_MATCH: "MATCH"}
        raise _invalid(f"Invalid patternType {patterns.get(creation.resource_pattern_type, 'UNKNOWN')}")
    if creation.operation not in range(AclOperation.ALL, AclOperation.TWO_PHASE_COMMIT + 1):
        raise _invalid(f"Invalid operation {_name(AclOperation, creation.operation)}")
    if creation.permission_type not in (PERMISSION_DENY, PERMISSION_ALLOW):
        raise _invalid(f"Invalid permissionType {'ANY' if creation.permission_type == PERMISSION_ANY else 'UNKNOWN'}")
    if ":" not in creation.principal:
        raise _invalid(
            f"Could not parse principal from `{creation.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )


def _validate_host(host: str, metadata_version: MetadataVersion) -> None:
    """Raises `ApiError` INVALID_REQUEST, and UNSUPPORTED_VERSION for a range that nodes may not know (KIP-1276)."""
    if not host:
        raise _invalid("Host pattern cannot be null or empty")
    if "/" not in host:
        return
    if not metadata_version.is_cidr_acl_supported:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"CIDR-based ACL host patterns require metadata version {MetadataVersion.IBP_4_4_IV1} or higher.",
        )
    try:
        host_range(host)
    except ValueError as error:
        raise _invalid(f"Invalid CIDR notation '{host}': {error}") from error


def _name(kind: type[AclResourceType] | type[AclOperation], value: int) -> str:
    return kind(value).name if value in kind.__members__.values() else "UNKNOWN"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
