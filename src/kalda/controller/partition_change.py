"""The one place where a partition's next leader, ISR and eligible replicas are decided.

The caller sets targets: another ISR, other replicas, an election. `build` computes the consequences (a finished
reassignment, a new leader, replicas that become or cease to be eligible) and returns the record, or None when nothing
would change.

With eligible leader replicas (KIP-966), a replica that leaves the ISR while the ISR is below the minimum stays
eligible: it has all acknowledged records, because nothing is acknowledged below the minimum. So the ISR may become
empty without loss of data, and the first eligible replica that is active again becomes the leader. A replica that
stopped uncleanly may have lost unsynced records and is not eligible. The last leader is stored too, as the last
resort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from kalda.base.ids import Uuid
from kalda.metadata.features import MetadataVersion
from kalda.metadata.topics import NO_LEADER, NO_LEADER_CHANGE, LeaderRecoveryState, PartitionRegistration
from kalda.protocol.messages.metadata_records import PartitionChangeRecord
from kalda.protocol.record_framing import VersionedRecord


class Election(Enum):
    """PREFERRED: the first replica if possible. ONLINE: the present leader while possible. UNCLEAN: any active replica
    rather than none, even one that lacks acknowledged records."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


class ChangeRules(NamedTuple):
    """The part of the cluster's state on which changes of a topic's partitions depend.

    `is_acceptable_leader(registration, broker id)`: whether this replica may lead. `default_directory(broker id)`: the
    directory of a new replica.
    """

    metadata_version: MetadataVersion
    elr_enabled: bool
    min_insync_replicas: int
    is_acceptable_leader: Callable[[PartitionRegistration, int], bool]
    default_directory: Callable[[int], Uuid]


class PartitionChange:
    """A change of one partition. Set targets, then call `build` once."""

    def __init__(self, topic_id: Uuid, partition_id: int, partition: PartitionRegistration, rules: ChangeRules) -> None:
        self._topic_id = topic_id
        self._partition_id = partition_id
        self._partition = partition
        self._rules = rules
        self.election = Election.ONLINE
        self.isr: tuple[int, ...] = partition.isr
        self.replicas: tuple[int, ...] = partition.replicas
        self.removing: tuple[int, ...] = partition.removing_replicas
        self.adding: tuple[int, ...] = partition.adding_replicas
        self.leader_recovery_state = partition.leader_recovery_state
        self.unclean_shutdown_replicas: tuple[int, ...] = ()
        """replicas that stopped uncleanly, and are not eligible therefore"""
        self._elr: tuple[int, ...] = partition.elr
        """the eligible replicas after the change, as far as `build` has computed them"""
        self._new_directories: dict[int, Uuid] = {}
        """by broker id, directories of replicas that differ from the registration"""

    def move_to_directory(self, broker_id: int, directory: Uuid) -> None:
        """The replica on that broker is in that directory now."""
        self._new_directories[broker_id] = directory

    def build(self) -> VersionedRecord | None:
        """The record of the change; None where nothing changes."""
        record = PartitionChangeRecord(partition_id=self._partition_id, topic_id=self._topic_id)
        self._complete_reassignment()
        self._update_eligible()
        self._elect(record)
        self._bump_leader_epoch(record)
        self._write_eligible(record)
        # Without eligible replicas an empty ISR would lose the last replica with all data: it stays in the ISR instead.
        if record.isr is None and self.isr != self._partition.isr and (self.isr or self._rules.elr_enabled):
            record.isr = list(self.isr)
        self._write_assignment(record)
        if self.leader_recovery_state != self._partition.leader_recovery_state:
            record.leader_recovery_state = self.leader_recovery_state.value
        self._write_last_known_leader(record)
        if _is_no_op(record):
            return None
        return VersionedRecord(record, self._rules.metadata_version.partition_change_record_version)

    def _complete_reassignment(self) -> None:
        """Once all replicas being added are in the ISR, those being removed are dropped."""
        if not self.removing and not self.adding:
            return
        isr = _without(self.isr, self.removing)
        if not isr or not set(self.adding) <= set(isr):
            return
        self.isr = isr
        self.replicas = _without(self.replicas, self.removing)
        self.removing = self.adding = ()

    def _update_eligible(self) -> None:
        rules, partition = self._rules, self._partition
        if not rules.elr_enabled:
            return
        if len(self.isr) >= min(rules.min_insync_replicas, len(self.replicas)):
            self._elr = ()
            return
        excluded = {*self.isr, *self.unclean_shutdown_replicas}
        candidates = _union(self._elr, partition.isr)
        self._elr = tuple(replica for replica in candidates if replica not in excluded and replica in self.replicas)

    def _elect(self, record: PartitionChangeRecord) -> None:
        leader, clean = self._choose_leader()
        if clean and leader != NO_LEADER and leader not in self.isr:
            # Elected from the eligible replicas: it becomes the only member of the ISR.
            self.isr = (leader,)
            self._elr = _without(self._elr, (leader,))
        if leader == self._partition.leader:
            return
        record.leader = leader
        if not clean:
            record.isr = [leader]
            if self._partition.leader_recovery_state is not LeaderRecoveryState.RECOVERING:
                self.leader_recovery_state = LeaderRecoveryState.RECOVERING

    def _choose_leader(self) -> tuple[int, bool]:
        """The leader, NO_LEADER if no replica can lead, and whether it has all acknowledged records."""
        current = self._partition.leader
        candidates: Iterable[int] = self.replicas
        if self.election is Election.PREFERRED:
            candidates = (*self.replicas[:1], current, *self.replicas[1:])
        else:
            candidates = (current, *self.replicas)
        for replica in candidates:
            if self._is_valid_leader(replica):
                return replica, True
        if self._can_elect_last_known_leader():
            return self._partition.last_known_elr[0], False
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self._is_acceptable(replica):
                    return replica, False
        return NO_LEADER, True

    def _is_valid_leader(self, replica: int) -> bool:
        """Whether the replica is in the ISR, or eligible while the ISR is empty. An eligible replica that became a
        member of a non-empty ISR could make it large enough to commit records that other eligible replicas lack."""
        if replica == NO_LEADER:
            return False
        eligible = replica in self.isr or (self._rules.elr_enabled and not self.isr and replica in self._elr)
        return eligible and self._is_acceptable(replica)

    def _can_elect_last_known_leader(self) -> bool:
        """Whether no replica is certain to have all records, but the last leader is active: no replica has more."""
        last_known = self._partition.last_known_elr
        return (
            self._rules.elr_enabled
            and not self.isr
            and not self._elr
            and len(last_known) == 1
            and self._is_acceptable(last_known[0])
        )

    def _is_acceptable(self, replica: int) -> bool:
        return self._rules.is_acceptable_leader(self._partition, replica)

    def _bump_leader_epoch(self, record: PartitionChangeRecord) -> None:
        """Elect the same leader anew where a replica was removed, so that the removed one cannot act in its old role.
        At old metadata.versions also where the ISR shrank."""
        if record.leader != NO_LEADER_CHANGE:
            return
        partition = self._partition
        replicas_left = not set(partition.replicas) <= set(self.replicas)
        isr_shrank = not set(partition.isr) <= set(self.isr)
        if replicas_left or (isr_shrank and self._rules.metadata_version.is_leader_epoch_bump_required_on_isr_shrink):
            record.leader = partition.leader

    def _write_eligible(self, record: PartitionChangeRecord) -> None:
        was_unclean = record.isr is not None
        if was_unclean or not self._rules.elr_enabled:
            self._elr = ()
        if self._elr != self._partition.elr:
            record.eligible_leader_replicas = list(self._elr)

    def _write_last_known_leader(self, record: PartitionChangeRecord) -> None:
        """Write the last leader as the only last known replica when the ISR becomes empty; clear it when the partition
        has a leader again.

        Where the partition had no leader any more, the last member of the ISR is written: it has no fewer records.
        Apache Kafka writes -1 in that case, and the partition stays without a leader until an operator elects one.
        """
        partition = self._partition
        last_known = partition.last_known_elr
        if not self._rules.elr_enabled:
            if last_known:
                record.last_known_elr = []
        elif record.isr is not None and not record.isr:
            last = partition.isr[:1] if partition.leader == NO_LEADER else (partition.leader,)
            if last and last != last_known:
                record.last_known_elr = list(last)
        elif last_known:
            leader = partition.leader if record.leader == NO_LEADER_CHANGE else record.leader
            if leader != NO_LEADER:
                record.last_known_elr = []

    def _write_assignment(self, record: PartitionChangeRecord) -> None:
        partition = self._partition
        replicas_changed = self.replicas != partition.replicas
        if self.replicas and replicas_changed:
            record.replicas = list(self.replicas)
        if self.removing != partition.removing_replicas:
            record.removing_replicas = list(self.removing)
        if self.adding != partition.adding_replicas:
            record.adding_replicas = list(self.adding)
        if not self._rules.metadata_version.is_directory_assignment_supported:
            return
        current = dict(zip(partition.replicas, partition.directories, strict=True)) | self._new_directories
        directories = [
            current[replica] if replica in current else self._rules.default_directory(replica)
            for replica in self.replicas
        ]
        if replicas_changed or directories != list(partition.directories):
            record.directories = directories


def _is_no_op(record: PartitionChangeRecord) -> bool:
    return (
        record.isr is None
        and record.leader == NO_LEADER_CHANGE
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.leader_recovery_state == -1
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
        and record.directories is None
    )


def _without(replicas: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica not in others)


def _union(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [*first, *(replica for replica in second if replica not in first)]
