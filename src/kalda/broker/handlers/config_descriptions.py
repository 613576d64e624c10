"""The answer to one DescribeConfigs request (32), made in steps.

Where the request names a resource again, with the same keys, the same result is given again, as Kafka answers it again.
The last `_KEPT_RESULTS` are kept for that, but no errors: these are made again. All results come from one metadata
image.

A request of a few resources is answered in the first step, as a response. A larger one takes several steps of bounded
cost; what a step has described is encoded in that step, so that no step has to encode the whole answer. The parts of a
large request are answered from the same image, and share the results that are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kalda.base.background import Steps
from kalda.base.configs import describe
from kalda.base.configs.dynamic import Layers, effective
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.topic_names import validate_topic_name
from kalda.broker.context import MAX_ANSWER_BYTES, Encoded
from kalda.broker.loggers import logger_levels
from kalda.broker.rows import message_of
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataImage
from kalda.protocol.access import DESCRIBE_CONFIGS_OF_GROUP, DESCRIBE_CONFIGS_OF_TOPIC
from kalda.protocol.caller import Caller
from kalda.protocol.framing import response_header
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.part_encoder import EncodedItems, EncodedPart, PartEncoder, part_encoder

DOCUMENTED_AS: Mapping[int, str] = {
    ConfigResourceType.TOPIC: "topic",
    ConfigResourceType.BROKER: "broker",
    ConfigResourceType.GROUP: "group",
    ConfigResourceType.CLIENT_METRICS: "client_metrics",
}
_STEP_COST = 256
"""What one step may cost, in described entries: about three milliseconds."""
_RESOURCE_COST = 16
"""What a resource costs besides its entries: the walk over all keys of its type."""
_KEPT_RESULTS = 64
"""Of resources that may be named again. Together they take some two megabytes."""


class ConfigDescriptions:
    """Describes the resources of one request, or of its parts, as they are in one image."""

    def __init__(
        self,
        broker_id: int,
        static: ServerConfig,
        image: MetadataImage,
        caller: Caller,
    ) -> None:
        self._caller = caller
        self._broker_id = broker_id
        self._image = image
        self._described: dict[tuple[int, str, frozenset[str] | None], DescribeConfigsResult] = {}
        """The last results that have configs, by resource and keys."""
        self._encoded: dict[int, tuple[DescribeConfigsResult, bytes]] = {}
        """The same, encoded, by the identity of the result: it is kept beside its bytes so that no other has the
        same."""
        self._bytes = 0
        """Of all results so far."""
        configs = image.configs
        self._layers = Layers(
            static.properties, configs.of(broker_resource(None)), configs.of(broker_resource(broker_id))
        )
        self._effective = effective(self._layers)[0]

    def steps(
        self, request: DescribeConfigsRequest, version: int, correlation_id: int
    ) -> Steps[DescribeConfigsResponse | Encoded]:
        """The response, or where that took several steps the encoded response."""
        encoder, items = part_encoder(DescribeConfigsResponse, version, ("results",)), EncodedItems()
        results = yield from self._take_steps(request, encoder, items)
        if not items.count:
            return DescribeConfigsResponse(results=results)
        yield from self._encode(results, encoder, items)
        head = response_header(DescribeConfigsResponse, version)(correlation_id)
        return Encoded((yield from encoder.whole(head, DescribeConfigsResponse(), items)))

    def part(self, request: DescribeConfigsRequest, version: int) -> Steps[EncodedPart]:
        """The response to a part of a large request. A result that was described for another part is not described
        again."""
        encoder, items = part_encoder(DescribeConfigsResponse, version, ("results",)), EncodedItems()
        results = yield from self._take_steps(request, encoder, items)
        yield from self._encode(results, encoder, items)
        return EncodedPart(DescribeConfigsResponse(), items)

    def _take_steps(
        self, request: DescribeConfigsRequest, encoder: PartEncoder, items: EncodedItems
    ) -> Steps[list[DescribeConfigsResult]]:
        """Describe the resources of a request. Returns the results of the last step, which are not encoded."""
        results: list[DescribeConfigsResult] = []
        cost = 0
        for resource in request.resources:
            if cost >= _STEP_COST:
                yield from self._encode(results, encoder, items)
                results = []
                cost = 0
                yield
            keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
            named = (resource.resource_type, resource.resource_name, keys)
            result = self._described.get(named)
            cost += 1
            if result is None:
                result = self._describe(request, resource, keys)
                cost += _RESOURCE_COST + len(result.configs)
                if result.configs:
                    if len(self._described) == _KEPT_RESULTS:
                        self._encoded.pop(id(self._described.pop(next(iter(self._described)))), None)
                    self._described[named] = result
            results.append(result)
        return results

    def _encode(self, results: list[DescribeConfigsResult], encoder: PartEncoder, items: EncodedItems) -> Steps[None]:
        """Add results to the encoded ones. Raises `ApiError` where the response becomes too large."""
        errors: list[DescribeConfigsResult] = []
        for result in results:
            if not result.configs:
                errors.append(result)
                continue
            yield from self._encode_errors(errors, encoder, items)
            errors = []
            known = self._encoded.get(id(result))
            if known is None:
                alone = yield from encoder.items(DescribeConfigsResponse(results=[result]), 0)
                known = self._encoded[id(result)] = (result, b"".join(alone.buffers()))
            self._add(known[1], 1, items)
        yield from self._encode_errors(errors, encoder, items)

    def _encode_errors(
        self, errors: list[DescribeConfigsResult], encoder: PartEncoder, items: EncodedItems
    ) -> Steps[None]:
        if errors:
            encoded = yield from encoder.items(DescribeConfigsResponse(results=errors), 0)
            self._add(b"".join(encoded.buffers()), len(errors), items)

    def _add(self, encoded: bytes, count: int, items: EncodedItems) -> None:
        items.pieces.append(encoded)
        items.count += count
        self._bytes += len(encoded)
        if self._bytes > MAX_ANSWER_BYTES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The answer would have more than {MAX_ANSWER_BYTES} bytes: describe fewer resources in one request",
            )

    def _describe(
        self, request: DescribeConfigsRequest, resource: DescribeConfigsResource, keys: Collection[str] | None
    ) -> DescribeConfigsResult:
        """Values with their sources, or the error of this resource. `keys` None: all."""
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=""
        )
        try:
            self._check_access(resource)
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                result.configs = self._loggers(resource.resource_name, keys)
            else:
                kind = _kind(resource.resource_type)
                result.configs = [_described(request, entry, kind) for entry in self._entries(kind, resource, keys)]
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
        return result

    def _check_access(self, resource: DescribeConfigsResource) -> None:
        """Raises `ApiError`, with Kafka's text, where the caller may not describe the configs of the resource."""
        if self._caller.authorizer is None:
            return
        if resource.resource_type == ConfigResourceType.TOPIC:
            if not DESCRIBE_CONFIGS_OF_TOPIC.holds(self._caller, resource.resource_name):
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        elif resource.resource_type == ConfigResourceType.GROUP:
            if not DESCRIBE_CONFIGS_OF_GROUP.holds(self._caller, resource.resource_name):
                raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
        elif not self._caller.allows_on_cluster(AclOperation.DESCRIBE_CONFIGS):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def _entries(
        self, kind: ConfigResourceType, resource: DescribeConfigsResource, keys: Collection[str] | None
    ) -> list[describe.Entry]:
        name = resource.resource_name
        if kind is ConfigResourceType.TOPIC:
            return self._topic(name, keys)
        if kind is ConfigResourceType.BROKER:
            if not name:
                return describe.describe_cluster_default(self._layers, keys)
            expected = f"Unexpected broker id, expected {self._broker_id} or empty string,"
            check_broker(self._broker_id, name, "Broker id", expected)
            return describe.describe_broker(self._layers, self._effective, keys)
        overrides = self._image.configs.of(ConfigResource(kind, name))
        if kind is ConfigResourceType.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe.describe_group(self._layers, self._effective, overrides, keys)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe.describe_client_metrics(overrides, keys)

    def _topic(self, name: str, keys: Collection[str] | None) -> list[describe.Entry]:
        validate_topic_name(name)
        if name not in self._image.topics.by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        overrides = self._image.configs.of_topic(name)
        return describe.describe_topic(self._layers, self._effective, overrides, keys)

    def _loggers(self, name: str, keys: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_broker(self._broker_id, name, "Broker id", f"Unexpected broker id, expected {self._broker_id}")
        return [
            DescribeConfigsResourceResult(
                name=logger, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            )
            for logger, level in logger_levels(keys)
        ]


def _described(
    request: DescribeConfigsRequest, entry: describe.Entry, kind: ConfigResourceType
) -> DescribeConfigsResourceResult:
    documentation = None
    if request.include_documentation:
        documentation = describe.documentation(DOCUMENTED_AS[kind], entry.name)
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=documentation,
    )


def describe_configs_failed(request: DescribeConfigsRequest, version: int, error: ApiError) -> DescribeConfigsResponse:
    """The error of every resource."""
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=error.code,
                error_message=message_of(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def check_broker(broker_id: int, name: str, no_number: str, another: str) -> None:
    """Raises `ApiError` where `name` is another broker: each broker has only its own configs. `no_number` and `another`
    begin Kafka's messages, which differ from request to request."""
    if not re.fullmatch("[+-]?[0-9]{1,19}", name):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{no_number} must be an integer, but it is: {name}")
    if int(name) != broker_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{another} but received {name}")


def _kind(resource_type: int) -> ConfigResourceType:
    if resource_type not in DOCUMENTED_AS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    return ConfigResourceType(resource_type)
