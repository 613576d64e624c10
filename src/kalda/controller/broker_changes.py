"""Effects on partitions when a broker is fenced, unfenced, shut down, unregistered, or loses a directory.

A broker that is fenced or shuts down is removed from all ISRs and leaderships at once, so that producers with acks=all
do not wait for it. A broker that is unfenced becomes the leader only of partitions without one. It re-enters an ISR
when it has caught up.

Not obvious:

- A broker of many partitions that is being fenced is not fenced in the metadata before the last event, but inactive
  to every decision from the first one on: only `ClusterControl.is_active` says that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Uuid
from kalda.controller.cluster import BrokerControlState, ClusterControl
from kalda.controller.features import FeatureControl
from kalda.controller.partitions import PartitionControl, TopicIdPartition
from kalda.metadata.cluster import BrokerRegistration
from kalda.metadata.topics import NO_LEADER
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kalda.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

PARTITIONS_A_STEP = 1_000
"""Some 30 milliseconds."""


class Departures:
    """Per leaving broker, the partitions that it still has to be taken out of.

    Brokers that leave and have many partitions: they are fenced, or stop in a controlled way.

    The records for all partitions of such a broker, made, written and applied in one event, would hold the node for a
    second where they are 30,000. So an event takes it out of the ISRs of at most `PARTITIONS_A_STEP`, those that it
    leads first, and requests are handled between two events.

    - A broker whose session has ended, or whose process is dead, is fenced by the last event. Before that it
      counts as inactive (`ClusterControl.leaving`): it is not elected, and gets into no ISR. A heartbeat ends
      that, and it stays. So no partition loses its only leader before the last event: one is elected again when
      the broker is unfenced, and where it was never fenced that does not happen.
    - A controlled shutdown begins with the record that says so. The broker may stop after the last event.

    After each event the metadata is such that any controller can go on from it: to the next one the broker has a new
    session, or sends again that it is to stop. So all of this is soft state of the active controller.
    """

    def __init__(self, state: PartitionControl, cluster: ClusterControl, is_elr_enabled: Callable[[], bool]) -> None:
        self._state = state
        self._cluster = cluster
        self._is_elr_enabled = is_elr_enabled
        self._left: dict[int, list[TopicIdPartition]] = {}
        """By broker id; the next ones are at the end."""

    def clear(self) -> None:
        """This controller is not active any more."""
        self._left.clear()
        self._cluster.leaving.clear()

    def partitions_of(self, broker_id: int) -> list[TopicIdPartition]:
        """What changes when the broker leaves: partitions that it leads, then others with it in the ISR. That of a
        partition without a leader stays as it is where it is the last member, but for ELR and unclean elections."""
        state, keeps_last = self._state, not self._is_elr_enabled()
        led: list[TopicIdPartition] = []
        others: list[TopicIdPartition] = []
        for at in state.index.with_in_isr(broker_id):
            partition = state.partitions[at]
            if partition.leader == broker_id:
                led.append(at)
            elif not (
                keeps_last
                and len(partition.isr) == 1
                and not partition.has_leader
                and not state.may_elect_uncleanly(state.topic_names[at.topic_id], partition)
            ):
                others.append(at)
        return led + others

    # Fencing

    def begin_fencing(self, broker_id: int, epoch: int) -> bool:
        """The broker is to be fenced. Whether `records` are to be written before that, now or after earlier ones."""
        if self._cluster.leaving.get(broker_id) == epoch:
            return self.is_under_way(broker_id)
        registrations = self._state.partitions
        partitions = [at for at in self.partitions_of(broker_id) if len(registrations[at].isr) > 1]
        if len(partitions) <= PARTITIONS_A_STEP:
            return False
        self._cluster.leaving[broker_id] = epoch
        self._begin(broker_id, partitions)
        return True

    def end_fencing(self, broker_id: int) -> None:
        """The broker is fenced, or has sent a heartbeat and stays."""
        if self._cluster.leaving.pop(broker_id, None) is not None:
            self._left.pop(broker_id, None)

    # Controlled shutdowns

    def begin_shutdown(self, broker_id: int) -> list[VersionedRecord]:
        """The records for the first partitions, to be written with that of the beginning."""
        self._begin(broker_id, self.partitions_of(broker_id))
        records = self.records(broker_id)
        self.advance(broker_id)
        return records

    def next_stopping(self) -> int | None:
        """A broker in a controlled shutdown for which there are more records to write; None where there is none."""
        for broker_id in list(self._left):
            if broker_id in self._cluster.leaving:
                continue
            registration = self._cluster.brokers.get(broker_id)
            if registration is not None and registration.in_controlled_shutdown and not registration.fenced:
                return broker_id
            del self._left[broker_id]
        return None

    def put_last(self, broker_id: int) -> None:
        """The next records of the broker cannot be made or written: other brokers go on first."""
        left = self._left.pop(broker_id, None)
        if left is not None:
            self._left[broker_id] = left

    # Step by step

    def is_under_way(self, broker_id: int) -> bool:
        """Whether there are more records to write for it."""
        return broker_id in self._left

    def _begin(self, broker_id: int, partitions: list[TopicIdPartition]) -> None:
        partitions.reverse()
        self._left[broker_id] = partitions

    def records(self, broker_id: int) -> list[VersionedRecord]:
        """The records for the next partitions. `advance` is called when they are written."""
        partitions = self._state.partitions
        its = [
            at
            for at in reversed(self._left[broker_id][-PARTITIONS_A_STEP:])
            if at in partitions and broker_id in partitions[at].isr
        ]
        records = self._state.leader_and_isr_updates(its, removed=broker_id)
        if broker_id in self._cluster.leaving:
            records = [each for each in records if not _leaves_no_leader(each)]
        return records

    def advance(self, broker_id: int) -> None:
        """The records were written."""
        left = self._left.get(broker_id)
        if left is not None:
            del left[-PARTITIONS_A_STEP:]
            if not left:
                del self._left[broker_id]


def _leaves_no_leader(versioned: VersionedRecord) -> bool:
    record = versioned.record
    return isinstance(record, PartitionChangeRecord) and record.leader == NO_LEADER


log = logging.getLogger(__name__)

_FENCE, _UNFENCE = 1, -1
_IN_CONTROLLED_SHUTDOWN = 1


class BrokerChangeControl:
    """Heartbeats, fencing, unregistration."""

    def __init__(self, state: PartitionControl, features: FeatureControl, cluster: ClusterControl) -> None:
        self._state = state
        self._features = features
        self._cluster = cluster
        self.departures = Departures(state, cluster, lambda: features.is_elr_enabled)

    def heartbeat(
        self, request: BrokerHeartbeatRequest, registration: BrokerRegistration
    ) -> tuple[Result[VersionedRecord, BrokerHeartbeatResponse], bool]:
        """The result, and whether the broker is in a controlled shutdown after it: then all active brokers must have
        read the last record before the broker may stop."""
        broker_id = request.broker_id
        heartbeats = self._cluster.heartbeats
        registration_offset = self._cluster.registration_offset(broker_id)
        current, following = heartbeats.next_state(
            request,
            registration_offset,
            lambda: self._state.index.leads_any(broker_id) or self.departures.is_under_way(broker_id),
        )
        version = self._features.metadata_version
        offline = request.offline_log_dirs if version.is_directory_assignment_supported else []
        newly_offline = [directory for directory in registration.directories if directory in offline]
        if following is BrokerControlState.UNFENCED and newly_offline:
            # The next heartbeat unfences it, when these directories are offline in the log and it leads nothing there.
            following = current
        records: list[VersionedRecord] = []
        if current is not following:
            log.info("Broker %d changes from %s to %s.", broker_id, current.value, following.value)
            match following:
                case BrokerControlState.FENCED | BrokerControlState.SHUTDOWN_NOW:
                    records += self.fence(registration)
                case BrokerControlState.UNFENCED:
                    records += self._unfence(registration)
                case BrokerControlState.CONTROLLED_SHUTDOWN:
                    records += self._start_shutdown(registration)
        heartbeats.on_heartbeat(broker_id, request.current_metadata_offset)
        if newly_offline:
            records += self._directories_offline(registration, newly_offline)
        if version.is_cordoned_log_dirs_supported and request.cordoned_log_dirs is not None:
            records += self._cordon(registration, request.cordoned_log_dirs)
        response = BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= registration_offset,
            is_fenced=following.is_fenced,
            should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
        )
        return Result(records, response), following is BrokerControlState.CONTROLLED_SHUTDOWN

    def fence(self, registration: BrokerRegistration) -> list[VersionedRecord]:
        """The records that fence a broker; none where it is fenced already."""
        if registration.fenced:
            return []
        broker_id = registration.id
        records = self._state.leader_and_isr_updates(self.departures.partitions_of(broker_id), removed=broker_id)
        records.append(_change(registration, fenced=_FENCE))
        return records

    def fence_stale(self, broker_id: int, epoch: int) -> list[VersionedRecord]:
        """The records that fence a broker whose session has expired; none where the session was that of a former
        incarnation."""
        registration = self._cluster.brokers.get(broker_id)
        if registration is None or registration.epoch != epoch:
            return []
        log.info("Fencing broker %d with epoch %d because its session has timed out.", broker_id, epoch)
        return self.fence(registration)

    def fence_dead(self, broker_id: int, epoch: int) -> list[VersionedRecord]:
        """The records that fence a broker whose process is dead; none where it has registered anew since. No leader is
        elected uncleanly in its place before its session would have ended."""
        registration = self._cluster.brokers.get(broker_id)
        if registration is None or registration.epoch != epoch:
            return []
        self._cluster.hold_unclean_elections(broker_id, epoch)
        return self.fence(registration)

    def unregister(self, broker_id: int) -> list[VersionedRecord]:
        """Raises `ApiError` BROKER_ID_NOT_REGISTERED."""
        registration = self._cluster.brokers.get(broker_id)
        if registration is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        index = self._state.index
        records = self._state.leader_and_isr_updates(index.with_in_isr(broker_id), removed=broker_id)
        records += self._state.leader_and_isr_updates(index.with_in_elr(broker_id), unclean=broker_id)
        record = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=registration.epoch)
        records.append(VersionedRecord(record, 0))
        return records

    def clean_up(self, broker_id: int, was_clean: bool, directories: Sequence[Uuid]) -> list[VersionedRecord]:
        """The records that remove a broker from its ISRs when a new incarnation registers, with these directories.
        After an unclean shutdown its replicas are not eligible either, because unsynced records may be lost (KIP-966).
        Nor are replicas in directories that the new incarnation lacks: it creates their logs anew, empty."""
        index = self._state.index
        if not self._features.metadata_version.is_elr_supported:
            return self._state.leader_and_isr_updates(index.with_in_isr(broker_id), removed=broker_id)

        def is_kept(at: TopicIdPartition) -> bool:
            directory = self._state.partitions[at].directory(broker_id)
            return was_clean and (directory in (*directories, DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING))

        kept: list[TopicIdPartition] = []
        lost: list[TopicIdPartition] = []
        for at in index.with_in_isr(broker_id):
            (kept if is_kept(at) else lost).append(at)
        lost += [at for at in index.with_in_elr(broker_id) if not is_kept(at)]
        records = self._state.leader_and_isr_updates(kept, removed=broker_id)
        return records + self._state.leader_and_isr_updates(lost, unclean=broker_id)

    def _unfence(self, registration: BrokerRegistration) -> list[VersionedRecord]:
        records = [_change(registration, fenced=_UNFENCE)]
        records += self._state.leader_and_isr_updates(iter(self._state.index.leaderless), added=registration.id)
        return records

    def _start_shutdown(self, registration: BrokerRegistration) -> list[VersionedRecord]:
        records = []
        if not registration.in_controlled_shutdown:
            records.append(_change(registration, version=1, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN))
        return records + self.departures.begin_shutdown(registration.id)

    def _directories_offline(self, registration: BrokerRegistration, newly: Sequence[Uuid]) -> list[VersionedRecord]:
        records: list[VersionedRecord] = []
        for directory in newly:
            partitions = self._state.index.in_directory(directory)
            records += self._state.leader_and_isr_updates(partitions, removed=registration.id)
        online = [directory for directory in registration.directories if directory not in newly]
        records.append(_change(registration, version=2, log_dirs=online))
        return records

    def _cordon(self, registration: BrokerRegistration, cordoned: Sequence[Uuid]) -> list[VersionedRecord]:
        directories = tuple(sorted(cordoned))
        if directories == registration.cordoned_directories:
            return []
        return [_change(registration, version=3, cordoned_log_dirs=list(directories))]


def _change(
    registration: BrokerRegistration,
    *,
    version: int = 0,
    fenced: int = 0,
    in_controlled_shutdown: int = 0,
    log_dirs: Sequence[Uuid] = (),
    cordoned_log_dirs: list[Uuid] | None = None,
) -> VersionedRecord:
    """A change of the registration. `version` is the lowest one that has the given fields."""
    record = BrokerRegistrationChangeRecord(
        broker_id=registration.id,
        broker_epoch=registration.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
        log_dirs=list(log_dirs),
        cordoned_log_dirs=cordoned_log_dirs,
    )
    return VersionedRecord(record, version)
