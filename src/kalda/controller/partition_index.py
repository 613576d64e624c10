"""Which partitions a broker matters for: where it is in the ISR, or eligible, or has a directory.

Fencing a broker must find its partitions among all of a large cluster's without looking at the others. So these are
kept beside the partitions, and change with them on replay only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from kalda.base.ids import Uuid
from kalda.metadata.partition import NO_LEADER, PartitionRegistration
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet

K = TypeVar("K")


class TopicIdPartition(NamedTuple):
    topic_id: Uuid
    partition_id: int


class _ByMember(Generic[K]):
    """Partitions by member. A member's set is made on first use and kept: there are as many as brokers."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._registry = registry
        self._partitions: dict[K, TimelineSet[TopicIdPartition]] = {}

    def update(self, partition: TopicIdPartition, old: Sequence[K], new: Sequence[K]) -> None:
        if old == new:
            return
        before, after = set(old), set(new)
        for member in before - after:
            self._partitions[member].discard(partition)
        for member in after - before:
            members = self._partitions.get(member)
            if members is None:
                members = self._partitions[member] = TimelineSet(self._registry)
            members.add(partition)

    def of(self, member: K) -> Iterator[TopicIdPartition]:
        return iter(self._partitions.get(member, ()))


class PartitionIndex:
    """The reverse indexes, and the sets of partitions that want attention."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._isr: _ByMember[int] = _ByMember(registry)
        self._elr: _ByMember[int] = _ByMember(registry)
        self._directories: _ByMember[Uuid] = _ByMember(registry)
        self._leaderships: TimelineDict[int, int] = TimelineDict(registry)
        self.leaderless: TimelineSet[TopicIdPartition] = TimelineSet(registry)
        self.imbalanced: TimelineSet[TopicIdPartition] = TimelineSet(registry)
        self.reassigning: TimelineSet[TopicIdPartition] = TimelineSet(registry)

    def with_in_isr(self, broker_id: int) -> Iterator[TopicIdPartition]:
        return self._isr.of(broker_id)

    def with_in_elr(self, broker_id: int) -> Iterator[TopicIdPartition]:
        return self._elr.of(broker_id)

    def in_directory(self, directory: Uuid) -> Iterator[TopicIdPartition]:
        return self._directories.of(directory)

    def leads_any(self, broker_id: int) -> bool:
        return self._leaderships.get(broker_id, 0) > 0

    def update(
        self, at: TopicIdPartition, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        """`old` became `new`; None for a partition that was not there, or is not any more."""
        self._isr.update(at, old.isr if old else (), new.isr if new else ())
        self._elr.update(at, old.elr if old else (), new.elr if new else ())
        self._directories.update(at, old.directories if old else (), new.directories if new else ())
        before, after = old.leader if old else NO_LEADER, new.leader if new else NO_LEADER
        if before != after:
            self._count_leader(before, -1)
            self._count_leader(after, +1)
        for members, is_member in (
            (self.leaderless, _is_leaderless),
            (self.imbalanced, _is_imbalanced),
            (self.reassigning, _is_reassigning),
        ):
            wanted = new is not None and is_member(new)
            if wanted != (old is not None and is_member(old)):
                (members.add if wanted else members.discard)(at)

    def _count_leader(self, leader: int, change: int) -> None:
        if leader == NO_LEADER:
            return
        count = self._leaderships.get(leader, 0) + change
        assert count >= 0, f"broker {leader} leads fewer partitions than none"
        if count:
            self._leaderships[leader] = count
        else:
            self._leaderships.pop(leader, None)


def _is_leaderless(partition: PartitionRegistration) -> bool:
    return not partition.has_leader


def _is_imbalanced(partition: PartitionRegistration) -> bool:
    return not partition.has_preferred_leader


def _is_reassigning(partition: PartitionRegistration) -> bool:
    return partition.is_reassigning
