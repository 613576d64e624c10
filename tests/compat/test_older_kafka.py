"""Kalda's clients against Apache Kafka 2.8 (with ZooKeeper) and 3.9: versions are negotiated, absent APIs are errors.

`KALDA_OLDER_KAFKA` names a directory with a folder of jars for each version, which `bench/peer/older/pom.xml` fills.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kalda
from kalda.base.errors import ApiError, ErrorCode
from kalda.client.admin.topics import NewTopic
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.partitions import OffsetSpec

pytestmark = pytest.mark.compat
VERSIONS = ("2.8.2", "3.9.1")
START_S = 90.0
_COMMON = """
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
"""


def java(jars: Path, *arguments: object) -> list[str]:
    return ["java", "-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *map(str, arguments)]


def wait_until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError(f"it did not start:\n{log.read_text()[-3_000:]}")


def with_zookeeper(home: Path, jars: Path, port: int, keeper: int) -> tuple[list[str], list[str]]:
    """The commands of ZooKeeper and of the broker."""
    (home / "zoo.cfg").write_text(
        f"dataDir={home / 'zk'}\nclientPort={keeper}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    (home / "server.properties").write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:{keeper}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"log.dirs={home / 'data'}\n{_COMMON}"
    )
    zookeeper = java(jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", home / "zoo.cfg")
    return zookeeper, java(jars, "kafka.Kafka", home / "server.properties")


def with_kraft(home: Path, jars: Path, port: int, controller: int) -> list[str]:
    """The command of a formatted node."""
    (home / "server.properties").write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={home / 'data'}\n"
        f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n{_COMMON}"
    )
    tool = java(jars, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw")
    subprocess.run([*tool, "-c", str(home / "server.properties")], check=True, capture_output=True)
    return java(jars, "kafka.Kafka", home / "server.properties")


@pytest.fixture(scope="module", params=VERSIONS)
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Version and address of a running broker."""
    folder = os.environ.get("KALDA_OLDER_KAFKA")
    jars = Path(folder or "/nowhere") / request.param
    if folder is None or not jars.is_dir():
        pytest.skip(f"needs Apache Kafka {request.param}: KALDA_OLDER_KAFKA names no directory with its jars")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    home = tmp_path_factory.mktemp(f"kafka-{request.param}")
    port, other = free_ports(2)
    log = home / "log"
    processes: list[subprocess.Popen[bytes]] = []
    with log.open("wb") as output:
        try:
            if request.param.startswith("2."):
                keeper, broker = with_zookeeper(home, jars, port, other)
                processes.append(subprocess.Popen(keeper, stdout=output, stderr=output))
                wait_until_open(other, processes[0], log)
            else:
                broker = with_kraft(home, jars, port, other)
            processes.append(subprocess.Popen(broker, stdout=output, stderr=output))
            wait_until_open(port, processes[-1], log)
            yield request.param, f"127.0.0.1:{port}"
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def topic(kafka: tuple[str, str]) -> str:
    with kalda.Admin(bootstrap_servers=kafka[1]) as admin:
        admin.create_topics([NewTopic("older", 2, 1), NewTopic("copies", 2, 1)]).check()
    return "older"


def test_records_are_produced_in_transactions_too_and_consumed(kafka: tuple[str, str], topic: str) -> None:
    servers = kafka[1]
    with kalda.Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
        for number in range(1_000):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % 7))
    settings = {
        "bootstrap.servers": servers, "group.id": "older", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky", "isolation.level": "read_committed",
    }  # fmt: skip
    values: list[bytes] = []
    with (
        kalda.Consumer(settings) as consumer,
        kalda.Producer(bootstrap_servers=servers, transactional_id="older") as producer,
    ):
        consumer.subscribe([topic])
        until_s = time.monotonic() + 60
        while len(values) < 1_000 and time.monotonic() < until_s:
            records = consumer.poll(1.0)
            if not records:
                continue
            values += [record.value for record in records]
            with producer.transaction():
                for record in records:
                    producer.send("copies", record.value, partition=record.partition)
                producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
        assert sorted(map(int, values)) == list(range(1_000))
        assert all(lag == 0 for lag in consumer.lag().values())
    with kalda.Admin(bootstrap_servers=servers) as admin:
        committed = admin.list_group_offsets("older").succeeded
        ends = admin.list_offsets(dict.fromkeys([(topic, 0), (topic, 1)], int(OffsetSpec.LATEST)))
        assert {each: at.offset for each, at in committed.items()} == {e: ends.value(e).offset for e in ends}


def test_administration(kafka: tuple[str, str], topic: str) -> None:
    with kalda.Admin(bootstrap_servers=kafka[1]) as admin:
        assert admin.describe_topics([topic]).value(topic).name == topic
        assert [node.node_id for node in admin.describe_cluster().nodes] == [1]
        assert "older" in admin.list_groups()
        assert admin.describe_groups(["older"]).value("older").type.lower() == "classic"
        admin.create_partitions({"copies": 3}).check()
        admin.delete_records({(topic, 0): -1}).check()


def test_apis_that_the_broker_does_not_have_are_errors(kafka: tuple[str, str]) -> None:
    version, servers = kafka
    with kalda.Admin(bootstrap_servers=servers) as admin:
        if version.startswith("2."):
            for call in (admin.list_config_resources, admin.describe_quorum):
                with pytest.raises(ApiError) as raised:
                    call(timeout=10)
                assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
        else:
            assert admin.describe_quorum().leader_id == 1
    modern = {"bootstrap.servers": servers, "group.id": "modern", "group.protocol": "consumer"}
    with kalda.Consumer(modern) as consumer:
        consumer.subscribe(["older"])
        with pytest.raises(ApiError) as raised:
            consumer.poll(15.0)
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
