"""A node whose configs name many files that cannot be read, or not yet: it goes on meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.blocking import BlockingConnection

from kalda.base.errors import ErrorCode
from kalda.network.client.security import ClientSecurity
from kalda.network.named_files import read_named_file
from kalda.network.tls import contexts as tls_contexts
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.testing import Cluster

FILES = 40
"""More than the node has threads, of any pool."""
STORES = ("ssl.keystore.location", "ssl.truststore.location")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A combined node of SSL."""
    with Cluster(security="SSL", directory=tmp_path_factory.mktemp("ssl")) as made:
        yield made


def connect(cluster: Cluster) -> BlockingConnection:
    host, port = cluster.address(1).rsplit(":", 1)
    security = ClientSecurity.of(cluster.client_config())
    return BlockingConnection(host, int(port), security=security, timeout_ms=20_000)


def naming(number: int, path: Path) -> IncrementalAlterConfigsRequest:
    """A request that has one of the node's stores in `path`."""
    config = IncrementalAlterConfigsRequestAlterableConfig(
        name=f"listener.name.ssl.{STORES[number % len(STORES)]}", value=str(path)
    )
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        ]
    )


def end_waits(fifo: Path) -> None:
    """Whoever waits to open it for reading finds it empty."""
    os.close(os.open(fifo, os.O_RDWR))


def works(cluster: Cluster, topic: str) -> bool:
    """Whether the metadata log takes records, and the loop accepts and serves a connection."""
    cluster.create_topic(topic)
    with connect(cluster) as connection:
        return any(found.name == topic for found in connection.request(MetadataRequest(topics=None)).topics)


def test_forty_fifos_are_refused_without_a_wait_for_their_writers(cluster: Cluster, tmp_path: Path) -> None:
    with ExitStack() as connections:
        calls = []
        for number in range(FILES):
            path = tmp_path / f"{number}.pem"
            os.mkfifo(path)
            connections.callback(end_waits, path)
            connection = connections.enter_context(connect(cluster))
            calls.append((connection, connection.send(naming(number, path))))
        assert works(cluster, "beside-fifos")
        for connection, call in calls:
            [answer] = connection.receive(call).responses
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert "it is not a regular file" in answer.error_message


def test_a_node_goes_on_while_forty_stores_are_on_a_disk_that_does_not_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, disk_answers = threading.Semaphore(0), threading.Event()

    def read(path: str) -> bytes:
        if path.startswith(str(tmp_path)):
            begun.release()
            disk_answers.wait()
        return read_named_file(path)

    monkeypatch.setattr(tls_contexts, "read_named_file", read)
    with ExitStack() as connections:
        connections.callback(disk_answers.set)
        calls = []
        for number in range(FILES):
            connection = connections.enter_context(connect(cluster))
            calls.append((connection, connection.send(naming(number, tmp_path / f"{number}.pem"))))
        for _ in range(cluster.nodes[1].config["background.threads"]):
            assert begun.acquire(timeout=60)
        assert works(cluster, "beside-a-disk")
        disk_answers.set()
        for connection, call in calls:
            [answer] = connection.receive(call).responses
            assert "cannot be read: No such file" in answer.error_message
