"""A cluster that becomes secure while it is in use, by the steps that Apache Kafka documents: real processes.

It restarts each of three nodes three times, and takes about a minute: set KALDA_ROLLING=1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from node_cluster import SERVES, NodeCluster

import kalda
from kalda.base.ids import TopicPartition
from kalda.network.free_ports import free_ports
from kalda.testing.layout import ClusterSecurity
from waiting import wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(not os.environ.get("KALDA_ROLLING"), reason="takes a minute; set KALDA_ROLLING=1"),
]

TOPIC = "orders"
PARTITIONS = 3
SETTINGS = {"min.insync.replicas": 2, "connection.failed.authentication.delay.ms": 5}


class Load:
    """A producer that sends numbers until it is stopped. Every one must be acknowledged."""

    def __init__(self, config: Mapping[str, object], first: int) -> None:
        self.next = first
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._config = config
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with kalda.Producer(self._config, acks="all", enable_idempotence=True) as producer:
                while not self._stop.is_set():
                    sent = [
                        producer.send(TOPIC, b"%d" % (self.next + each), partition=(self.next + each) % PARTITIONS)
                        for each in range(30)
                    ]
                    for each in sent:
                        each.result(120)
                    self.next += len(sent)
                    self._stop.wait(0.01)
        except BaseException as error:
            self.failure = error

    def stop(self) -> int:
        """The number after the last one that was acknowledged."""
        self._stop.set()
        self._thread.join(180)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)
        return self.next


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path, settings=SETTINGS) as made:
        yield made


def restart_one_by_one(cluster: NodeCluster, config: Mapping[str, object]) -> None:
    """Each once the replicas of the one before are in sync again."""
    for node in cluster.nodes.values():
        node.stop()
        node.launch()
        node.wait_line(SERVES, 60)
        with kalda.Admin(config) as admin:

            def is_whole(admin: kalda.Admin = admin) -> bool:
                described = admin.describe_topics([TOPIC])[TOPIC]
                return all(len(each.isr) == len(cluster.nodes) for each in described.partitions)

            wait_until(is_whole, f"every replica is in sync after the restart of node {node.node_id}", 60)


def read_all(config: Mapping[str, object], count: int) -> dict[int, list[int]]:
    """The numbers by partition, in order."""
    found: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    with kalda.Consumer(config, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, each) for each in range(PARTITIONS)])
        for record in consumer:
            assert record.value is not None
            found[record.partition].append(int(record.value))
            if sum(map(len, found.values())) == count:
                return found
    raise AssertionError("the consumer has ended")


def test_from_plaintext_to_sasl_ssl_under_load(cluster: NodeCluster, tmp_path: Path) -> None:
    """Add the secure listener; move the clients; move the brokers' own connections; remove the plain listener. All
    that was acknowledged is there once, in order."""
    security = ClusterSecurity("SASL_SSL")
    security.prepare(tmp_path / "certificates", ("127.0.0.1", "localhost"))
    ports = dict(zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True))
    cluster.start()
    plain: dict[str, Any] = {"bootstrap.servers": cluster.addresses}
    secure: dict[str, Any] = {
        **security.client_properties(),
        "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports.values()),
    }
    cluster.create(TOPIC, PARTITIONS)
    load = Load(plain, 0)

    for node_id, node in cluster.nodes.items():
        listeners = f"{node.properties['listeners']},SASL_SSL://127.0.0.1:{ports[node_id]}"
        node.properties |= security.node_properties("SASL_SSL") | {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        }
        assert node.file.exists()
    restart_one_by_one(cluster, plain)

    count = load.stop()
    load = Load(secure, count)
    for node in cluster.nodes.values():
        node.properties["inter.broker.listener.name"] = "SASL_SSL"
        assert node.file.exists()
    restart_one_by_one(cluster, secure)

    for node_id, node in cluster.nodes.items():
        listeners = f"CONTROLLER://127.0.0.1:{node.controller_port},SASL_SSL://127.0.0.1:{ports[node_id]}"
        node.properties["listeners"] = node.properties["advertised.listeners"] = listeners
        assert node.file.exists()
    restart_one_by_one(cluster, secure)

    count = load.stop()
    found = read_all(secure, count)
    assert found == {each: list(range(each, count, PARTITIONS)) for each in range(PARTITIONS)}
    assert not any(node.says("Failed authentication") for node in cluster.nodes.values())
