"""Reverse indexes: the partitions with a broker in the ISR or in the ELR, those in a directory, those of a leader.

Fencing a broker needs its partitions without a scan of all partitions of a large cluster. The indexes change on replay
only, together with the partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from kalda.base.ids import Uuid
from kalda.metadata.topics import NO_LEADER, PartitionRegistration
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet

K = TypeVar("K")


class TopicIdPartition(NamedTuple):
    topic_id: Uuid
    partition_id: int


class _ByMember(Generic[K]):
    """Partitions by member: a broker or a directory. A member's set is made on first use and kept, even when empty."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._registry = registry
        self._partitions: dict[K, TimelineSet[TopicIdPartition]] = {}

    def update(self, partition: TopicIdPartition, old: Sequence[K], new: Sequence[K]) -> None:
        for member in old:
            if member not in new:
                self._partitions[member].discard(partition)
        for member in new:
            if member not in old:
                members = self._partitions.get(member)
                if members is None:
                    members = self._partitions[member] = TimelineSet(self._registry)
                members.add(partition)

    def load(self, partitions: Mapping[K, Iterable[TopicIdPartition]]) -> None:
        """Add partitions that are new to these members."""
        for member, its in partitions.items():
            members = self._partitions.get(member)
            if members is None:
                members = self._partitions[member] = TimelineSet(self._registry)
            members.load(its)

    def remove(self, partitions: Mapping[K, Iterable[TopicIdPartition]]) -> None:
        """Remove partitions that these members have."""
        for member, its in partitions.items():
            self._partitions[member].remove_all(its)

    def of(self, member: K) -> Iterator[TopicIdPartition]:
        return iter(self._partitions.get(member, ()))

    def __bool__(self) -> bool:
        return any(self._partitions.values())


class PartitionIndex:
    """The reverse indexes, and the sets of partitions that periodic tasks and requests iterate."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._isr: _ByMember[int] = _ByMember(registry)
        self._elr: _ByMember[int] = _ByMember(registry)
        self._directories: _ByMember[Uuid] = _ByMember(registry)
        self._leaderships: TimelineDict[int, int] = TimelineDict(registry)
        """the number of partitions that a broker leads, by broker id; never 0"""
        self.leaderless: TimelineSet[TopicIdPartition] = TimelineSet(registry)
        """partitions without a leader"""
        self.imbalanced: TimelineSet[TopicIdPartition] = TimelineSet(registry)
        """partitions whose leader is not the preferred replica"""
        self.reassigning: TimelineSet[TopicIdPartition] = TimelineSet(registry)
        """partitions with an unfinished reassignment"""

    def with_in_isr(self, broker_id: int) -> Iterator[TopicIdPartition]:
        return self._isr.of(broker_id)

    def with_in_elr(self, broker_id: int) -> Iterator[TopicIdPartition]:
        return self._elr.of(broker_id)

    @property
    def has_eligible(self) -> bool:
        return bool(self._elr)

    def in_directory(self, directory: Uuid) -> Iterator[TopicIdPartition]:
        return self._directories.of(directory)

    def leads_any(self, broker_id: int) -> bool:
        return self._leaderships.get(broker_id, 0) > 0

    def update(
        self, at: TopicIdPartition, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        """A partition changed from `old` to `new`; None for one that did not exist, or was removed.

        A node that starts calls this for every record, so each unchanged field costs one comparison only."""
        before, after = old or _NOTHING, new or _NOTHING
        if before.isr != after.isr:
            self._isr.update(at, before.isr, after.isr)
        if before.elr != after.elr:
            self._elr.update(at, before.elr, after.elr)
        if before.directories != after.directories:
            self._directories.update(at, before.directories, after.directories)
        elected = before.leader != after.leader
        if elected:
            self._count_leader(before.leader, -1)
            self._count_leader(after.leader, +1)
        if elected or before.replicas != after.replicas:
            was_leaderless = old is not None and not old.has_leader
            _set_member(self.leaderless, at, was_leaderless, new is not None and not new.has_leader)
            _set_member(self.imbalanced, at, not before.has_preferred_leader, not after.has_preferred_leader)
        if before.adding_replicas != after.adding_replicas or before.removing_replicas != after.removing_replicas:
            _set_member(self.reassigning, at, before.is_reassigning, after.is_reassigning)

    def load(self, partitions: Mapping[TopicIdPartition, PartitionRegistration]) -> None:
        """Add new partitions: the effect of `update` for each, computed member by member."""
        self._change(partitions, +1)

    def remove(self, partitions: Mapping[TopicIdPartition, PartitionRegistration]) -> None:
        """The effect of `update` for partitions that are removed."""
        self._change(partitions, -1)

    def _change(self, partitions: Mapping[TopicIdPartition, PartitionRegistration], sign: int) -> None:
        isr: dict[int, list[TopicIdPartition]] = defaultdict(list)
        elr: dict[int, list[TopicIdPartition]] = defaultdict(list)
        directories: dict[Uuid, list[TopicIdPartition]] = defaultdict(list)
        leaderships: dict[int, int] = defaultdict(int)
        for partition, its in _alike(partitions):
            # Several replicas may be in directories of one id: that of "unassigned".
            for replica in partition.isr:
                isr[replica] += its
            for replica in partition.elr:
                elr[replica] += its
            for directory in dict.fromkeys(partition.directories):
                directories[directory] += its
            leaderships[partition.leader] += len(its)
            for is_member, members in (
                (not partition.has_leader, self.leaderless),
                (not partition.has_preferred_leader, self.imbalanced),
                (partition.is_reassigning, self.reassigning),
            ):
                if is_member:
                    (members.load if sign > 0 else members.remove_all)(its)
        if sign > 0:
            self._isr.load(isr)
            self._elr.load(elr)
            self._directories.load(directories)
        else:
            self._isr.remove(isr)
            self._elr.remove(elr)
            self._directories.remove(directories)
        for leader, count in leaderships.items():
            self._count_leader(leader, sign * count)

    def _count_leader(self, leader: int, change: int) -> None:
        if leader == NO_LEADER:
            return
        count = self._leaderships.get(leader, 0) + change
        assert count >= 0, f"the count of partitions that broker {leader} leads is {count}"
        if count:
            self._leaderships[leader] = count
        else:
            self._leaderships.pop(leader, None)


def _alike(
    partitions: Mapping[TopicIdPartition, PartitionRegistration],
) -> Iterable[tuple[PartitionRegistration, list[TopicIdPartition]]]:
    """Registrations, each with the partitions that share it: that is one for many where a topic is large."""
    alike: dict[int, tuple[PartitionRegistration, list[TopicIdPartition]]] = {}
    for at, partition in partitions.items():
        same = alike.get(id(partition))
        if same is None:
            alike[id(partition)] = partition, [at]
        else:
            same[1].append(at)
    return alike.values()


def _set_member(members: TimelineSet[TopicIdPartition], at: TopicIdPartition, was: bool, is_now: bool) -> None:
    if was != is_now:
        (members.add if is_now else members.discard)(at)


_NOTHING = PartitionRegistration((), (), (), NO_LEADER, 0, 0)
"""Stands for no partition: it is in no index, and counts as balanced."""
