"""Three nodes of one system, each broker and controller: started, killed, paused and restarted as processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from harness.blocking import BlockingConnection
from harness.systems import System
from kalda.base.errors import ApiError
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
)

SIZE = 3
_START_S = 240.0
_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
group.initial.rebalance.delay.ms=0
auto.leader.rebalance.enable=false
"""


class Member:
    """One node of a cluster, which may have a process."""

    def __init__(self, cluster: NodeGroup, node_id: int, port: int, controller_port: int) -> None:
        self.id = node_id
        self.directory = cluster.directory / f"node-{node_id}"
        self.directory.mkdir()
        self.port, self.controller_port = port, controller_port
        self.process: subprocess.Popen[bytes] | None = None
        self._cluster = cluster

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    def format(self, text: str) -> None:
        self.properties.write_text(text, encoding="utf-8")
        subprocess.run(
            self._cluster.system.format_command(self.properties),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def start(self) -> None:
        with open(self.directory / "server.log", "ab") as log:
            command = self._cluster.system.server_command(self.properties)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait for its end."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(90)
            self.process = None


class NodeGroup:
    """Three nodes with static voters. `settings` are further properties of all."""

    def __init__(self, system: System, settings: Mapping[str, object]) -> None:
        self.name = system.name
        self.system = system
        self.directory = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
        ports = iter(free_ports(2 * SIZE))
        self.members = {i: Member(self, i, next(ports), next(ports)) for i in range(1, SIZE + 1)}
        voters = ",".join(f"{m.id}@127.0.0.1:{m.controller_port}" for m in self.members.values())
        more = "".join(f"{key}={value}\n" for key, value in settings.items())
        for member in self.members.values():
            text = _PROPERTIES.format(
                node_id=member.id,
                voters=voters,
                port=member.port,
                controller=member.controller_port,
                data=member.directory / "data",
            )
            member.format(text + more)

    def __enter__(self) -> NodeGroup:
        for member in self.members.values():
            member.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop the nodes and delete everything; after an exception the logs are kept."""
        for member in self.members.values():
            if member.process is not None:
                member.process.send_signal(signal.SIGCONT)
            member.end(signal.SIGKILL)
        if kind is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def port(self) -> int:
        """The port of a running node, from which clients find the others."""
        return next(member.port for member in self.members.values() if member.process is not None)

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds that each node has used since it was started."""
        used = {}
        for member in self.members.values():
            if member.process is not None:
                times = psutil.Process(member.process.pid).cpu_times()
                used[member.id] = float(times.user + times.system)
        return used

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{member.port}" for member in self.members.values())

    # Requests of a client.

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The answer of the first node that answers."""
        for member in self.members.values():
            try:
                with BlockingConnection("127.0.0.1", member.port, timeout_ms=5_000) as connection:
                    return connection.request(request, version)
            except (ApiError, OSError):
                continue
        return None

    def create(self, topic: str) -> None:
        """Create a topic of which each node leads one partition, with replicas on all nodes."""
        ids = list(self.members)
        assignments = [
            CreatableReplicaAssignment(partition_index=at, broker_ids=ids[at:] + ids[:at]) for at in range(SIZE)
        ]
        configs = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
        created = CreatableTopic(
            name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=configs
        )

        def is_made() -> bool:
            answer = self.ask(CreateTopicsRequest(topics=[created], timeout_ms=20_000))
            return answer is not None and answer.topics[0].error_code in (0, 36)

        self.wait(lambda: len(self.brokers()) == SIZE, "all brokers are registered")
        self.wait(is_made, "the topic is made")
        self.wait_whole(topic)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until all its files are removed."""

        def is_deleted() -> bool:
            answer = self.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=20_000))
            return answer is not None and answer.responses[0].error_code in (0, 3)

        def is_removed() -> bool:
            return not any(any(each.directory.glob(f"data/{topic}-*")) for each in self.members.values())

        self.wait(is_deleted, "the topic is deleted")
        self.wait(is_removed, "its files are removed")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes."""
        for member in self.members.values():
            member.send(number)

    def brokers(self) -> list[int]:
        answer = self.ask(MetadataRequest(topics=[]))
        return [] if answer is None else [broker.node_id for broker in answer.brokers]

    def partitions(self, topic: str) -> dict[int, Any]:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = self.ask(asked)
        return {} if answer is None else {p.partition_index: p for p in answer.topics[0].partitions}

    def controller(self) -> int | None:
        """The active controller."""
        asked = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        answer = self.ask(asked)
        if answer is None or answer.error_code or not answer.topics:
            return None
        leader_id: int = answer.topics[0].partitions[0].leader_id
        return leader_id if leader_id > 0 else None

    def wait_whole(self, topic: str) -> None:
        """Wait until every replica is in sync, and the first replica of each partition leads it."""

        def is_in_sync() -> bool:
            found = self.partitions(topic)
            return len(found) == SIZE and all(len(p.isr_nodes) == SIZE for p in found.values())

        def is_as_preferred() -> bool:
            found = self.partitions(topic)
            if all(p.leader_id == p.replica_nodes[0] for p in found.values()):
                return len(found) == SIZE
            self.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=10_000))
            return False

        self.wait(is_in_sync, "every replica is in sync")
        self.wait(is_as_preferred, "the first replicas lead")
        self.wait(lambda: self.controller() is not None, "there is an active controller")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds."""
        until = time.monotonic() + _START_S
        while not holds():
            if time.monotonic() > until:
                raise SystemExit(f"{self.name}: not in time: {what}; the logs are in {self.directory}")
            time.sleep(0.1)
