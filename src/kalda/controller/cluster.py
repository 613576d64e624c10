"""The registered brokers and controllers.

The epoch of a registration is the offset at which its records begin. Every request of the broker carries the epoch, so
requests of an earlier incarnation are recognized and refused. A broker registers fenced and reads the metadata up to
its own registration record; its next heartbeat unfences it (`BrokerHeartbeats`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Uuid, is_reserved, uuid_to_text
from kalda.controller.features import FeatureControl
from kalda.controller.placement import UsableBroker
from kalda.metadata.cluster import BrokerRegistration, ClusterDelta, ClusterImage, ControllerRegistration
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.metadata.features import MINIMUM
from kalda.metadata.topics import PartitionRegistration
from kalda.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterControllerResponse,
)
from kalda.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

# Heartbeats and sessions of brokers: soft state of the active controller, not in the log.
#
# A heartbeat writes no record, so the log does not grow with time. Hence a new active controller does not have the
# times of the last heartbeats: a broker that died around the failover gets a full session again.
#
# A broker has four states, of which the log has the first three:
#
#     FENCED ── has read its own registration ──> UNFENCED
#     UNFENCED ── requests to be fenced, or its session expired ──> FENCED
#     UNFENCED ── requests to shut down, leads partitions ──> CONTROLLED_SHUTDOWN
#     UNFENCED ── requests to shut down, leads none ──> SHUTDOWN_NOW
#     CONTROLLED_SHUTDOWN ── leads none, and every active broker has read that ──> SHUTDOWN_NOW
#     FENCED ── requests to shut down ──> SHUTDOWN_NOW
#
# "Every active broker has read that": the offset of the records that moved its leaderships away is not above the
# lowest offset that any active broker reported. If the broker stopped earlier, a broker that lags behind could still
# name it as a leader in metadata responses.
#
# Invariant: whether a broker is fenced here follows from replayed records only. No request and no task sets it: their
# records may be refused by the log.
#
# Not obvious:
#
# - `BrokerHeartbeats` is changed by the replayed record that fences or unfences a broker, never by the decision.

NO_OFFSET = -1


class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


@dataclass(slots=True)
class _Heartbeat:
    """The state of one broker."""

    fenced: bool
    metadata_offset: int = NO_OFFSET
    """the metadata offset in its last heartbeat"""
    shutdown_offset: int = NO_OFFSET
    """in a controlled shutdown, the offset of the records that moved its leaderships away"""

    @property
    def state(self) -> BrokerControlState:
        if self.shutdown_offset != NO_OFFSET:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.fenced else BrokerControlState.UNFENCED


class BrokerHeartbeats:
    """Exists while this node is the active controller."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._brokers: dict[int, _Heartbeat] = {}
        self._contacts: dict[tuple[int, int], int] = {}
        """by (broker id, epoch), the time of the last heartbeat; in the order of these times, the oldest first"""

    def register(self, broker_id: int, fenced: bool) -> None:
        """A registration, or a change of one, was replayed."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            self._brokers[broker_id] = _Heartbeat(fenced)
        elif broker.fenced != fenced:
            broker.fenced = fenced
            broker.shutdown_offset = NO_OFFSET

    def remove(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def contact(self, broker_id: int, epoch: int, now_ms: int) -> None:
        """Start the session anew: a heartbeat was received."""
        self._contacts.pop((broker_id, epoch), None)
        self._contacts[broker_id, epoch] = now_ms

    def end_session(self, broker_id: int, epoch: int) -> None:
        """End the session now: a new incarnation can register without waiting for the timeout."""
        self._contacts.pop((broker_id, epoch), None)

    def has_session(self, broker_id: int, epoch: int) -> bool:
        """Whether its session was not ended, even where its time is over."""
        return (broker_id, epoch) in self._contacts

    def has_valid_session(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        contact_ms = self._contacts.get((broker_id, epoch))
        return contact_ms is not None and now_ms <= contact_ms + self._session_timeout_ms

    def session_end_ms(self, broker_id: int, epoch: int) -> int | None:
        """The last moment of the session, if no further heartbeat comes; None where there is no session."""
        contact_ms = self._contacts.get((broker_id, epoch))
        return None if contact_ms is None else contact_ms + self._session_timeout_ms

    def contacts(self) -> list[tuple[int, int]]:
        """Brokers with a session, and the time of the last heartbeat of each."""
        return [(broker_id, contact_ms) for (broker_id, _), contact_ms in self._contacts.items()]

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """Brokers and epochs whose sessions have expired, the oldest heartbeat first. The sessions stay."""
        expired = []
        for key, contact_ms in self._contacts.items():
            if now_ms <= contact_ms + self._session_timeout_ms:
                break
            expired.append(key)
        return expired

    def on_heartbeat(self, broker_id: int, metadata_offset: int) -> None:
        """A heartbeat was handled: the offset up to which the broker has read the metadata."""
        self._brokers[broker_id].metadata_offset = metadata_offset

    def set_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """The broker's leaderships were moved away by records that end at `offset`. The first such offset counts."""
        broker = self._brokers.get(broker_id)
        if broker is not None and not broker.fenced and broker.shutdown_offset == NO_OFFSET:
            broker.shutdown_offset = offset

    def raise_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """More of its leaderships were moved away, by records that end at `offset`."""
        broker = self._brokers.get(broker_id)
        if broker is not None and broker.state is BrokerControlState.CONTROLLED_SHUTDOWN:
            broker.shutdown_offset = offset

    @property
    def lowest_active_offset(self) -> int | None:
        """The lowest metadata offset of the brokers that are neither fenced nor shutting down; None where there are
        none."""
        offsets = [b.metadata_offset for b in self._brokers.values() if b.state is BrokerControlState.UNFENCED]
        return min(offsets, default=None)

    def next_state(
        self, request: BrokerHeartbeatRequest, registration_offset: int, leads_partitions: Callable[[], bool]
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """The present and the next state of the broker that sent `request`."""
        broker = self._brokers[request.broker_id]
        current = broker.state
        following = current
        match current:
            case BrokerControlState.FENCED:
                if request.want_shut_down:
                    following = BrokerControlState.SHUTDOWN_NOW
                elif not request.want_fence and request.current_metadata_offset >= registration_offset:
                    following = BrokerControlState.UNFENCED
            case BrokerControlState.UNFENCED:
                if request.want_shut_down:
                    drains = not request.want_fence and leads_partitions()
                    following = BrokerControlState.CONTROLLED_SHUTDOWN if drains else BrokerControlState.SHUTDOWN_NOW
                elif request.want_fence:
                    following = BrokerControlState.FENCED
            case BrokerControlState.CONTROLLED_SHUTDOWN:
                lowest = self.lowest_active_offset
                read_by_all = lowest is None or broker.shutdown_offset <= lowest
                if read_by_all and not leads_partitions():
                    following = BrokerControlState.SHUTDOWN_NOW
            case BrokerControlState.SHUTDOWN_NOW:
                raise AssertionError("SHUTDOWN_NOW is never a current state: such a broker is fenced")
        return current, following


class UncleanHolds:
    """The brokers that are held. Soft state; empty while this controller is not active.

    Unclean elections that wait until a broker's session would have ended by time.

    A broker whose listener refuses connections is fenced at once (`liveness.py`). The refusal may be wrong: then the
    broker is alive, and its next heartbeat unfences it. Fencing is harmless, but an unclean election in its place is
    not: it drops records that this broker, the last member of the ISR, has acknowledged. So such a broker is *held*:
    as long as its session would have lasted, no partition that may need its records elects a leader uncleanly by
    itself. Such a partition has no leader meanwhile. When the hold ends, the election takes place.

    A request of an operator for an unclean election is carried out in any case.
    """

    def __init__(self) -> None:
        self._until_ms: dict[int, int] = {}
        """By broker id, when its session would have ended."""
        self._ended: dict[int, None] = {}
        """Ids of brokers whose hold has ended, and whose partitions have not had their elections yet."""

    def hold(self, broker_id: int, until_ms: int) -> None:
        """Hold the broker until then. A later end replaces an earlier one."""
        self._until_ms[broker_id] = max(until_ms, self._until_ms.get(broker_id, until_ms))

    def blocks(self, partition: PartitionRegistration) -> bool:
        """Whether a broker is held that may have records of the partition which no other replica has."""
        if not self._until_ms:
            return False
        last = (*partition.isr, *partition.elr, *partition.last_known_elr)
        return any(replica in self._until_ms for replica in last)

    def first_ended(self, now_ms: int) -> int | None:
        """A broker whose hold has ended, and for whose partitions `remove` was not called since."""
        for broker_id in [held for held, until_ms in self._until_ms.items() if until_ms < now_ms]:
            del self._until_ms[broker_id]
            self._ended[broker_id] = None
        return next(iter(self._ended), None)

    def remove(self, broker_id: int) -> None:
        """The elections in the partitions of that broker are done."""
        self._ended.pop(broker_id, None)

    def put_last(self, broker_id: int) -> None:
        """Those elections have failed: they are tried again after those of other brokers."""
        if broker_id in self._ended:
            del self._ended[broker_id]
            self._ended[broker_id] = None

    def clear(self) -> None:
        self._until_ms.clear()
        self._ended.clear()


CleanUp = Callable[[int, bool, Sequence[Uuid]], list[VersionedRecord]]
"""From (broker id, whether the shutdown was clean, directories) to the records that remove the previous incarnation
from its ISRs."""

_NO_STORED_EPOCH = -2  # equals no epoch in a request, where -1 stands for an unknown one


class ClusterControl:
    """Registrations; while active, also heartbeats."""

    def __init__(
        self, registry: SnapshotRegistry, cluster_id: str, features: FeatureControl, own_incarnation: Uuid | None = None
    ) -> None:
        """`own_incarnation`: the incarnation id of the broker in the process of this controller."""
        self._own_incarnation = own_incarnation
        self._cluster_id = cluster_id
        self._features = features
        self.brokers: TimelineDict[int, BrokerRegistration] = TimelineDict(registry)
        self.controllers: TimelineDict[int, ControllerRegistration] = TimelineDict(registry)
        self._registration_offsets: TimelineDict[int, int] = TimelineDict(registry)
        """by broker id, the offset of the last registration record; a broker that registers anew under the same
        incarnation keeps its epoch, but not this offset"""
        self._directory_owners: TimelineDict[Uuid, int] = TimelineDict(registry)
        """broker id by log directory"""
        self._heartbeats: BrokerHeartbeats | None = None
        """None while this controller is not active"""
        self.activations = 0
        """how often this controller became active"""
        self.timed_out_sessions = 0
        """sessions that have ended by time while this controller was active"""
        self.unclean_holds = UncleanHolds()
        self.leaving: dict[int, int] = {}
        """By id, the epochs of brokers that are being fenced (`broker_changes.py`): soft state, as the holds."""

    # Being the active controller

    @property
    def is_controlling(self) -> bool:
        """Whether this controller is the active one."""
        return self._heartbeats is not None

    def activate(self, session_timeout_ms: int, now_ms: int) -> None:
        """Start a full session for every unfenced broker: the times of earlier heartbeats are not in the log."""
        self._heartbeats = BrokerHeartbeats(session_timeout_ms)
        for broker_id, registration in self.brokers.items():
            self._heartbeats.register(broker_id, registration.fenced)
            if not registration.fenced:
                self._heartbeats.contact(broker_id, registration.epoch, now_ms)

    def deactivate(self) -> None:
        self._heartbeats = None
        self.unclean_holds.clear()

    @property
    def heartbeats(self) -> BrokerHeartbeats:
        assert self._heartbeats is not None, "only the active controller tracks heartbeats"
        return self._heartbeats

    def hold_unclean_elections(self, broker_id: int, epoch: int) -> None:
        """The broker is about to be fenced although its session has not ended: hold unclean elections until then."""
        end_ms = self.heartbeats.session_end_ms(broker_id, epoch)
        if end_ms is not None:
            self.unclean_holds.hold(broker_id, end_ms)

    # Queries

    def check_broker_epoch(self, broker_id: int, epoch: int) -> BrokerRegistration:
        """Raises `ApiError` STALE_BROKER_EPOCH unless `epoch` is that of the broker's present incarnation."""
        registration = self.brokers.get(broker_id)
        if registration is None:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
        if registration.epoch != epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {registration.epoch}, but got broker epoch {epoch}",
            )
        return registration

    def registration_offset(self, broker_id: int) -> int:
        return self._registration_offsets[broker_id]

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker may be in an ISR and lead: registered, not fenced, nor about to be, not in a controlled
        shutdown."""
        registration = self.brokers.get(broker_id)
        return (
            registration is not None
            and not registration.fenced
            and not registration.in_controlled_shutdown
            and self.leaving.get(broker_id) != registration.epoch
        )

    def has_online_directory(self, broker_id: int, directory: Uuid | None) -> bool:
        """Whether a replica in that directory can be served. An unassigned directory counts as online: a broker without
        any online directory stops itself."""
        registration = self.brokers.get(broker_id)
        if registration is None or directory is None or directory == DIRECTORY_LOST:
            return False
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING) or not registration.directories:
            return True
        return registration.has_online_dir(directory)

    def default_directory(self, broker_id: int) -> Uuid:
        """The directory of a new replica on that broker: its only one, or DIRECTORY_UNASSIGNED, so that it chooses."""
        registration = self.brokers.get(broker_id)
        if registration is None:
            return DIRECTORY_UNASSIGNED
        directories = registration.directories
        if not directories:
            return DIRECTORY_MIGRATING
        return directories[0] if len(directories) == 1 else DIRECTORY_UNASSIGNED

    def usable_brokers(self) -> Iterator[UsableBroker]:
        """Brokers on which new replicas may be placed: fenced ones too. One that shuts down is not among them until it
        is fenced, then it has stopped, and is expected back."""
        for broker_id, registration in self.brokers.items():
            shuts_down = registration.in_controlled_shutdown and not registration.fenced
            if not shuts_down and registration.has_uncordoned_dirs:
                yield UsableBroker(broker_id, registration.rack, registration.fenced)

    # Requests

    def register_broker(
        self, request: BrokerRegistrationRequest, new_epoch: int, clean_up: CleanUp, now_ms: int
    ) -> Result[VersionedRecord, BrokerRegistrationResponse]:
        """A broker starts, or registers anew with other features or directories. Raises `ApiError`.

        The records that clean up after a previous incarnation come first, as many as it had partitions, and need not be
        written together with the registration: without it they only take a dead broker out of more ISRs, and the broker
        registers again. The other way round it would be in ISRs for which it may have lost records."""
        self._check_cluster_id(request.cluster_id)
        broker_id = request.broker_id
        existing = self.brokers.get(broker_id)
        same_incarnation = existing is not None and existing.incarnation_id == request.incarnation_id
        # The previous broker of this node is dead, however recent its last heartbeat: this process has its directories.
        is_own_broker = self._own_incarnation is not None and request.incarnation_id == self._own_incarnation
        if (
            existing is not None
            and not same_incarnation
            and not is_own_broker
            and not existing.in_controlled_shutdown
            and self.heartbeats.has_valid_session(broker_id, existing.epoch, now_ms)
        ):
            raise ApiError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                "Another broker is registered with that broker id. If the broker was recently restarted this should "
                "self-resolve once the heartbeat manager expires the broker's session.",
            )
        if request.is_migrating_zk_broker:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
        version = self._features.metadata_version
        record = RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=new_epoch,
            end_points=_broker_endpoints(request),
            features=self._broker_features(request),
            rack=request.rack,
        )
        if version.is_directory_assignment_supported:
            self._check_directories(broker_id, request.log_dirs)
            record.log_dirs = list(request.log_dirs)
        records: list[VersionedRecord] = []
        if existing is not None and same_incarnation:
            record.broker_epoch = existing.epoch
            record.fenced = existing.fenced
            record.in_controlled_shutdown = existing.in_controlled_shutdown
            if version.is_cordoned_log_dirs_supported and existing.cordoned_directories is not None:
                record.cordoned_log_dirs = list(existing.cordoned_directories)
        else:
            stored_epoch = _NO_STORED_EPOCH if existing is None else existing.epoch
            records += clean_up(broker_id, stored_epoch == request.previous_broker_epoch, request.log_dirs)
        records.append(VersionedRecord(record, version.register_broker_record_version))
        return Result(records, BrokerRegistrationResponse(broker_epoch=record.broker_epoch))

    def register_controller(
        self, request: ControllerRegistrationRequest
    ) -> Result[VersionedRecord, ControllerRegistrationResponse]:
        """KIP-919. Raises `ApiError` UNSUPPORTED_VERSION."""
        if not self._features.metadata_version.is_controller_registration_supported:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The current MetadataVersion is too old to support controller registrations.",
            )
        _check_listener_names(listener.name for listener in request.listeners)
        record = RegisterControllerRecord(
            controller_id=request.controller_id,
            incarnation_id=request.incarnation_id,
            zk_migration_ready=request.zk_migration_ready,
            end_points=[
                ControllerEndpoint(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
                for one in request.listeners
            ],
            features=[
                ControllerFeature(
                    name=one.name,
                    min_supported_version=one.min_supported_version,
                    max_supported_version=one.max_supported_version,
                )
                for one in request.features
            ],
        )
        return Result([VersionedRecord(record, 0)], ControllerRegistrationResponse(error_message=None), atomic=True)

    def unregister_controller(self, controller_id: int) -> Result[VersionedRecord, UnregisterControllerResponse]:
        """KIP-1312. A controller that runs registers again. Raises `ApiError` UNSUPPORTED_VERSION and
        CONTROLLER_ID_NOT_REGISTERED."""
        if not self._features.metadata_version.is_controller_unregistration_supported:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The current MetadataVersion is too old to support controller unregistration.",
            )
        if controller_id not in self.controllers:
            raise ApiError(
                ErrorCode.CONTROLLER_ID_NOT_REGISTERED, f"Controller ID {controller_id} is not currently registered."
            )
        record = UnregisterControllerRecord(controller_id=controller_id)
        return Result([VersionedRecord(record, 0)], UnregisterControllerResponse(error_message=None), atomic=True)

    # Replay

    def replay_broker(self, record: RegisterBrokerRecord, offset: int) -> None:
        broker_id = record.broker_id
        previous = self.brokers.get(broker_id)
        registration = BrokerRegistration.from_record(record)
        self.brokers[broker_id] = registration
        self._registration_offsets[broker_id] = offset
        self._move_directories(broker_id, previous, registration)
        if self._heartbeats is not None:
            if previous is not None and previous.epoch != registration.epoch:
                self._heartbeats.remove(broker_id)
            self._heartbeats.register(broker_id, registration.fenced)

    def replay_unregister(self, record: UnregisterBrokerRecord) -> None:
        self._replay_change(record.broker_id, lambda delta: delta.unregister_broker(record))
        del self._registration_offsets[record.broker_id]
        if self._heartbeats is not None:
            self._heartbeats.remove(record.broker_id)

    def replay_change(self, record: BrokerRegistrationChangeRecord) -> None:
        self._replay_change(record.broker_id, lambda delta: delta.change_broker(record))

    def replay_fence(self, record: FenceBrokerRecord) -> None:
        self._replay_change(record.id, lambda delta: delta.fence_broker(record))

    def replay_unfence(self, record: UnfenceBrokerRecord) -> None:
        self._replay_change(record.id, lambda delta: delta.unfence_broker(record))

    def replay_controller(self, record: RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = ControllerRegistration.from_record(record)

    def replay_unregister_controller(self, record: UnregisterControllerRecord) -> None:
        del self.controllers[record.controller_id]

    def _replay_change(self, broker_id: int, change: Callable[[ClusterDelta], None]) -> None:
        previous = self.brokers.get(broker_id)
        delta = ClusterDelta(ClusterImage(self.brokers, self.controllers))
        change(delta)
        registration = delta.changed_brokers[broker_id]
        self._move_directories(broker_id, previous, registration)
        if registration is None:
            del self.brokers[broker_id]
            return
        if registration != previous:
            self.brokers[broker_id] = registration
        if self._heartbeats is not None:
            self._heartbeats.register(broker_id, registration.fenced)

    def _move_directories(
        self, broker_id: int, previous: BrokerRegistration | None, following: BrokerRegistration | None
    ) -> None:
        old = () if previous is None else previous.directories
        new = () if following is None else following.directories
        for directory in old:
            if directory not in new and self._directory_owners.get(directory) == broker_id:
                del self._directory_owners[directory]
        for directory in new:
            if self._directory_owners.get(directory) != broker_id:
                self._directory_owners[directory] = broker_id

    # Checks of a registration

    def _check_cluster_id(self, cluster_id: str) -> None:
        if cluster_id != self._cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Expected cluster ID {self._cluster_id}, but got cluster ID {cluster_id}",
            )

    def _check_directories(self, broker_id: int, directories: list[Uuid]) -> None:
        if not directories:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
        if any(is_reserved(directory) for directory in directories):
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
        if len(set(directories)) != len(directories):
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
        for directory in directories:
            owner = self._directory_owners.get(directory)
            if owner is not None and owner != broker_id:
                raise ApiError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {owner} is already registered with directory {uuid_to_text(directory)}",
                )

    def _broker_features(self, request: BrokerRegistrationRequest) -> list[BrokerFeature]:
        """The features that the broker supports. Raises `ApiError` unless they include all finalized levels."""
        finalized = self._features.finalized_levels()
        features = []
        announced: dict[str, tuple[int, int]] = {}
        for one in request.features:
            announced[one.name] = (one.min_supported_version, one.max_supported_version)
            features.append(
                BrokerFeature(
                    name=one.name,
                    min_supported_version=one.min_supported_version,
                    max_supported_version=one.max_supported_version,
                )
            )
        if METADATA_VERSION not in announced:
            level = MINIMUM.value  # a broker that announces none supports this level
            announced[METADATA_VERSION] = (level, level)
            features.append(
                BrokerFeature(name=METADATA_VERSION, min_supported_version=level, max_supported_version=level)
            )
        _check_finalized(finalized, announced)
        return features


def _check_finalized(finalized: Mapping[str, int], announced: Mapping[str, tuple[int, int]]) -> None:
    for name in [*announced, *(name for name in finalized if name not in announced)]:
        level = finalized.get(name, 0)
        lowest, highest = announced.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {lowest} and {highest}, inclusive.",
            )


def _broker_endpoints(request: BrokerRegistrationRequest) -> list[BrokerEndpoint]:
    _check_listener_names(listener.name for listener in request.listeners)
    return [
        BrokerEndpoint(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
        for one in request.listeners
    ]


def _check_listener_names(names: Iterable[str]) -> None:
    """The replay of a record with a nameless listener would fail, so the registration is refused."""
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, f"Listener name {name!r} is empty or given twice")
        seen.add(name)
