"""The replayed state of one share group (KIP-932).

A change of what its members subscribe to, of those topics, or of what is initialized of them raises the group epoch. A
target assignment is computed for a group epoch, and a member takes it over with its next heartbeat: share groups have
nothing to give back first, since several members may have a partition.

A partition is assigned once its state is initialized at the share coordinator. Until then it is initializing, which is
tried again after a time; `Initialization` keeps both, by topic id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.coordinator.groups.kind_groups import fenced_epoch
from kalda.coordinator.groups.records import KindRecord
from kalda.protocol.messages.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupCurrentMemberAssignmentValueTopicPartitions,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupStatePartitionMetadataValueTopicInfo,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMemberValueTopicPartition,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartitionsInfo,
)
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict, TimelineValue

SHARE: Final = "share"
"""The type of these groups, and the protocol type that they have."""
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
_FIRST_EPOCH = 1
_STABLE = 0
"""The state of every member, as it is stored."""
_NOTHING: Final[MemberPartitions] = {}
UNKNOWN_TOPIC = "<UNKNOWN>"
"""The stored name of a topic that was deleted."""


class ShareGroupState(Enum):
    """As ShareGroupDescribe and ListGroups name it."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareEpochs(NamedTuple):
    """What the records of the group itself have."""

    group: int = _FIRST_EPOCH
    metadata_hash: int = 0
    """Of the topics that members subscribe to; 0 for none."""
    assignment: int = _FIRST_EPOCH
    assignment_ms: int = 0
    """When the target assignment was computed; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member."""

    member_id: str
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    assigned: MemberPartitions = field(default_factory=dict)

    @property
    def instance_id(self) -> None:
        """No member of a share group is static."""

    def check_epoch(self, epoch: int) -> None:
        """Raises FENCED_MEMBER_EPOCH unless it is the member's epoch, or the one before: an answer may have been lost.
        A member that joins again is let in."""
        if epoch not in (JOINING_EPOCH, self.epoch, self.previous_epoch):
            raise fenced_epoch(SHARE, epoch, self.epoch)


class Topic(NamedTuple):
    """Partitions of a topic."""

    name: str
    partitions: frozenset[int]
    since_ms: int = 0
    """When they began to be initialized, as far as this coordinator can know."""


class Initialization(NamedTuple):
    """Which partitions have state at the share coordinator."""

    initializing: Mapping[Uuid, Topic] = {}
    initialized: Mapping[Uuid, Topic] = {}
    deleting: Mapping[Uuid, str] = {}
    """Topics whose state is being deleted, with their names."""

    def value(self) -> ShareGroupStatePartitionMetadataValue:
        """The value of its record."""
        return ShareGroupStatePartitionMetadataValue(
            initializing_topics=_infos(self.initializing),
            initialized_topics=_infos(self.initialized),
            deleting_topics=[
                ShareGroupStatePartitionMetadataValueTopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in self.deleting.items()
            ],
        )

    def begun(self, topics: Mapping[Uuid, Topic]) -> Initialization:
        """These partitions are being initialized."""
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topics}
        return Initialization(_united(self.initializing, topics), self.initialized, deleting)

    def done(self, topics: Mapping[Uuid, Topic]) -> Initialization:
        """These partitions are initialized."""
        return Initialization(_without(self.initializing, topics), _united(self.initialized, topics), self.deleting)

    def failed(self, topics: Mapping[Uuid, Topic]) -> Initialization:
        """These partitions are not, and may be tried again."""
        return self._replace(initializing=_without(self.initializing, topics))

    def without(self, topic_ids: Iterable[Uuid]) -> Initialization:
        """Topics were deleted."""
        gone = frozenset(topic_ids)
        return Initialization(
            {key: topic for key, topic in self.initializing.items() if key not in gone},
            {key: topic for key, topic in self.initialized.items() if key not in gone},
            {key: name for key, name in self.deleting.items() if key not in gone},
        )


def _infos(topics: Mapping[Uuid, Topic]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


def _united(topics: Mapping[Uuid, Topic], more: Mapping[Uuid, Topic]) -> dict[Uuid, Topic]:
    united = dict(topics)
    for topic_id, topic in more.items():
        held = united.get(topic_id)
        united[topic_id] = topic if held is None else topic._replace(partitions=held.partitions | topic.partitions)
    return united


def _without(topics: Mapping[Uuid, Topic], fewer: Mapping[Uuid, Topic]) -> dict[Uuid, Topic]:
    left = {}
    for topic_id, topic in topics.items():
        removed = fewer[topic_id].partitions if topic_id in fewer else frozenset()
        partitions = topic.partitions - removed
        if partitions:
            left[topic_id] = topic._replace(partitions=partitions)
    return left


class ShareGroup:
    """One group."""

    def __init__(self, group_id: str, registry: SnapshotRegistry) -> None:
        self.group_id = group_id
        self._epochs: TimelineValue[ShareEpochs] = TimelineValue(registry, ShareEpochs())
        self._initialization: TimelineValue[Initialization] = TimelineValue(registry, Initialization())
        self.members: TimelineDict[str, ShareMember] = TimelineDict(registry)
        self.targets: TimelineDict[str, MemberPartitions] = TimelineDict(registry)
        self._by_topic: TimelineDict[str, int] = TimelineDict(registry)
        """How many members subscribe to each topic."""
        self.needs_refresh = True
        """Whether topics may have changed since the hash was computed. Not replayed."""

    # -- what is read --------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> ShareEpochs:
        return self._epochs.value

    def epochs_at(self, epoch: int) -> ShareEpochs:
        """As they were at an epoch of the timeline."""
        return self._epochs.get(epoch)

    @property
    def initialization(self) -> Initialization:
        return self._initialization.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    def state(self, epoch: int = LATEST) -> ShareGroupState:
        """At an epoch of the timeline."""
        return ShareGroupState.STABLE if self.members.size(epoch) else ShareGroupState.EMPTY

    @property
    def is_stable(self) -> bool:
        """Whether every member has its target. Visits the members."""
        epochs = self.epochs
        return epochs.assignment >= epochs.group and not any(
            member.epoch < epochs.assignment for member in self.members.values()
        )

    def member(self, member_id: str) -> ShareMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def target(self, member_id: str) -> MemberPartitions:
        """The target of a member, empty without one."""
        return self.targets.get(member_id, _NOTHING)

    @property
    def subscribed_topics(self) -> Iterable[str]:
        return self._by_topic.keys()

    def subscribed_after(self, removed: Iterable[str], added: Iterable[str]) -> set[str]:
        """The topics that are subscribed to once a member that had `removed` has `added` instead."""
        topics = set(self._by_topic)
        topics.difference_update(name for name in removed if self._by_topic.get(name, 0) <= 1)
        topics.update(added)
        return topics

    @property
    def has_unassigned(self) -> bool:
        """Whether partitions are initialized, and subscribed to, that the target does not have."""
        if not self.members or not self.initialization.initialized:
            return False
        assigned: dict[Uuid, set[int]] = {}
        for partitions in self.targets.values():
            for topic_id, numbers in partitions.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        return any(
            topic.name in self._by_topic and assigned.get(topic_id, set()) != topic.partitions
            for topic_id, topic in self.initialization.initialized.items()
        )

    # -- checks --------------------------------------------------------------------------------------------------

    def check_deletable(self) -> None:
        """Raises NON_EMPTY_GROUP."""
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    # -- replay --------------------------------------------------------------------------------------------------

    def replay_epochs(self, **changed: int) -> None:
        """A record of the group itself."""
        self._epochs.value = self.epochs._replace(**changed)

    def replay_initialization(self, value: ShareGroupStatePartitionMetadataValue | None, now_ms: int) -> None:
        """What is initialized has changed."""
        if value is None:
            self._initialization.value = Initialization()
            return
        self._initialization.value = Initialization(
            {
                each.topic_id: Topic(each.topic_name, frozenset(each.partitions), now_ms)
                for each in value.initializing_topics
            },
            {
                each.topic_id: Topic(each.topic_name, frozenset(each.partitions), now_ms)
                for each in value.initialized_topics
            },
            {each.topic_id: each.topic_name for each in value.deleting_topics},
        )

    def replay_member(self, member: ShareMember) -> None:
        """A member is new or has changed."""
        old = self.members.get(member.member_id)
        if old is None or old.topics != member.topics:
            self._count(() if old is None else old.topics, -1)
            self._count(member.topics, 1)
        self.members[member.member_id] = member

    def remove_member(self, member_id: str) -> None:
        """A member has left."""
        old = self.members.pop(member_id, None)
        if old is not None:
            self._count(old.topics, -1)

    def _count(self, names: Iterable[str], by: int) -> None:
        for name in names:
            count = self._by_topic.get(name, 0) + by
            if count:
                self._by_topic[name] = count
            else:
                self._by_topic.pop(name, None)

    # -- records -------------------------------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> KindRecord:
        """The record of a group epoch."""
        value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        return KindRecord(self.group_id, ShareGroupMetadataKey(group_id=self.group_id), value)

    def member_record(self, member: ShareMember) -> KindRecord:
        """The record of what a member says of itself."""
        value = ShareGroupMemberMetadataValue(
            rack_id=member.rack,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
        )
        key = ShareGroupMemberMetadataKey(group_id=self.group_id, member_id=member.member_id)
        return KindRecord(self.group_id, key, value)

    def assignment_record(self, member: ShareMember) -> KindRecord:
        """The record of what a member has."""
        value = ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=_STABLE,
            assigned_partitions=[
                ShareGroupCurrentMemberAssignmentValueTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in member.assigned.items()
            ],
        )
        key = ShareGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member.member_id)
        return KindRecord(self.group_id, key, value)

    def target_record(self, member_id: str, partitions: MemberPartitions) -> KindRecord:
        """The record of a member's target."""
        value = ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                ShareGroupTargetAssignmentMemberValueTopicPartition(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in partitions.items()
            ]
        )
        key = ShareGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id)
        return KindRecord(self.group_id, key, value)

    def target_metadata_record(self, epoch: int, now_ms: int) -> KindRecord:
        """The record by which a target counts."""
        value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
        return KindRecord(self.group_id, ShareGroupTargetAssignmentMetadataKey(group_id=self.group_id), value)

    def initialization_record(self, initialization: Initialization) -> KindRecord:
        """The record of what is initialized."""
        key = ShareGroupStatePartitionMetadataKey(group_id=self.group_id)
        return KindRecord(self.group_id, key, initialization.value())

    def tombstones_of(self, member_ids: Iterable[str]) -> list[KindRecord]:
        """What removes members."""
        return [
            KindRecord(self.group_id, key(group_id=self.group_id, member_id=member_id), None)
            for member_id in member_ids
            for key in (
                ShareGroupCurrentMemberAssignmentKey,
                ShareGroupTargetAssignmentMemberKey,
                ShareGroupMemberMetadataKey,
            )
        ]

    def tombstones(self) -> list[KindRecord]:
        """What removes the group, its own record last."""
        return [
            *self.tombstones_of(self.members),
            KindRecord(self.group_id, ShareGroupTargetAssignmentMetadataKey(group_id=self.group_id), None),
            KindRecord(self.group_id, ShareGroupStatePartitionMetadataKey(group_id=self.group_id), None),
            KindRecord(self.group_id, ShareGroupMetadataKey(group_id=self.group_id), None),
        ]


def with_metadata(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    """The member as its record says."""
    return replace(
        member,
        rack=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def with_assignment(member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
    """The member with what it has."""
    assigned = {each.topic_id: frozenset(each.partitions) for each in value.assigned_partitions if each.partitions}
    return replace(member, epoch=value.member_epoch, previous_epoch=value.previous_member_epoch, assigned=assigned)
