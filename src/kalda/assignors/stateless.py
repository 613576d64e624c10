"""Which member of a classic group gets which partitions: computed by the group's leader for all members.

The assignments equal those of Kafka's assignors of the same names, racks included (KIP-881): a partition goes to a
member in a rack of its replicas where that does not make the assignment less balanced. Racks count where some member
and some replica are in the same one, and not every partition has a replica in every rack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kalda.base.ids import TopicPartition


class Subscriber(NamedTuple):
    """A member of the group and its subscription: the input of an assignor."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    """Partitions that it owns while it joins; empty in eager groups."""
    generation: int = -1
    """In which it got them."""
    user_data: bytes | None = None

    @property
    def order(self) -> tuple[int, str]:
        """Static members come first, sorted by instance id, so that a restart changes no assignment."""
        return (1, self.member_id) if self.instance_id is None else (0, self.instance_id)


class Topics(NamedTuple):
    """The topics of all members: partition counts, and the racks of each partition's replicas."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, tuple[str, ...]] = {}


class Rebalance(NamedTuple):
    """What there is to assign."""

    subscribers: tuple[Subscriber, ...]
    topics: Topics

    @property
    def partition_counts(self) -> dict[str, int]:
        """Of the topics that a member subscribes to and that have partitions."""
        subscribed = {topic for subscriber in self.subscribers for topic in subscriber.topics}
        return {topic: count for topic, count in self.topics.counts.items() if count > 0 and topic in subscribed}


Assigned = dict[str, list[TopicPartition]]
"""Partitions by member id."""


class Assignor(Protocol):
    """A strategy. One object is one member's, for as long as that is one."""

    @property
    def name(self) -> str: ...
    @property
    def is_cooperative(self) -> bool: ...
    def user_data(self) -> bytes | None:
        """Bytes that the member sends with its subscription."""
        ...

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """The member was assigned `partitions`."""
        ...

    def assign(self, rebalance: Rebalance) -> Assigned:
        """The partitions of each member; every subscribed partition has exactly one."""
        ...


def uses_racks(member_racks: set[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Whether racks can make a difference."""
    all_racks = frozenset().union(*partition_racks)
    return bool(member_racks & all_racks) and any(racks != all_racks for racks in partition_racks)


class _Stateless:
    is_cooperative = False

    def user_data(self) -> bytes | None:
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        return None


class RoundRobinAssignor(_Stateless):
    """All partitions in order, one to each member in turn, members that do not subscribe to the topic skipped."""

    name = "roundrobin"

    def assign(self, rebalance: Rebalance) -> Assigned:
        """See the class."""
        members = sorted(rebalance.subscribers, key=lambda subscriber: subscriber.order)
        assigned: Assigned = {member.member_id: [] for member in members}
        at = 0
        for topic, count in sorted(rebalance.partition_counts.items()):
            for index in range(count):
                while topic not in members[at].topics:
                    at = (at + 1) % len(members)
                assigned[members[at].member_id].append(TopicPartition(topic, index))
                at = (at + 1) % len(members)
        return assigned


class RangeAssignor(_Stateless):
    """Every subscriber of a topic gets one consecutive range of its partitions, the first ones one partition more.

    In topics with the same partition count and the same subscribers, equal partition numbers go to the same member, so
    that it can join them. With racks, partitions whose replicas are in a member's rack are assigned first, within the
    same bounds.
    """

    name = "range"

    def assign(self, rebalance: Rebalance) -> Assigned:
        """See the class."""
        assigned: Assigned = {subscriber.member_id: [] for subscriber in rebalance.subscribers}
        topics = [_RangeTopic(topic, rebalance) for topic in sorted(rebalance.partition_counts)]
        has_racks = any(topic.needs_racks for topic in topics)
        if has_racks:
            groups: dict[tuple[tuple[tuple[str, str | None], ...], int], list[_RangeTopic]] = {}
            for topic in topics:
                groups.setdefault((tuple(topic.members.items()), len(topic.racks)), []).append(topic)
            for group in groups.values():
                if len(group) > 1:
                    _assign_together(group, assigned)
                elif group[0].needs_racks:
                    group[0].assign_ranges(assigned, group[0].racks_match)
        for topic in topics:
            topic.assign_ranges(assigned, lambda _member, _partition: True)
        if has_racks:
            for partitions in assigned.values():
                partitions.sort()
        return assigned


class _RangeTopic:
    """One topic while it is assigned."""

    def __init__(self, topic: str, rebalance: Rebalance) -> None:
        count = rebalance.topics.counts[topic]
        subscribers = sorted((s for s in rebalance.subscribers if topic in s.topics), key=lambda s: s.order)
        self.topic = topic
        self.members = {subscriber.member_id: subscriber.rack or None for subscriber in subscribers}
        """The racks of its subscribers, in their order."""
        self.left = [TopicPartition(topic, index) for index in range(count)]
        self.share, self.extra = divmod(count, len(subscribers)) if subscribers else (0, 0)
        """`extra`: how many members may still get one partition more than their share."""
        self.sizes = dict.fromkeys(self.members, 0)
        member_racks = {rack for rack in self.members.values() if rack is not None}
        self.racks: dict[TopicPartition, frozenset[str]] = {}
        if member_racks:
            self.racks = {partition: frozenset(rebalance.topics.racks.get(partition, ())) for partition in self.left}
        self.needs_racks = uses_racks(member_racks, list(self.racks.values()))

    def racks_match(self, member_id: str, partition: TopicPartition) -> bool:
        rack = self.members[member_id]
        return rack is None or rack in self.racks.get(partition, ())

    def room(self, member_id: str) -> int:
        return max(0, self.share + (self.extra > 0) - self.sizes[member_id])

    def give(self, member_id: str, partitions: Sequence[TopicPartition], assigned: Assigned) -> None:
        assigned[member_id] += partitions
        self.sizes[member_id] += len(partitions)
        if self.sizes[member_id] > self.share:
            self.extra -= 1
        given = frozenset(partitions)
        self.left = [partition for partition in self.left if partition not in given]

    def assign_ranges(self, assigned: Assigned, may_assign: Callable[[str, TopicPartition], bool]) -> None:
        for member_id in self.members:
            if not self.left:
                break
            allowed = [partition for partition in self.left if may_assign(member_id, partition)]
            chosen = allowed[: self.room(member_id)]
            if chosen:
                self.give(member_id, chosen, assigned)


def _assign_together(topics: list[_RangeTopic], assigned: Assigned) -> None:
    """Topics with the same subscribers and partition count: a partition number goes to a member whose rack has replicas
    of it in all of them."""
    members = list(topics[0].members)
    for index in range(len(topics[0].racks)):
        for member_id in members:
            if all(
                topic.racks_match(member_id, TopicPartition(topic.topic, index)) and topic.room(member_id) > 0
                for topic in topics
            ):
                for topic in topics:
                    topic.give(member_id, [TopicPartition(topic.topic, index)], assigned)
                if all(topic.room(member_id) == 0 for topic in topics):
                    members.remove(member_id)
                break
        if not members:
            break


def assign_range(subscribers: list[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """`RangeAssignor` without racks: unknown topics, and topics without partitions, are left out."""
    without_racks = tuple(subscriber._replace(rack=None) for subscriber in subscribers)
    return RangeAssignor().assign(Rebalance(without_racks, Topics(partition_counts)))
