"""A broker with scripted responses, and the client that commands have of its cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_broker import ScriptedBroker

from kalda.cli.common.command_admin import CommandAdmin


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as scripted:
        scripted.topics["logs"] = [1, 1]
        yield scripted


@pytest.fixture
def admin(broker: ScriptedBroker) -> Iterator[CommandAdmin]:
    with CommandAdmin(broker.address, timeout_ms=5_000) as client:
        yield client
