"""The answer to one DescribeConfigs request (32), made in steps.

Each resource that the request names is described once. Where the request names it again, with the same keys, the same
result is given again, as Kafka answers it again. All results come from one metadata image.

A request of a few resources is answered in the first step, as a response. A larger one takes several steps of bounded
cost; what a step has described is encoded in that step, so that no step has to encode the whole answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kalda.base.configs import describe
from kalda.base.configs.dynamic import Layers, effective
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.steps import Steps
from kalda.base.topic_names import validate_topic_name
from kalda.broker.context import Encoded
from kalda.broker.loggers import logger_levels
from kalda.broker.rows import message_of
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataImage
from kalda.network.connection import Buffer
from kalda.protocol.access import DESCRIBE_CONFIGS_OF_GROUP, DESCRIBE_CONFIGS_OF_TOPIC
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.caller import Caller
from kalda.protocol.codec import encode
from kalda.protocol.framing import encode_response
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.varint import encode_unsigned

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
_MAX_ANSWER_BYTES = 100 * 1024 * 1024
"""What clients take as a response at most, by default."""


class ConfigDescriptions:
    """Describes the resources of one request as they are in one image."""

    def __init__(
        self,
        broker_id: int,
        static: ServerConfig,
        image: MetadataImage,
        request: DescribeConfigsRequest,
        caller: Caller,
    ) -> None:
        self._caller = caller
        self._broker_id = broker_id
        self._image = image
        self._request = request
        configs = image.configs
        self._layers = Layers(
            static.properties, configs.of(broker_resource(None)), configs.of(broker_resource(broker_id))
        )
        self._effective = effective(self._layers)[0]

    def steps(self, version: int, correlation_id: int) -> Steps[DescribeConfigsResponse | Encoded]:
        """The response, or where that took several steps the encoded response."""
        answer = _EncodedResults(version, correlation_id)
        described: dict[tuple[int, str, frozenset[str] | None], DescribeConfigsResult] = {}
        results: list[DescribeConfigsResult] = []
        cost = 0
        for resource in self._request.resources:
            if cost >= _STEP_COST:
                answer.add(results)
                results = []
                cost = 0
                yield
            keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
            named = (resource.resource_type, resource.resource_name, keys)
            result = described.get(named)
            cost += 1
            if result is None:
                result = described[named] = self._describe(resource, keys)
                cost += _RESOURCE_COST + len(result.configs)
            results.append(result)
        if not answer.count:
            return DescribeConfigsResponse(results=results)
        answer.add(results)
        del results
        # Dropped in steps: the results of many resources take long to free.
        while described or answer.known:
            for known in (described, answer.known):
                for _ in range(min(len(known), _STEP_COST)):
                    known.popitem()
            yield
        return Encoded(answer.buffers())

    def _describe(self, resource: DescribeConfigsResource, keys: Collection[str] | None) -> DescribeConfigsResult:
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
                result.configs = [self._described(entry, kind) for entry in self._entries(kind, resource, keys)]
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
            check_broker(self._broker_id, name)
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
        check_broker(self._broker_id, name)
        return [
            DescribeConfigsResourceResult(
                name=logger, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            )
            for logger, level in logger_levels(keys)
        ]

    def _described(self, entry: describe.Entry, kind: ConfigResourceType) -> DescribeConfigsResourceResult:
        documentation = None
        if self._request.include_documentation:
            documentation = describe.documentation(DOCUMENTED_AS[kind], entry.name)
        synonyms = []
        if self._request.include_synonyms:
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


class _EncodedResults:
    """A response that is encoded result by result; a result that is added again is not encoded again.

    The encoded form of a result is what is between the head and the tail of a response of that result alone.
    """

    def __init__(self, version: int, correlation_id: int) -> None:
        self.count = 0
        self._version = version
        self._correlation_id = correlation_id
        self._is_flexible = API[ApiKey.DESCRIBE_CONFIGS].is_flexible(version)
        self._tail = b"\0" if self._is_flexible else b""
        self._start = len(encode(DescribeConfigsResponse(), version)) - len(self._tail)
        self._pieces: list[Buffer] = []
        self._bytes = 0
        self.known: dict[int, tuple[DescribeConfigsResult, bytes]] = {}
        """By the identity of the result, which is kept beside its bytes so that no other has the same."""

    def add(self, results: list[DescribeConfigsResult]) -> None:
        """Encode these. Raises `ApiError` where the response becomes too large."""
        pieces = []
        for result in results:
            known = self.known.get(id(result))
            if known is None:
                alone = encode(DescribeConfigsResponse(results=[result]), self._version)
                known = self.known[id(result)] = (result, alone[self._start : len(alone) - len(self._tail)])
            pieces.append(known[1])
            self._bytes += len(known[1])
        self._pieces.append(b"".join(pieces))
        self.count += len(results)
        if self._bytes > _MAX_ANSWER_BYTES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The answer would have more than {_MAX_ANSWER_BYTES} bytes: describe fewer resources in one request",
            )

    def buffers(self) -> list[Buffer]:
        """The whole response, with its header."""
        head = b"".join(encode_response(self._correlation_id, DescribeConfigsResponse(), self._version))
        if self._is_flexible:
            head = head[: -1 - len(self._tail)] + encode_unsigned(self.count + 1)
        else:
            head = head[:-4] + self.count.to_bytes(4, "big")
        return [head, *self._pieces, self._tail]


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


def check_broker(broker_id: int, name: str) -> None:
    """Raises `ApiError` where `name` is another broker: each broker has only its own configs."""
    if name != str(broker_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker_id} or empty string, but received {name}",
        )


def _kind(resource_type: int) -> ConfigResourceType:
    if resource_type not in DOCUMENTED_AS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    return ConfigResourceType(resource_type)
