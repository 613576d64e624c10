"""Offsets of open transactions, as they come out of a log: pending until the marker, in the log's order."""

from __future__ import annotations

from groups_world import MemoryTopics

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.offsets import Offsets
from kalda.coordinator.groups.records import CommittedOffset, OffsetRecord
from kalda.protocol.messages.groups import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kalda.statemachine.timeline import SnapshotRegistry


def fresh() -> Offsets:
    return Offsets(SnapshotRegistry(), GroupCoordinatorConfig(), MemoryTopics())


def commit(offset: int, partition: int = 0) -> OffsetRecord:
    return OffsetRecord("g", "t", partition, CommittedOffset(offset, -1, "", 0, -1, ZERO_UUID))


def fetched(offsets: Offsets, *, require_stable: bool = False) -> tuple[int, str]:
    asked = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    found = offsets.fetch(asked, 9, require_stable=require_stable).topics[0].partitions[0]
    return found.committed_offset, ErrorCode(found.error_code).name


def test_a_pending_offset_is_seen_only_after_its_commit() -> None:
    offsets = fresh()
    offsets.replay(commit(1), 0, -1)
    offsets.replay(commit(5), 1, 7)
    assert fetched(offsets) == (1, "NONE")
    assert fetched(offsets, require_stable=True) == (-1, "UNSTABLE_OFFSET_COMMIT")
    offsets.replay(commit(5, partition=1), 2, 7)
    assert offsets.count == 1
    offsets.replay_marker(7, committed=True)
    assert offsets.count == 2
    assert fetched(offsets, require_stable=True) == (5, "NONE")
    assert not offsets.has_open_transactions("g")


def test_an_abort_leaves_what_was_there() -> None:
    offsets = fresh()
    offsets.replay(commit(1), 0, -1)
    offsets.replay(commit(5), 1, 7)
    offsets.replay_marker(7, committed=False)
    assert fetched(offsets, require_stable=True) == (1, "NONE")


def test_the_later_record_counts_not_the_later_marker() -> None:
    offsets = fresh()
    offsets.replay(commit(5), 1, 7)
    offsets.replay(commit(9), 2, -1)
    offsets.replay_marker(7, committed=True)
    assert fetched(offsets) == (9, "NONE")


def test_two_producers_may_have_one_partition_open() -> None:
    offsets = fresh()
    offsets.replay(commit(5), 1, 7)
    offsets.replay(commit(6), 2, 8)
    offsets.replay_marker(8, committed=True)
    assert fetched(offsets, require_stable=True) == (-1, "UNSTABLE_OFFSET_COMMIT")
    offsets.replay_marker(7, committed=True)
    assert fetched(offsets, require_stable=True) == (6, "NONE")


def test_a_tombstone_ends_pending_offsets_too() -> None:
    offsets = fresh()
    offsets.replay(commit(5), 1, 7)
    assert offsets.tombstones_of_group("g") == [OffsetRecord("g", "t", 0, None)]
    assert offsets.tombstones_of_topics({"t": ZERO_UUID}) == [OffsetRecord("g", "t", 0, None)]
    offsets.replay(OffsetRecord("g", "t", 0, None), 2, -1)
    offsets.replay_marker(7, committed=True)
    assert fetched(offsets) == (-1, "NONE")


def test_a_marker_of_an_unknown_producer_changes_nothing() -> None:
    offsets = fresh()
    offsets.replay_marker(99, committed=True)
    assert fetched(offsets) == (-1, "NONE")
