"""One partition's registration, and how a change record merges into it.

`leader_epoch` grows with every record that names a leader, even the same one; `partition_epoch` grows with every
change. So a broker distinguishes its election from a change of its ISR, and the controller a stale AlterPartition from
a current one.

Not obvious:

- A partition record that names a leader raises the leader epoch, even for the same leader.
- Equal partitions share one registration, which is never changed in place.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kalda.base.allocation import new_tuple
from kalda.base.ids import DIRECTORY_MIGRATING, Uuid
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import PartitionChangeRecord, PartitionRecord

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
