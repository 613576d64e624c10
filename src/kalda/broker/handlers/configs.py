"""DescribeConfigs (32), ListConfigResources (74), and a broker's say in altering its own dynamic configs.

The values come from the image's overrides over this node's properties; what each key means, where its value comes
from and what it falls back to is the business of the tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from kalda.base.configs import describe
from kalda.base.configs.dynamic import Layers, check_alteration, effective
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.topic_names import validate_topic_name
from kalda.broker.dispatch import Handler, Reply, RequestContext
from kalda.broker.forwarding import Forwarding
from kalda.broker.loggers import LoggerChange, alter_loggers, logger_levels
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages import configs as messages
from kalda.protocol.messages.configs import (
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_DOCUMENTED_AS = {
    ConfigResourceType.TOPIC: "topic",
    ConfigResourceType.BROKER: "broker",
    ConfigResourceType.GROUP: "group",
    ConfigResourceType.CLIENT_METRICS: "client_metrics",
}


class Metadata(Protocol):
    """Who has the newest image."""

    @property
    def image(self) -> MetadataImage: ...


class ConfigHandlers:
    """Configs as this broker sees them."""

    def __init__(self, broker_id: int, static: ServerConfig, metadata: Metadata) -> None:
        """`broker_id` is the node's id, also of one that is a controller alone."""
        self._broker_id = broker_id
        self._static = static
        self._metadata = metadata

    def layers(self) -> Layers:
        """This broker's configuration, layer by layer."""
        configs = self._metadata.image.configs
        return Layers(
            self._static.properties, configs.of(broker_resource(None)), configs.of(broker_resource(self._broker_id))
        )

    def effective(self) -> ServerConfig:
        """What the layers give."""
        return effective(self.layers())[0]

    # -- DescribeConfigs

    def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Values with their sources; on demand with all synonyms and documentation."""
        response = DescribeConfigsResponse()
        for resource in request.resources:
            result = DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=""
            )
            response.results.append(result)
            try:
                if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                    result.configs = self._loggers(resource)
                    continue
                kind = _kind(resource.resource_type)
                for entry in self._entries(kind, resource):
                    result.configs.append(_described(entry, kind, request))
            except ApiError as error:
                result.error_code = error.code
                result.error_message = error.message
        return response

    def _entries(self, kind: ConfigResourceType, resource: DescribeConfigsResource) -> list[describe.Entry]:
        name = resource.resource_name
        keys: Collection[str] | None = resource.configuration_keys or None
        if kind is ConfigResourceType.TOPIC:
            return self._topic(name, keys)
        layers = self.layers()
        if kind is ConfigResourceType.BROKER:
            if not name:
                return describe.describe_cluster_default(layers, keys)
            self._check_broker(name)
            return describe.describe_broker(layers, self.effective(), keys)
        overrides = self._metadata.image.configs.of(ConfigResource(kind, name))
        if kind is ConfigResourceType.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe.describe_group(layers, self.effective(), overrides, keys)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe.describe_client_metrics(overrides, keys)

    def _topic(self, name: str, keys: Collection[str] | None) -> list[describe.Entry]:
        validate_topic_name(name)
        image = self._metadata.image
        if name not in image.topics.by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        overrides = image.configs.of_topic(name)
        return describe.describe_topic(self.layers(), self.effective(), overrides, keys)

    def _loggers(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        self._check_broker(resource.resource_name)
        return [
            DescribeConfigsResourceResult(
                name=name, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            )
            for name, level in logger_levels(resource.configuration_keys or None)
        ]

    def _check_broker(self, name: str) -> None:
        if name != str(self._broker_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._broker_id} or empty string, but received {name}",
            )

    # -- altering

    def alter_configs(self, forwarding: Forwarding) -> Handler:
        """Checks what only this broker can check of its own configs, then lets the controller decide."""
        return lambda context, request: self._check_then_forward(context, request, forwarding)

    def incremental_alter_configs(self, forwarding: Forwarding) -> Handler:
        """As `alter_configs`, key by key (KIP-339)."""
        return lambda context, request: self._check_then_forward(context, request, forwarding)

    def _check_then_forward(self, context: RequestContext, request: Any, forwarding: Forwarding) -> Reply:
        """A broker's dynamic configs must fit its static ones, which the controller does not know.

        A request is refused here only when all its resources are: otherwise the controller answers for the rest, and
        its own tables refuse what no broker could take.
        """
        incremental = isinstance(request, IncrementalAlterConfigsRequest)
        if (
            incremental
            and request.resources
            and all(each.resource_type == ConfigResourceType.BROKER_LOGGER for each in request.resources)
        ):
            return self._alter_loggers(request)
        refused: list[tuple[Any, ApiError]] = []
        for resource in request.resources:
            try:
                self._check_shape(resource, incremental)
                if resource.resource_type == ConfigResourceType.BROKER:
                    self._check_alteration(resource, incremental)
            except ApiError as error:
                refused.append((resource, error))
        if not refused or len(refused) < len(request.resources):
            return forwarding.forward(context, request)
        if incremental:
            return IncrementalAlterConfigsResponse(
                responses=[
                    IncrementalAlterConfigsResponseAlterConfigsResourceResponse(**_refusal(resource, error))
                    for resource, error in refused
                ]
            )
        return AlterConfigsResponse(
            responses=[
                AlterConfigsResponseAlterConfigsResourceResponse(**_refusal(resource, error))
                for resource, error in refused
            ]
        )

    def _alter_loggers(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        """Levels of this process's loggers: nobody else's business, and gone with the process."""
        response = IncrementalAlterConfigsResponse()
        for resource in request.resources:
            answer = IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            response.responses.append(answer)
            try:
                self._check_broker(resource.resource_name)
                changes = [LoggerChange(each.name, each.config_operation, each.value) for each in resource.configs]
                alter_loggers(changes, request.validate_only)
            except ApiError as error:
                answer.error_code, answer.error_message = error.code, error.message
        return response

    def _check_shape(self, resource: Any, incremental: bool) -> None:
        """What is wrong whatever the state is."""
        known = (*_DOCUMENTED_AS, ConfigResourceType.BROKER_LOGGER) if incremental else tuple(_DOCUMENTED_AS)
        if resource.resource_type not in known:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
        if not incremental:
            nulls = [config.name for config in resource.configs if config.value is None]
            if nulls:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")

    def _check_alteration(self, resource: Any, incremental: bool) -> None:
        name = resource.resource_name
        if name:
            self._check_broker(name)
        layers = self.layers()
        altered = dict(layers.broker if name else layers.cluster) if incremental else {}
        for config in resource.configs:
            operation = config.config_operation if incremental else ConfigOperation.SET
            if operation == ConfigOperation.SET and config.value is not None:
                altered[config.name] = config.value
            elif operation == ConfigOperation.DELETE:
                altered.pop(config.name, None)
        check_alteration(layers, altered, per_broker=bool(name))

    # -- ListConfigResources

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """Names of what can have configs (KIP-1142); version 0 knew client metrics only."""
        everything = (
            ConfigResourceType.TOPIC,
            ConfigResourceType.BROKER,
            ConfigResourceType.BROKER_LOGGER,
            ConfigResourceType.CLIENT_METRICS,
            ConfigResourceType.GROUP,
        )
        wanted: Collection[int] = request.resource_types or everything
        if context.api_version == 0:
            wanted = (ConfigResourceType.CLIENT_METRICS,)
        for kind in wanted:
            if kind not in everything:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Resource type {kind} is not supported")
        image = self._metadata.image
        response = ListConfigResourcesResponse()
        for kind in wanted:
            if kind == ConfigResourceType.TOPIC:
                names = sorted(image.topics.by_name)
            elif kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
                names = [str(broker_id) for broker_id in sorted(image.cluster.brokers)]
            else:
                names = sorted(resource.name for resource in image.configs.resources if resource.type == kind)
            response.config_resources.extend(
                messages.ConfigResource(resource_name=name, resource_type=kind) for name in names
            )
        return response


def _kind(resource_type: int) -> ConfigResourceType:
    if resource_type not in _DOCUMENTED_AS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    return ConfigResourceType(resource_type)


def _refusal(resource: Any, error: ApiError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _described(
    entry: describe.Entry, kind: ConfigResourceType, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    documentation = None
    if request.include_documentation:
        documentation = describe.documentation(_DOCUMENTED_AS[kind], entry.name)
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.type,
        documentation=documentation,
    )
