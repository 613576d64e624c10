"""The streams groups of one partition of `__consumer_offsets`: replay, sessions, the end of members.

A member's session ends where no heartbeat comes for `streams.session.timeout.ms`; a member that must give tasks back
and does not within its rebalance timeout is fenced too. A new group waits for more members before its first
assignment, for `streams.initial.rebalance.delay.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kalda.base.pending import Pending
from kalda.coordinator.groups.kind_groups import HasGroup, KindGroups, Replay
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.groups.streams.config import StreamsSettings
from kalda.coordinator.groups.streams.group import STREAMS, StreamsGroup
from kalda.coordinator.groups.streams.member import StreamsMember, TaskState, target_from
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.protocol.messages.group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from kalda.protocol.notation import RecordBody

log = logging.getLogger(__name__)

_NO_ASSIGNMENT_EPOCH = -1


class StreamsGroups(KindGroups[StreamsGroup]):
    """Those of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        settings: StreamsSettings,
        timers: CoordinatorTimer,
        now_ms: Callable[[], int],
        history: RebalanceHistory,
        has_group: HasGroup,
    ) -> None:
        ends = StreamsGroupMemberMetadataKey, StreamsGroupMetadataKey
        super().__init__(STREAMS, partition, timers, now_ms, StreamsGroup, _REPLAYS, ends, history, has_group)
        self._settings = settings
        self._revocations = self._member_timers()
        """Of members that are to give tasks back."""
        self._delays: dict[str, TimerTask] = {}
        """By group, until its first assignment."""

    def discard(self, group_id: str) -> None:
        """The group has ended, or its id belongs to a group of another kind now."""
        super().discard(group_id)
        self._end_delay(group_id)

    # -- what happens to the partition ---------------------------------------------------------------------------

    def on_loaded(self) -> None:
        """All records are replayed: sessions begin."""
        for group in self.groups.values():
            for member in group.members.values():
                self.start_session(group, member.member_id)
                self.watch_revocation(group, member)

    def on_unloaded(self) -> None:
        """Another node leads: no timer fires."""
        super().on_unloaded()
        for group_id in list(self._delays):
            self._end_delay(group_id)

    # -- timers --------------------------------------------------------------------------------------------------

    def start_session(self, group: StreamsGroup, member_id: str) -> None:
        """A member has sent a heartbeat: its session begins anew."""
        self._begin_session((group.group_id, member_id), self._settings.config.session_timeout_ms(group.group_id))

    def watch_revocation(self, group: StreamsGroup, member: StreamsMember) -> None:
        """A member that is to give tasks back has its rebalance timeout for it, from when it entered its epoch; it is
        not watched in any other state."""
        key = (group.group_id, member.member_id)
        if member.state is TaskState.UNREVOKED_TASKS:
            self._watch_epoch(self._revocations, key, member, f"did not give tasks back in epoch {member.epoch}")
        else:
            self._revocations.disarm(key)

    def delays_assignment(self, group_id: str) -> bool:
        """Whether the group waits for more members."""
        return group_id in self._delays

    def delay_left_ms(self, group_id: str) -> int | None:
        """For how long the group still waits; None where it does not."""
        timer = self._delays.get(group_id)
        deadline_ms = None if timer is None else timer.deadline_ms
        return None if deadline_ms is None else max(deadline_ms - self._now_ms(), 0)

    def delay_assignment(self, group_id: str, on_end: Callable[[StreamsGroup], None]) -> None:
        """A group has got its first member: `on_end(group)` is called after the delay, if there is one and the group
        still has members. The group must not be waiting."""
        delay_ms = self._settings.config.initial_rebalance_delay_ms(group_id)
        if delay_ms <= 0 or group_id in self._delays:
            return

        def end(_: int) -> None:
            self._delays.pop(group_id, None)
            group = self.groups.get(group_id)
            if group is not None and group.members and self._partition.is_active:
                on_end(group)

        timer = self._delays[group_id] = TimerTask(end)
        self._timers.arm(timer, self._now_ms() + delay_ms)

    def _end_delay(self, group_id: str) -> None:
        timer = self._delays.pop(group_id, None)
        if timer is not None:
            self._timers.disarm(timer)

    # -- ends ----------------------------------------------------------------------------------------------------

    def fence(self, group: StreamsGroup, member_id: str, what: str) -> Pending[None]:
        """Remove a member, to which `what` has happened. What it has is free for others, which get it in the next group
        epoch. After the last member the next one does not wait for an interval between assignments."""
        epochs = group.epochs
        epoch = epochs.group + 1
        records: list[GroupLogRecord] = [*group.tombstones_of([member_id])]
        records.append(
            group.epoch_record(epoch, epochs.metadata_hash, epochs.validated_topology, group.assignment_configs)
        )
        if len(group.members) == 1:
            records.append(group.target_metadata_record(epoch, 0))
        cause = Cause(what, (group.member(member_id),))
        self.settle(group)
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epochs.group, cause)
        return outcome

    def _end_member(self, group: StreamsGroup, member_id: str, what: str) -> Pending[None]:
        return self.fence(group, member_id, what)


# How each record changes its group.


def _replay_metadata(group: StreamsGroup, key: StreamsGroupMetadataKey, value: RecordBody | None) -> None:
    if isinstance(value, StreamsGroupMetadataValue):
        group.replay_metadata(value)


def _replay_topology(group: StreamsGroup, key: StreamsGroupTopologyKey, value: RecordBody | None) -> None:
    assert value is None or isinstance(value, StreamsGroupTopologyValue)
    group.replay_topology(value)


def _replay_member(group: StreamsGroup, key: StreamsGroupMemberMetadataKey, value: RecordBody | None) -> None:
    if isinstance(value, StreamsGroupMemberMetadataValue):
        member = group.members.get(key.member_id) or StreamsMember(key.member_id)
        group.replay_member(member.with_metadata(value))
    else:
        group.remove_member(key.member_id)


def _replay_assignment(
    group: StreamsGroup, key: StreamsGroupCurrentMemberAssignmentKey, value: RecordBody | None
) -> None:
    member = group.members.get(key.member_id)
    if isinstance(value, StreamsGroupCurrentMemberAssignmentValue):
        group.replay_member((member or StreamsMember(key.member_id)).with_assignment(value))
    elif member is not None:
        group.replay_member(member.without_assignment())


def _replay_target(group: StreamsGroup, key: StreamsGroupTargetAssignmentMemberKey, value: RecordBody | None) -> None:
    if isinstance(value, StreamsGroupTargetAssignmentMemberValue):
        group.targets[key.member_id] = target_from(value)
    else:
        group.targets.pop(key.member_id, None)


def _replay_target_metadata(
    group: StreamsGroup, key: StreamsGroupTargetAssignmentMetadataKey, value: RecordBody | None
) -> None:
    if isinstance(value, StreamsGroupTargetAssignmentMetadataValue):
        group.replay_target_epoch(value.assignment_epoch, value.assignment_timestamp)
    else:
        group.replay_target_epoch(_NO_ASSIGNMENT_EPOCH, 0)


_REPLAYS: Mapping[type[RecordBody], Replay[StreamsGroup]] = {
    StreamsGroupMetadataKey: _replay_metadata,
    StreamsGroupTopologyKey: _replay_topology,
    StreamsGroupMemberMetadataKey: _replay_member,
    StreamsGroupCurrentMemberAssignmentKey: _replay_assignment,
    StreamsGroupTargetAssignmentMemberKey: _replay_target,
    StreamsGroupTargetAssignmentMetadataKey: _replay_target_metadata,
}
