"""Finalized feature levels, metadata.version among them (KIP-584, KIP-778).

A level may be raised when all nodes support it: this controller, each registered broker, each registered controller;
and there must be no voter that has not registered. The level of `kraft.version` is in control records of the quorum, so
a change of it is passed to the quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    MINIMUM,
    MetadataVersion,
    VersionRange,
    check_dependencies,
    from_level,
    metadata_version_refusal,
    unsupported_reason,
)
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.admin import FeatureUpdateKey
from kalda.protocol.messages.metadata_records import FeatureLevelRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineValue

Supported = Mapping[str, VersionRange]


class KraftVersionControl(Protocol):
    """Access to the level of `kraft.version` in the quorum."""

    @property
    def level(self) -> int: ...

    def upgrade(self, level: int, *, validate_only: bool) -> None:
        """Write the control records that finalize `level`. Raises `ApiError`."""
        ...


class FeatureControl:
    """Levels by feature. metadata.version has none until the bootstrap records or a snapshot were replayed."""

    def __init__(
        self,
        registry: SnapshotRegistry,
        node_id: int,
        supported: Supported,
        *,
        voters: Callable[[], Iterable[int]],
        kraft_version: KraftVersionControl | None = None,
    ) -> None:
        """`voters()` are the ids of the quorum's voters. Without `kraft_version` that feature cannot be changed."""
        self._node_id = node_id
        self._supported = supported
        self._voters = voters
        self._kraft_version = kraft_version
        self._levels: TimelineDict[str, int] = TimelineDict(registry)
        self._metadata_version: TimelineValue[MetadataVersion | None] = TimelineValue(registry, None)
        self._brokers: Callable[[], Iterable[tuple[int, Supported]]] = lambda: ()
        self._controllers: Callable[[], Iterable[tuple[int, Supported]]] = lambda: ()

    def attach_nodes(
        self,
        brokers: Callable[[], Iterable[tuple[int, Supported]]],
        controllers: Callable[[], Iterable[tuple[int, Supported]]],
    ) -> None:
        """Set the sources of the levels that registered nodes support. Not arguments of the constructor, because
        `ClusterControl` in turn needs the features."""
        self._brokers = brokers
        self._controllers = controllers

    @property
    def metadata_version(self) -> MetadataVersion:
        version = self._metadata_version.value
        if version is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "no record has set metadata.version yet")
        return version

    def metadata_version_at(self, epoch: int) -> MetadataVersion | None:
        """metadata.version at the timeline's snapshot of that epoch; None where no record had set it yet."""
        return self._metadata_version.get(epoch)

    def level(self, name: str) -> int:
        return self._levels.get(name, 0)

    @property
    def is_elr_enabled(self) -> bool:
        return self.level(ELIGIBLE_LEADER_REPLICAS_VERSION) > 0

    def finalized_levels(self) -> dict[str, int]:
        """Level by feature, metadata.version included."""
        levels = dict(self._levels.items())
        if self._metadata_version.value is not None:
            levels[METADATA_VERSION] = self._metadata_version.value.value
        return levels

    def update(self, updates: Iterable[FeatureUpdateKey], *, validate_only: bool) -> list[VersionedRecord]:
        """Records of the updates, all of them or none. Raises `ApiError`, mostly INVALID_UPDATE_VERSION."""
        by_name = {update.feature: update for update in updates}
        proposed = self.finalized_levels()
        proposed.update((name, update.max_version_level) for name, update in by_name.items())
        records: list[VersionedRecord] = []
        for name, update in by_name.items():
            level = update.max_version_level
            self._check(name, level, _upgrade_type(update), proposed)
            if name == KRAFT_VERSION:
                self._update_kraft_version(level, _upgrade_type(update), validate_only)
            else:
                records.append(VersionedRecord(FeatureLevelRecord(name=name, feature_level=level), 0))
        return records

    def replay(self, record: FeatureLevelRecord) -> None:
        name, level = record.name, record.feature_level
        supported = self._supported.get(name)
        if level != 0 and (supported is None or level not in supported):
            raise ValueError(
                f"{name} is finalized at level {level}, which this controller does not support "
                f"(it supports {supported}): use a release that does"
            )
        if name == METADATA_VERSION:
            self._metadata_version.value = from_level(level)
        elif level == 0:
            self._levels.pop(name, None)
        else:
            self._levels[name] = level

    def _check(self, name: str, level: int, upgrade_type: UpgradeType, proposed: Mapping[str, int]) -> None:
        if upgrade_type is UpgradeType.UNKNOWN:
            raise _refused(name, level, "The controller does not support the given upgrade type.")
        if level < 0:
            raise _refused(name, level, "A feature version cannot be less than 0.")
        reason = self._unsupported_reason(name, level)
        if reason is not None:
            raise _refused(name, level, reason)
        current = self._current(name)
        if level < current and upgrade_type is UpgradeType.UPGRADE:
            raise _refused(
                name,
                level,
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
                "unsafe downgrade.",
            )
        if level > current and upgrade_type is not UpgradeType.UPGRADE:
            raise _refused(name, level, "Can't downgrade to a newer version.")
        if name == METADATA_VERSION:
            self._check_metadata_version(level, upgrade_type)
        else:
            try:
                check_dependencies(name, level, proposed)
            except ValueError as error:
                raise _refused(name, level, str(error)) from None

    def _check_metadata_version(self, level: int, upgrade_type: UpgradeType) -> None:
        if level < MINIMUM:
            reason: str | None = f"Unable to set a metadata.version less than {MINIMUM}"
        else:
            unsafe = upgrade_type is UpgradeType.UNSAFE_DOWNGRADE
            reason = metadata_version_refusal(self.metadata_version, level, unsafe_downgrade=unsafe)
        if reason is not None:
            change = "upgrade" if level > self.metadata_version else "downgrade"
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Unsupported metadata.version {change} from {self.metadata_version.value} to {level}. {reason}",
            )

    def _unsupported_reason(self, name: str, level: int) -> str | None:
        reason = unsupported_reason(name, level, f"Local controller {self._node_id}", self._supported)
        if reason is not None:
            return reason
        for broker_id, supported in self._brokers():
            reason = unsupported_reason(name, level, f"Broker {broker_id}", supported)
            if reason is not None:
                return reason
        if not self.metadata_version.is_controller_registration_supported:
            return None
        registered = {self._node_id}
        for controller_id, supported in self._controllers():
            registered.add(controller_id)
            if controller_id == self._node_id:
                continue
            reason = unsupported_reason(name, level, f"Controller {controller_id}", supported)
            if reason is not None:
                return reason
        for voter in sorted(self._voters()):
            if voter not in registered:
                return f"controller {voter} has not registered, and may not support this feature"
        return None

    def _current(self, name: str) -> int:
        if name == METADATA_VERSION:
            return self.metadata_version.value
        if name == KRAFT_VERSION and self._kraft_version is not None:
            return self._kraft_version.level
        return self.level(name)

    def _update_kraft_version(self, level: int, upgrade_type: UpgradeType, validate_only: bool) -> None:
        if self._kraft_version is None:
            raise _refused(KRAFT_VERSION, level, "The quorum's version cannot be changed here.")
        if upgrade_type is UpgradeType.UPGRADE:
            self._kraft_version.upgrade(level, validate_only=validate_only)
        elif level != self._kraft_version.level:
            raise _refused(KRAFT_VERSION, level, "Can't downgrade the version of this feature.")


def _upgrade_type(update: FeatureUpdateKey) -> UpgradeType:
    if update.upgrade_type not in UpgradeType.__members__.values():
        return UpgradeType.UNKNOWN
    upgrade_type = UpgradeType(update.upgrade_type)
    if upgrade_type is UpgradeType.UPGRADE and update.allow_downgrade:
        return UpgradeType.SAFE_DOWNGRADE  # version 0 of the request has `allow_downgrade` for this
    return upgrade_type


def _refused(name: str, level: int, message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {message}")
