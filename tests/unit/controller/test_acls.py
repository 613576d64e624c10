"""The entries that the controller holds, by id and by entry."""

from __future__ import annotations

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.controller.acls import AclControl, Matched, answer_deletion
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import AclCreation, DeleteAclsFilter
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.timeline import SnapshotRegistry

CREATIONS = [
    AclCreation(
        resource_type=2, resource_name=f"t-{n}", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )
    for n in range(20)
]  # fmt: skip
EVERY = DeleteAclsFilter(
    resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None, host_filter=None,
    operation=1, permission_type=1,
)  # fmt: skip


@pytest.fixture
def acls() -> AclControl:
    """One that holds `CREATIONS`, and an entry under a second id: a log may have that."""
    numbers = iter(range(1, 100))
    acls = AclControl(SnapshotRegistry(), lambda: Uuid(next(numbers).to_bytes(16, "big")))
    records = [versioned.record for versioned in acls.create(CREATIONS).records]
    for record in records:
        assert isinstance(record, AccessControlEntryRecord)
        acls.replay_entry(record)
    again = next(iter(acls.by_id.values())).to_record(Uuid(b"2" * 16))
    acls.replay_entry(again)
    return acls


def test_one_filter_removes_every_entry(acls: AclControl) -> None:
    deleted = acls.delete([EVERY, DeleteAclsFilter(resource_type_filter=99)])
    committed: Pending[list[Matched]] = Pending()
    answer = answer_deletion(committed)
    assert not answer.done
    committed.complete(deleted.response)
    assert answer.value is not None
    result, refused = answer.value.filter_results
    assert [(each.resource_name, each.error_code, each.error_message) for each in result.matching_acls] == [
        *((creation.resource_name, 0, None) for creation in CREATIONS),
        ("t-0", 0, None),
    ]
    assert (result.error_code, result.error_message) == (0, None)
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert acls.replay_removals(deleted.records, 0) == 21
    assert not acls.by_id
    assert len(acls.create(CREATIONS).records) == 20, "no entry is left by its content either"


def test_a_deletion_that_fails_is_answered_with_its_error() -> None:
    committed: Pending[list[Matched]] = Pending()
    answer = answer_deletion(committed)
    committed.fail(ApiError(ErrorCode.NOT_CONTROLLER))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_CONTROLLER


def test_removals_are_applied_together_up_to_a_record_that_is_none(acls: AclControl) -> None:
    removals = acls.delete([EVERY]).records
    unknown = VersionedRecord(RemoveAccessControlEntryRecord(id=Uuid(b"?" * 16)), 0)
    other = VersionedRecord(next(iter(acls.by_id.values())).to_record(Uuid(b"3" * 16)), 0)
    assert acls.replay_removals([*removals[:3], unknown], 0) == 3
    assert acls.replay_removals([*removals[:5], removals[3], other], 3) == 2
    assert acls.replay_removals([unknown], 0) == acls.replay_removals([other], 0) == 0
    assert list(acls.by_id) == [versioned.record.id for versioned in removals[5:]]
