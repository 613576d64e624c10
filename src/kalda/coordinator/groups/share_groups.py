"""The share groups of one partition of `__consumer_offsets`: replay, sessions, the end of members.

A member's session ends where no heartbeat comes for `share.session.timeout.ms`; it begins anew when the partition is
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.coordinator.groups.kind_groups import HasGroup, KindGroups, Replay
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.groups.share_config import ShareGroupSettings
from kalda.coordinator.groups.share_group import SHARE, ShareGroup, ShareMember, with_assignment, with_metadata
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock
from kalda.protocol.messages.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from kalda.protocol.notation import RecordBody

_FIRST_EPOCH = 1


class ShareGroups(KindGroups[ShareGroup]):
    """Those of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        settings: ShareGroupSettings,
        timers: CoordinatorTimer,
        clock: EventClock,
        history: RebalanceHistory,
        has_group: HasGroup,
    ) -> None:
        def replay_initialization(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
            assert value is None or isinstance(value, ShareGroupStatePartitionMetadataValue)
            group.replay_initialization(value, clock.wall_ms())

        replays: dict[type[RecordBody], Replay[ShareGroup]] = dict(_REPLAYS)
        replays[ShareGroupStatePartitionMetadataKey] = replay_initialization
        ends = ShareGroupMemberMetadataKey, ShareGroupMetadataKey
        super().__init__(SHARE, partition, timers, clock.now_ms, ShareGroup, replays, ends, history, has_group)
        self._settings = settings

    # -- what happens to the partition ---------------------------------------------------------------------------

    def on_loaded(self) -> None:
        """All records are replayed: sessions begin."""
        for group in self.groups.values():
            for member_id in group.members:
                self.start_session(group, member_id)

    def records_of_deleted_topics(self, topics: Mapping[str, Uuid]) -> list[KindRecord]:
        """What takes deleted topics, by name and id, out of what is initialized. The share coordinator deletes their
        state by itself."""
        gone = frozenset(topics.values())
        records = []
        for group in self.groups.values():
            held = group.initialization
            left = held.without(gone)
            if left != held:
                records.append(group.initialization_record(left))
        return records

    # -- members -------------------------------------------------------------------------------------------------

    def start_session(self, group: ShareGroup, member_id: str) -> None:
        """A member has sent a heartbeat: its session begins anew."""
        self._begin_session((group.group_id, member_id), self._settings.config.session_timeout_ms(group.group_id))

    def _end_member(self, group: ShareGroup, member_id: str, what: str) -> Pending[None]:
        return self.remove(group, member_id, what)

    def remove(self, group: ShareGroup, member_id: str, what: str) -> Pending[None]:
        """Remove a member, to which `what` has happened. Others get what it had in the next group epoch."""
        member, epoch = group.member(member_id), group.epochs.group
        metadata_hash = self._settings.catalog.hash_of(group.subscribed_after(member.topics, ()))
        records: list[GroupLogRecord] = [*group.tombstones_of([member_id])]
        records.append(group.epoch_record(epoch + 1, metadata_hash))
        self.settle(group)
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epoch, Cause(what, (member,)))
        return outcome


# How each record changes its group.


def _replay_metadata(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
    if isinstance(value, ShareGroupMetadataValue):
        group.replay_epochs(group=value.epoch, metadata_hash=value.metadata_hash)


def _replay_member(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
    assert isinstance(key, ShareGroupMemberMetadataKey)
    if isinstance(value, ShareGroupMemberMetadataValue):
        member = group.members.get(key.member_id) or ShareMember(key.member_id)
        group.replay_member(with_metadata(member, value))
    else:
        group.remove_member(key.member_id)


def _replay_assignment(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
    assert isinstance(key, ShareGroupCurrentMemberAssignmentKey)
    member = group.members.get(key.member_id)
    if isinstance(value, ShareGroupCurrentMemberAssignmentValue):
        group.replay_member(with_assignment(member or ShareMember(key.member_id), value))
    elif member is not None:
        group.replay_member(with_assignment(member, ShareGroupCurrentMemberAssignmentValue(member_epoch=LEFT_EPOCH)))


def _replay_target(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
    assert isinstance(key, ShareGroupTargetAssignmentMemberKey)
    if isinstance(value, ShareGroupTargetAssignmentMemberValue):
        group.targets[key.member_id] = {
            topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions if topic.partitions
        }
    else:
        group.targets.pop(key.member_id, None)


def _replay_target_metadata(group: ShareGroup, key: RecordBody, value: RecordBody | None) -> None:
    if isinstance(value, ShareGroupTargetAssignmentMetadataValue):
        group.replay_epochs(assignment=value.assignment_epoch, assignment_ms=value.assignment_timestamp)
    else:
        group.replay_epochs(assignment=_FIRST_EPOCH, assignment_ms=0)


LEFT_EPOCH = -1
"""That of a member whose assignment was removed and who was not, which no coordinator writes."""
_REPLAYS: Mapping[type[RecordBody], Replay[ShareGroup]] = {
    ShareGroupMetadataKey: _replay_metadata,
    ShareGroupMemberMetadataKey: _replay_member,
    ShareGroupCurrentMemberAssignmentKey: _replay_assignment,
    ShareGroupTargetAssignmentMemberKey: _replay_target,
    ShareGroupTargetAssignmentMetadataKey: _replay_target_metadata,
}
