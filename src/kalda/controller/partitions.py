"""The state of topics and partitions, which several managers share.

Also `leader_and_isr_updates`, which all changes of brokers use: the records by which a set of partitions adapts to a
broker that was removed from service, added to it, or restarted after an unclean shutdown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from kalda.base.background import ITEMS_A_STEP
from kalda.base.ids import Uuid, collision_key
from kalda.controller.cluster import ClusterControl
from kalda.controller.configs import ConfigControl
from kalda.controller.features import FeatureControl
from kalda.controller.partition_change import ChangeRules, Election, PartitionChange
from kalda.metadata.topics import NO_LEADER, LeaderRecoveryState, PartitionRegistration, TopicsImage
from kalda.protocol.messages.metadata_records import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kalda.protocol.notation import all_fields_but
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet

# Reverse indexes: the partitions with a broker in the ISR or in the ELR, those in a directory, those of a leader.
#
# Fencing a broker needs its partitions without a scan of all partitions of a large cluster. The indexes change on
# replay only, together with the partitions.

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


_all_but_partition_id = all_fields_but(PartitionRecord, "partition_id")

NO_BROKER = -1


class PartitionControl:
    """Topics by name and id, partitions by topic id and number."""

    def __init__(
        self, registry: SnapshotRegistry, features: FeatureControl, cluster: ClusterControl, configs: ConfigControl
    ) -> None:
        self._features = features
        self._cluster = cluster
        self._configs = configs
        self.topic_ids: TimelineDict[str, Uuid] = TimelineDict(registry)
        self.topic_names: TimelineDict[Uuid, str] = TimelineDict(registry)
        self.partition_counts: TimelineDict[Uuid, int] = TimelineDict(registry)
        self.partitions: TimelineDict[TopicIdPartition, PartitionRegistration] = TimelineDict(registry)
        self._colliding: TimelineDict[str, tuple[str, ...]] = TimelineDict(registry)
        """topic names by collision key"""
        self.index = PartitionIndex(registry)
        self.unclean_elections = 0
        """Leaders that were elected out of sync, while this controller was active."""
        self.elections_of_eligible = 0
        """Leaders that were elected from the eligible replicas (ELR), likewise."""

    # Queries

    def partition(self, topic_id: Uuid, partition_id: int) -> PartitionRegistration | None:
        return self.partitions.get(TopicIdPartition(topic_id, partition_id))

    def of_topic(self, topic_id: Uuid) -> Iterable[tuple[int, PartitionRegistration]]:
        for partition_id in range(self.partition_counts.get(topic_id, 0)):
            yield partition_id, self.partitions[TopicIdPartition(topic_id, partition_id)]

    def colliding_topic(self, name: str) -> str | None:
        """An existing topic whose name differs from `name` in `.` and `_` only: their metrics would have one name."""
        key = collision_key(name)
        if key is None:
            return None
        names = self._colliding.get(key)
        return names[0] if names else None

    # Changes

    def change(
        self,
        at: TopicIdPartition,
        partition: PartitionRegistration,
        is_active: Callable[[int], bool] | None = None,
    ) -> PartitionChange:
        """A change of that partition, by the present rules. `is_active(broker id)`: whether a broker may lead; by
        default whether it is active. Elections are unclean where `may_elect_uncleanly`."""
        active = is_active or self._cluster.is_active
        topic = self.topic_names[at.topic_id]

        def is_acceptable(registration: PartitionRegistration, replica: int) -> bool:
            return active(replica) and self._cluster.has_online_directory(replica, registration.directory(replica))

        rules = ChangeRules(
            metadata_version=self._features.metadata_version,
            elr_enabled=self._features.is_elr_enabled,
            min_insync_replicas=self._configs.min_insync_replicas(topic),
            is_acceptable_leader=is_acceptable,
            default_directory=self._cluster.default_directory,
        )
        change = PartitionChange(at.topic_id, at.partition_id, partition, rules)
        if self.may_elect_uncleanly(topic, partition):
            change.election = Election.UNCLEAN
        return change

    def may_elect_uncleanly(self, topic: str, partition: PartitionRegistration) -> bool:
        """Whether the controller may elect a leader that lacks acknowledged records: the topic allows it, and it need
        not wait for a broker (`UncleanHolds`)."""
        return self._configs.unclean_election_enabled(topic) and not self._cluster.unclean_holds.blocks(partition)

    def leader_and_isr_updates(
        self,
        partitions: Iterable[TopicIdPartition],
        *,
        removed: int = NO_BROKER,
        added: int = NO_BROKER,
        unclean: int = NO_BROKER,
    ) -> list[VersionedRecord]:
        """The records by which `partitions` adapt to a broker that is `removed` from service, `added` to it (it still
        is fenced while these records are made), or had an `unclean` shutdown."""

        def is_active(replica: int) -> bool:
            if replica in (removed, unclean):
                return False
            return replica == added or self._cluster.is_active(replica)

        records = []
        for at in partitions:
            partition = self.partitions[at]
            change = self.change(at, partition, is_active)
            change.isr = tuple(replica for replica in partition.isr if replica not in (removed, unclean))
            if unclean != NO_BROKER:
                change.unclean_shutdown_replicas = (unclean,)
            record = change.build()
            if record is not None:
                records.append(record)
        return records

    def former_elr_records(self) -> list[VersionedRecord]:
        """The record that clears eligible replicas from before the feature was turned off and on again: they are
        invalid, because the minimum ISR may have changed in between."""
        return [VersionedRecord(ClearElrRecord(), 0)] if self.index.has_eligible else []

    # Replay

    def load(self, image: TopicsImage) -> Iterator[None]:
        """Load all topics and partitions into the empty state after a reset; some topics in each step."""
        topics = iter(image.by_id.values())
        while some := list(islice(topics, ITEMS_A_STEP)):
            partitions: dict[TopicIdPartition, PartitionRegistration] = {}
            for topic in some:
                self._load_name(topic.name, topic.id)
                for partition_id, partition in topic.partitions.items():
                    partitions[TopicIdPartition(topic.id, partition_id)] = partition
            self.partition_counts.load({topic.id: max(topic.partitions) + 1 for topic in some if topic.partitions})
            self.partitions.load(partitions)
            self.index.load(partitions)
            yield

    def replay_topic(self, record: TopicRecord) -> None:
        assert record.name not in self.topic_ids, f"topic {record.name} exists already"
        self._load_name(record.name, record.topic_id)

    def _load_name(self, name: str, topic_id: Uuid) -> None:
        self.topic_ids[name] = topic_id
        self.topic_names[topic_id] = name
        key = collision_key(name)
        if key is not None:
            self._colliding[key] = (*self._colliding.get(key, ()), name)

    def replay_partition(self, record: PartitionRecord) -> None:
        at = TopicIdPartition(record.topic_id, record.partition_id)
        assert record.topic_id in self.topic_names, f"a partition of the unknown topic {record.topic_id.hex()}"
        self._put(at, PartitionRegistration.from_record(record))

    def replay_new_partitions(self, records: Sequence[VersionedRecord], first: int) -> int:
        """Apply the records of new partitions of one topic from `records[first]` on, together: the effect of
        `replay_partition` for each, at a fraction of the cost. Returns how many; 0 where that record is another one. A
        record that cannot be applied so is left to `replay_partition`."""
        record = records[first].record
        if type(record) is not PartitionRecord or record.topic_id not in self.topic_names:
            return 0
        topic_id = record.topic_id
        count = end = self.partition_counts.get(topic_id, 0)
        new: dict[TopicIdPartition, PartitionRegistration] = {}
        alike: tuple[Any, ...] | None = None
        """All fields but the id of the partition before, which has this `partition`."""
        partition: PartitionRegistration
        for index in range(first, len(records)):
            record = records[index].record
            if type(record) is not PartitionRecord or record.topic_id != topic_id or record.partition_id < count:
                break
            at = TopicIdPartition(topic_id, record.partition_id)
            if at in new:
                break
            others = _all_but_partition_id(record)
            if others != alike:
                try:
                    partition = PartitionRegistration.from_record(record)
                except ValueError:
                    break
                alike = others
            new[at] = partition
            end = max(end, record.partition_id + 1)
        if new:
            self.partition_counts[topic_id] = end
            self.partitions.load(new)
            self.index.load(new)
        return len(new)

    def replay_partition_change(self, record: PartitionChangeRecord) -> None:
        at = TopicIdPartition(record.topic_id, record.partition_id)
        before = self.partitions[at]
        after = before.merge(record)
        if after.leader != before.leader and after.leader >= 0 and self._cluster.is_controlling:
            self.elections_of_eligible += after.leader in before.elr
            self.unclean_elections += record.leader_recovery_state == LeaderRecoveryState.RECOVERING
        self._put(at, after)

    def replay_remove_topic(self, record: RemoveTopicRecord) -> str:
        """Returns the name of the removed topic."""
        topic_id = record.topic_id
        name = self.topic_names.pop(topic_id)
        del self.topic_ids[name]
        ats = [TopicIdPartition(topic_id, each) for each in range(self.partition_counts.pop(topic_id, 0))]
        removed = {at: self.partitions[at] for at in ats}
        self.partitions.remove_all(ats)
        self.index.remove(removed)
        key = collision_key(name)
        if key is not None:
            names = tuple(other for other in self._colliding[key] if other != name)
            if names:
                self._colliding[key] = names
            else:
                del self._colliding[key]
        return name

    def replay_clear_elr(self, record: ClearElrRecord) -> None:
        """Clear the eligible replicas of one topic, or of all where the record has no topic."""
        topics = [self.topic_ids[record.topic_name]] if record.topic_name else list(self.topic_names)
        for topic_id in topics:
            for partition_id, partition in list(self.of_topic(topic_id)):
                if partition.elr or partition.last_known_elr:
                    self._put(TopicIdPartition(topic_id, partition_id), partition.without_elr())

    def _put(self, at: TopicIdPartition, partition: PartitionRegistration) -> None:
        previous = self.partitions.get(at)
        if previous is None:
            count = self.partition_counts.get(at.topic_id, 0)
            self.partition_counts[at.topic_id] = max(count, at.partition_id + 1)
        self.partitions[at] = partition
        self.index.update(at, previous, partition)
