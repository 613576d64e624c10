"""Share groups (KIP-932): the replayed state of one, and all of one partition of `__consumer_offsets`.

A change of what its members subscribe to, of those topics, or of what is initialized of them raises the group epoch. A
member takes its target over with its next heartbeat: share groups have nothing to give back first, since several
members may have a partition.

A partition is assigned once its state is initialized at the share coordinator. Until then it is initializing, which is
tried again after a time; `Initialization` keeps both, by topic id.

A member's session ends where no heartbeat comes for `share.session.timeout.ms`; it begins anew when the partition is
loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.config import ShareGroupSettings
from kalda.coordinator.groups.kind_group import (
    FIRST_EPOCH,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    SHARE,
    Epochs,
    KindGroup,
    KindKeys,
    count_names,
    names_after,
)
from kalda.coordinator.groups.kind_protocol import HasGroup, KindGroups
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock
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

_STABLE = 0
"""The state of every member, as it is stored."""
UNKNOWN_TOPIC = "<UNKNOWN>"
"""The stored name of a topic that was deleted."""


class ShareGroupState(Enum):
    """As ShareGroupDescribe and ListGroups name it."""

    EMPTY = "Empty"
    STABLE = "Stable"


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

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        """With the fields that the client gives, as the record has them."""
        return replace(
            self,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
        """What it has, as the record has it."""
        assigned = {each.topic_id: frozenset(each.partitions) for each in value.assigned_partitions if each.partitions}
        return replace(self, epoch=value.member_epoch, previous_epoch=value.previous_member_epoch, assigned=assigned)

    def without_assignment(self) -> ShareMember:
        """As it is when the record of its assignment has been deleted, which no coordinator does."""
        return replace(self, epoch=LEAVING_EPOCH, previous_epoch=JOINING_EPOCH, assigned={})

    def metadata_value(self) -> ShareGroupMemberMetadataValue:
        """The record of the fields that the client gives."""
        return ShareGroupMemberMetadataValue(
            rack_id=self.rack,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
        )

    def assignment_value(self) -> ShareGroupCurrentMemberAssignmentValue:
        """The record of what it has."""
        return ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=_STABLE,
            assigned_partitions=[
                ShareGroupCurrentMemberAssignmentValueTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in self.assigned.items()
            ],
        )


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


class ShareGroup(KindGroup[Epochs, ShareMember, MemberPartitions]):
    """One group."""

    kind = SHARE
    keys = KindKeys(
        ShareGroupMetadataKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
        ShareGroupMemberMetadataKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupCurrentMemberAssignmentKey,
    )
    no_assignment_epoch = FIRST_EPOCH

    def __init__(self, group_id: str, registry: SnapshotRegistry) -> None:
        super().__init__(group_id, registry, Epochs(), {}, ShareMember)
        self._initialization: TimelineValue[Initialization] = TimelineValue(registry, Initialization())
        self._by_topic: TimelineDict[str, int] = TimelineDict(registry)
        """How many members subscribe to each topic."""
        self._all_assigned: tuple[Initialization | None, Epochs | None] = None, None
        """With which of both the target had everything: what members subscribe to, and targets, change with epochs."""

    # -- what is read --------------------------------------------------------------------------------------------

    @property
    def initialization(self) -> Initialization:
        return self._initialization.value

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

    @property
    def subscribed_topics(self) -> Iterable[str]:
        return self._by_topic.keys()

    def subscribed_after(self, removed: Iterable[str], added: Iterable[str]) -> set[str]:
        """The topics that are subscribed to once a member that had `removed` has `added` instead."""
        return names_after(self._by_topic, removed, added)

    @property
    def has_unassigned(self) -> bool:
        """Whether partitions are initialized, and subscribed to, that the target does not have."""
        if not self.members or not self.initialization.initialized:
            return False
        initialization, epochs = self.initialization, self.epochs
        if self._all_assigned[0] is initialization and self._all_assigned[1] is epochs:
            return False
        assigned: dict[Uuid, set[int]] = {}
        for partitions in self.targets.values():
            for topic_id, numbers in partitions.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        for topic_id, topic in initialization.initialized.items():
            if topic.name in self._by_topic and assigned.get(topic_id, set()) != topic.partitions:
                return True
        self._all_assigned = initialization, epochs
        return False

    # -- replay --------------------------------------------------------------------------------------------------

    def _replay_own(self, key: Any, value: Any) -> None:
        assert isinstance(key, ShareGroupMetadataKey)
        if value is not None:
            self._change_epochs(group=value.epoch, metadata_hash=value.metadata_hash)

    def _target_of(self, value: Any) -> MemberPartitions:
        return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions if topic.partitions}

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
            count_names(self._by_topic, () if old is None else old.topics, -1)
            count_names(self._by_topic, member.topics, 1)
        self.members[member.member_id] = member

    def remove_member(self, member_id: str) -> ShareMember | None:
        old = super().remove_member(member_id)
        if old is not None:
            count_names(self._by_topic, old.topics, -1)
        return old

    # -- records -------------------------------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> KindRecord:
        """The record of a group epoch."""
        value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        return self._of_group(ShareGroupMetadataKey, value)

    def _target_value(self, target: MemberPartitions) -> ShareGroupTargetAssignmentMemberValue:
        topics = [
            ShareGroupTargetAssignmentMemberValueTopicPartition(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in target.items()
        ]
        return ShareGroupTargetAssignmentMemberValue(topic_partitions=topics)

    def initialization_record(self, initialization: Initialization) -> KindRecord:
        """The record of what is initialized."""
        return self._of_group(ShareGroupStatePartitionMetadataKey, initialization.value())

    def _own_tombstones(self) -> Iterable[KindRecord]:
        return [self._of_group(ShareGroupStatePartitionMetadataKey, None)]


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
