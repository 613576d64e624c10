"""The next state of a member of a consumer group, on the way from what it owns to its target assignment (KIP-848).

A partition changes hands in three steps: its owner gets an assignment without it (UNREVOKED_PARTITIONS), says in a
heartbeat that it no longer owns it, and only then another member gets it; that one waits meanwhile
(UNRELEASED_PARTITIONS). So a partition never has two owners. A member comes to the epoch of the target when it has
given back all that it must.

Pure: what others own is looked up by a function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.coordinator.groups.consumer_member import AssignedPartitions, ConsumerMember, MemberState

OwnedPartitions: TypeAlias = Mapping[Uuid, Collection[int]]
"""What a member says that it owns, by topic id."""


class Reconciliation:
    """One step of one member."""

    def __init__(
        self,
        member: ConsumerMember,
        target_epoch: int,
        target: MemberPartitions,
        is_subscribed: Callable[[Uuid], bool],
        is_taken: Callable[[Uuid, int], bool],
        owned: OwnedPartitions | None,
    ) -> None:
        """`is_subscribed(topic_id)`: whether the member subscribes to the topic. `is_taken(topic_id, partition)`:
        whether another member owns it. `owned` is what the member has reported; None where it reported nothing."""
        self._member = member
        self._target_epoch = target_epoch
        self._target = target
        self._is_subscribed = is_subscribed
        self._is_taken = is_taken
        self._owned = owned

    def next_member(self, *, subscription_changed: bool) -> ConsumerMember:
        """The member after this step, or itself. Raises FENCED_MEMBER_EPOCH for a member in a state of a later
        release."""
        member = self._member
        if member.state is MemberState.STABLE:
            if member.epoch != self._target_epoch:
                return self._advance(member.epoch)
            return self._give_up_unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS and self._still_owns(member.revoking):
            return self._give_up_unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNKNOWN:
            if self._owned is None or any(self._owned.values()):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in an unknown state. The member must abandon all its partitions and "
                    "rejoin.",
                )
            return self._advance(self._target_epoch)
        return self._advance(member.epoch)

    def _still_owns(self, revoking: AssignedPartitions) -> bool:
        """A member that does not say what it owns may own all of it."""
        if self._owned is None:
            return True
        return any(
            not partitions.keys().isdisjoint(self._owned.get(topic_id, ())) for topic_id, partitions in revoking.items()
        )

    def _give_up_unsubscribed(self) -> ConsumerMember:
        """Only topics that the member no longer subscribes to are taken away."""
        member = self._member
        assigned = {topic: partitions for topic, partitions in member.assigned.items() if self._is_subscribed(topic)}
        if len(assigned) == len(member.assigned):
            return member
        revoking = {topic: dict(partitions) for topic, partitions in member.revoking.items()}
        for topic, partitions in member.assigned.items():
            if topic not in assigned:
                revoking.setdefault(topic, {}).update(partitions)
        if self._still_owns(revoking):
            return _at_epoch(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
        return _at_epoch(member, member.epoch, member.state, assigned, member.revoking)

    def _advance(self, epoch: int) -> ConsumerMember:
        """Towards the target: `epoch` is kept until nothing is to be given back."""
        member, target_epoch = self._member, self._target_epoch
        kept: dict[Uuid, dict[int, int]] = {}
        revoking: dict[Uuid, dict[int, int]] = {}
        for topic, partitions in member.assigned.items():
            wanted = self._target.get(topic, frozenset()) if self._is_subscribed(topic) else frozenset()
            for partition, since in partitions.items():
                (kept if partition in wanted else revoking).setdefault(topic, {})[partition] = since
        if revoking and self._still_owns(revoking):
            return _at_epoch(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        waits = False
        for topic, wanted in self._target.items():
            if not self._is_subscribed(topic):
                continue
            held: Mapping[int, int] = member.assigned.get(topic, {})
            for partition in wanted:
                if partition in held:
                    continue
                if self._is_taken(topic, partition):
                    waits = True
                else:
                    kept.setdefault(topic, {})[partition] = target_epoch
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return _at_epoch(member, target_epoch, state, kept, {})


def _at_epoch(
    member: ConsumerMember,
    epoch: int,
    state: MemberState,
    assigned: AssignedPartitions,
    revoking: AssignedPartitions,
) -> ConsumerMember:
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking)
