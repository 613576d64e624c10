"""Replicas are moved between a node's log directories, by Kafka's own tool and under load, also through SIGKILL."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_kafka import KafkaTools
from lone_node import LoneNode
from numbered_events import PARTITIONS, ROUNDS, Writer, create, read_all

from kalda.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from waiting import wait_until

pytestmark = pytest.mark.compat


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    settings = {"log.dirs": f"{tmp_path}/d0,{tmp_path}/d1", "log.segment.delete.delay.ms": 100}
    with LoneNode(tmp_path, settings) as made:
        made.format()
        made.start()
        yield made


def dirs(node: LoneNode) -> list[str]:
    return str(node.properties["log.dirs"]).split(",")


def move(node: LoneNode, topic: str, target: str) -> None:
    """Request the move of all partitions to a directory."""
    moved = AlterReplicaLogDirTopic(name=topic, partitions=list(range(PARTITIONS)))
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=target, topics=[moved])])
    with node.client() as client:
        answer = client.request(request)
    assert [each.error_code for each in answer.results[0].partitions] == [0] * PARTITIONS


def placed(node: LoneNode, topic: str) -> list[tuple[str, int, bool]]:
    """(directory, partition, is it a copy) of every log of a topic."""
    asked = [DescribableLogDirTopic(topic=topic, partitions=list(range(PARTITIONS)))]
    with node.client() as client:
        answer = client.request(DescribeLogDirsRequest(topics=asked))
    return sorted(
        (found.log_dir, partition.partition_index, partition.is_future_key)
        for found in answer.results
        for described in found.topics
        for partition in described.partitions
    )


def all_in(node: LoneNode, topic: str, target: str) -> None:
    expected = [(target, index, False) for index in range(PARTITIONS)]
    wait_until(lambda: placed(node, topic) == expected, f"{topic} is in {target}")


def test_moves_under_load(node: LoneNode) -> None:
    """Each move is requested while a producer writes; every second one is interrupted by SIGKILL, and continues."""
    rng = random.Random(7)
    create(node, "events", segment_bytes="1048576", file_delete_delay_ms="100")
    writer = Writer(node.address, "events")
    writer.wait_for(20_000)
    targets = itertools.cycle(dirs(node))
    move(node, "events", next(targets))
    for number in range(ROUNDS):
        target = next(targets)
        move(node, "events", target)
        writer.wait_for(rng.choice((1, 50, 500)))
        if number % 2:
            node.kill()
            node.start()
        writer.wait_for(500)
        all_in(node, "events", target)
    writer.wait_for(1)
    writer.finish()
    writer.check(read_all(node, "events"))
    left = [Path(other) for other in dirs(node) if other != target]
    wait_until(lambda: not [path for each in left for path in each.glob("events-*")], "what was left behind is deleted")
    node.stop()


def test_kafkas_own_tool_moves_a_replica(node: LoneNode, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    create(node, "orders")
    wait_until(lambda: len(placed(node, "orders")) == PARTITIONS, "the broker has made the logs")
    home = {index: path for path, index, _ in placed(node, "orders")}
    target = next(path for path in dirs(node) if path != home[0])
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": index, "replicas": [1], "log_dirs": [target]}
            for index in range(PARTITIONS)
        ],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    arguments = ["--bootstrap-server", node.address, "--reassignment-json-file", str(file)]
    said = kafka_tools.run("reassign-partitions", *arguments, "--execute")
    assert "Successfully started" in said
    all_in(node, "orders", target)
    said = kafka_tools.run("reassign-partitions", *arguments, "--verify")
    assert said.count("completed successfully") == PARTITIONS or "is complete" in said, said
    described = kafka_tools.run("log-dirs", "--bootstrap-server", node.address, "--describe", "--topic-list", "orders")
    received = json.loads(described[described.index("{") :].splitlines()[0])
    found = {
        each["logDir"]: {part["partition"] for part in each["partitions"]} for each in received["brokers"][0]["logDirs"]
    }
    assert found[target] == {f"orders-{index}" for index in range(PARTITIONS)}
    node.stop()
