"""AlterConfigs and IncrementalAlterConfigs on a broker, before they are forwarded."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ErrorCode
from kalda.broker.handlers import configs
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.metadata.image import EMPTY
from kalda.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

BROKER, BROKER_LOGGER = 4, 8
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


def legacy(name: str) -> AlterConfigsRequestAlterConfigsResource:
    change = AlterConfigsRequestAlterableConfig(name="log.cleaner.threads", value="1")
    return AlterConfigsRequestAlterConfigsResource(resource_type=BROKER, resource_name=name, configs=[change])


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
