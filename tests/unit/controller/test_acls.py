"""The entries that the controller holds, by id and by entry; what many filters match, in steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.controller.acls import AclControl, AclMatcher
from kalda.metadata.acls import StandardAcl, filter_matcher, is_from
from kalda.metadata.features import LATEST_PRODUCTION, MetadataVersion
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.timeline import SnapshotRegistry

CREATIONS = [
    AclCreation(
        resource_type=2, resource_name=f"t-{n}", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )
    for n in range(20)
]  # fmt: skip


def acl_filter(
    name: str | None = None, pattern: int = 1, principal: str | None = None, **other: int
) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        **{"resource_type_filter": 1, "operation": 1, "permission_type": 1, **other},
        resource_name_filter=name, pattern_type_filter=pattern, principal_filter=principal, host_filter=None,
    )  # fmt: skip


def holding(count: int) -> AclControl:
    acls = AclControl(SnapshotRegistry(), lambda: Uuid(b"?" * 16))
    for number in range(count):
        entry = StandardAcl(2, f"t-{number}", 3 + number % 2, f"User:{number % 7}", "*", 3, 3)
        acls.replay_entry(entry.to_record(Uuid(number.to_bytes(16, "big"))))
    return acls


def deleted(filters: list[DeleteAclsFilter], acls: AclControl) -> tuple[Any, list[Any], int]:
    """The results of the filters, the ids of what is deleted, and the steps that it took."""
    steps, taken = acls.delete(DeleteAclsRequest(filters=filters)), 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            records: list[Any] = [versioned.record for versioned in finished.value.records]
            return finished.value.response.filter_results, [record.id for record in records], taken
        taken += 1


@pytest.fixture
def acls() -> AclControl:
    """One that holds `CREATIONS`, and an entry under a second id: a log may have that."""
    numbers = iter(range(1, 100))
    acls = AclControl(SnapshotRegistry(), lambda: Uuid(next(numbers).to_bytes(16, "big")))
    records = [
        versioned.record
        for versioned in run_to_end(acls.create(CreateAclsRequest(creations=CREATIONS), LATEST_PRODUCTION)).records
    ]
    for record in records:
        assert isinstance(record, AccessControlEntryRecord)
        acls.replay_entry(record)
    again = next(iter(acls.by_id.values())).to_record(Uuid(b"2" * 16))
    acls.replay_entry(again)
    return acls


@pytest.mark.parametrize(
    ("host", "level", "error"),
    [
        ("10.1.0.0/16", MetadataVersion.IBP_4_4_IV1, ErrorCode.NONE),
        ("fd00::/8", MetadataVersion.IBP_4_4_IV1, ErrorCode.NONE),
        ("10.1.0.0/16", MetadataVersion.IBP_4_4_IV0, ErrorCode.UNSUPPORTED_VERSION),
        ("10.1.0.0/33", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("fd00::/129", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("10.1.0/16", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("10.1.0.256/16", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("10.1.0.0/", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("10.1.0.0/255.255.0.0", MetadataVersion.IBP_4_4_IV1, ErrorCode.INVALID_REQUEST),
        ("", MetadataVersion.IBP_4_3_IV0, ErrorCode.INVALID_REQUEST),
        ("any text is a host", MetadataVersion.IBP_4_3_IV0, ErrorCode.NONE),
    ],
)
def test_a_range_of_addresses_is_a_host_when_all_nodes_know_ranges(
    host: str, level: MetadataVersion, error: ErrorCode
) -> None:
    creation = AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host=host, operation=3,
        permission_type=3,
    )  # fmt: skip
    done = run_to_end(holding(0).create(CreateAclsRequest(creations=[creation]), level))
    assert done.response.results[0].error_code == error
    assert len(done.records) == (error is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("entry", "host", "applies"),
    [
        ("*", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.3/16", "10.1.255.255", True),
        ("10.1.0.0/16", "10.1.0.0", True),
        ("10.1.0.0/16", "10.2.0.0", False),
        ("10.1.2.3/32", "10.1.2.3", True),
        ("10.1.2.3/32", "10.1.2.2", False),
        ("0.0.0.0/0", "255.0.0.1", True),
        ("0.0.0.0/0", "fd00:0:0:0:0:0:0:1", False),
        ("fd00::/8", "fdff:0:0:0:0:0:0:1", True),
        ("fd00::/8", "fe00:0:0:0:0:0:0:1", False),
        ("fe80::/10", "fe80:0:0:0:0:0:0:1%eth0", True),
        ("::/0", "10.1.2.3", False),
        ("10.1.0.0/99", "10.1.2.3", False),
        ("10.1.0.0/16", "no address", False),
    ],
)
def test_an_entry_applies_to_the_addresses_of_its_host(entry: str, host: str, applies: bool) -> None:
    assert is_from(entry, host) is applies


def test_entries_are_removed_together(acls: AclControl) -> None:
    deleted = run_to_end(acls.delete(DeleteAclsRequest(filters=[acl_filter(), acl_filter("t-3")])))
    assert deleted.atomic
    assert acls.replay_removals(deleted.records, 0) == 21
    assert not acls.by_id
    assert len(run_to_end(acls.create(CreateAclsRequest(creations=CREATIONS), LATEST_PRODUCTION)).records) == 20, (
        "no entry is left by its content either"
    )


def test_removals_are_applied_together_up_to_a_record_that_is_none(acls: AclControl) -> None:
    removals = run_to_end(acls.delete(DeleteAclsRequest(filters=[acl_filter()]))).records
    unknown = VersionedRecord(RemoveAccessControlEntryRecord(id=Uuid(b"?" * 16)), 0)
    other = VersionedRecord(next(iter(acls.by_id.values())).to_record(Uuid(b"3" * 16)), 0)
    assert acls.replay_removals([*removals[:3], unknown], 0) == 3
    assert acls.replay_removals([*removals[:5], removals[3], other], 3) == 2
    assert acls.replay_removals([unknown], 0) == acls.replay_removals([other], 0) == 0
    assert list(acls.by_id) == [versioned.record.id for versioned in removals[5:]]


def test_each_filter_is_answered_with_all_that_it_matches() -> None:
    acls = holding(20)
    filters = [acl_filter(), acl_filter("t-3"), acl_filter(resource_type_filter=99), acl_filter("t-3")]
    (every, one, refused, again), gone, _ = deleted(filters, acls)
    assert [each.resource_name for each in every.matching_acls] == [f"t-{number}" for number in range(20)]
    assert [each.resource_name for each in one.matching_acls] == ["t-3"]
    assert again == one
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert refused.error_message
    assert (every.error_message, one.matching_acls[0].error_message) == (None, None), "null, not an empty text"
    assert gone == list(acls.by_id), "each once"


def test_filters_find_by_their_index_what_they_match() -> None:
    rng = random.Random(5)
    names = ["*", "a", "ab", "abc", "b", "t-1", "t-12"]
    held = [
        (
            Uuid(number.to_bytes(16, "big")),
            StandardAcl(2, rng.choice(names), rng.choice([3, 4]), f"User:{rng.randrange(3)}", "*", 3, 3),
        )
        for number in range(200)
    ]
    matcher = AclMatcher(held)
    for pattern in (1, 2, 3, 4):
        for name in [None, *names, "abcd", "t-123"]:
            for principal in (None, "User:1", "User:9"):
                one = acl_filter(name, pattern, principal)
                matches = filter_matcher(one)
                expected = sorted(entry for entry in held if matches(entry[1]))
                assert sorted(run_to_end(matcher.matching(one))) == expected, one


def test_filters_that_name_something_are_not_compared_with_all_entries() -> None:
    acls = holding(10_000)
    by_name, _, name_steps = deleted([acl_filter(f"t-{number}", 2) for number in range(1_000)], acls)
    by_principal, _, principal_steps = deleted([acl_filter("t-7", 3, f"User:{n % 7}") for n in range(1_000)], acls)
    assert len(by_name) == len(by_principal) == 1_000
    assert name_steps < 40
    assert principal_steps < 40


def test_filters_that_match_very_much_are_compared_in_steps() -> None:
    acls = holding(10_000)
    _, gone, steps = deleted([acl_filter(operation=number) for number in (1, 2, 3, 4)], acls)
    assert len(gone) == 10_000
    assert steps > 15


def test_more_entries_than_a_batch_may_remove_are_refused() -> None:
    for filters in ([acl_filter()], [acl_filter(pattern=3), acl_filter(pattern=4)]):
        with pytest.raises(ApiError, match="more than 10000"):
            deleted(filters, holding(10_001))


def test_more_matches_than_a_response_may_name_are_refused() -> None:
    acls = holding(1_000)
    assert len(deleted([acl_filter()] * 100, acls)[0]) == 100
    with pytest.raises(ApiError, match=r"more than 100000 times.*delete by fewer filters"):
        deleted([acl_filter()] * 101, acls)


def test_entries_with_long_names_count_as_several_matches() -> None:
    acls = holding(0)
    for number in range(40):
        acls.replay_entry(
            StandardAcl(2, "t" * 25_600, 3, f"User:{number}", "*", 3, 3).to_record(Uuid(bytes([number] * 16)))
        )
    assert len(deleted([acl_filter()] * 24, acls)[0]) == 24
    with pytest.raises(ApiError, match="long names: delete by fewer filters"):
        deleted([acl_filter()] * 25, acls)
