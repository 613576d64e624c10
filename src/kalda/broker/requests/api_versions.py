"""ApiVersions (18): what a listener serves, and the node's features. Announced is what has a row, except the APIs of
telemetry while nothing would receive what clients push, which are served all the same, as in Kafka; and those of
consumer groups (KIP-848) while the feature `group.version` is off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

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

log = logging.getLogger("kalda.requests")
_LOGGED_CHARACTERS = 100
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_MINIMUM_ZERO = 4
_FIRST_WITH_NODE = 5
_NO_NODE = -1


class Features:
    """The features of a node: supported ranges, finalized levels, and the metadata offset of those."""

    __slots__ = ("epoch", "finalized", "supported")

    def __init__(self, supported: dict[str, tuple[int, int]], finalized: dict[str, int], epoch: int) -> None:
        self.supported = supported
        self.finalized = finalized
        self.epoch = epoch


class NodeIdentity(NamedTuple):
    """Which node this is, of which cluster."""

    cluster_id: str
    node_id: int


class ApiVersionsHandlers:
    """ApiVersions on one kind of listener."""

    def __init__(
        self,
        served: Mapping[ApiKey, range],
        features: Callable[[], Features],
        hidden: Callable[[], Container[ApiKey]],
        node: NodeIdentity | None,
    ) -> None:
        """`served` are the versions of each API that the listener serves, `hidden()` those that it does not announce
        now. `node`: whom clients mean that name a cluster and a node; None where that is not checked."""
        self._node = node
        self._served = served
        self._hidden = hidden
        self._features = features

    def row(self) -> Row:
        """The row of ApiVersions."""
        return Row(ApiKey.API_VERSIONS, self.api_versions, api_versions_failed, Authorization.ANYONE)

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """APIs, versions and features. From version 3 on the request names the client's software (KIP-511). From
        version 5 on it may name the cluster and the node that the client meant to reach, both or none; another node
        answers REBOOTSTRAP_REQUIRED (KIP-1242)."""
        if context.api_version >= _FIRST_WITH_SOFTWARE:
            connection = context.connection
            name, version = request.client_software_name, request.client_software_version
            if not (_is_software_name(name) and _is_software_name(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            connection.client_software_name = name
            connection.client_software_version = version
        if context.api_version >= _FIRST_WITH_NODE and (request.cluster_id is None) != (request.node_id == _NO_NODE):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if context.api_version >= _FIRST_WITH_NODE and request.cluster_id is not None and self._node is not None:
            meant = NodeIdentity(request.cluster_id, request.node_id)
            if meant != self._node:
                log.debug(
                    "client %r was led to the wrong node: it means node %d of cluster %r, this is node %d of %s",
                    context.header.client_id,
                    meant.node_id,
                    meant.cluster_id[:_LOGGED_CHARACTERS],
                    self._node.node_id,
                    self._node.cluster_id,
                )
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
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
