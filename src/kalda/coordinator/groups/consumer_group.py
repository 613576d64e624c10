"""The replayed state of one consumer group (KIP-848).

Every change of what its members subscribe to, or of those topics, raises the group epoch. A target assignment is
computed for a group epoch, which is its assignment epoch then. Each member comes to that epoch when it has given back
what it must (`reconciliation.py`); offsets of another epoch are refused.

Only the replay of a record changes a group, and what is derived of records is kept beside them. Two things are not
replayed: `needs_refresh` and `is_computing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.coordinator.groups.consumer_member import ConsumerMember
from kalda.coordinator.groups.records import KindRecord
from kalda.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict, TimelineValue

CONSUMER: Final = "consumer"
"""The type of these groups, and the protocol type that they have."""
_NOTHING: Final[MemberPartitions] = {}
_FIRST_EPOCH = 1
_COMMITS_WITH_EPOCHS_FROM = 9


class ConsumerGroupState(Enum):
    """As ConsumerGroupDescribe and ListGroups name it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Not every member has its target."""
    STABLE = "Stable"
    DEAD = "Dead"


class Epochs(NamedTuple):
    """What the records of the group itself have."""

    group: int = _FIRST_EPOCH
    metadata_hash: int = 0
    """Of the topics that members subscribe to; 0 for none."""
    assignment: int = _FIRST_EPOCH
    assignment_ms: int = 0
    """When the target assignment was computed; 0 where it is not known."""
    has_partition_metadata: bool = False
    """Whether the log has a record of releases before 4.1, which the hash replaces."""


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches."""

    topics: frozenset[str]
    version: int
    """The offset of the metadata that it was resolved with."""
    timestamp_ms: int


class ConsumerGroup:
    """One group."""

    def __init__(self, group_id: str, registry: SnapshotRegistry) -> None:
        self.group_id = group_id
        self._epochs: TimelineValue[Epochs] = TimelineValue(registry, Epochs())
        self.members: TimelineDict[str, ConsumerMember] = TimelineDict(registry)
        self.targets: TimelineDict[str, MemberPartitions] = TimelineDict(registry)
        self.static_members: TimelineDict[str, str] = TimelineDict(registry)
        """Member id by instance id."""
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
        self.needs_refresh = True
        """Whether topics may have changed since the hash was computed. Not replayed."""
        self.is_computing = False
        """Whether a target assignment is being computed. Not replayed."""

    # -- what is read --------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> Epochs:
        return self._epochs.value

    @property
    def is_empty(self) -> bool:
        return not self.members

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

    def epochs_at(self, epoch: int) -> Epochs:
        """As they were at an epoch of the timeline."""
        return self._epochs.get(epoch)

    def member(self, member_id: str) -> ConsumerMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise _unknown_member(self.group_id, member_id)
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member that has this instance id."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str, epoch: int = LATEST) -> MemberPartitions:
        """The target of a member, empty without one."""
        return self.targets.get(member_id, _NOTHING, epoch)

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
        changes: dict[str, int] = {}
        for name in removed:
            changes[name] = changes.get(name, 0) - 1
        for name in added:
            changes[name] = changes.get(name, 0) + 1
        topics = set(self._by_topic)
        for name, change in changes.items():
            if self._by_topic.get(name, 0) + change > 0:
                topics.add(name)
            else:
                topics.discard(name)
        return topics

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to, and those that its regular expression matches."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def preferred_assignor(self, default: str, epoch: int = LATEST) -> str:
        """The assignor that most members ask for."""
        counts = self._by_assignor.items(epoch)
        return max(counts, key=lambda item: item[1])[0] if counts else default

    # -- checks --------------------------------------------------------------------------------------------------

    def check_deletable(self) -> None:
        """Raises NON_EMPTY_GROUP."""
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """Offsets may be deleted while there are members, those of topics that they do not subscribe to."""

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

        The epoch must be the member's, or not older than that in which it got each of `partitions` (KIP-1251).
        Without members an epoch below 0 is allowed, and in a transaction where nothing names a member.
        """
        if epoch < 0 and not self.members:
            return
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and member.classic is None and version < _COMMITS_WITH_EPOCHS_FROM:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        if epoch == member.epoch:
            return
        if epoch > member.epoch:
            raise ApiError(stale, f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.")
        for _, topic_id, partition in partitions:
            since = member.assignment_epoch(topic_id, partition)
            if since is None or epoch < since:
                raise ApiError(stale, f"Received member epoch {epoch} is older than the assignment of a partition.")

    def check_offset_fetch(self, member_id: str | None, epoch: int, at: int) -> None:
        """Raises UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH. `at` is the epoch of the timeline to read at. A request
        that names no member is allowed."""
        if member_id is None and epoch < 0:
            return
        member = self.members.get(member_id or "", None, at)
        if member is None:
            raise _unknown_member(self.group_id, member_id or "")
        if epoch != member.epoch:
            code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
            raise ApiError(
                code, f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}."
            )

    # -- replay --------------------------------------------------------------------------------------------------

    def replay_epochs(self, **changed: int | bool) -> None:
        """A record of the group itself."""
        self._epochs.value = self.epochs._replace(**changed)  # type: ignore[arg-type]

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

    def remove_member(self, member_id: str) -> None:
        """A member is gone. The instance id stays where another member has it meanwhile."""
        old = self.members.pop(member_id, None)
        if old is None:
            return
        self._count(old, -1)
        self._release(old)
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]

    def replay_regex(self, pattern: str, resolved: ResolvedRegex | None) -> None:
        """A regular expression is resolved, or none any more where `resolved` is None."""
        old = self.regexes.pop(pattern, None)
        if old is not None:
            _add(self._by_topic, old.topics, -1)
        if resolved is not None:
            self.regexes[pattern] = resolved
            _add(self._by_topic, resolved.topics, 1)

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.owned():
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]

    def _count(self, member: ConsumerMember | None, by: int) -> None:
        if member is None:
            return
        _add(self._by_topic, member.topics, by)
        if member.regex:
            _add(self._by_regex, (member.regex,), by)
        if member.assignor is not None:
            _add(self._by_assignor, (member.assignor,), by)
        if member.classic is not None:
            self._classic_count.value += by
            _add(self._by_protocol, {protocol.name for protocol in member.classic.supported_protocols}, by)

    # -- the end -------------------------------------------------------------------------------------------------

    def tombstones_of(self, member_ids: Iterable[str]) -> list[KindRecord]:
        """What removes members."""
        return [
            KindRecord(self.group_id, key(group_id=self.group_id, member_id=member_id), None)
            for member_id in member_ids
            for key in (
                ConsumerGroupCurrentMemberAssignmentKey,
                ConsumerGroupTargetAssignmentMemberKey,
                ConsumerGroupMemberMetadataKey,
            )
        ]

    def tombstones(self) -> list[KindRecord]:
        """What removes the group, its own record last."""
        group_id = self.group_id
        return [
            *self.tombstones_of(self.members),
            KindRecord(group_id, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
            *self.tombstones_of_regexes(self.regexes),
            KindRecord(group_id, ConsumerGroupPartitionMetadataKey(group_id=group_id), None),
            KindRecord(group_id, ConsumerGroupMetadataKey(group_id=group_id), None),
        ]

    def tombstones_of_regexes(self, patterns: Iterable[str]) -> Iterator[KindRecord]:
        """What removes resolved regular expressions."""
        for pattern in patterns:
            key = ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=pattern)
            yield KindRecord(self.group_id, key, None)


def _unknown_member(group_id: str, member_id: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _add(counts: TimelineDict[str, int], names: Iterable[str], by: int) -> None:
    for name in names:
        count = counts.get(name, 0) + by
        if count > 0:
            counts[name] = count
        else:
            counts.pop(name, None)
