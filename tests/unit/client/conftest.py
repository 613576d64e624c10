"""A broker with scripted responses, and a client of its cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_broker import ScriptedBroker

from kalda.client.cluster import ClusterClient


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as scripted:
        scripted.topics["logs"] = [1, 1]
        yield scripted


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.address, timeout_ms=5_000) as client:
        yield client
