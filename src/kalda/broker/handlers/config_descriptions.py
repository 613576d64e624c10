"""The answer to one DescribeConfigs request (32), made in steps of bounded cost.

All results come from one metadata image. Each is encoded when it is made: the answer may be much larger than its
request. Where the request names a resource again, the result is given again, as by Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kalda.base.background import Steps
from kalda.base.configs import dynamic
from kalda.base.configs.dynamic import Layers, effective
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import validate_topic_name
from kalda.broker.handlers.shared import error_on_items
from kalda.broker.process.loggers import logger_levels
from kalda.broker.requests.context import MAX_ANSWER_BYTES, Encoded
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataImage
from kalda.protocol.access import DESCRIBE_CONFIGS_OF_GROUP, DESCRIBE_CONFIGS_OF_TOPIC, Caller
from kalda.protocol.encoder import ListEncoder
from kalda.protocol.framing import response_header
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kalda.protocol.messages.security import AclOperation

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


class ConfigDescriptions:
    """Describes the resources of one request as they are in one image."""

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
        configs = image.configs
        self._layers = Layers(
            static.properties, configs.of(broker_resource(None)), configs.of(broker_resource(broker_id))
        )
        self._effective = effective(self._layers)[0]

    def steps(self, request: DescribeConfigsRequest, version: int, correlation_id: int) -> Steps[Encoded]:
        """The encoded response. Raises `ApiError` where it would be too large."""
        encoder = ListEncoder(DescribeConfigsResponse, version, "results")
        cost = 0
        for resource in request.resources:
            if cost >= _STEP_COST:
                cost = 0
                yield
            keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
            result = self._describe(request, resource, keys)
            cost += _RESOURCE_COST + len(result.configs)
            yield from encoder.add([result])
            if encoder.size > MAX_ANSWER_BYTES:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"The answer would have more than {MAX_ANSWER_BYTES} bytes: describe fewer resources at once",
                )
        head = response_header(DescribeConfigsResponse, version)(correlation_id)
        return Encoded(encoder.message(DescribeConfigsResponse(), head), encoder.errors)

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
    ) -> list[dynamic.Entry]:
        name = resource.resource_name
        if kind is ConfigResourceType.TOPIC:
            return self._topic(name, keys)
        if kind is ConfigResourceType.BROKER:
            if not name:
                return dynamic.describe_cluster_default(self._layers, keys)
            expected = f"Unexpected broker id, expected {self._broker_id} or empty string,"
            check_broker(self._broker_id, name, "Broker id", expected)
            return dynamic.describe_broker(self._layers, self._effective, keys)
        overrides = self._image.configs.of(ConfigResource(kind, name))
        if kind is ConfigResourceType.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return dynamic.describe_group(self._layers, self._effective, overrides, self._task_assignor, keys)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return dynamic.describe_client_metrics(overrides, keys)

    def _topic(self, name: str, keys: Collection[str] | None) -> list[dynamic.Entry]:
        validate_topic_name(name)
        if name not in self._image.topics.by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        overrides = self._image.configs.of_topic(name)
        return dynamic.describe_topic(self._layers, self._effective, overrides, keys)

    def _task_assignor(self) -> str:
        from kalda.assignors.server_assignors import task_assignor_names  # a node's start does without

        return task_assignor_names(self._effective["group.streams.assignors"])[0]

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
    request: DescribeConfigsRequest, entry: dynamic.Entry, kind: ConfigResourceType
) -> DescribeConfigsResourceResult:
    documentation = None
    if request.include_documentation:
        documentation = dynamic.documentation(DOCUMENTED_AS[kind], entry.name)
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


describe_configs_failed = error_on_items("results", "resources")


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
