"""Apache Kafka's own command-line tools against a Kalda node, and with them the Java clients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from apache_kafka import KafkaTools
from lone_node import LoneNode

from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]


class Tools:
    """The tools, with the node's address."""

    def __init__(self, tools: KafkaTools, node: LoneNode) -> None:
        self._tools = tools
        self._node = node

    def __call__(self, tool: str, *arguments: object, stdin: str = "") -> str:
        at = ("--bootstrap-server", self._node.address)
        if tool == "cluster":  # its subcommands come first
            return self._tools.run(tool, *arguments, *at)
        return self._tools.run(tool, *at, *arguments, stdin=stdin)


@pytest.fixture
def tools(kafka_tools: KafkaTools, node: LoneNode) -> Tools:
    return Tools(kafka_tools, node)


@pytest.fixture
def topic(node: LoneNode, fresh: Fresh) -> str:
    """A topic of three partitions, made without a tool: each starts a JVM."""
    name = fresh("java")
    with node.client() as client:
        client.request(CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=3, replication_factor=1)]))
    return name


def sent(tools: Tools, topic: str, count: int, *arguments: str) -> None:
    lines = "".join(f"k{number}:v{number}\n" for number in range(count))
    key = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools("console-producer", "--topic", topic, *key, *arguments, stdin=lines)


def test_topics(tools: Tools, fresh: Fresh) -> None:
    topic = fresh("java")
    tools("topics", "--create", "--topic", topic, "--partitions", 3, "--config", "retention.ms=100000000000")
    described = tools("topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=100000000000", described)
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    tools("topics", "--alter", "--topic", topic, "--partitions", 4)
    assert topic in tools("topics", "--list").split()
    assert "PartitionCount: 4" in tools("topics", "--describe", "--topic", topic)
    tools("topics", "--delete", "--topic", topic)
    assert topic not in tools("topics", "--list").split()


def test_configs(tools: Tools, topic: str) -> None:
    at = ("--entity-type", "topics", "--entity-name", topic)
    tools("configs", "--alter", *at, "--add-config", "segment.bytes=1048576,cleanup.policy=[compact,delete]")
    described = tools("configs", "--describe", *at)
    assert "segment.bytes=1048576" in described
    assert "cleanup.policy=compact,delete" in described
    tools("configs", "--alter", *at, "--delete-config", "segment.bytes")
    assert "segment.bytes" not in tools("configs", "--describe", *at)
    assert "log.retention.hours=168" in tools(
        "configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", 1
    )
    logger = ("--entity-type", "broker-loggers", "--entity-name", 1)
    assert "kalda.node=INFO" in tools("configs", "--describe", *logger)
    user = ("--entity-type", "users", "--entity-name", "quota-user")
    tools("configs", "--alter", *user, "--add-config", "producer_byte_rate=1024000")
    assert "producer_byte_rate=1024000" in tools("configs", "--describe", *user)


def test_console(tools: Tools, topic: str) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        sent(tools, topic, 10, "--compression-codec", codec)
    read = tools(
        "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 50,
        "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
    )  # fmt: skip
    lines = [line for line in read.splitlines() if line.startswith("k")]
    assert sorted(lines) == sorted(f"k{number}:v{number}" for number in range(10) for _ in codecs)


def test_groups(tools: Tools, topic: str, fresh: Fresh) -> None:
    group = fresh("group")
    sent(tools, topic, 9)
    tools("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 9, "--group", group)
    assert group in tools("consumer-groups", "--list").split()
    described = tools("consumer-groups", "--describe", "--group", group)
    ends = re.findall(rf"{group}\s+{topic}\s+\d\s+(\d+)\s+(\d+)\s+0\s", described)
    assert len(ends) == 3
    assert sum(int(end) for end, _ in ends) == 9
    assert re.search(rf"{group}\s.*Empty", tools("consumer-groups", "--describe", "--state", "--group", group))
    tools("consumer-groups", "--reset-offsets", "--to-earliest", "--group", group, "--topic", topic, "--execute")
    described = tools("consumer-groups", "--describe", "--group", group)
    assert sum(map(int, re.findall(rf"{topic}\s+\d\s+\d+\s+\d+\s+(\d+)\s", described))) == 9
    assert re.search(rf"{group}\s+Classic", tools("groups", "--list"))
    tools("consumer-groups", "--delete", "--group", group)
    assert group not in tools("consumer-groups", "--list").split()


def test_offsets(tools: Tools, topic: str, tmp_path: Path) -> None:
    sent(tools, topic, 30)
    ends = dict(re.findall(rf"{topic}:(\d):(\d+)", tools("get-offsets", "--topic", topic)))
    assert sum(map(int, ends.values())) == 30
    wanted = tmp_path / "delete.json"
    partitions = [{"topic": topic, "partition": 0, "offset": int(ends["0"])}]
    wanted.write_text(json.dumps({"partitions": partitions, "version": 1}))
    assert f"low_watermark: {ends['0']}" in tools("delete-records", "--offset-json-file", wanted)
    assert f"{topic}:0:{ends['0']}" in tools("get-offsets", "--topic", topic, "--time", "-2")


def test_speed(tools: Tools, topic: str) -> None:
    done = tools(
        "producer-perf-test", "--topic", topic, "--num-records", 20_000, "--record-size", 100, "--throughput", -1
    )
    assert "20000 records sent" in done
    done = tools("consumer-perf-test", "--topic", topic, "--num-records", 20_000)
    assert ", 20000, " in done


def test_kafkas_dump_tool_reads_the_log(tools: Tools, kafka_tools: KafkaTools, topic: str, node: LoneNode) -> None:
    sent(tools, topic, 20)
    segments = sorted(node.home.glob(f"data/{topic}-*/*.log"))
    files = ",".join(str(path) for path in [*segments, *node.home.glob(f"data/{topic}-*/*index")])
    dumped = kafka_tools.run("dump-log", "--files", files, "--print-data-log", "--deep-iteration")
    assert sorted(re.findall(r"key: (k\d+) payload: v\d+", dumped)) == sorted(f"k{number}" for number in range(20))
    assert "isvalid: false" not in dumped
    metadata = next(node.home.glob("data/__cluster_metadata-0/*.log"))
    dumped = kafka_tools.run("dump-log", "--cluster-metadata-decoder", "--files", metadata)
    assert f'"name":"{topic}"' in dumped


def test_cluster(tools: Tools, node: LoneNode, topic: str) -> None:
    versions = tools("broker-api-versions")
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", versions)
    assert "AddPartitionsToTxn(24): 0 to 5 [usable: 5]" in versions
    assert "4L6g3nShT-eMCtK--X86sw" in tools("cluster", "cluster-id")
    assert re.search(rf"\b1\s.*127.0.0.1\s+{node.port}\b", tools("cluster", "list-endpoints"))
    quorum = tools("metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\n", quorum)
    assert re.search(r"\n1\s+\S+\s+\d+\s+0\s", "\n" + tools("metadata-quorum", "describe", "--replication"))
    features = tools("features", "describe")
    assert re.search(r"metadata.version\s.*FinalizedVersionLevel: (4.4-IV2|UNKNOWN 33)", features)
    dirs = tools("log-dirs", "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in dirs
    elected = tools("leader-election", "--election-type", "PREFERRED", "--topic", topic, "--partition", 0)
    assert "already elected" in elected
    assert "No partition reassignments found" in tools("reassign-partitions", "--list")
