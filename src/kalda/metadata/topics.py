"""Topics, and what a delta means for one broker.

Applying a delta copies the two dictionaries of topics and shares every topic that was not touched: with 10,000
topics that is some 100 µs, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kalda.base.allocation import new_tuple
from kalda.base.ids import DIRECTORY_MIGRATING, TopicPartition, Uuid, uuid_to_text
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

# One partition's registration, and how a change record merges into it.
#
# `leader_epoch` grows with every record that names a leader, even the same one; `partition_epoch` grows with every
# change. So a broker distinguishes its election from a change of its ISR, and the controller a stale AlterPartition
# from a current one.
#
# Not obvious:
#
# - A partition record that names a leader raises the leader epoch, even for the same leader.
# - Equal partitions share one registration, which is never changed in place.

T = TypeVar("T")

NO_LEADER = -1
NO_LEADER_CHANGE = -2


class LeaderRecoveryState(IntEnum):
    """RECOVERING: the leader was elected uncleanly, and has not recovered yet (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


NO_RECOVERY_CHANGE = -1

_RECOVERY_STATES = {state.value: state for state in LeaderRecoveryState}
_MAX_SHARED = 10_000
_shared_tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_shared_registrations: dict[tuple[Any, ...], PartitionRegistration] = {}
"""Registrations of records, by their fields: the partitions of a large topic are alike."""


def _shared(values: tuple[T, ...]) -> tuple[T, ...]:
    """An equal tuple, the same object for all partitions. In a cluster many partitions have the same replicas."""
    shared = _shared_tuples.get(values)
    if shared is not None:
        return shared
    if len(_shared_tuples) >= _MAX_SHARED:
        _shared_tuples.clear()
    _shared_tuples[values] = values
    return values


class PartitionRegistration(NamedTuple):
    """The metadata of a partition. `directories` has the log directory of each of `replicas`, in the same order.

    A named tuple, because it is cheap to make: a node that loads a large cluster makes one for each partition.
    """

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED

    @classmethod
    def from_record(cls, record: PartitionRecord) -> PartitionRegistration:
        """A record without directories was written at a metadata.version that has none: the brokers still have to
        report them."""
        replicas = tuple(record.replicas)
        directories = tuple(record.directories) or (DIRECTORY_MIGRATING,) * len(replicas)
        if len(directories) != len(replicas):
            raise ValueError(f"cannot replay {record}: {len(replicas)} replicas in {len(directories)} directories")
        state = _RECOVERY_STATES.get(record.leader_recovery_state)
        values = (
            replicas,
            directories,
            tuple(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
            LeaderRecoveryState(record.leader_recovery_state) if state is None else state,
        )
        shared = _shared_registrations.get(values)
        if shared is not None:
            return shared
        if len(_shared_registrations) >= _MAX_SHARED:
            _shared_registrations.clear()
        made = new_tuple(cls, (_shared(replicas), _shared(directories), _shared(values[2]), *values[3:]))
        _shared_registrations[values] = made
        return made

    def merge(self, record: PartitionChangeRecord) -> PartitionRegistration:
        """The registration after `record`. A None in the record means no change."""
        replicas = self.replicas if record.replicas is None else tuple(record.replicas)
        if record.directories is None:
            directories = self.directories if record.replicas is None else self._directories_of(replicas)
        else:
            directories = tuple(record.directories) or (DIRECTORY_MIGRATING,) * len(replicas)
            if len(directories) != len(replicas):
                raise ValueError(f"cannot replay {record}: {len(replicas)} replicas in {len(directories)} directories")
        names_leader = record.leader != NO_LEADER_CHANGE
        state = record.leader_recovery_state
        removing, adding = record.removing_replicas, record.adding_replicas
        elr, last_known_elr = record.eligible_leader_replicas, record.last_known_elr
        return new_tuple(
            PartitionRegistration,
            (
                replicas,
                directories,
                self.isr if record.isr is None else tuple(record.isr),
                record.leader if names_leader else self.leader,
                self.leader_epoch + 1 if names_leader else self.leader_epoch,
                self.partition_epoch + 1,
                self.removing_replicas if removing is None else tuple(removing),
                self.adding_replicas if adding is None else tuple(adding),
                self.elr if elr is None else tuple(elr),
                self.last_known_elr if last_known_elr is None else tuple(last_known_elr),
                self.leader_recovery_state if state == NO_RECOVERY_CHANGE else LeaderRecoveryState(state),
            ),
        )

    def _directories_of(self, replicas: tuple[int, ...]) -> tuple[Uuid, ...]:
        by_replica = dict(zip(self.replicas, self.directories, strict=True))
        return tuple(by_replica.get(replica, DIRECTORY_MIGRATING) for replica in replicas)

    def directory(self, broker_id: int) -> Uuid | None:
        """The directory of this broker's replica; None where the broker has no replica."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        return None

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def has_preferred_leader(self) -> bool:
        return self.leader == self.preferred_replica

    @property
    def preferred_replica(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)

    def without_elr(self) -> PartitionRegistration:
        """The same without ELR. The partition epoch does not grow: brokers do not use the ELR."""
        return self._replace(elr=(), last_known_elr=())

    def write(self, writer: ImageWriter, topic_id: Uuid, partition_id: int) -> None:
        record = self.to_record(topic_id, partition_id)
        version = writer.metadata_version
        if not version.is_directory_assignment_supported:
            if any(directory != DIRECTORY_MIGRATING for directory in self.directories):
                writer.lose("the directory assignment state of one or more replicas")
            record.directories = []
        if (self.elr or self.last_known_elr) and not (version.is_elr_supported and writer.elr_enabled):
            record.eligible_leader_replicas = record.last_known_elr = None
        writer.write(record, version.partition_record_version)

    def to_record(self, topic_id: Uuid, partition_id: int) -> PartitionRecord:
        """The whole registration as a record, at the latest version."""
        return PartitionRecord(
            partition_id=partition_id,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            leader_recovery_state=self.leader_recovery_state.value,
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )


class TopicImage(NamedTuple):
    """A topic and its partitions by number."""

    name: str
    id: Uuid
    partitions: Mapping[int, PartitionRegistration]

    def write(self, writer: ImageWriter) -> None:
        writer.write(TopicRecord(name=self.name, topic_id=self.id))
        for partition_id in sorted(self.partitions):
            self.partitions[partition_id].write(writer, self.id, partition_id)


class TopicsImage(NamedTuple):
    """The same topics by id and by name."""

    by_id: Mapping[Uuid, TopicImage]
    by_name: Mapping[str, TopicImage]

    @property
    def is_empty(self) -> bool:
        return not self.by_id

    def partition(self, topic_id: Uuid, partition_id: int) -> PartitionRegistration | None:
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition_id)

    def topic_id(self, name: str) -> Uuid | None:
        topic = self.by_name.get(name)
        return None if topic is None else topic.id

    def collect_local(self, topic_partition: TopicPartition, broker_id: int, changes: LocalChanges) -> None:
        """Add the partition to `changes` as if it were new; not at all where the broker has no replica of it."""
        topic = self.by_name.get(topic_partition.topic)
        registration = None if topic is None else topic.partitions.get(topic_partition.partition)
        if topic is not None and registration is not None:
            delta = TopicDelta(TopicImage(topic.name, topic.id, _NONE))
            delta.partition_changes[topic_partition.partition] = registration
            delta.collect_local_changes(broker_id, changes)


EMPTY = TopicsImage({}, {})
_NONE: Mapping[int, PartitionRegistration] = {}


class LocalPartition(NamedTuple):
    """A partition of which one broker has a replica."""

    topic_id: Uuid
    registration: PartitionRegistration


@dataclass(slots=True)
class LocalChanges:
    """What a delta means for one broker. Deletes are to be carried out first, and by topic id.

    A partition is in one of `deletes`, `leaders` and `followers`; only one whose topic was deleted and made again
    under its old name is in two: the old topic's in `deletes`, the new one's among the others.
    `elected_leaders` are those of `leaders` whose leader epoch changed too: the others only saw, say, their ISR
    change. `directory_ids` is the directory assigned to this broker's replica, where that changed.
    """

    deletes: dict[TopicPartition, Uuid] = field(default_factory=dict)
    leaders: dict[TopicPartition, LocalPartition] = field(default_factory=dict)
    elected_leaders: dict[TopicPartition, LocalPartition] = field(default_factory=dict)
    followers: dict[TopicPartition, LocalPartition] = field(default_factory=dict)
    directory_ids: dict[TopicPartition, tuple[Uuid, Uuid]] = field(default_factory=dict)
    """Topic id and directory id."""


class TopicDelta:
    """Changed partitions of one topic.

    `replaces` is set when the topic's own record was seen again, as in a snapshot: then the partitions listed are all
    there are. `image` still is what was there before, so that a snapshot that repeats what is known changes nothing.
    """

    __slots__ = ("image", "partition_changes", "replaces")

    def __init__(self, image: TopicImage, *, replaces: bool = False) -> None:
        self.image = image
        self.replaces = replaces
        self.partition_changes: dict[int, PartitionRegistration] = {}

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def id(self) -> Uuid:
        return self.image.id

    def partition(self, partition_id: int) -> PartitionRegistration | None:
        """As it stands with this delta applied."""
        changed = self.partition_changes.get(partition_id)
        if changed is not None or self.replaces:
            return changed
        return self.image.partitions.get(partition_id)

    def add_partition(self, record: PartitionRecord) -> None:
        self.partition_changes[record.partition_id] = PartitionRegistration.from_record(record)

    def change_partition(self, record: PartitionChangeRecord) -> None:
        before = self.partition(record.partition_id)
        if before is None:
            raise ValueError(f"cannot replay {record}: {self.name} has no partition {record.partition_id}")
        self.partition_changes[record.partition_id] = before.merge(record)

    def clear_elr(self) -> None:
        for partition_id, partition in self._partitions().items():
            if partition.elr or partition.last_known_elr:
                self.partition_changes[partition_id] = partition.without_elr()

    def _partitions(self) -> dict[int, PartitionRegistration]:
        if self.replaces:
            return dict(self.partition_changes)
        return {**self.image.partitions, **self.partition_changes}

    def apply(self) -> TopicImage:
        return TopicImage(self.image.name, self.image.id, self._partitions())

    def collect_local_changes(self, broker_id: int, changes: LocalChanges) -> None:
        """Sorts each changed partition into `changes`, by what it was to this broker and what it is now."""
        known, name = self.image.partitions, self.name
        local: LocalPartition | None = None
        directory: Uuid | None = None
        for partition_id, now in self.partition_changes.items():
            before = known.get(partition_id)
            if broker_id not in now.replicas:
                if before is not None and broker_id in before.replicas:
                    changes.deletes[TopicPartition(name, partition_id)] = self.id
                continue
            key = TopicPartition(name, partition_id)
            if local is None or local.registration is not now:
                local, directory = LocalPartition(self.id, now), now.directory(broker_id)
            if before is None or before.partition_epoch != now.partition_epoch:
                if now.leader != broker_id:
                    changes.followers[key] = local
                else:
                    changes.leaders[key] = local
                    if before is None or before.leader_epoch != now.leader_epoch:
                        changes.elected_leaders[key] = local
            if directory is not None and (before is None or before.directory(broker_id) != directory):
                changes.directory_ids[key] = (self.id, directory)
        if self.replaces:
            for partition_id, before in self.image.partitions.items():
                if partition_id not in self.partition_changes and broker_id in before.replicas:
                    changes.deletes[TopicPartition(self.name, partition_id)] = self.id


class TopicsDelta:
    """Changed and deleted topics. A topic that was deleted and made again in one delta has two ids, and is in both."""

    __slots__ = ("changed", "created", "deleted", "image")

    def __init__(self, image: TopicsImage) -> None:
        self.image = image
        self.changed: dict[Uuid, TopicDelta] = {}
        self.deleted: dict[Uuid, TopicImage] = {}
        self.created: dict[str, Uuid] = {}
        """Topics that the image does not have, by name."""

    @staticmethod
    def of_whole(image: TopicsImage) -> TopicsDelta:
        """From nothing to `image`."""
        return _WholeDelta(image)

    def add_topic(self, record: TopicRecord) -> None:
        known = self.image.by_id.get(record.topic_id)
        if known is not None and known.name == record.name:
            self.changed[record.topic_id] = TopicDelta(known, replaces=True)
            self.deleted.pop(record.topic_id, None)
        else:
            self.changed[record.topic_id] = TopicDelta(TopicImage(record.name, record.topic_id, {}))
            self.created[record.name] = record.topic_id

    def add_partition(self, record: PartitionRecord) -> None:
        self._delta_of(record.topic_id, record).add_partition(record)

    def change_partition(self, record: PartitionChangeRecord) -> None:
        self._delta_of(record.topic_id, record).change_partition(record)

    def remove_topic(self, record: RemoveTopicRecord) -> str:
        """The name of the removed topic."""
        delta = self.changed.pop(record.topic_id, None)
        known = self.image.by_id.get(record.topic_id)
        if known is not None and record.topic_id not in self.deleted:
            self.deleted[record.topic_id] = known
            return known.name
        if delta is None:
            raise ValueError(f"cannot replay {record}: there is no topic {uuid_to_text(record.topic_id)}")
        self.created.pop(delta.name, None)
        return delta.name

    def clear_elr(self, record: ClearElrRecord) -> None:
        """Of one topic, or of all when the record names none."""
        if not record.topic_name:
            for topic_id, topic in self.image.by_id.items():
                if topic_id not in self.deleted and any(p.elr or p.last_known_elr for p in topic.partitions.values()):
                    self._delta_of(topic_id, record)
            for delta in self.changed.values():
                delta.clear_elr()
            return
        named = self._id_of(record.topic_name)
        if named is None:
            raise ValueError(f"cannot replay {record}: there is no topic of that name")
        self._delta_of(named, record).clear_elr()

    def _id_of(self, name: str) -> Uuid | None:
        if name in self.created:
            return self.created[name]
        topic_id = self.image.topic_id(name)
        return None if topic_id in self.deleted else topic_id

    def _delta_of(self, topic_id: Uuid, record: object) -> TopicDelta:
        delta = self.changed.get(topic_id)
        if delta is None:
            topic = self.image.by_id.get(topic_id)
            if topic is None or topic_id in self.deleted:
                raise ValueError(f"cannot replay {record}: there is no topic {uuid_to_text(topic_id)}")
            delta = self.changed[topic_id] = TopicDelta(topic)
        return delta

    def finish_snapshot(self) -> None:
        for topic_id, topic in self.image.by_id.items():
            if topic_id not in self.changed:
                self.deleted[topic_id] = topic

    def apply(self) -> TopicsImage:
        by_id = dict(self.image.by_id)
        by_name = dict(self.image.by_name)
        for topic_id, topic in self.deleted.items():
            del by_id[topic_id]
            del by_name[topic.name]
        for topic_id, delta in self.changed.items():
            applied = delta.apply()
            by_id[topic_id] = applied
            by_name[applied.name] = applied
        assert len(by_id) == len(by_name), "two topics of one name"
        return TopicsImage(by_id, by_name)

    def local_changes(self, broker_id: int) -> LocalChanges:
        """Deleted topics first: one that was made again under its old name shows as its new self."""
        changes = LocalChanges()
        for topic in self.deleted.values():
            for key in _replicas_on(topic, broker_id):
                changes.deletes[key] = topic.id
        for delta in self.changed.values():
            delta.collect_local_changes(broker_id, changes)
        return changes


class _WholeDelta(TopicsDelta):
    """From nothing to a whole image. Each part is made when it is first read: a publisher that reads one broker's
    changes, or nothing, pays for nothing else."""

    __slots__ = ("_changed", "_created", "_whole")

    def __init__(self, whole: TopicsImage) -> None:
        self._changed: dict[Uuid, TopicDelta] | None = None
        self._created: dict[str, Uuid] | None = None
        self._whole = whole
        self.image = EMPTY
        self.deleted = {}

    @property
    def changed(self) -> dict[Uuid, TopicDelta]:
        if self._changed is None:
            self._changed = {topic_id: _whole_delta(topic) for topic_id, topic in self._whole.by_id.items()}
        return self._changed

    @changed.setter
    def changed(self, changed: dict[Uuid, TopicDelta]) -> None:
        self._changed = changed

    @property
    def created(self) -> dict[str, Uuid]:
        if self._created is None:
            self._created = {topic.name: topic_id for topic_id, topic in self._whole.by_id.items()}
        return self._created

    @created.setter
    def created(self, created: dict[str, Uuid]) -> None:
        self._created = created

    def local_changes(self, broker_id: int) -> LocalChanges:
        """As if all records of the image had just been replayed."""
        changes = LocalChanges()
        for topic in self._whole.by_id.values():
            for partition in topic.partitions.values():
                if broker_id in partition.replicas:
                    _whole_delta(topic).collect_local_changes(broker_id, changes)
                    break
        return changes


def _whole_delta(topic: TopicImage) -> TopicDelta:
    delta = TopicDelta(TopicImage(topic.name, topic.id, _NONE))
    delta.partition_changes.update(topic.partitions)
    return delta


def _replicas_on(topic: TopicImage, broker_id: int) -> Iterator[TopicPartition]:
    for partition_id, partition in topic.partitions.items():
        if broker_id in partition.replicas:
            yield TopicPartition(topic.name, partition_id)
