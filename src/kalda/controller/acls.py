"""Access control entries: created and deleted here, evaluated by each broker's authorizer.

The creation of an entry that exists already succeeds without a record: CreateAcls is idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, UuidSource
from kalda.controller.answers import MAX_RECORDS_PER_USER_OPERATION, check_batch_size
from kalda.metadata.acl_filters import (
    PATTERN_ANY,
    PATTERN_LITERAL,
    PATTERN_MATCH,
    PATTERN_PREFIXED,
    PERMISSION_ALLOW,
    PERMISSION_ANY,
    PERMISSION_DENY,
)
from kalda.metadata.acls import StandardAcl
from kalda.protocol.caller import CLUSTER_RESOURCE_NAME
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclOperation,
    AclResourceType,
)
from kalda.protocol.notation import maker
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

_removal = maker(RemoveAccessControlEntryRecord, "id")


class AclControl:
    """Entries by id, and ids by entry."""

    def __init__(self, registry: SnapshotRegistry, new_id: UuidSource) -> None:
        self._new_id = new_id
        self.by_id: TimelineDict[Uuid, StandardAcl] = TimelineDict(registry)
        self._ids: TimelineDict[StandardAcl, Uuid] = TimelineDict(registry)

    def create(self, creations: Sequence[AclCreation]) -> Result[VersionedRecord, list[AclCreationResult]]:
        records: list[VersionedRecord] = []
        results: list[AclCreationResult] = []
        fresh: dict[StandardAcl, None] = {}
        for creation in creations:
            try:
                _validate_creation(creation)
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
        check_batch_size(len(records))
        return Result(records, results, atomic=True)

    def delete(self, ids: Sequence[Uuid]) -> Result[VersionedRecord, None]:
        """Remove the entries with these ids; those that are not there any more are left out."""
        records = [VersionedRecord(_removal(acl_id), 0) for acl_id in ids if acl_id in self.by_id]
        check_removals(len(records))
        return Result(records, None, atomic=True)

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
        self.by_id.remove_all(removed)
        self._ids.remove_all({acl for acl in removed.values() if acl in self._ids})
        return len(removed)

    def _fresh_id(self) -> Uuid:
        while True:
            acl_id = self._new_id()
            if acl_id not in self.by_id:
                return acl_id


def check_removals(count: int) -> None:
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


def _name(kind: type[AclResourceType] | type[AclOperation], value: int) -> str:
    return kind(value).name if value in kind.__members__.values() else "UNKNOWN"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
