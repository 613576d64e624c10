"""Registrations of brokers and controllers.

A registration is immutable: fencing, a controlled shutdown or a failed directory makes a new one. Records that change a
broker carry its epoch. A record whose epoch does not match is an error in the log, not a race.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Uuid
from kalda.metadata.features import VersionRange
from kalda.metadata.image_records import ImageWriter
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


class Endpoint(NamedTuple):
    """A listener's address. `security_protocol` is Kafka's id: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    listener_name: str
    host: str
    port: int
    security_protocol: int


class BrokerRegistration(NamedTuple):
    """One incarnation of a broker.

    `epoch` is the offset of its registration record. `directories` are its online log directories, sorted;
    `cordoned_directories` is None until the broker has reported cordoned directories (KIP-1066).
    """

    id: int
    epoch: int
    incarnation_id: Uuid
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[Uuid, ...] = ()
    cordoned_directories: tuple[Uuid, ...] | None = None
    is_migrating_zk_broker: bool = False

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> BrokerRegistration:
        cordoned = record.cordoned_log_dirs
        return cls(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_listeners(record.end_points),
            supported_features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=tuple(sorted(record.log_dirs)),
            cordoned_directories=None if cordoned is None else tuple(sorted(cordoned)),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        )

    def write(self, writer: ImageWriter) -> None:
        version = writer.metadata_version
        record = RegisterBrokerRecord(
            broker_id=self.id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in self.listeners.values()
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=levels.min, max_supported_version=levels.max)
                for name, levels in self.supported_features.items()
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
        )
        if self.is_migrating_zk_broker and not version.is_migration_supported:
            writer.lose("the isMigratingZkBroker state of one or more brokers")
            record.is_migrating_zk_broker = False
        if self.directories:
            if version.is_directory_assignment_supported:
                record.log_dirs = list(self.directories)
            else:
                writer.lose("the online log directories of one or more brokers")
        if self.cordoned_directories is not None:
            if version.is_cordoned_log_dirs_supported:
                record.cordoned_log_dirs = list(self.cordoned_directories)
            elif self.cordoned_directories:
                writer.lose("the cordoned log directories of one or more brokers")
        writer.write(record, version.register_broker_record_version)

    def has_online_dir(self, directory: Uuid) -> bool:
        """Whether a replica assigned to `directory` can be served.

        A directory that is not assigned or not reported yet counts as online. So does any directory of a broker whose
        registration lists none: it registered before registrations had directories (KIP-858).
        """
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory == DIRECTORY_LOST:
            return False
        return not self.directories or directory in self.directories

    @property
    def has_uncordoned_dirs(self) -> bool:
        """Whether new replicas may be placed on this broker. They may where the registration lists no directories."""
        cordoned = self.cordoned_directories
        return not cordoned or any(directory not in cordoned for directory in self.directories)


class ControllerRegistration(NamedTuple):
    """One incarnation of a controller (KIP-919)."""

    id: int
    incarnation_id: Uuid
    zk_migration_ready: bool
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> ControllerRegistration:
        return cls(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            listeners=_listeners(record.end_points),
            supported_features=_features(record.features),
        )

    def write(self, writer: ImageWriter) -> None:
        if not writer.metadata_version.is_controller_registration_supported:
            writer.lose("controller registration data")
            return
        record = RegisterControllerRecord(
            controller_id=self.id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                ControllerEndpoint(
                    name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol
                )
                for e in self.listeners.values()
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=levels.min, max_supported_version=levels.max)
                for name, levels in self.supported_features.items()
            ],
        )
        writer.write(record, writer.metadata_version.register_controller_record_version)


def _listeners(endpoints: Iterable[BrokerEndpoint | ControllerEndpoint]) -> dict[str, Endpoint]:
    listeners = {}
    for endpoint in endpoints:
        if not endpoint.name:
            raise ValueError(f"a registered listener has no name: {endpoint.host}:{endpoint.port}")
        listeners[endpoint.name] = Endpoint(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
    return listeners


def _features(features: Iterable[BrokerFeature | ControllerFeature]) -> dict[str, VersionRange]:
    return {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version) for feature in features
    }


class ClusterImage(NamedTuple):
    """Registrations by node id."""

    brokers: Mapping[int, BrokerRegistration]
    controllers: Mapping[int, ControllerRegistration]

    @property
    def is_empty(self) -> bool:
        return not self.brokers and not self.controllers

    def write(self, writer: ImageWriter) -> None:
        for broker_id in sorted(self.brokers):
            self.brokers[broker_id].write(writer)
        for controller_id in sorted(self.controllers):
            self.controllers[controller_id].write(writer)


EMPTY = ClusterImage({}, {})


class ClusterDelta:
    """Changed registrations; None for one that was removed."""

    __slots__ = ("changed_brokers", "changed_controllers", "image")

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.changed_brokers: dict[int, BrokerRegistration | None] = {}
        self.changed_controllers: dict[int, ControllerRegistration | None] = {}

    @classmethod
    def of_whole(cls, image: ClusterImage) -> ClusterDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changed_brokers.update(image.brokers)
        delta.changed_controllers.update(image.controllers)
        return delta

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        """The registration with this delta applied; None where there is none."""
        if broker_id in self.changed_brokers:
            return self.changed_brokers[broker_id]
        return self.image.brokers.get(broker_id)

    def register_broker(self, record: RegisterBrokerRecord) -> None:
        self.changed_brokers[record.broker_id] = BrokerRegistration.from_record(record)

    def register_controller(self, record: RegisterControllerRecord) -> None:
        self.changed_controllers[record.controller_id] = ControllerRegistration.from_record(record)

    def unregister_controller(self, record: UnregisterControllerRecord) -> None:
        self.changed_controllers[record.controller_id] = None

    def unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker_at(record.broker_id, record.broker_epoch, record)
        self.changed_brokers[record.broker_id] = None

    def fence_broker(self, record: FenceBrokerRecord) -> None:
        broker = self._broker_at(record.id, record.epoch, record)
        self.changed_brokers[record.id] = broker._replace(fenced=True)

    def unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker_at(record.id, record.epoch, record)
        self.changed_brokers[record.id] = broker._replace(fenced=False)

    def change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        """`fenced`: 1 fences, -1 unfences, 0 changes nothing. `in_controlled_shutdown`: 1 begins a shutdown, which ends
        with a new registration only."""
        broker = self._broker_at(record.broker_id, record.broker_epoch, record)
        if record.fenced not in (-1, 0, 1) or record.in_controlled_shutdown not in (0, 1):
            raise ValueError(f"cannot replay {record}: unknown fencing or shutdown change")
        cordoned = record.cordoned_log_dirs
        self.changed_brokers[record.broker_id] = broker._replace(
            fenced=broker.fenced if record.fenced == 0 else record.fenced == 1,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown == 1,
            directories=tuple(sorted(record.log_dirs)) if record.log_dirs else broker.directories,
            cordoned_directories=broker.cordoned_directories if cordoned is None else tuple(sorted(cordoned)),
        )

    def _broker_at(self, broker_id: int, epoch: int, record: object) -> BrokerRegistration:
        broker = self.broker(broker_id)
        if broker is None:
            raise ValueError(f"cannot replay {record}: broker {broker_id} is not registered")
        if broker.epoch != epoch:
            raise ValueError(f"cannot replay {record}: broker {broker_id} has epoch {broker.epoch}, not {epoch}")
        return broker

    def finish_snapshot(self) -> None:
        for broker_id in self.image.brokers:
            self.changed_brokers.setdefault(broker_id, None)
        for controller_id in self.image.controllers:
            self.changed_controllers.setdefault(controller_id, None)

    def apply(self) -> ClusterImage:
        brokers = {**self.image.brokers, **self.changed_brokers}
        controllers = {**self.image.controllers, **self.changed_controllers}
        return ClusterImage(
            {key: broker for key, broker in brokers.items() if broker is not None},
            {key: controller for key, controller in controllers.items() if controller is not None},
        )
