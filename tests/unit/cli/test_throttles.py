"""Throttles of a reassignment while a broker is down: just when an operator moves replicas away from it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.reassignment import plans
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)


def alter_configs(request: Any, version: int) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=each.resource_type, resource_name=each.resource_name
            )
            for each in request.resources
        ]
    )


def test_a_dead_broker_that_is_still_listed_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others get their throttle, or lose it, although the dead broker comes first."""
    monkeypatch.setattr(plans, "_BROKER_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    moves = {TopicPartition("logs", 0): plans.Move((1, 2), (3,))}
    with ScriptedBroker(3) as broker, CommandAdmin(broker.address, timeout_ms=600_000) as admin:
        broker.nodes[1] = port
        broker.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = alter_configs
        assert plans.throttle(admin, moves, [1, 3], 1_000, None) == [1]
        assert plans.clear(admin, ["logs"], [1, 3]) == [1]
        altered = [each.resources[0].resource_name for each in broker.requests(ApiKey.INCREMENTAL_ALTER_CONFIGS)]
    assert altered == ["logs", "3", "3", "logs"]
