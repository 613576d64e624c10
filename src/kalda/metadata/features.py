"""The features beside metadata.version: their levels, what these depend on, and which a release starts with (KIP-584).

A feature's level 0 means that it is off, and is the same as no level at all. `kraft.version` is peculiar: it is
finalized by the quorum itself, in a control record, so it appears among what a node supports and what a release
defaults to, but never in a `FeatureLevelRecord`.
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
    """One level: the metadata.version whose release makes it the default, and the levels that it needs."""

    level: int
    default_from: MetadataVersion
    depends_on: tuple[tuple[str, int], ...] = ()


class Feature(NamedTuple):
    """A feature and its levels, from 0 upwards. All of them are fit for production."""

    name: str
    levels: tuple[FeatureLevel, ...]

    @property
    def latest(self) -> int:
        return self.levels[-1].level

    def default_level(self, metadata_version: MetadataVersion) -> int:
        """The highest level whose release is not above `metadata_version`."""
        return max(level.level for level in self.levels if level.default_from <= metadata_version)

    def at(self, level: int) -> FeatureLevel:
        """Raises `ValueError` for a level that this software does not know."""
        for known in self.levels:
            if known.level == level:
                return known
        raise ValueError(f"No feature:{self.name} with feature level {level}")


V = MetadataVersion
_OFF = FeatureLevel(0, MINIMUM)

FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(KRAFT_VERSION, (_OFF, FeatureLevel(1, V.IBP_3_9_IV0))),  # reconfigurable voters
        Feature(
            TRANSACTION_VERSION,
            (_OFF, FeatureLevel(1, V.IBP_4_0_IV2), FeatureLevel(2, V.IBP_4_0_IV2)),  # flexible log values; epoch bumps
        ),
        Feature(GROUP_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_0_IV0))),
        Feature(
            ELIGIBLE_LEADER_REPLICAS_VERSION,
            (_OFF, FeatureLevel(1, V.IBP_4_1_IV0, ((METADATA_VERSION, V.IBP_4_0_IV1.value),))),
        ),
        Feature(SHARE_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_2_IV0))),
        Feature(STREAMS_VERSION, (_OFF, FeatureLevel(1, V.IBP_4_2_IV1))),
    )
}


def feature_by_name(name: str) -> Feature:
    """Raises `ValueError` for an unknown name; metadata.version is not among these."""
    feature = FEATURES.get(name)
    if feature is None:
        raise ValueError(f"Feature {name} not found.")
    return feature


def default_levels(metadata_version: MetadataVersion) -> dict[str, int]:
    """Level by feature (without metadata.version) with which a cluster of that release starts; zeros included."""
    return {feature.name: feature.default_level(metadata_version) for feature in FEATURES.values()}


def supported_ranges(*, unstable: bool = False) -> dict[str, VersionRange]:
    """What this software announces in a broker's or controller's registration."""
    ranges = {METADATA_VERSION: VersionRange(MINIMUM.value, (LATEST_TESTING if unstable else LATEST_PRODUCTION).value)}
    for feature in FEATURES.values():
        if feature.latest > 0:
            ranges[feature.name] = VersionRange(0, feature.latest)
    return ranges


def check_dependencies(name: str, level: int, proposed: Mapping[str, int]) -> None:
    """Raises `ValueError`, saying what is missing, unless `proposed` (level by feature) supports `name` at `level`."""
    metadata_version = proposed.get(METADATA_VERSION, 0)
    if level >= 1 and metadata_version < MINIMUM:
        raise ValueError(
            f"{name} could not be set to {level} because it depends on {METADATA_VERSION}={MINIMUM.value} ({MINIMUM})"
        )
    for dependency, needed in feature_by_name(name).at(level).depends_on:
        if proposed.get(dependency, 0) < needed:
            raise ValueError(f"{name} could not be set to {level} because it depends on {dependency} level {needed}")


def unsupported_reason(name: str, level: int, node: str, ranges: Mapping[str, VersionRange]) -> str | None:
    """Why `node` (as it is to be called: `Broker 3`, `Local controller 1`) cannot live with this level; or None.

    A node that says nothing of a feature supports its level 0 only.
    """
    supported = ranges.get(name)
    if supported is None:
        return None if level == 0 else f"{node} does not support this feature."
    return None if level in supported else f"{node} only supports versions {supported}"


def metadata_version_refusal(current: MetadataVersion, level: int, *, unsafe_downgrade: bool) -> str | None:
    """Why metadata.version may not go from `current` to `level`; None if it may.

    A downgrade over levels that did not change the records is safe; over others it would lose records, and losing
    them on purpose is not supported either, as in Kafka.
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
    """Names in the order in which tools show them: metadata.version first, then by name."""
    return sorted(names, key=lambda name: (name != METADATA_VERSION, name))
