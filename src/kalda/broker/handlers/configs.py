"""DescribeConfigs (32), ListConfigResources (74), and a broker's checks of AlterConfigs (33, 44) before it forwards it.

Values come from the overrides in the metadata image, over this node's properties. The key tables in
`kalda.base.configs` define what each key means, what it falls back to, and which values it takes. An altered config
takes effect when this broker replays its record: through `Module.on_config`, or for a topic through the publisher.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from kalda.base.background import Steps
from kalda.base.configs import dynamic
from kalda.base.configs.broker import BROKER
from kalda.base.configs.definition import LIST, to_text
from kalda.base.configs.dynamic import Layers, check_alteration, dynamic_values, effective
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import validate_topic_name
from kalda.base.scheduling import Jobs, Pending
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.forwarded import alter_configs_failed
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.process.loggers import LoggerChange, alter_loggers, logger_levels
from kalda.broker.requests.context import MAX_ANSWER_BYTES, Encoded, RequestContext
from kalda.broker.requests.rows import Authorization, Row, on_cluster
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataImage
from kalda.protocol.access import DESCRIBE_CONFIGS_OF_GROUP, DESCRIBE_CONFIGS_OF_TOPIC, Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.encoder import ListEncoder
from kalda.protocol.framing import response_header
from kalda.protocol.messages import admin as messages
from kalda.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kalda.protocol.messages.security import AclOperation

# The answer to one DescribeConfigs request (32), made in steps of bounded cost.
#
# All results come from one metadata image. Each is encoded when it is made: the answer may be much larger than its
# request. Where the request names a resource again, the result is given again, as by Kafka.

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


log = logging.getLogger("kalda.broker")

AlteredResource: TypeAlias = (
    AlterConfigsRequestAlterConfigsResource | IncrementalAlterConfigsRequestAlterConfigsResource
)


Check: TypeAlias = Callable[[], None]
"""May wait for a disk, and so runs on a thread. Raises `ApiError`."""
CheckOf: TypeAlias = Callable[[ServerConfig], Check | None]
Answered: TypeAlias = dict[int, ApiError | None]
"""The resources that are answered here, by their place in the request; None: altered."""


class Metadata(Protocol):
    """Holds the newest image."""

    @property
    def image(self) -> MetadataImage: ...


A = TypeVar("A", AlterConfigsResponse, IncrementalAlterConfigsResponse)


class ConfigHandlers:
    """Configs as this node has them."""

    def __init__(
        self,
        broker_id: int,
        static: ServerConfig,
        metadata: Metadata,
        check_of: CheckOf | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        """`broker_id` is the node's id, also of one that is a controller alone. `check_of(config)` returns what checks
        the key stores and classes of an altered configuration, and runs in one of `jobs`; None where nothing of them
        is altered. Both are None on a node without TLS and SASL, and in the handlers of a controller."""
        self._check_of = check_of
        self._jobs = jobs
        self._broker_id = broker_id
        self._static = static
        self._metadata = metadata

    def describe_row(self) -> Row:
        """DescribeConfigs, which controllers serve too."""
        return Row(
            ApiKey.DESCRIBE_CONFIGS,
            self.describe_configs,
            describe_configs_failed,
            Authorization.PER_ITEM,
            has_large_answer=True,
        )

    def rows(self, forwarding: Forwarding) -> list[Row]:
        """A broker's rows: DescribeConfigs, ListConfigResources, and the two that alter configs."""
        return [
            self.describe_row(),
            Row(
                ApiKey.LIST_CONFIG_RESOURCES,
                self.list_config_resources,
                error_on_top,
                on_cluster(AclOperation.DESCRIBE_CONFIGS),
            ),
            Row(
                ApiKey.ALTER_CONFIGS,
                self.alter_configs(forwarding),
                alter_configs_failed,
                Authorization.PER_ITEM,  # key stores of a broker are checked here, all else at the controller
                forwarded=True,
            ),
            Row(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                self.incremental_alter_configs(forwarding),
                alter_configs_failed,
                Authorization.PER_ITEM,  # levels of loggers are altered here, all else at the controller
                forwarded=True,
            ),
        ]

    # -- DescribeConfigs

    def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> Steps[Encoded]:
        """Values with their sources; on demand with all synonyms and documentation."""
        descriptions = ConfigDescriptions(self._broker_id, self._static, self._metadata.image, context)
        return descriptions.steps(request, context.api_version, context.header.correlation_id)

    # -- altering

    def alter_configs(
        self, forwarding: Forwarding
    ) -> Callable[[RequestContext, AlterConfigsRequest], AlterConfigsResponse | Pending[Any]]:
        """The handler that checks what only this broker can check of its own configs, then forwards the request."""
        row = AlterConfigsResponseAlterConfigsResourceResponse
        return partial(self._altered, forwarding, AlterConfigsResponse, row)

    def incremental_alter_configs(
        self, forwarding: Forwarding
    ) -> Callable[[RequestContext, IncrementalAlterConfigsRequest], IncrementalAlterConfigsResponse | Pending[Any]]:
        """As `alter_configs`, key by key (KIP-339). Levels of loggers are altered here (KIP-412)."""
        row = IncrementalAlterConfigsResponseAlterConfigsResourceResponse
        return partial(self._altered, forwarding, IncrementalAlterConfigsResponse, row)

    def _altered(
        self,
        forwarding: Forwarding,
        response: type[A],
        row: Callable[..., Any],
        context: RequestContext,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    ) -> A | Pending[Any]:
        """Each resource is answered by itself: those that this broker refuses and the levels of its loggers here, all
        others by the controller. A broker's dynamic configs must fit its static ones and its key stores, which the
        controller does not have. `row` makes a resource's row of the `response`.

        A resource that is named more than once is refused unchecked: a check of a broker's configs takes milliseconds.
        """

        def answer(place: int, error: ApiError | None) -> Any:
            return row(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=resources[place].resource_type,
                resource_name=resources[place].resource_name,
            )

        answered: Answered = {}
        checks: list[tuple[int, Check]] = []
        resources: Sequence[AlteredResource] = request.resources
        repeated = _repeated(resources)
        for place, resource in enumerate(resources):
            try:
                _check_once(resource, repeated)
                _check_shape(resource)
                if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                    self._alter_logger(context, resource, request.validate_only)
                    answered[place] = None
                elif resource.resource_type == ConfigResourceType.BROKER:
                    check = self._check_alteration(resource)
                    if check is not None:
                        _require_may_alter(context)  # it reads files and imports classes that the request names
                        checks.append((place, check))
            except ApiError as error:
                answered[place] = error
        go_on = partial(_merged, context, request, forwarding, response, answered, answer)
        return self._checked(checks, answered, go_on) if checks else go_on()

    def _checked(
        self, checks: Sequence[tuple[int, Check]], answered: Answered, go_on: Callable[[], A | Pending[Any]]
    ) -> Pending[Any]:
        """What `go_on` returns, once the checks have run on a thread, and `answered` has those that failed."""
        done: Pending[Any] = Pending()

        def run() -> Answered:
            found: Answered = {}
            for place, check in checks:
                try:
                    check()
                except ApiError as error:
                    found[place] = error
            return found

        def finish(found: Answered | None, error: BaseException | None) -> None:
            if error is not None:
                log.error("the key stores of an altered configuration could not be checked: %r", error)
            if found is None:
                done.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "The configuration could not be checked."))
                return
            answered.update(found)
            result = go_on()
            if isinstance(result, Pending):
                result.then(done.settle)
            else:
                done.complete(result)

        assert self._jobs is not None, "given together with the checks"
        self._jobs.run(run, finish)
        return done

    def _alter_logger(self, context: RequestContext, resource: AlteredResource, validate_only: bool) -> None:
        """Set levels of this process's loggers, until the process ends. Raises `ApiError`."""
        assert isinstance(resource, IncrementalAlterConfigsRequestAlterConfigsResource), "AlterConfigs refuses loggers"
        _require_may_alter(context)
        self._set_levels(resource, validate_only)

    def alter_loggers_of_controller(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse]:
        """The rows of the resources of a request to a controller that are loggers: each is altered, or refused."""
        rows = []
        for resource in request.resources:
            if resource.resource_type != ConfigResourceType.BROKER_LOGGER:
                continue
            row = IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
            )
            try:
                if not context.allows_on_cluster(AclOperation.CLUSTER_ACTION):
                    raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
                self._set_levels(resource, request.validate_only)
            except ApiError as error:
                row.error_code, row.error_message = error.code, error.message
            rows.append(row)
        return rows

    def _set_levels(self, resource: IncrementalAlterConfigsRequestAlterConfigsResource, validate_only: bool) -> None:
        name, own = resource.resource_name, self._broker_id
        check_broker(own, name, "Node id", f"Unexpected node id. Expected {own},")
        alter_loggers(
            [LoggerChange(each.name, each.config_operation, each.value) for each in resource.configs], validate_only
        )

    def _check_alteration(self, resource: AlteredResource) -> Check | None:
        """What is left to check on a thread. Raises `ApiError` where this broker, or the default of all, cannot take
        these configs."""
        name = resource.resource_name
        if name:
            expected = f"Unexpected broker id, expected {self._broker_id},"
            check_broker(self._broker_id, name, "Node id", expected)
        configs = self._metadata.image.configs
        layers = Layers(
            self._static.properties, configs.of(broker_resource(None)), configs.of(broker_resource(self._broker_id))
        )
        if isinstance(resource, IncrementalAlterConfigsRequestAlterConfigsResource):
            altered = _applied(resource.configs, dynamic_values(layers.broker if name else layers.cluster))
        else:
            altered = {config.name: config.value for config in resource.configs if config.value is not None}
        config = check_alteration(layers, altered, per_broker=bool(name))
        return None if self._check_of is None else self._check_of(config)

    # -- ListConfigResources

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """Names of what can have configs (KIP-1142); in version 0, of client metrics subscriptions alone."""
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
        for kind in dict.fromkeys(wanted):
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


def _merged(
    context: RequestContext,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    forwarding: Forwarding,
    response: type[A],
    answered: Answered,
    answer: Callable[[int, ApiError | None], Any],
) -> A | Pending[Any]:
    """The rows of `answered`, and those of the controller for all other resources, in the order of the request."""
    resources: Sequence[AlteredResource] = request.resources
    if not answered:
        return forwarding.forward(context, request)
    if len(answered) == len(resources):
        return response(responses=[answer(place, answered[place]) for place in range(len(resources))])
    left: list[Any] = [resource for place, resource in enumerate(resources) if place not in answered]
    done: Pending[A] = Pending()

    def merge(found: A | None, error: ApiError | None) -> None:
        if found is None:
            # Loggers may have been altered: the failure of the controller is that of its resources alone.
            missing, rows = error, {}
        else:
            missing = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller has not answered for this resource.")
            rows = {(each.resource_type, each.resource_name): each for each in found.responses}
        merged: list[Any] = []
        for place, resource in enumerate(resources):
            row = None
            if place not in answered:
                row = rows.get((resource.resource_type, resource.resource_name))
            merged.append(row or answer(place, answered.get(place, missing)))
        throttle_time_ms = 0 if found is None else found.throttle_time_ms
        done.complete(response(throttle_time_ms=throttle_time_ms, responses=merged))

    forwarding.forward_part(context, type(request)(resources=left, validate_only=request.validate_only)).then(merge)
    return done


def _require_may_alter(context: RequestContext) -> None:
    """Raises `ApiError`, in Kafka's words."""
    if not context.allows_on_cluster(AclOperation.ALTER_CONFIGS):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _repeated(resources: Sequence[AlteredResource]) -> set[tuple[int, str]]:
    """Type and name of the resources that are named more than once."""
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    return {resource for resource, count in counts.items() if count > 1}


def _check_once(resource: AlteredResource, repeated: set[tuple[int, str]]) -> None:
    """Raises `ApiError`, in Kafka's words."""
    if (resource.resource_type, resource.resource_name) in repeated:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def _check_shape(resource: AlteredResource) -> None:
    """Raises `ApiError` for what is wrong whatever the configs are."""
    is_incremental = isinstance(resource, IncrementalAlterConfigsRequestAlterConfigsResource)
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.value is None and not _is_deletion(config)]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if resource.resource_type not in DOCUMENTED_AS and not (
        is_incremental and resource.resource_type == ConfigResourceType.BROKER_LOGGER
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def _is_deletion(config: AlterConfigsRequestAlterableConfig | IncrementalAlterConfigsRequestAlterableConfig) -> bool:
    return getattr(config, "config_operation", ConfigOperation.SET) == ConfigOperation.DELETE


def _applied(
    changes: Sequence[IncrementalAlterConfigsRequestAlterableConfig], before: Mapping[str, str]
) -> dict[str, str]:
    """The dynamic configs of a broker after an incremental alteration, as Kafka's broker works it out before it
    forwards. Raises `ApiError`, in Kafka's words."""
    altered = dict(before)
    for change in changes:
        if change.config_operation not in ConfigOperation.__members__.values():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.config_operation}")
    for change in changes:
        operation, name = ConfigOperation(change.config_operation), change.name
        if operation is ConfigOperation.DELETE:
            altered.pop(name, None)
            continue
        assert change.value is not None, "checked before"
        if operation is ConfigOperation.SET:
            altered[name] = change.value
            continue
        key = BROKER.get(name)
        if key is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if key.type is not LIST:
            word = operation.name.lower()
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Config value {word} is not allowed for config key: {name}")
        parts = [part for part in altered.get(name, to_text(BROKER.default(name)) or "").split(",") if part]
        for part in change.value.split(","):
            if operation is ConfigOperation.APPEND and part not in parts:
                parts.append(part)
            elif operation is ConfigOperation.SUBTRACT and part in parts:
                parts.remove(part)
        altered[name] = ",".join(parts)
    return altered


class ConfigsModule(Module):
    """Rests on forwarding: alterations that pass this broker's checks are decided by the controller."""

    def __init__(self, context: BrokerContext, forwarding: Forwarding) -> None:
        self._configs = ConfigHandlers(
            context.config.node_id,
            context.config,
            context.cache,
            None if context.security is None else context.security.check_of,
            None if context.security is None else context.security.jobs,
        )
        self._forwarding = forwarding

    def rows(self) -> list[Row]:
        """Descriptions and alterations."""
        return self._configs.rows(self._forwarding)
