"""One node of either system, started and stopped the same way.

It is a process, broker and controller, with defaults except replication factors of 1. `start` returns the time from
exec to the first Metadata answer that has the broker.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness.blocking import BlockingConnection
from harness.systems import System
from kalda.base.errors import ApiError
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

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


class Node:
    """One node of a system, in a directory of its own."""

    def __init__(self, system: System, settings: str = "") -> None:
        """`settings`: further lines of `server.properties`."""
        self.name = system.name
        self._settings = settings
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name.split()[-1].lower()}-"))
        self.port, self.controller_port = free_ports(2)
        self._system = system
        self.process: subprocess.Popen[bytes] | None = None
        self.fresh()

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def fresh(self) -> None:
        """Delete the data, and format again."""
        data = self.directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        text = _PROPERTIES.format(port=self.port, controller=self.controller_port, data=data)
        self._properties.write_text(text + self._settings, encoding="utf-8")
        command = self._system.format_command(self._properties, "--standalone")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def start(self) -> float:
        """Start it. Returns the seconds from exec until Metadata was answered with a broker in it."""
        with open(self.directory / "server.log", "ab") as log:
            began = time.perf_counter()
            command = self._system.server_command(self._properties)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
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
        """Stop it by SIGTERM, and wait for its end."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def close(self) -> None:
        """Stop it and delete its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def rss_mb(self) -> float:
        """Resident memory in units of 10^6 bytes."""
        assert self.process is not None
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident / 1e6

    def cpu_s(self) -> float:
        """CPU seconds that the process has used, by Linux's clock of a process: to the nanosecond."""
        assert self.process is not None
        return time.clock_gettime(~self.process.pid << 3 | 2)

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
