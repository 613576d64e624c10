"""The consumer groups of one partition of `__consumer_offsets`: replay, sessions, the end of members and groups.

Two timers a member. Its session ends where no heartbeat comes for `consumer.session.timeout.ms`; a member that must
give partitions back and does not within its rebalance timeout is fenced too. Both begin when the partition is loaded.
A member of the classic protocol has its own session timeout, and its rebalance timeout to join again where that is due,
then to send SyncGroup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial

from kalda.base.pending import Pending
from kalda.coordinator.groups.config import ConsumerSettings
from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.coordinator.groups.consumer_member import ConsumerMember, MemberState
from kalda.coordinator.groups.kind_groups import HasGroup, KindGroups
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer

log = logging.getLogger(__name__)


class ConsumerGroups(KindGroups[ConsumerGroup]):
    """Those of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        settings: ConsumerSettings,
        timers: CoordinatorTimer,
        now_ms: Callable[[], int],
        downgrade: Callable[[ConsumerGroup, Collection[str], Cause], Pending[None] | None],
        history: RebalanceHistory,
        has_group: HasGroup,
    ) -> None:
        """`downgrade(group, leaving, cause)` makes a classic group of one that only has members of the classic protocol
        left, and gives None where that is not due."""
        super().__init__(ConsumerGroup, partition, settings.config, timers, now_ms, history, has_group)
        self._settings = settings
        self._revocations = self._member_timers()
        """Of members that are to give partitions back."""
        self._joins = self._member_timers()
        """Of members of the classic protocol that are to join again."""
        self._syncs = self._member_timers()
        """Of members of the classic protocol that have joined and are to send SyncGroup."""
        self._downgrade = downgrade

    # -- sessions ------------------------------------------------------------------------------------------------

    def start_session(self, group: ConsumerGroup, member_id: str) -> None:
        """A heartbeat of the member has come: its session begins anew."""
        key = (group.group_id, member_id)
        member = group.members.get(member_id)
        if member is not None and member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._settings.config.session_timeout_ms(group.group_id)
            self._joins.disarm(key)
            self._syncs.disarm(key)
        self._begin_session(key, timeout_ms)

    def await_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member of the classic protocol got an answer by which it has to join again, within its rebalance
        timeout."""
        key = (group.group_id, member.member_id)
        if key not in self._joins:
            on_due = partial(self._expire, key, "did not join again in time")
            self._joins.arm(key, member.rebalance_timeout_ms, on_due)

    def await_sync(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member of the classic protocol has joined: it has its rebalance timeout to send SyncGroup."""
        key = (group.group_id, member.member_id)
        self._joins.disarm(key)
        self._syncs.arm(key, member.rebalance_timeout_ms, partial(self._expire, key, "sent no SyncGroup in time"))

    def on_sync(self, group: ConsumerGroup, member_id: str) -> None:
        """A member of the classic protocol has sent SyncGroup."""
        self._syncs.disarm((group.group_id, member_id))
        self.start_session(group, member_id)

    def watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member that is to give partitions back has its rebalance timeout for it, from when it entered its epoch;
        it is not watched in any other state, nor one of the classic protocol, which is to join again."""
        key = (group.group_id, member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            self._revocations.disarm(key)
            return
        self._watch_epoch(self._revocations, key, member, f"did not give partitions back in epoch {member.epoch}")

    # -- ends ----------------------------------------------------------------------------------------------------

    def end_member(self, group: ConsumerGroup, member_id: str, what: str) -> Pending[None]:
        return self.remove_members(group, [member_id], what)

    def remove_members(
        self, group: ConsumerGroup, member_ids: Iterable[str], what: str, reason: str = ""
    ) -> Pending[None]:
        """Remove members. What they own is free for others, which get it in the next group epoch. Where only members
        of the classic protocol are left, the group may become a classic group. `what` has happened to the members, and
        the `reason` that their client gave, are for operators. After the last member the next one does not wait for an
        interval between assignments."""
        members = [group.members[member_id] for member_id in dict.fromkeys(member_ids)]
        cause = Cause(what, members, reason)
        self.settle(group)
        downgraded = self._downgrade(group, [member.member_id for member in members], cause)
        if downgraded is not None:
            return downgraded
        records = group.tombstones_of(member.member_id for member in members)
        ends = _regexes_that_end(group, members)
        records += group.tombstones_of_regexes(ends)
        removed = [name for member in members for name in member.topics]
        removed += [name for pattern in ends if pattern in group.regexes for name in group.regexes[pattern].topics]
        metadata_hash = self._settings.catalog.hash_of(group.subscribed_after(removed, ()))
        epoch = group.epochs.group
        records.append(group.epoch_record(epoch + 1, metadata_hash))
        if len(members) == len(group.members):
            records.append(group.target_epoch_record(epoch + 1, 0))
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epoch, cause)
        return outcome


def _regexes_that_end(group: ConsumerGroup, leaving: Iterable[ConsumerMember]) -> list[str]:
    """Regular expressions that only members subscribe to that leave."""
    counts: dict[str, int] = {}
    for member in leaving:
        if member.regex:
            counts[member.regex] = counts.get(member.regex, 0) + 1
    return [pattern for pattern, count in counts.items() if group.subscribers_of(pattern) == count]
