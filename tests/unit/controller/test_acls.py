"""The entries that the controller holds, by id and by entry."""

from __future__ import annotations

import pytest

from kalda.base.ids import Uuid
from kalda.controller.acls import AclControl
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import AclCreation
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.timeline import SnapshotRegistry

CREATIONS = [
    AclCreation(
        resource_type=2, resource_name=f"t-{n}", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )
    for n in range(20)
]  # fmt: skip


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


def test_entries_are_removed_together(acls: AclControl) -> None:
    ids = list(acls.by_id)
    deleted = acls.delete([*ids, Uuid(b"?" * 16)])
    assert deleted.atomic
    assert acls.replay_removals(deleted.records, 0) == 21
    assert not acls.by_id
    assert len(acls.create(CREATIONS).records) == 20, "no entry is left by its content either"


def test_removals_are_applied_together_up_to_a_record_that_is_none(acls: AclControl) -> None:
    removals = acls.delete(list(acls.by_id)).records
    unknown = VersionedRecord(RemoveAccessControlEntryRecord(id=Uuid(b"?" * 16)), 0)
    other = VersionedRecord(next(iter(acls.by_id.values())).to_record(Uuid(b"3" * 16)), 0)
    assert acls.replay_removals([*removals[:3], unknown], 0) == 3
    assert acls.replay_removals([*removals[:5], removals[3], other], 3) == 2
    assert acls.replay_removals([unknown], 0) == acls.replay_removals([other], 0) == 0
    assert list(acls.by_id) == [versioned.record.id for versioned in removals[5:]]
