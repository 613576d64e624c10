"""Finalized feature levels of the cluster (KIP-584).

metadata.version is a field of its own, a `MetadataVersion`, because it determines the format of all other records. A
feature at level 0 is left out. The quorum finalizes kraft.version in control records; it never appears here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    FEATURE_NAME,
    KRAFT_VERSION,
    MINIMUM,
    MetadataVersion,
    feature_names,
    from_level,
)
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import FeatureLevelRecord


class FeaturesImage(NamedTuple):
    """Level by feature, without metadata.version; that is None only before the first record of a cluster."""

    levels: Mapping[str, int]
    metadata_version: MetadataVersion | None

    @property
    def is_empty(self) -> bool:
        return not self.levels and self.metadata_version is None

    def metadata_version_or_raise(self) -> MetadataVersion:
        """Raises `ValueError` where no record has set metadata.version yet."""
        if self.metadata_version is None:
            raise ValueError("Unknown metadata version for FeaturesImage: no metadata.version record was loaded")
        return self.metadata_version

    def level(self, name: str) -> int:
        """The level of a feature, metadata.version included; 0 for one that is off."""
        if name == FEATURE_NAME:
            return 0 if self.metadata_version is None else self.metadata_version.value
        return self.levels.get(name, 0)

    @property
    def all_levels(self) -> dict[str, int]:
        """The levels with metadata.version among them, as `check_dependencies` needs them."""
        levels = dict(self.levels)
        if self.metadata_version is not None:
            levels[FEATURE_NAME] = self.metadata_version.value
        return levels

    @property
    def is_elr_enabled(self) -> bool:
        return self.level(ELIGIBLE_LEADER_REPLICAS_VERSION) > 0

    def write(self, writer: ImageWriter) -> None:
        """metadata.version is the first record, at record version 0: all other records depend on it."""
        if self.is_empty:
            return
        writer.write(FeatureLevelRecord(name=FEATURE_NAME, feature_level=writer.metadata_version.value))
        for name in feature_names(self.levels):
            writer.write(FeatureLevelRecord(name=name, feature_level=self.levels[name]))


EMPTY = FeaturesImage({}, None)


class FeaturesDelta:
    """Changed levels; 0 turns a feature off."""

    __slots__ = ("changes", "image", "metadata_version_change")

    def __init__(self, image: FeaturesImage) -> None:
        self.image = image
        self.changes: dict[str, int] = {}
        self.metadata_version_change: MetadataVersion | None = None

    @classmethod
    def of_whole(cls, image: FeaturesImage) -> FeaturesDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update(image.levels)
        delta.metadata_version_change = image.metadata_version
        return delta

    def replay(self, record: FeatureLevelRecord) -> None:
        """Raises `ValueError` for a metadata.version that this release does not have."""
        if record.name == FEATURE_NAME:
            try:
                self.metadata_version_change = from_level(record.feature_level)
            except ValueError:
                raise ValueError(
                    f"Unsupported metadata.version feature level {record.feature_level}. Before an upgrade of the "
                    f"software, set metadata.version to {MINIMUM.value} ({MINIMUM}) or more with the old one; and do "
                    f"not start software that is older than the cluster's metadata.version."
                ) from None
        elif record.name != KRAFT_VERSION:
            self.changes[record.name] = record.feature_level

    def finish_snapshot(self) -> None:
        for name in self.image.levels:
            self.changes.setdefault(name, 0)

    def apply(self) -> FeaturesImage:
        levels = {**self.image.levels, **self.changes}
        return FeaturesImage(
            {name: level for name, level in levels.items() if level != 0},
            self.metadata_version_change or self.image.metadata_version,
        )
