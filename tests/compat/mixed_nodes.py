"""One cluster of both kinds: Kalda and Apache Kafka processes side by side on loopback.

Every node has the same properties and is formatted by Kalda's tool, so Apache Kafka also starts from what that wrote.
"""

from __future__ import annotations

import os
import re
import signal
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from apache_kafka import java
from confluent_kafka.admin import AdminClient
from lone_node import CLUSTER_ID, LoneNode
from node_cluster import SETTINGS, wait_until

from kalda.base.errors import ApiError
from kalda.base.ids import random_uuid, uuid_to_text
from kalda.cli.storage import storage
from kalda.network.blocking import BlockingConnection
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

KALDA, KAFKA = "Kalda", "Apache Kafka"
METADATA = "__cluster_metadata"
START_S = 180
SESSION_MS = 15_000
MAX_LEAD = 20
"""How many records the quorum may be ahead of a voter that keeps up: the leader writes one now and then for nothing."""

USUAL = (
    # A node was killed, stopped or is not up yet.
    r"no answer from the controller at \S+: (?!it is of another cluster)"
    r"|could not be established|disconnected before the response|Connection to \S+ .*failed|Client was shutdown"
    r"|Error in response for fetch request|node is already closed|already been closed"
    # A leader of the quorum is not yet, or no longer, the active controller; the sender tries again.
    r"|NotControllerException|Performing controller activation|Renouncing the leadership"
    r"|Connections to \S+ are refused"
    # A broker comes back before the session of its former life is over.
    r"|DuplicateBrokerRegistrationException|(registration|heartbeat) of broker \d+ failed"
    # A follower heard of a new epoch after its leader did, and takes the partition up again when it hears of it.
    r"|marked as failed"
    # A new leader has heard less of the high watermark than another of the old one's followers.
    r"|Non-monotonic update of high watermark"
    # Said of every replica that is added to a topic that there was before.
    r"|to exist, but it was missing\. Creating"
    # A topic is created by two clients' questions, or deleted while it is fetched.
    r"|TOPIC_ALREADY_EXISTS|Received UNKNOWN_TOPIC_OR_PARTITION|Received UNKNOWN_TOPIC_ID"
    # A machine that is busy.
    r"|Exceptionally slow controller event|controller event queue overloaded|received error REQUEST_TIMED_OUT"
    r"|unable to start processing because of TimeoutException|no byte came from the controller"
)
"""What three nodes of Apache Kafka among themselves say as well, when they are treated like this."""

_NOT_ACTIVE = re.compile(r"([\w.]+CompletionException: )?org\.apache\.kafka\.common\.errors\.NotControllerException")
_TROUBLE = re.compile(r"\] (WARN|ERROR|FATAL|WARNING|CRITICAL) |^Traceback")
_USUAL = re.compile(USUAL)


class Batch(NamedTuple):
    base_offset: int
    leader_epoch: int
    data: bytes


def batches_of(directory: Path) -> Iterator[Batch]:
    """What a partition's segments hold, up to what is torn."""
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + 61 <= len(data):
            base, length, epoch = struct.unpack_from(">qii", data, at)
            if length <= 0 or at + 12 + length > len(data):
                break
            yield Batch(base, epoch, data[at : at + 12 + length])
            at += 12 + length


class MixedNode(LoneNode):
    """A node of either kind."""

    def __init__(
        self, home: Path, node_id: int, kind: str, roles: str, jars: Path, settings: Mapping[str, object]
    ) -> None:
        super().__init__(home, {**SETTINGS, "node.id": node_id, "process.roles": roles, **settings})
        del self.properties["controller.quorum.bootstrap.servers"]
        self.node_id, self.kind, self._jars = node_id, kind, jars
        self.is_broker, self.is_controller = "broker" in roles, "controller" in roles
        named = [("PLAINTEXT", self.port)] if self.is_broker else []
        named += [("CONTROLLER", self.controller_port)] if self.is_controller else []
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in named)
        self.properties["listeners"] = self.properties["advertised.listeners"] = listeners
        self.former_lines: list[str] = []

    def __repr__(self) -> str:
        return f"node {self.node_id} ({self.kind})"

    @property
    def serves(self) -> str:  # type: ignore[override]
        """A line that says that it serves."""
        return "Kafka Server started" if self.kind == KAFKA else LoneNode.serves

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.poll() is None

    def format(self, cluster_id: str = CLUSTER_ID, *arguments: str) -> None:
        command = ["format", "-t", cluster_id, "-c", str(self.file), "--ignore-formatted", *arguments]
        storage.main(command, standalone_mode=False)

    def command(self) -> list[str]:
        if self.kind == KALDA:
            return super().command()
        archive = self._jars / "server.jsa"
        shared = f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={self._archive}"
        options = ("-Xlog:disable", "-Xshare:auto", shared)
        return [*java(self._jars, "400M", "INFO", *options), "kafka.Kafka", str(self.file)]

    @property
    def _archive(self) -> Path:
        return self._jars / f"server.jsa.{os.getpid()}.{self.port}"

    def launch(self, *, env: Mapping[str, str] | None = None) -> None:
        self.former_lines += self.lines
        super().launch(env=env)

    def start(self) -> float:
        self.launch()
        self.wait_serving()
        return 0.0

    def wait_serving(self) -> None:
        self.wait_line(self.serves, START_S)

    def stop(self) -> float:
        """SIGTERM; a JVM then ends with 143."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.wait_exit(120)
        assert code == (143 if self.kind == KAFKA else 0), f"exit code {code}:\n" + "\n".join(self.lines[-40:])
        if self._archive.exists():
            self._archive.replace(self._jars / "server.jsa")
        return 0.0

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def trouble(self) -> list[str]:
        """What it complained of in all its lives, and what three Kafka nodes would not have."""
        lines = [*self.former_lines, *self.lines]
        return [
            f"{self}: {line} {following}"
            for line, following in zip(lines, [*lines[1:], ""], strict=True)
            if _TROUBLE.search(line) and not _USUAL.search(line) and not _NOT_ACTIVE.match(following)
        ]

    # -- its files

    def partition_dir(self, partition: str) -> Path:
        return self.home / "data" / partition

    def batches(self, partition: str) -> list[Batch]:
        """What is in a partition's log."""
        return list(batches_of(self.partition_dir(partition)))

    def high_watermarks(self) -> dict[str, int]:
        """As checkpointed at a clean stop."""
        lines = (self.home / "data" / "replication-offset-checkpoint").read_text().splitlines()[2:]
        return {f"{topic}-{index}": int(offset) for topic, index, offset in map(str.split, lines)}

    def metadata_snapshots(self) -> list[str]:
        return sorted(path.name for path in self.partition_dir(f"{METADATA}-0").glob("*.checkpoint"))

    def forget_metadata_before_snapshot(self) -> int:
        """Leave of the metadata log what its newest snapshot does not hold, as retention does in time; where the log
        begins now. The node is down."""
        directory = self.partition_dir(f"{METADATA}-0")
        start = int(self.metadata_snapshots()[-1].partition("-")[0])
        kept = b"".join(batch.data for batch in batches_of(directory) if batch.base_offset >= start)
        for path in directory.iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                path.unlink()
        (directory / f"{start:020}.log").write_bytes(kept)
        return start


class MixedCluster:
    """Nodes of both kinds; `kinds` says for each id which, and its roles. Voters are static, or `dynamic` (KIP-853)."""

    def __init__(
        self,
        home: Path,
        jars: Path,
        kinds: Mapping[int, tuple[str, str]],
        *,
        dynamic: bool = False,
        **settings: object,
    ) -> None:
        wanted: dict[str, object] = {
            "offsets.topic.replication.factor": sum("broker" in roles for _, roles in kinds.values()),
            "broker.session.timeout.ms": SESSION_MS,
            "replica.lag.time.max.ms": 30_000,
            "log.segment.delete.delay.ms": 100,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.nodes = {
            node_id: MixedNode(home / f"node{node_id}", node_id, kind, roles, jars, wanted)
            for node_id, (kind, roles) in kinds.items()
        }
        self.brokers = [node for node in self.nodes.values() if node.is_broker]
        self.controllers = [node for node in self.nodes.values() if node.is_controller]
        self.dynamic = dynamic
        addresses = {node.node_id: f"127.0.0.1:{node.controller_port}" for node in self.controllers}
        for node in self.nodes.values():
            if dynamic:
                node.properties["controller.quorum.bootstrap.servers"] = ",".join(addresses.values())
            else:
                named = (f"{node_id}@{address}" for node_id, address in addresses.items())
                node.properties["controller.quorum.voters"] = ",".join(named)

    def __enter__(self) -> MixedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.__exit__()

    def format(self) -> None:
        voters = ",".join(
            f"{node.node_id}@127.0.0.1:{node.controller_port}:{uuid_to_text(random_uuid(os.urandom))}"
            for node in self.controllers
        )
        for node in self.nodes.values():
            node.format(CLUSTER_ID, *(("--initial-controllers", voters) if self.dynamic and node.is_controller else ()))

    def start(self) -> None:
        """Format and start all of them, and wait until they serve."""
        self.format()
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_serving()

    def check_quiet(self) -> None:
        """No node complained of anything that nodes of one kind would not complain of."""
        trouble = [line for node in self.nodes.values() for line in node.trouble()]
        assert not trouble, "\n".join(trouble[:40])

    # -- clients

    @property
    def addresses(self) -> str:
        """For clients' `bootstrap.servers`."""
        return ",".join(node.address for node in self.brokers)

    def new_admin(self) -> AdminClient:
        """A client that knows no former leaders: some of its requests are not tried again."""
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    @property
    def up(self) -> list[MixedNode]:
        """Brokers that run."""
        return [node for node in self.brokers if node.is_up]

    def wait_placed(
        self, topic: str, index: int, leader: int | None = None, isr: list[int] | None = None
    ) -> tuple[int, list[int]]:
        """Until all brokers that run tell the same of a partition, and this; the leader and the ISR."""
        found: list[tuple[int, list[int]]] = []

        def is_so() -> bool:
            found[:] = [_placed(node, topic, index) for node in self.up]
            told, in_sync = found[0]
            return (
                all(each == found[0] for each in found)
                and (told in self.nodes if leader is None else told == leader)
                and (isr is None or in_sync == isr)
            )

        try:
            wait_until(is_so, f"{topic}-{index} is led by {leader or 'somebody'} with the ISR {isr}", 90)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is told {found}") from None
        return found[0]

    def wait_same_files(self, partition: str) -> list[Batch]:
        """Until every broker has the same bytes of a partition; the batches."""
        found: list[list[Batch]] = []

        def is_so() -> bool:
            found[:] = [node.batches(partition) for node in self.brokers]
            return all(each == found[0] for each in found)

        wait_until(is_so, f"the logs of {partition} are alike", 60)
        return found[0]

    # -- the quorum

    def leader(self) -> tuple[MixedNode, Any]:
        """The quorum's leader, once there is one and only one, and what it says of the quorum."""
        found: list[tuple[MixedNode, Any]] = []

        def is_led() -> bool:
            found.clear()
            for node in self.controllers:
                if node.is_up:
                    try:
                        told = describe_quorum(node, node.controller_port)
                    except ApiError:
                        continue  # it does not listen yet
                    if told.error_code == 0 and told.high_watermark >= 0:
                        found.append((node, told))
            return len(found) == 1

        wait_until(is_led, "the quorum has a leader", 90)
        return found[0]

    def wait_quorum(self) -> Any:
        """Until every voter that runs keeps up with the leader, and every broker tells the same of the quorum."""
        last: list[Any] = []

        def is_so() -> bool:
            node, told = self.leader()
            ends = {voter.replica_id: voter.log_end_offset for voter in told.current_voters}
            last[:] = [told]
            brokers = [describe_quorum(broker, broker.port) for broker in self.up]
            return set(ends) == {each.node_id for each in self.controllers} and all(
                [
                    *(told.high_watermark - ends[each.node_id] <= MAX_LEAD for each in self.controllers if each.is_up),
                    *((each.leader_id, each.leader_epoch) == (node.node_id, told.leader_epoch) for each in brokers),
                ]
            )

        wait_until(is_so, "voters keep up and brokers know the leader", 90)
        return last[0]

    def check_same_metadata(self) -> None:
        """All controllers have the same committed batches, from where all of their logs have begun."""
        committed = self.leader()[1].high_watermark
        logs = [{batch.base_offset: batch for batch in node.batches(f"{METADATA}-0")} for node in self.controllers]
        start = max(min(log) for log in logs)
        end = min(committed, *(max(log) for log in logs))
        for node, log in zip(self.controllers, logs, strict=True):
            kept = {offset: batch for offset, batch in log.items() if start <= offset < end}
            first = {offset: batch for offset, batch in logs[0].items() if start <= offset < end}
            assert kept == first, f"{node} and {self.controllers[0]} differ between {start} and {end}"


def _placed(node: MixedNode, topic: str, index: int) -> tuple[int, list[int]]:
    with node.client() as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for each in client.request(request).topics[0].partitions:
            if each.partition_index == index:
                return each.leader_id, sorted(each.isr_nodes)
    return -1, []


def describe_quorum(node: MixedNode, port: int) -> Any:
    """What a node says of the quorum at one of its listeners."""
    partition = DescribeQuorumRequestPartitionData()
    topic = DescribeQuorumRequestTopicData(topic_name=METADATA, partitions=[partition])
    with BlockingConnection("127.0.0.1", port) as client:
        return client.request(DescribeQuorumRequest(topics=[topic])).topics[0].partitions[0]
