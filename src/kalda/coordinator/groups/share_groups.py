"""The share groups of one partition of `__consumer_offsets`: replay, sessions, the end of members.

A member's session ends where no heartbeat comes for `share.session.timeout.ms`; it begins anew when the partition is
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.coordinator.groups.config import ShareGroupSettings
from kalda.coordinator.groups.kind_groups import HasGroup, KindGroups
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.groups.share_group import ShareGroup
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock
from kalda.protocol.messages.group_records import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)


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
        super().__init__(ShareGroup, partition, settings.config, timers, clock.now_ms, history, has_group)
        self._wall_ms = clock.wall_ms
        self._settings = settings

    def apply(self, group: ShareGroup, record: KindRecord) -> None:
        """Apply a record to a group."""
        if isinstance(record.key, ShareGroupStatePartitionMetadataKey):
            assert record.value is None or isinstance(record.value, ShareGroupStatePartitionMetadataValue)
            group.replay_initialization(record.value, self._wall_ms())
        else:
            super().apply(group, record)

    # -- what happens to the partition ---------------------------------------------------------------------------

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

    def end_member(self, group: ShareGroup, member_id: str, what: str) -> Pending[None]:
        """After the last member the next one does not wait for an interval between assignments."""
        member, epoch = group.member(member_id), group.epochs.group
        metadata_hash = self._settings.catalog.hash_of(group.subscribed_after(member.topics, ()))
        records: list[GroupLogRecord] = [*group.tombstones_of([member_id])]
        records.append(group.epoch_record(epoch + 1, metadata_hash))
        if len(group.members) == 1:
            records.append(group.target_epoch_record(epoch + 1, 0))
        self.settle(group)
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epoch, Cause(what, (member,)))
        return outcome
