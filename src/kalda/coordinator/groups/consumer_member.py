"""A member of a consumer group (KIP-848) as a value, and its two records.

A member is replaced, never changed. ConsumerGroupMemberMetadata has what the client said of itself,
ConsumerGroupCurrentMemberAssignment what the coordinator has assigned to it so far.

Each assigned partition has the epoch in which the member got it: offsets that the member commits in an older epoch than
its own are still its own if they are not older than that (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeAlias

from kalda.base.ids import Uuid
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from kalda.protocol.messages.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupCurrentMemberAssignmentValueTopicPartitions,
    ConsumerGroupMemberMetadataValue,
)

AssignedPartitions: TypeAlias = Mapping[Uuid, Mapping[int, int]]
"""By topic id and partition, the epoch in which the member got the partition. No topic has none."""


class MemberState(IntEnum):
    """Where a member is on its way to its target assignment. The values are those of its record."""

    STABLE = 0
    """It has all of the target of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It must give partitions back before it comes to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given back."""
    UNKNOWN = 127
    """Of a later release."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member."""

    member_id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    """The epoch before: a member whose answer was lost still has that one."""
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """Names that it subscribes to."""
    regex: str = ""
    """What else it subscribes to; empty without."""
    assignor: str | None = None
    """The assignor that it requests."""
    assigned: AssignedPartitions = field(default_factory=dict)
    revoking: AssignedPartitions = field(default_factory=dict)
    """Partitions that it is to give back and still owns."""
    classic: ClassicMemberMetadata | None = None
    """Of a member that uses the classic protocol in this group; None for others."""

    @property
    def leaves_at_once(self) -> bool:
        """Whether its place is free for whoever has its instance id: the classic protocol cannot say that it leaves for
        a while."""
        return self.classic is not None

    def absent(self) -> ConsumerMember:
        """A static member that has left for a while. Whoever returns in its place has its partitions since epoch 0."""
        assigned = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in self.assigned.items()}
        return replace(self, epoch=STATIC_LEAVING_EPOCH, assigned=assigned, revoking={})

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Whether it has all of the target of that epoch."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def owned(self) -> Iterator[tuple[Uuid, int]]:
        """Partitions that no other member may get: those assigned, and those not given back yet."""
        for assigned in (self.assigned, self.revoking):
            for topic_id, partitions in assigned.items():
                for partition in partitions:
                    yield topic_id, partition

    def assignment_epoch(self, topic_id: Uuid, partition: int) -> int | None:
        """The epoch in which it got a partition that it owns; None for others."""
        for assigned in (self.assigned, self.revoking):
            epoch = assigned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    # -- records -------------------------------------------------------------------------------------------------

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        """With the fields that the client gives, as the record has them."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
        """What is assigned to it, as the record has it."""
        known = value.state in MemberState._value2member_map_
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_from_record(value.assigned_partitions, value.member_epoch),
            revoking=_from_record(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerMember:
        """As it is when the record of its assignment has been deleted."""
        return replace(self, epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH, assigned={}, revoking={})

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        """The record of the fields that the client gives."""
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        """The record of what is assigned to it."""
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state.value,
            assigned_partitions=_to_record(self.assigned),
            partitions_pending_revocation=_to_record(self.revoking),
        )


def _from_record(
    topics: Iterable[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions], member_epoch: int
) -> AssignedPartitions:
    """Records of releases before 4.3 have no epochs of assignment: that of the member counts, 0 where it has left."""
    assigned: dict[Uuid, dict[int, int]] = {}
    for topic in topics:
        partitions, epochs = topic.partitions, topic.assignment_epochs
        if not partitions:
            continue
        if epochs is None or len(epochs) != len(partitions):
            epochs = [max(member_epoch, 0)] * len(partitions)
        assigned[topic.topic_id] = dict(zip(partitions, epochs, strict=True))
    return assigned


def _to_record(assigned: AssignedPartitions) -> list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
            topic_id=topic_id, partitions=list(partitions), assignment_epochs=list(partitions.values())
        )
        for topic_id, partitions in assigned.items()
    ]
