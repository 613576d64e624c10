"""The streams groups of one partition of `__consumer_offsets`: replay, sessions, the end of members.

A member's session ends where no heartbeat comes for `streams.session.timeout.ms`; a member that must give tasks back
and does not within its rebalance timeout is fenced too. A new group waits for more members before its first
assignment, for `streams.initial.rebalance.delay.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.base.pending import Pending
from kalda.coordinator.groups.kind_groups import HasGroup, KindGroups
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.groups.streams.config import StreamsSettings
from kalda.coordinator.groups.streams.group import StreamsGroup
from kalda.coordinator.groups.streams.member import StreamsMember, TaskState
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, TimerTask

log = logging.getLogger(__name__)


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
        super().__init__(StreamsGroup, partition, settings.config, timers, now_ms, history, has_group)
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

    def on_unloaded(self) -> None:
        """Another node leads: no timer fires."""
        super().on_unloaded()
        for group_id in list(self._delays):
            self._end_delay(group_id)

    # -- timers --------------------------------------------------------------------------------------------------

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

    def end_member(self, group: StreamsGroup, member_id: str, what: str) -> Pending[None]:
        """After the last member the next one does not wait for an interval between assignments."""
        epochs = group.epochs
        epoch = epochs.group + 1
        records: list[GroupLogRecord] = [*group.tombstones_of([member_id])]
        records.append(
            group.epoch_record(epoch, epochs.metadata_hash, epochs.validated_topology, group.assignment_configs)
        )
        if len(group.members) == 1:
            records.append(group.target_epoch_record(epoch, 0))
        cause = Cause(what, (group.member(member_id),))
        self.settle(group)
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epochs.group, cause)
        return outcome
