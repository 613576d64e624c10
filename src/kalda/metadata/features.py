"""The features beside metadata.version: their levels, the dependencies and the default level of each release (KIP-584).

Level 0 means that a feature is off, and is the same as no level. `kraft.version` is an exception: the quorum itself
finalizes it, in a control record. So it has supported levels and default levels, but never a `FeatureLevelRecord`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.metadata.metadata_version import FEATURE_NAME as METADATA_VERSION
from kalda.metadata.metadata_version import (
    LATEST_PRODUCTION,
    LATEST_TESTING,
    MINIMUM,
    MetadataVersion,
    from_level,
    metadata_changed_between,
)

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


V = MetadataVersion
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
            (_OFF, FeatureLevel(1, V.IBP_4_1_IV0, ((METADATA_VERSION, V.IBP_4_0_IV1.value),))),
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
    ranges = {METADATA_VERSION: VersionRange(MINIMUM.value, (LATEST_TESTING if unstable else LATEST_PRODUCTION).value)}
    for feature in FEATURES.values():
        if feature.latest > 0:
            ranges[feature.name] = VersionRange(0, feature.latest)
    return ranges


def check_dependencies(name: str, level: int, proposed: Mapping[str, int]) -> None:
    """Raises `ValueError` with the missing dependency unless `proposed` (level by feature) allows `name` at `level`."""
    metadata_version = proposed.get(METADATA_VERSION, 0)
    if level >= 1 and metadata_version < MINIMUM:
        raise ValueError(
            f"{name} could not be set to {level} because it depends on {METADATA_VERSION}={MINIMUM.value} ({MINIMUM})"
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
    return sorted(names, key=lambda name: (name != METADATA_VERSION, name))
