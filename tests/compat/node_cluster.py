"""Several nodes as real processes on loopback, for tests that kill, stop and restart them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import CLUSTER_ID, SERVES, LoneNode

from kalda.base.errors import ApiError
from kalda.cli.storage import storage
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from waiting import wait_until

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 5_000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1_000,
}


class ClusterNode(LoneNode):
    """One node of a cluster with static voters."""

    host = "127.0.0.1"

    def __init__(self, home: Path, node_id: int, settings: Mapping[str, object]) -> None:
        super().__init__(home, {**SETTINGS, "node.id": node_id, **settings})
        del self.properties["controller.quorum.bootstrap.servers"]
        self.node_id = node_id

    def format(self, cluster_id: str = CLUSTER_ID, *arguments: str) -> None:
        command = ["format", "-t", cluster_id, "-c", str(self.file), "--ignore-formatted", *arguments]
        storage.main(command, standalone_mode=False)

    def partitions_in_metadata(self, topic: str) -> dict[int, tuple[int, int, tuple[int, ...]]]:
        """Leader, leader epoch and ISR of the topic's partitions in this node's metadata, by partition."""
        with self.client() as client:
            received = client.request(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics[0]
        return {
            each.partition_index: (each.leader_id, each.leader_epoch, tuple(sorted(each.isr_nodes)))
            for each in received.partitions
        }

    def leader_in_metadata(self, topic: str, index: int) -> int | None:
        """The leader of a partition in this node's metadata."""
        found = self.partitions_in_metadata(topic).get(index)
        return None if found is None else found[0]


class NodeCluster:
    """Nodes 1 to `size`, each broker and controller."""

    node_class = ClusterNode

    def __init__(self, home: Path, size: int = 3, settings: Mapping[str, object] | None = None) -> None:
        self.nodes = {
            node_id: self.node_class(home / f"node{node_id}", node_id, settings or {}) for node_id in range(1, size + 1)
        }
        self._ports = iter(free_ports(2 * size))
        for node in self.nodes.values():
            self.place(node)
            listeners = f"PLAINTEXT://{node.host}:{node.port},CONTROLLER://{node.host}:{node.controller_port}"
            node.properties["listeners"] = node.properties["advertised.listeners"] = listeners
        voters = ",".join(f"{node.node_id}@{node.host}:{node.controller_port}" for node in self.nodes.values())
        for node in self.nodes.values():
            node.properties["controller.quorum.voters"] = voters

    def place(self, node: ClusterNode) -> None:
        """Choose a node's host and ports."""
        node.port, node.controller_port = next(self._ports), next(self._ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.__exit__()

    @property
    def addresses(self) -> str:
        """For clients' `bootstrap.servers`."""
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        """Format and start all of them, and wait until they serve."""
        for node in self.nodes.values():
            node.format()
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_line(SERVES, 60)
        wait_until(self._all_have_all, "every node has all nodes in its metadata")

    def _all_have_all(self) -> bool:
        """Whether the metadata of every node has all nodes: librdkafka fails requests to a broker that is not in it."""
        for node in self.nodes.values():
            with node.client() as client:
                if len(client.request(MetadataRequest(topics=[])).brokers) < len(self.nodes):
                    return False
        return True

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        """A topic with a replica on every node."""
        config = {name.replace("_", "."): value for name, value in configs.items()}
        self.admin.create_topics([NewTopic(topic, partitions, len(self.nodes), config=config)])[topic].result(30)

    def partition(self, topic: str, index: int) -> Any:
        """A partition's metadata as a new client gets it; None while it gets none."""
        received = self.admin.list_topics(topic, timeout=60).topics[topic].partitions
        return received.get(index)

    def wait_leader(self, topic: str, index: int, node_id: int) -> None:
        """Wait until every node has the same leader of a partition: a client does not retry some of its requests."""
        for node in self.nodes.values():
            wait_until(
                partial(lambda each: each.leader_in_metadata(topic, index) == node_id, node),
                f"node {node.node_id} has {node_id} as the leader of {topic}-{index}",
            )

    def leader(self, topic: str, index: int) -> ClusterNode:
        """Wait until a partition has a leader; returns its node."""
        found: list[ClusterNode] = []

        def is_led() -> bool:
            partition = self.partition(topic, index)
            if partition is not None and partition.leader in self.nodes:
                found.append(self.nodes[partition.leader])
            return bool(found)

        wait_until(is_led, f"{topic}-{index} has a leader")
        return found[0]

    def wait_in_sync(self, topic: str, partitions: int) -> None:
        """Wait until every replica is in the ISR, in the metadata of every node. One that was cut off may still have
        that of before, in which it leads and all are in sync."""

        def is_whole() -> bool:
            try:
                first, *others = (node.partitions_in_metadata(topic) for node in self.nodes.values())
            except (ApiError, OSError):
                return False  # a node does not serve yet
            whole = len(first) == partitions and all(len(isr) == len(self.nodes) for _, _, isr in first.values())
            return whole and all(each == first for each in others)

        wait_until(is_whole, f"every replica of {topic} is in sync")
