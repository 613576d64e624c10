"""ApiVersions (18): what a listener serves, and the node's features. Announced is what has a row, except the APIs of
telemetry while nothing would receive what clients push: they are served all the same, as in Kafka."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_MINIMUM_ZERO = 4


class Features:
    """The features of a node: supported ranges, finalized levels, and the metadata offset of those."""

    __slots__ = ("epoch", "finalized", "supported")

    def __init__(self, supported: dict[str, tuple[int, int]], finalized: dict[str, int], epoch: int) -> None:
        self.supported = supported
        self.finalized = finalized
        self.epoch = epoch


class ApiVersionsHandlers:
    """ApiVersions on one kind of listener."""

    def __init__(
        self,
        served: Mapping[ApiKey, range],
        features: Callable[[], Features],
        hidden: Callable[[], Container[ApiKey]],
    ) -> None:
        """`served` are the versions of each API that the listener serves, `hidden()` those that it does not announce
        now."""
        self._served = served
        self._hidden = hidden
        self._features = features

    def row(self) -> Row:
        """The row of ApiVersions."""
        return Row(ApiKey.API_VERSIONS, self.api_versions, api_versions_failed, Authorization.ANYONE)

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """APIs, versions and features. From version 3 on the request names the client's software (KIP-511)."""
        if context.api_version >= _FIRST_WITH_SOFTWARE:
            connection = context.connection
            name, version = request.client_software_name, request.client_software_version
            if not (_is_software_name(name) and _is_software_name(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            connection.client_software_name = name
            connection.client_software_version = version
        features = self._features()
        # Older clients refuse a feature whose minimum is 0 (KAFKA-17011).
        lowest = 0 if context.api_version >= _FIRST_WITH_MINIMUM_ZERO else 1
        return ApiVersionsResponse(
            api_keys=self._api_keys(),
            supported_features=[
                SupportedFeatureKey(name=name, min_version=first, max_version=last)
                for name, (first, last) in sorted(features.supported.items())
                if first >= lowest
            ],
            finalized_features_epoch=features.epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, level in sorted(features.finalized.items())
            ],
        )

    def _api_keys(self) -> list[ApiVersion]:
        found, hidden = [], self._hidden()
        for key, versions in sorted(self._served.items()):
            if key in hidden:
                continue
            advertised = API[key].advertised_from
            found.append(
                ApiVersion(
                    api_key=key,
                    min_version=versions.start if advertised is None else advertised,
                    max_version=versions.stop - 1,
                )
            )
        return found


def api_versions_failed(request: ApiVersionsRequest, version: int, error: ApiError) -> ApiVersionsResponse:
    """The error alone."""
    return ApiVersionsResponse(error_code=error.code)


def unsupported_api_versions() -> ApiVersionsResponse:
    """The answer to a version of ApiVersions that is not served, in version 0: the client sends it again in one of the
    versions that this response names (KIP-511)."""
    api = API[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=api.key, min_version=api.lowest, max_version=api.highest)],
    )


def _is_software_name(text: str) -> bool:
    """Letters, digits, dots and dashes, with a letter or digit at both ends (KIP-511)."""
    return (
        bool(text)
        and text.isascii()
        and text[0].isalnum()
        and text[-1].isalnum()
        and all(character.isalnum() or character in ".-" for character in text)
    )
