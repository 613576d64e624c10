"""A Kalda node and an Apache Kafka node, started and stopped the same way.

Both get the same `server.properties`: one combined node, defaults but for replication factors of 1. A node is a
process of its own; `start` tells how long it took from exec to the first answer that names the broker.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from kalda.base.errors import ApiError
from kalda.network.blocking import BlockingConnection
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

HERE = Path(__file__).parents[1]
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
KAFKA = "4.3.1"
_START_S = 60.0
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Node:
    """One node in a directory of its own. Subclasses say how its commands are run."""

    name = ""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name.split()[-1].lower()}-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.fresh()

    def format_command(self) -> Sequence[str]:
        raise NotImplementedError

    def server_command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def properties(self) -> str:
        return str(self.directory / "server.properties")

    def fresh(self) -> None:
        """Throw the data away and format anew."""
        data = self.directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        text = _PROPERTIES.format(port=self.port, controller=free_port(), data=data)
        Path(self.properties).write_text(text, encoding="utf-8")
        subprocess.run(self.format_command(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def start(self) -> float:
        """Start it. Returns the seconds from exec until Metadata was answered with a broker in it."""
        with open(self.directory / "server.log", "ab") as log:
            began = time.perf_counter()
            self.process = subprocess.Popen(self.server_command(), stdout=log, stderr=log)
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - began > _START_S:
                raise SystemExit(f"{self.name} did not start; see {self.directory / 'server.log'}")
            time.sleep(0.002)
        return time.perf_counter() - began

    def _answers(self) -> bool:
        try:
            with BlockingConnection("127.0.0.1", self.port, timeout_ms=10_000) as connection:
                return bool(connection.request(MetadataRequest(topics=[])).brokers)
        except ApiError:
            return False

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def close(self) -> None:
        """Stop it and throw its directory away."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def rss_mb(self) -> float:
        """Resident memory in units of 10^6 bytes."""
        assert self.process is not None
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident / 1e6

    def cpu_s(self) -> float:
        """CPU seconds that the process has used."""
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def create_topics(self, names: Sequence[str], partitions: int = 1) -> None:
        """Create topics, and wait until every partition has a leader."""
        with BlockingConnection("127.0.0.1", self.port, timeout_ms=60_000) as connection:
            topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
            for result in connection.request(CreateTopicsRequest(topics=topics, timeout_ms=60_000)).topics:
                if result.error_code:
                    raise SystemExit(f"{self.name}: {result.name}: {result.error_message or result.error_code}")
            while not self._led(connection, names, partitions):
                time.sleep(0.05)

    def _led(self, connection: BlockingConnection, names: Sequence[str], partitions: int) -> bool:
        wanted = [MetadataRequestTopic(name=name) for name in names]
        topics = connection.request(MetadataRequest(topics=wanted, allow_auto_topic_creation=False)).topics
        return all(
            not topic.error_code
            and len(topic.partitions) == partitions
            and all(not partition.error_code for partition in topic.partitions)
            for topic in topics
        )


class KaldaNode(Node):
    """`kalda server`, as it is installed beside this Python."""

    name = "Kalda"

    def format_command(self) -> Sequence[str]:
        return [*_KALDA, "storage", "format", "-t", CLUSTER_ID, "-c", self.properties, "--standalone"]

    def server_command(self) -> Sequence[str]:
        return [*_KALDA, "server", self.properties]


_KALDA = (sys.executable, "-m", "kalda.cli.main")


class KafkaNode(Node):
    """Apache Kafka from its published jars, with 1 GB of heap and the collector that its scripts choose."""

    name = "Apache Kafka"

    def format_command(self) -> Sequence[str]:
        arguments = ["format", "-t", CLUSTER_ID, "-c", self.properties, "--standalone"]
        return [*java("256M"), "kafka.tools.StorageTool", *arguments]

    def server_command(self) -> Sequence[str]:
        return [*java("1G"), "kafka.Kafka", self.properties]


def kafka_jars() -> Path | None:
    """The folder of Apache Kafka's jars, resolved by Maven once; None where there is no Java, Maven or registry.

    `KALDA_KAFKA_JARS` names a folder that has them already.
    """
    named = os.environ.get("KALDA_KAFKA_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / f"apache-kafka-{KAFKA}"
    done = cache / ".done"
    if not done.exists() and shutil.which("java") and shutil.which("mvn"):
        pom = HERE / "peer" / "pom.xml"
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={cache}"]
        if subprocess.run(copy, stdout=sys.stderr).returncode == 0:
            done.touch()
    return cache if done.exists() and shutil.which("java") else None


def java(heap: str) -> Sequence[str]:
    jars = kafka_jars()
    assert jars is not None, "callers have asked `kafka_jars` before"
    return [
        "java", f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={HERE / 'peer' / 'log4j2.xml'}", "-cp", f"{jars}/*",
    ]  # fmt: skip
