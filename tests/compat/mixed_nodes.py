"""A cluster of Kalda and Apache Kafka nodes, as processes on loopback.

All nodes have the same properties and are formatted by Kalda's tool, so Apache Kafka also starts from its files.
"""

from __future__ import annotations

import os
import re
import signal
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from apache_kafka import SharedClasses, java, release_of
from confluent_kafka.admin import AdminClient
from harness.blocking import BlockingConnection
from lone_node import CLUSTER_ID, LoneNode
from node_cluster import SETTINGS

from kalda.base.errors import ApiError
from kalda.base.ids import random_uuid, uuid_to_text
from kalda.cli.storage import storage
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from waiting import wait_until

KALDA, KAFKA = "Kalda", "Apache Kafka"
METADATA = "__cluster_metadata"
START_S = 180
SESSION_MS = 15_000
MAX_LEAD = 20
"""How many records the quorum may be ahead of a voter that keeps up: the leader writes one now and then for nothing."""

USUAL = (
    # A node was killed or stopped, or does not listen yet.
    r"no answer from the controller at \S+: (?!it is of another cluster)"
    r"|could not be established|disconnected before the response|Connection to \S+ .*failed|Client was shutdown"
    r"|Error in response for fetch request|node is already closed|already been closed"
    r"|AddPartitionsToTxnRequest failed for node \d+ with a network exception"
    # A follower fetches from a leader that has not replayed its assignment yet.
    r"|The replica state of replica ID:\[\d+\] doesn't exist in the leader node"
    # A leader of the quorum is not yet, or no longer, the active controller; the sender retries.
    r"|NotControllerException|Performing controller activation|Renouncing the leadership"
    r"|Connections to \S+ are refused"
    # A broker restarts before its old session has ended.
    r"|DuplicateBrokerRegistrationException|(registration|heartbeat) of broker \d+ failed"
    # A follower replays a new epoch after its leader, and fetches the partition again then.
    r"|marked as failed"
    # A new leader has a lower high watermark than another follower of the old leader.
    r"|Non-monotonic update of high watermark"
    # Logged for every replica that is added to an existing topic.
    r"|to exist, but it was missing\. Creating"
    # Two clients create a topic by their metadata requests, or a topic is deleted while it is fetched.
    r"|TOPIC_ALREADY_EXISTS|Received UNKNOWN_TOPIC_OR_PARTITION|Received UNKNOWN_TOPIC_ID"
    # librdkafka aborts a transaction whose AddPartitionsToTxn was lost with the coordinator that was killed.
    r"|state is COMPLETE_(COMMIT|ABORT), but received transaction marker result to send: ABORT"
    # A member ends its share session with a broker that does not lead one of its partitions any more.
    r"|No share partition found for groupId .* while releasing acquired topic partitions"
    # Records were deleted while a follower was down, as Kafka Streams deletes those of its repartition topics.
    r"|because the local replica's end offset is smaller than the current leader's start offsets"
    # The former leader of a share partition is fenced; a coordinator moves while it initializes share partitions.
    r"|Unable to perform write state RPC .* is older than|Failed to write the share group state"
    r"|Unable to (initialize share group state partition metadata|cleanup topic partitions from share group state)"
    # The machine is busy.
    r"|Exceptionally slow controller event|controller event queue overloaded|received error REQUEST_TIMED_OUT"
    r"|unable to start processing because of TimeoutException|no byte came from the controller"
    r"|the event loop (was late by|has been held for)|The controller stalled for|the node did nothing: "
)
"""Warnings that a cluster of three Apache Kafka nodes also logs in these tests."""

_USUAL_CAUSE = re.compile(
    r"([\w.]+CompletionException: )?org\.apache\.kafka\.common\.errors\.NotControllerException"
    # A producer of transaction version 2 has several requests under way, of which the first has to be sent again.
    r"|.*OutOfOrderSequenceException: .* (Expected sequence 0 for transactions v2|current end sequence number)"
    # A marker of a coordinator that was replaced arrives after those of its successor.
    r"|.*TransactionCoordinatorFencedException: Invalid coordinator epoch"
)
"""What follows a warning that three Kafka nodes also log."""
_TROUBLE = re.compile(r"\] (WARN|ERROR|FATAL|WARNING|CRITICAL) |^Traceback")
_USUAL = re.compile(USUAL)


class Batch(NamedTuple):
    base_offset: int
    leader_epoch: int
    data: bytes


def batches_of(directory: Path) -> Iterator[Batch]:
    """The batches of a partition's segments, up to a torn one."""
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
    """A Kalda or Apache Kafka node."""

    def __init__(
        self, home: Path, node_id: int, kind: str, roles: str, jars: Path, settings: Mapping[str, object]
    ) -> None:
        super().__init__(home, {**SETTINGS, "node.id": node_id, "process.roles": roles, **settings})
        del self.properties["controller.quorum.bootstrap.servers"]
        self.node_id, self.kind, self._jars = node_id, kind, jars
        self._classes = SharedClasses(jars, "server", f"{os.getpid()}.{self.port}")
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
        """A regular expression for the log line of a node that serves."""
        return "Kafka Server started" if self.kind == KAFKA else LoneNode.serves

    @property
    def is_up(self) -> bool:
        """Whether its process is running."""
        return self.process is not None and self.process.poll() is None

    def format(self, cluster_id: str = CLUSTER_ID, *arguments: str, release: str | None = None) -> None:
        """With the levels of features that both kinds of nodes know, unless a release is named."""
        command = ["format", "-t", cluster_id, "-c", str(self.file), "--ignore-formatted", *arguments]
        command += ["--release-version", release or release_of(self._jars)]
        storage.main(command, standalone_mode=False)

    def command(self) -> list[str]:
        if self.kind == KALDA:
            return super().command()
        return [*java(self._jars, "400M", "INFO", *self._classes.options), "kafka.Kafka", str(self.file)]

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
        """Stop it by SIGTERM; a JVM then ends with 143."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.wait_exit(120)
        assert code == (143 if self.kind == KAFKA else 0), f"exit code {code}:\n" + self.last_lines()
        self._classes.keep()
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
        """The warnings and errors in the logs of all its starts, except those that three Kafka nodes also log."""
        lines = [*self.former_lines, *self.lines]
        return [
            f"{self}: {line} {following}"
            for line, following in zip(lines, [*lines[1:], ""], strict=True)
            if _TROUBLE.search(line) and not _USUAL.search(line) and not _USUAL_CAUSE.match(following)
        ]

    # -- its files

    def partition_dir(self, partition: str) -> Path:
        return self.home / "data" / partition

    def batches(self, partition: str) -> list[Batch]:
        """The batches of a partition's log."""
        return list(batches_of(self.partition_dir(partition)))

    def high_watermarks(self) -> dict[str, int]:
        """As checkpointed at a clean stop."""
        lines = (self.home / "data" / "replication-offset-checkpoint").read_text().splitlines()[2:]
        return {f"{topic}-{index}": int(offset) for topic, index, offset in map(str.split, lines)}

    def metadata_snapshots(self) -> list[str]:
        return sorted(path.name for path in self.partition_dir(f"{METADATA}-0").glob("*.checkpoint"))

    def forget_metadata_before_snapshot(self) -> int:
        """Delete the part of the metadata log that its newest snapshot covers, as retention does later; returns the new
        log start offset. The node must be down."""
        directory = self.partition_dir(f"{METADATA}-0")
        start = int(self.metadata_snapshots()[-1].partition("-")[0])
        kept = b"".join(batch.data for batch in batches_of(directory) if batch.base_offset >= start)
        for path in directory.iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                path.unlink()
        (directory / f"{start:020}.log").write_bytes(kept)
        return start


class MixedCluster:
    """A cluster of both kinds of nodes; `kinds` has the kind and roles of each, `others` the jars of those that run
    another release than `jars`. Voters are static, or `dynamic` (KIP-853)."""

    def __init__(
        self,
        home: Path,
        jars: Path,
        kinds: Mapping[int, tuple[str, str]],
        others: Mapping[int, Path] | None = None,
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
            node_id: MixedNode(home / f"node{node_id}", node_id, kind, roles, (others or {}).get(node_id, jars), wanted)
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
        """No node has logged a warning that a cluster of one kind would not log."""
        trouble = [line for node in self.nodes.values() for line in node.trouble()]
        assert not trouble, "\n".join(trouble[:40])

    # -- clients

    @property
    def addresses(self) -> str:
        """For clients' `bootstrap.servers`."""
        return ",".join(node.address for node in self.brokers)

    def new_admin(self) -> AdminClient:
        """A client without cached leaders, since it does not retry some of its requests."""
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    @property
    def up(self) -> list[MixedNode]:
        """The running brokers."""
        return [node for node in self.brokers if node.is_up]

    def wait_placed(
        self, topic: str, index: int, leader: int | None = None, isr: list[int] | None = None
    ) -> tuple[int, list[int]]:
        """Wait until all running brokers have the same leader and ISR of a partition, and the given ones where they are
        given; returns them."""
        found: list[tuple[int, list[int]]] = []

        def is_so() -> bool:
            found[:] = [_placed(node, topic, index) for node in self.up]
            led_by, in_sync = found[0]
            return (
                all(each == found[0] for each in found)
                and (led_by in self.nodes if leader is None else led_by == leader)
                and (isr is None or in_sync == isr)
            )

        try:
            wait_until(is_so, f"{topic}-{index} is led by {leader or 'a broker'} with the ISR {isr}", 90)
        except AssertionError as error:
            raise AssertionError(f"{error}; the brokers have {found}") from None
        return found[0]

    def wait_same_files(self, partition: str) -> list[Batch]:
        """Wait until every broker has the same bytes of a partition; returns the batches."""
        found: list[list[Batch]] = []

        def is_so() -> bool:
            found[:] = [node.batches(partition) for node in self.brokers]
            return all(each == found[0] for each in found)

        wait_until(is_so, f"the logs of {partition} are alike", 60)
        return found[0]

    # -- the quorum

    def leader(self) -> tuple[MixedNode, Any]:
        """Wait until the quorum has exactly one leader; returns it, and its description of the quorum."""
        found: list[tuple[MixedNode, Any]] = []

        def is_led() -> bool:
            found.clear()
            for node in self.controllers:
                if node.is_up:
                    try:
                        received = describe_quorum(node, node.controller_port)
                    except ApiError:
                        continue  # it does not listen yet
                    if received.error_code == 0 and received.high_watermark >= 0:
                        found.append((node, received))
            return len(found) == 1

        wait_until(is_led, "the quorum has a leader", 90)
        return found[0]

    def wait_quorum(self) -> Any:
        """Wait until every running voter has caught up, and every broker describes the quorum in the same way."""
        last: list[Any] = []

        def is_so() -> bool:
            node, received = self.leader()
            ends = {voter.replica_id: voter.log_end_offset for voter in received.current_voters}
            last[:] = [received]
            brokers = [describe_quorum(broker, broker.port) for broker in self.up]
            return set(ends) == {each.node_id for each in self.controllers} and all(
                [
                    *(
                        received.high_watermark - ends[each.node_id] <= MAX_LEAD
                        for each in self.controllers
                        if each.is_up
                    ),
                    *((each.leader_id, each.leader_epoch) == (node.node_id, received.leader_epoch) for each in brokers),
                ]
            )

        wait_until(is_so, "voters keep up, and brokers have the leader", 90)
        return last[0]

    def check_same_metadata(self) -> None:
        """All controllers have the same committed batches, from the highest of their log start offsets on."""
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
    """A node's description of the quorum, from one of its listeners."""
    partition = DescribeQuorumRequestPartitionData()
    topic = DescribeQuorumRequestTopicData(topic_name=METADATA, partitions=[partition])
    with BlockingConnection("127.0.0.1", port) as client:
        return client.request(DescribeQuorumRequest(topics=[topic])).topics[0].partitions[0]
