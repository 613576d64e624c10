"""Consumer groups (KIP-848): the replayed state of one, and all of one partition of `__consumer_offsets`.

Every change of what its members subscribe to, or of those topics, raises the group epoch. Each member comes to the
assignment epoch when it has given back what it must (`consumer_protocol.py`); offsets of another epoch are refused.

Two timers a member. Its session ends where no heartbeat comes for `consumer.session.timeout.ms`; a member that must
give partitions back and does not within its rebalance timeout is fenced too. Both begin when the partition is loaded.
A member of the classic protocol has its own session timeout, and its rebalance timeout to join again where that is due,
then to send SyncGroup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.config import ConsumerSettings
from kalda.coordinator.groups.kind_group import (
    CONSUMER,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
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
from kalda.coordinator.timers import CoordinatorTimer
from kalda.protocol.messages.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupCurrentMemberAssignmentValueTopicPartitions,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMemberValueTopicPartition,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict, TimelineValue

# A member of a consumer group (KIP-848) as a value, and its two records.
#
# A member is replaced, never changed. ConsumerGroupMemberMetadata has what the client said of itself,
# ConsumerGroupCurrentMemberAssignment what the coordinator has assigned to it so far.
#
# Each assigned partition has the epoch in which the member got it: offsets that the member commits in an older epoch
# than its own are still its own if they are not older than that (KIP-1251).

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


log = logging.getLogger(__name__)


class ConsumerGroupState(Enum):
    """As ConsumerGroupDescribe and ListGroups name it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Not every member has its target."""
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerEpochs(Epochs):
    """What the records of the group itself have."""

    has_partition_metadata: bool = False
    """Whether the log has a record of releases before 4.1, which the hash replaces."""


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches."""

    topics: frozenset[str]
    version: int
    """The offset of the metadata that it was resolved with."""
    timestamp_ms: int


class ConsumerGroup(KindGroup[ConsumerEpochs, ConsumerMember, MemberPartitions]):
    """One group."""

    kind = CONSUMER
    keys = KindKeys(
        ConsumerGroupMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str, registry: SnapshotRegistry) -> None:
        super().__init__(group_id, registry, ConsumerEpochs(), {}, ConsumerMember)
        self.regexes: TimelineDict[str, ResolvedRegex] = TimelineDict(registry)
        """Those resolved, by pattern."""
        self._owners: TimelineDict[tuple[Uuid, int], str] = TimelineDict(registry)
        """Who owns each partition."""
        self._by_topic: TimelineDict[str, int] = TimelineDict(registry)
        """How many members, and resolved regular expressions, name each topic."""
        self._by_regex: TimelineDict[str, int] = TimelineDict(registry)
        """How many members subscribe to each regular expression."""
        self._by_assignor: TimelineDict[str, int] = TimelineDict(registry)
        """How many members ask for each assignor."""
        self._by_protocol: TimelineDict[str, int] = TimelineDict(registry)
        """How many members of the classic protocol support each of its protocols."""
        self._classic_count: TimelineValue[int] = TimelineValue(registry, 0)

    # -- what is read --------------------------------------------------------------------------------------------

    def state(self, epoch: int = LATEST) -> ConsumerGroupState:
        """Visits the members."""
        epochs = self._epochs.get(epoch)
        members = self.members.values(epoch)
        if not members:
            return ConsumerGroupState.EMPTY
        if epochs.group > epochs.assignment:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(epochs.assignment) for member in members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_stable(self) -> bool:
        """Whether every member has its target. Visits the members."""
        return self.state() is ConsumerGroupState.STABLE

    def is_taken(self, member_id: str, topic_id: Uuid, partition: int) -> bool:
        """Whether another member owns the partition."""
        owner = self._owners.get((topic_id, partition))
        return owner is not None and owner != member_id

    @property
    def classic_count(self) -> int:
        """How many members use the classic protocol."""
        return self._classic_count.value

    def supports_classic(self, protocols: Iterable[str]) -> bool:
        """Whether all members of the classic protocol support one of these."""
        return any(self._by_protocol.get(name, 0) == self.classic_count for name in protocols)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition of the member's target is still another's."""
        return any(
            self.is_taken(member.member_id, topic_id, partition)
            for topic_id, partitions in self.target(member.member_id).items()
            for partition in partitions
        )

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return topic in self._by_topic

    @property
    def subscribed_topics(self) -> Iterable[str]:
        return self._by_topic.keys()

    @property
    def subscribed_regexes(self) -> Iterable[str]:
        return self._by_regex.keys()

    def subscribers_of(self, regex: str) -> int:
        """How many members subscribe to a regular expression."""
        return self._by_regex.get(regex, 0)

    def subscribed_after(self, removed: Iterable[str], added: Iterable[str]) -> set[str]:
        """The topics that are subscribed to once each of `removed` has one subscriber fewer and each of `added` one
        more."""
        return names_after(self._by_topic, removed, added)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to, and those that its regular expression matches."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def preferred_assignor(self, default: str, epoch: int = LATEST) -> str:
        """The assignor that most members ask for."""
        counts = self._by_assignor.items(epoch)
        return max(counts, key=lambda item: item[1])[0] if counts else default

    # -- checks --------------------------------------------------------------------------------------------------

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: Iterable[tuple[str, Uuid, int]],
        *,
        transactional: bool,
        version: int,
    ) -> None:
        """Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION and STALE_MEMBER_EPOCH, for which a classic member gets
        ILLEGAL_GENERATION.

        The epoch must be the member's, or not older than that in which it got each of `partitions` (KIP-1251)."""
        member = self._behind_member(member_id, instance_id, epoch, transactional=transactional, version=version)
        if member is None:
            return
        for _, topic_id, partition in partitions:
            since = member.assignment_epoch(topic_id, partition)
            if since is None or epoch < since:
                message = f"Received member epoch {epoch} is older than the assignment of a partition."
                raise ApiError(self._stale_code(member), message)

    def _stale_code(self, member: ConsumerMember) -> ErrorCode:
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    # -- replay --------------------------------------------------------------------------------------------------

    def _replay_own(self, key: Any, value: Any) -> None:
        if isinstance(key, ConsumerGroupMetadataKey):
            if value is not None:
                self._change_epochs(group=value.epoch, metadata_hash=value.metadata_hash)
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            self._change_epochs(has_partition_metadata=value is not None)
        else:
            assert isinstance(key, ConsumerGroupRegularExpressionKey)
            resolved = None
            if value is not None:
                resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self._replay_regex(key.regular_expression, resolved)

    def _target_of(self, value: Any) -> MemberPartitions:
        return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions if topic.partitions}

    def replay_member(self, member: ConsumerMember) -> None:
        """A member is new or has changed."""
        old = self.members.get(member.member_id)
        self._count(old, -1)
        self._count(member, 1)
        self.members[member.member_id] = member
        if old is not None and (old.assigned is not member.assigned or old.revoking is not member.revoking):
            self._release(old)
        for partition in member.owned():
            self._owners[partition] = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove_member(self, member_id: str) -> ConsumerMember | None:
        old = super().remove_member(member_id)
        if old is not None:
            self._count(old, -1)
            self._release(old)
        return old

    def _replay_regex(self, pattern: str, resolved: ResolvedRegex | None) -> None:
        old = self.regexes.pop(pattern, None)
        if old is not None:
            count_names(self._by_topic, old.topics, -1)
        if resolved is not None:
            self.regexes[pattern] = resolved
            count_names(self._by_topic, resolved.topics, 1)

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.owned():
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]

    def _count(self, member: ConsumerMember | None, by: int) -> None:
        if member is None:
            return
        count_names(self._by_topic, member.topics, by)
        if member.regex:
            count_names(self._by_regex, (member.regex,), by)
        if member.assignor is not None:
            count_names(self._by_assignor, (member.assignor,), by)
        if member.classic is not None:
            self._classic_count.value += by
            count_names(self._by_protocol, {protocol.name for protocol in member.classic.supported_protocols}, by)

    # -- records -------------------------------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> KindRecord:
        """The record of a group epoch."""
        value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        return self._of_group(ConsumerGroupMetadataKey, value)

    def _target_value(self, target: MemberPartitions) -> ConsumerGroupTargetAssignmentMemberValue:
        topics = [
            ConsumerGroupTargetAssignmentMemberValueTopicPartition(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in target.items()
        ]
        return ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)

    def partition_metadata_tombstone(self) -> KindRecord:
        """What removes the record of releases before 4.1."""
        return self._of_group(ConsumerGroupPartitionMetadataKey, None)

    def _own_tombstones(self) -> Iterable[KindRecord]:
        return [*self.tombstones_of_regexes(self.regexes), self.partition_metadata_tombstone()]

    def tombstones_of_regexes(self, patterns: Iterable[str]) -> Iterator[KindRecord]:
        """What removes resolved regular expressions."""
        for pattern in patterns:
            key = ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=pattern)
            yield KindRecord(self.group_id, key, None)


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
