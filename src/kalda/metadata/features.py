"""The levels of metadata.version and of the other features, their dependencies and defaults (KIP-584, KIP-778).

Level 0 means that a feature is off, and is the same as no level. `kraft.version` is an exception: the quorum itself
finalizes it, in a control record. So it has supported levels and default levels, but never a `FeatureLevelRecord`.

The levels of metadata.version, and what each one allows.

Every record format, and every behaviour that must be the same on all nodes, depends on this feature (KIP-778). A level
is named after the release that introduced it; a release may have several, `IV0` upwards. No downgrade from a level that
changed the records is possible: the log may have records that the lower level cannot express.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

FEATURE_NAME = "metadata.version"


class MetadataVersion(IntEnum):
    """A level. Where there is no property for a behaviour, compare levels."""

    IBP_3_3_IV3 = 7  # the lowest for clusters without ZooKeeper
    IBP_3_4_IV0 = 8  # ZooKeeper migration state; kept because old logs contain it
    IBP_3_5_IV0 = 9  # Fetch 14
    IBP_3_5_IV1 = 10  # Fetch 15 (KIP-903)
    IBP_3_5_IV2 = 11  # SCRAM credentials (KIP-900)
    IBP_3_6_IV0 = 12  # an ISR shrink no longer bumps the leader epoch
    IBP_3_6_IV1 = 13  # metadata transactions (KIP-868)
    IBP_3_6_IV2 = 14  # delegation tokens (KIP-900)
    IBP_3_7_IV0 = 15  # controller registrations (KIP-919)
    IBP_3_7_IV1 = 16
    IBP_3_7_IV2 = 17  # log directories of replicas (KIP-858)
    IBP_3_7_IV3 = 18
    IBP_3_7_IV4 = 19  # Fetch 16 (KIP-951)
    IBP_3_8_IV0 = 20
    IBP_3_9_IV0 = 21  # dynamic quorums (KIP-853); Fetch 17
    IBP_4_0_IV0 = 22  # the consumer rebalance protocol (KIP-848)
    IBP_4_0_IV1 = 23  # eligible leader replicas (KIP-966)
    IBP_4_0_IV2 = 24  # transactions of the second version (KIP-890)
    IBP_4_0_IV3 = 25  # ListOffsets 10
    IBP_4_1_IV0 = 26  # eligible leader replicas by default
    IBP_4_1_IV1 = 27  # Fetch 18
    IBP_4_2_IV0 = 28  # share groups (KIP-932)
    IBP_4_2_IV1 = 29  # streams groups (KIP-1071); ListOffsets 11
    IBP_4_3_IV0 = 30  # cordoned log directories (KIP-1066)
    IBP_4_4_IV0 = 31  # dead letters of share groups (KIP-1191)
    IBP_4_4_IV1 = 32  # ranges of addresses in access control entries (KIP-1276)
    IBP_4_4_IV2 = 33  # controllers are unregistered (KIP-1312)
    IBP_4_5_IV0 = 34  # not for production yet

    @property
    def short_version(self) -> str:
        """The release: `4.3`."""
        _, major, minor, _ = self.name.split("_")
        return f"{major}.{minor}"

    @property
    def version(self) -> str:
        """The text form: `4.3-IV0`."""
        return f"{self.short_version}-{self.name.rpartition('_')[2]}"

    def __str__(self) -> str:
        return self.version

    @property
    def is_production(self) -> bool:
        return self <= LATEST_PRODUCTION

    @property
    def did_metadata_change(self) -> bool:
        """Whether this level changed the records, compared with the level below."""
        return self in _CHANGED_RECORDS

    @property
    def is_scram_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_5_IV2

    @property
    def is_leader_epoch_bump_required_on_isr_shrink(self) -> bool:
        return self < MetadataVersion.IBP_3_6_IV0

    @property
    def is_metadata_transaction_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_6_IV1

    @property
    def is_delegation_token_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_6_IV2

    @property
    def is_controller_registration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_7_IV0

    @property
    def is_directory_assignment_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_7_IV2

    @property
    def is_elr_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_0_IV1

    @property
    def is_cordoned_log_dirs_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_3_IV0

    @property
    def is_cidr_acl_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_4_IV1

    @property
    def is_controller_unregistration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_4_IV2

    @property
    def is_migration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_4_IV0

    @property
    def register_broker_record_version(self) -> int:
        if self >= MetadataVersion.IBP_4_3_IV0:
            return 4
        if self >= MetadataVersion.IBP_3_7_IV2:
            return 3
        return 2 if self >= MetadataVersion.IBP_3_4_IV0 else 1

    @property
    def register_controller_record_version(self) -> int:
        """Raises `ValueError` for a level without controller registrations."""
        if not self.is_controller_registration_supported:
            raise ValueError(f"metadata.version {self} has no controller registrations")
        return 0

    @property
    def partition_record_version(self) -> int:
        if self.is_elr_supported:
            return 2
        return 1 if self.is_directory_assignment_supported else 0

    @property
    def partition_change_record_version(self) -> int:
        return self.partition_record_version


V = MetadataVersion
MINIMUM = V.IBP_3_3_IV3
LATEST_PRODUCTION = V.IBP_4_4_IV2
LATEST_TESTING = V.IBP_4_5_IV0

_CHANGED_RECORDS = frozenset(
    {
        V.IBP_3_3_IV3,
        V.IBP_3_4_IV0,
        V.IBP_3_5_IV2,
        V.IBP_3_6_IV1,
        V.IBP_3_6_IV2,
        V.IBP_3_7_IV0,
        V.IBP_3_7_IV2,
        V.IBP_4_0_IV1,
        V.IBP_4_3_IV0,
        V.IBP_4_4_IV1,
        V.IBP_4_4_IV2,
    }
)
_BY_TEXT = {level.version: level for level in V}
_BY_RELEASE = {level.short_version: level for level in V if level.is_production}


def from_version_string(text: str) -> MetadataVersion:
    """The level of a text: `4.1-IV0` is that level; `4.1` and `4.1.2` are the last production level of the release.

    Raises `ValueError` for anything else.
    """
    release = ".".join(text.split(".")[:2])
    level = _BY_TEXT.get(text) or _BY_RELEASE.get(release)
    if level is None:
        raise ValueError(f"Version {text} is not a valid version. The minimum version is {MINIMUM}")
    return level


def from_level(level: int) -> MetadataVersion:
    """Raises `ValueError` for a level that this release does not have."""
    try:
        return MetadataVersion(level)
    except ValueError:
        raise ValueError(
            f"No MetadataVersion with feature level {level}. Valid feature levels are from "
            f"{MINIMUM.value} to {LATEST_TESTING.value}."
        ) from None


def metadata_changed_between(one: MetadataVersion, other: MetadataVersion) -> bool:
    """Whether any level above the lower one, up to the higher one, changed the records. If so, a downgrade would lose
    metadata."""
    low, high = sorted((one, other))
    return any(level.did_metadata_change for level in MetadataVersion if low < level <= high)


KRAFT_VERSION = "kraft.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"


class VersionRange(NamedTuple):
    """Levels that a node supports, both ends included."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}-{self.max}" if self.min != self.max else str(self.min)

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.min <= level <= self.max


class FeatureLevel(NamedTuple):
    """One level: the lowest metadata.version with it as the default, and the levels of other features that it needs."""

    level: int
    default_from: MetadataVersion
    depends_on: tuple[tuple[str, int], ...] = ()


class SupportedFeature(NamedTuple):
    """A feature and its levels, from 0 upwards. All are production levels."""

    name: str
    levels: tuple[FeatureLevel, ...]

    @property
    def latest(self) -> int:
        return self.levels[-1].level

    def default_level(self, metadata_version: MetadataVersion) -> int:
        """The highest level that is a default at `metadata_version` or below."""
        return max(level.level for level in self.levels if level.default_from <= metadata_version)

    def at(self, level: int) -> FeatureLevel:
        """Raises `ValueError` for a level that this release does not have."""
        for candidate in self.levels:
            if candidate.level == level:
                return candidate
        raise ValueError(f"No feature:{self.name} with feature level {level}")


_OFF = FeatureLevel(0, MINIMUM)

FEATURES: Mapping[str, SupportedFeature] = {
    feature.name: feature
    for feature in (
        SupportedFeature(KRAFT_VERSION, (_OFF, FeatureLevel(1, V.IBP_3_9_IV0))),  # reconfigurable voters
        SupportedFeature(
            TRANSACTION_VERSION,
            (_OFF, FeatureLevel(1, V.IBP_4_0_IV2), FeatureLevel(2, V.IBP_4_0_IV2)),  # flexible log values; epoch bumps
        ),
        SupportedFeature(GROUP_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_0_IV0))),
        SupportedFeature(
            ELIGIBLE_LEADER_REPLICAS_VERSION,
            (_OFF, FeatureLevel(1, V.IBP_4_1_IV0, ((FEATURE_NAME, V.IBP_4_0_IV1.value),))),
        ),
        SupportedFeature(
            SHARE_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_2_IV0), FeatureLevel(2, V.IBP_4_4_IV0))
        ),  # 2: dead letters
        SupportedFeature(STREAMS_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_2_IV1))),
    )
}


def feature_by_name(name: str) -> SupportedFeature:
    """Raises `ValueError` for an unknown name; metadata.version is not among these."""
    feature = FEATURES.get(name)
    if feature is None:
        raise ValueError(f"Feature {name} not found.")
    return feature


def default_levels(metadata_version: MetadataVersion) -> dict[str, int]:
    """Level by feature (without metadata.version) of a new cluster at that metadata.version; zeros included."""
    return {feature.name: feature.default_level(metadata_version) for feature in FEATURES.values()}


def supported_ranges(*, unstable: bool = False) -> dict[str, VersionRange]:
    """The levels that this release announces in the registrations of brokers and controllers."""
    ranges = {FEATURE_NAME: VersionRange(MINIMUM.value, (LATEST_TESTING if unstable else LATEST_PRODUCTION).value)}
    for feature in FEATURES.values():
        if feature.latest > 0:
            ranges[feature.name] = VersionRange(0, feature.latest)
    return ranges


def check_dependencies(name: str, level: int, proposed: Mapping[str, int]) -> None:
    """Raises `ValueError` with the missing dependency unless `proposed` (level by feature) allows `name` at `level`."""
    metadata_version = proposed.get(FEATURE_NAME, 0)
    if level >= 1 and metadata_version < MINIMUM:
        raise ValueError(
            f"{name} could not be set to {level} because it depends on {FEATURE_NAME}={MINIMUM.value} ({MINIMUM})"
        )
    for dependency, needed in feature_by_name(name).at(level).depends_on:
        if proposed.get(dependency, 0) < needed:
            raise ValueError(f"{name} could not be set to {level} because it depends on {dependency} level {needed}")


def unsupported_reason(name: str, level: int, node: str, ranges: Mapping[str, VersionRange]) -> str | None:
    """Why a node does not support this level; None where it does. `node` is its name in the text, such as `Broker 3`.

    A node that announces no levels of a feature supports its level 0 only.
    """
    supported = ranges.get(name)
    if supported is None:
        return None if level == 0 else f"{node} does not support this feature."
    return None if level in supported else f"{node} only supports versions {supported}"


def metadata_version_refusal(current: MetadataVersion, level: int, *, unsafe_downgrade: bool) -> str | None:
    """Why metadata.version may not change from `current` to `level`; None if it may.

    A downgrade is safe where none of the levels in between changed the records. Any other would lose metadata; as in
    Kafka, it is refused even where an unsafe downgrade was requested.
    """
    try:
        proposed = from_level(level)
    except ValueError:
        return "Unknown metadata.version."
    if proposed >= current or not metadata_changed_between(current, proposed):
        return None
    if unsafe_downgrade:
        return "Unsafe metadata downgrade is not supported in this version."
    return "Refusing to perform the requested downgrade because it might delete metadata information."


def feature_names(names: Iterable[str]) -> list[str]:
    """Names in the order of Kafka's tools: metadata.version first, then by name."""
    return sorted(names, key=lambda name: (name != FEATURE_NAME, name))
