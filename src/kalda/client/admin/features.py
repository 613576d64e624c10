"""Feature levels: those that brokers support, those that are finalized, and their change (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kalda import __version__
from kalda.base.errors import ApiError
from kalda.clientcore.administration import ANY, Ask, Plan, error_of, single
from kalda.clientcore.connections.errors import refused
from kalda.protocol.framing import api_versions_request
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.admin import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)


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


def describe_features() -> Plan[Features]:
    """ApiVersions."""
    answer = yield from single(Ask(ANY, api_versions_request(__version__)), error_of("the broker's features"))
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    names = sorted({*finalized, *supported})
    return Features(
        answer.finalized_features_epoch,
        tuple(Feature(name, *supported.get(name, (0, 0)), finalized.get(name, 0)) for name in names),
    )


def update_features(
    levels: Mapping[str, int], upgrade_type: UpgradeType, *, timeout_ms: int, validate_only: bool
) -> Plan[None]:
    """UpdateFeatures: all or none."""

    def check(answer: Any) -> ApiError | None:
        for result in answer.results:
            if result.error_code:
                return refused(result.error_code, f"feature {result.feature}", result.error_message)
        error: ApiError | None = error_of("features " + ", ".join(levels))(answer)
        return error

    request = UpdateFeaturesRequest(
        timeout_ms=timeout_ms,
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    yield from single(Ask(ANY, request), check)
