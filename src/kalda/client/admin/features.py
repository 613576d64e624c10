"""Feature levels: reading them with ApiVersions, changing them with UpdateFeatures (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kalda import __version__
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.calls import api_versions_request
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.admin import FeatureUpdateKey, UpdateFeaturesRequest


class Feature(NamedTuple):
    """Level 0 is off. The supported levels are those of the broker that answered."""

    name: str
    supported_min: int
    supported_max: int
    finalized: int


class Features(NamedTuple):
    """The epoch is the metadata offset at which the levels were read."""

    epoch: int
    features: tuple[Feature, ...]


def describe_features(cluster: ClusterClient) -> Features:
    """All features that the broker supports or the cluster has finalized. Raises `ApiError`."""

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, "the broker's features")

    answer = cluster.any_broker(api_versions_request(__version__), check=check)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    names = sorted({*finalized, *supported})
    return Features(
        answer.finalized_features_epoch,
        tuple(Feature(name, *supported.get(name, (0, 0)), finalized.get(name, 0)) for name in names),
    )


def update_features(
    cluster: ClusterClient,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType = UpgradeType.UPGRADE,
    validate_only: bool = False,
) -> None:
    """Finalize these levels, all or none; level 0 turns a feature off. Raises `ApiError`."""
    request = UpdateFeaturesRequest(
        timeout_ms=cluster.timeout_ms,
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )

    def check(answer: Any) -> None:
        for result in answer.results:
            if result.error_code:
                raise refused(result.error_code, f"feature {result.feature}", result.error_message)
        if answer.error_code:
            raise refused(answer.error_code, "features " + ", ".join(levels), answer.error_message)

    cluster.any_broker(request, check=check)
