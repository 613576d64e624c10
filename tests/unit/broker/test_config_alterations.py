"""AlterConfigs and IncrementalAlterConfigs on a broker, before they are forwarded."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock, patch

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers import configs
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.metadata.image import EMPTY
from kalda.protocol.apis import ApiKey, request_class, response_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_request_header, encode_request, encode_response
from kalda.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponseAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from kalda.protocol.messages.brokers import EnvelopeResponse

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
PROPERTIES = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "log.dirs": "/data",
}


def incremental(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsRequestAlterConfigsResource:
    change = IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=0, value=value)
    return IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])


def legacy(name: str, kind: int = BROKER) -> AlterConfigsRequestAlterConfigsResource:
    change = AlterConfigsRequestAlterableConfig(name="log.cleaner.threads", value="1")
    return AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])


@pytest.mark.parametrize("is_incremental", [True, False])
def test_a_broker_that_is_named_many_times_is_refused_unchecked(is_incremental: bool) -> None:
    """A check of a broker's configs takes milliseconds: 1,300 of them held the event loop for seconds."""
    handlers, forwarding = ConfigHandlers(1, ServerConfig(PROPERTIES), Mock(image=EMPTY)), Mock()
    request: Any
    if is_incremental:
        request = IncrementalAlterConfigsRequest(
            resources=[incremental(BROKER, name, "log.cleaner.threads", "1") for name in ("1", "") * 1_000]
        )
        handler: Any = handlers.incremental_alter_configs(forwarding)
    else:
        request = AlterConfigsRequest(resources=[legacy(name) for name in ("1", "") * 1_000])
        handler = handlers.alter_configs(forwarding)
    with patch.object(configs, "check_alteration", wraps=configs.check_alteration) as check:
        answer = handler(Mock(), request)
        assert check.call_count == 0
        assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2_000
        assert not forwarding.forward.called
        request.resources = request.resources[:2]
        handler(Mock(), request)
        assert check.call_count == 2
    assert forwarding.forward.called


def test_loggers_of_a_broker_that_is_named_twice_are_not_altered() -> None:
    handlers = ConfigHandlers(1, ServerConfig(PROPERTIES), Mock(image=EMPTY))
    request = IncrementalAlterConfigsRequest(resources=[incremental(BROKER_LOGGER, "1", "kalda", "NONSENSE")] * 3)
    answer: Any = handlers.incremental_alter_configs(Mock())(Mock(), request)
    assert [each.error_message for each in answer.responses] == ["Each resource must appear at most once."] * 3


class Controllers:
    """What a broker forwards to: answers each resource, in the reverse order."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        """Names of the resources of each request that was forwarded."""
        self.error: ApiError | None = None

    def send(self, envelope: Any, timeout_ms: int | None) -> Pending[EnvelopeResponse]:
        frame = memoryview(envelope.request_data)
        header = decode_request_header(frame)
        request: Any = decode(request_class(header.api_key), frame, header.api_version, header.body_at)
        self.seen.append([each.resource_name for each in request.resources])
        assert request.validate_only
        answered: Pending[EnvelopeResponse] = Pending()
        if self.error is not None:
            answered.fail(self.error)
            return answered
        is_legacy = header.api_key == ApiKey.ALTER_CONFIGS
        row: Any = (
            AlterConfigsResponseAlterConfigsResourceResponse
            if is_legacy
            else IncrementalAlterConfigsResponseAlterConfigsResourceResponse
        )
        response: Any = response_class(header.api_key)(
            throttle_time_ms=7,
            responses=[
                row(error_message=None, resource_type=each.resource_type, resource_name=each.resource_name)
                for each in reversed(request.resources)
                if each.resource_name != "lost"
            ],
        )
        data = b"".join(encode_response(header.correlation_id, response, header.api_version))
        answered.complete(EnvelopeResponse(response_data=data))
        return answered


def context_of(request: Any, version: int, is_allowed: bool = True) -> Any:
    frame = memoryview(b"".join(encode_request(request, version, 5, "client")))
    return Mock(
        frame=frame,
        header=decode_request_header(frame),
        principal="User:alice",
        is_token_authenticated=False,
        client_host="127.0.0.1",
        allows_on_cluster=Mock(return_value=is_allowed),
    )


def refuse() -> None:
    raise ApiError(ErrorCode.INVALID_REQUEST, "a bad key store")


class AtOnce:
    """Jobs without threads."""

    def run(self, work: Any, finish: Any) -> None:
        finish(work(), None)


def altering(request: Any, version: int, controllers: Controllers, is_allowed: bool = True) -> list[tuple[Any, ...]]:
    """Name, error and message of each row of the response, where all key stores of brokers are bad."""
    handlers = ConfigHandlers(1, ServerConfig(PROPERTIES), Mock(image=EMPTY), lambda config: refuse, AtOnce())
    forwarding = Forwarding(cast(Any, controllers), lambda: 0)
    is_legacy = isinstance(request, AlterConfigsRequest)
    handler: Any = handlers.alter_configs(forwarding) if is_legacy else handlers.incremental_alter_configs(forwarding)
    answer = handler(context_of(request, version, is_allowed), request)
    if isinstance(answer, Pending):
        assert answer.done
        assert answer.error is None
        answer = answer.value
    return [(each.resource_name, each.error_code, each.error_message) for each in answer.responses]


@pytest.mark.parametrize("version", [0, 1])
def test_each_resource_is_answered_by_itself(version: int) -> None:
    """The controller gets what this broker does not refuse; the rows have the order of the request."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            incremental(TOPIC, "first", "retention.ms", "1"),
            incremental(BROKER, "1", "log.cleaner.threads", "1"),
            incremental(BROKER_LOGGER, "1", "kalda.broker", "INFO"),
            incremental(BROKER_LOGGER, "2", "kalda", "INFO"),
            incremental(TOPIC, "lost", "retention.ms", "1"),
            incremental(TOPIC, "last", "retention.ms", "1"),
        ],
        validate_only=True,
    )
    controllers = Controllers()
    rows = altering(request, version, controllers)
    assert [each[:2] for each in rows] == [
        ("first", 0),
        ("1", ErrorCode.INVALID_REQUEST),
        ("1", 0),
        ("2", ErrorCode.INVALID_REQUEST),
        ("lost", ErrorCode.UNKNOWN_SERVER_ERROR),
        ("last", 0),
    ]
    assert rows[1][2] == "a bad key store"
    assert controllers.seen == [["first", "lost", "last"]]
    controllers.error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no controller")
    rows = altering(request, version, controllers)
    assert [each[1] for each in rows] == [7, 42, 0, 42, 7, 7]


@pytest.mark.parametrize("version", [1, 2])
def test_each_resource_is_answered_by_itself_by_alter_configs(version: int) -> None:
    resources = [legacy("1"), legacy("t", TOPIC), legacy("1", BROKER_LOGGER)]
    controllers = Controllers()
    rows = altering(AlterConfigsRequest(resources=resources, validate_only=True), version, controllers)
    assert rows == [("1", 42, "a bad key store"), ("t", 0, None), ("1", 42, "Unknown resource type 8")]
    assert controllers.seen == [["t"]]


def test_key_stores_are_not_read_for_a_client_that_may_not_alter() -> None:
    """A check reads the files, and imports the classes, that the request names."""
    request = AlterConfigsRequest(resources=[legacy("1")], validate_only=True)
    controllers = Controllers()
    assert altering(request, 2, controllers, is_allowed=False) == [
        ("1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    ]
    assert controllers.seen == []


SET, DELETE, APPEND, SUBTRACT, UNKNOWN = 0, 1, 2, 3, 9
_OTHER = "Config value {} is not allowed for config key: log.cleaner.threads"


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code", "message"),
    [
        (TOPIC, "t", [("a", SET, "1"), ("a", DELETE, None)], 42, "Error due to duplicate config keys"),
        (99, "t", [("a", SET, "1"), ("a", SET, "1")], 42, "Error due to duplicate config keys"),
        (
            TOPIC,
            "t",
            [("a", SET, None), ("b", DELETE, None), ("c", APPEND, None)],
            42,
            "Null value not supported for : a, c",
        ),
        (BROKER, "1", [("log.cleaner.threads", UNKNOWN, "1")], 42, "Unknown operations type 9"),
        (BROKER, "1", [("log.cleaner.threads", APPEND, "1")], 40, _OTHER.format("append")),
        (BROKER, "1", [("log.cleaner.threads", SUBTRACT, "1")], 40, _OTHER.format("subtract")),
        (BROKER, "1", [("no.key", APPEND, "1")], 40, "Unknown config name: no.key"),
        (BROKER, "1", [("log.dirs", APPEND, "x")], 42, "Cannot update these configs dynamically: [log.dirs]"),
        (BROKER, "2", [("log.cleaner.threads", SET, "1")], 42, "Unexpected broker id, expected 1, but received 2"),
        (BROKER, "abc", [("log.cleaner.threads", SET, "1")], 42, "Node id must be an integer, but it is: abc"),
        (BROKER_LOGGER, "7", [("root", SET, "INFO")], 42, "Unexpected node id. Expected 1, but received 7"),
        (
            BROKER_LOGGER,
            "kafka.server.KafkaApis",
            [],
            42,
            "Node id must be an integer, but it is: kafka.server.KafkaApis",
        ),
        (
            BROKER_LOGGER,
            "1",
            [("root", APPEND, "INFO")],
            42,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            BROKER,
            "1",
            [("cordoned.log.dirs", SET, "*,/data")],
            42,
            "requirement failed: When cordoned.log.dirs is set to *, it must not contain other values",
        ),
        (
            BROKER,
            "1",
            [("cordoned.log.dirs", APPEND, "/nowhere")],
            42,
            "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            "Missing entries : /nowhere",
        ),
    ],
)
def test_what_a_broker_refuses_is_not_forwarded(
    kind: int, name: str, changes: list[tuple[str, int, str | None]], code: int, message: str
) -> None:
    """Codes and texts of Apache Kafka 4.3.1, whose controllers would make some of these changes."""
    configs_ = [
        IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs_
    )
    controllers = Controllers()
    rows = altering(IncrementalAlterConfigsRequest(resources=[resource], validate_only=True), 1, controllers)
    assert rows == [(name, code, message)]
    assert controllers.seen == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("a", "1"), ("a", "2")], "Error due to duplicate config keys"),
        ([("a", None), ("b", None)], "Null value not supported for : a, b"),
    ],
)
def test_what_a_broker_refuses_of_alter_configs(changes: list[tuple[str, str | None]], message: str) -> None:
    configs_ = [AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in changes]
    resource = AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs_)
    controllers = Controllers()
    rows = altering(AlterConfigsRequest(resources=[resource], validate_only=True), 2, controllers)
    assert rows == [("t", ErrorCode.INVALID_REQUEST, message)]
    assert controllers.seen == []


def test_a_dynamic_config_that_no_broker_has_checked_does_not_block_others() -> None:
    """A controller takes what a request to itself sets."""
    image = Mock(configs=Mock(of=lambda resource: {"num.partitions": "3"} if resource.name else {}))
    handlers, forwarding = ConfigHandlers(1, ServerConfig(PROPERTIES), Mock(image=image)), Mock()
    request = IncrementalAlterConfigsRequest(resources=[incremental(BROKER, "1", "log.cleaner.threads", "1")])
    handlers.incremental_alter_configs(forwarding)(Mock(), request)
    assert forwarding.forward.called


def test_a_controller_sets_levels_of_its_own_loggers() -> None:
    """As Apache Kafka's: also while it is not the active one."""
    handlers = ConfigHandlers(1, ServerConfig(PROPERTIES), Mock(image=EMPTY))
    resources = [
        incremental(BROKER_LOGGER, "1", "kafka.server.KafkaApis", "INFO"),
        incremental(TOPIC, "t", "retention.ms", "1"),
        incremental(BROKER_LOGGER, "1", "no.such.Logger", "INFO"),
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=True)
    rows = handlers.alter_loggers_of_controller(context_of(request, 1), request)
    assert [(each.error_code, each.error_message) for each in rows] == [
        (0, None),
        (ErrorCode.INVALID_CONFIG, "Logger no.such.Logger does not exist!"),
    ]
    (refused, _) = handlers.alter_loggers_of_controller(context_of(request, 1, is_allowed=False), request)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
