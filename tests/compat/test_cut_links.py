"""Three nodes whose links are cut, both ways and one way: no split brain, and no needless election."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from cut_links import SpacedCluster, SpacedNode, why_not
from watched_clients import PARTITIONS, QUICK_TO_ASK, TOPIC, Writer, check, quorum, read_all

from waiting import wait_until

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def name() -> str:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    return f"kalda{os.getpid() % 100_000}"


@pytest.fixture
def cluster(name: str, tmp_path: Path) -> Iterator[SpacedCluster]:
    subnet = f"198.18.{os.getpid() % 254 + 1}"  # RFC 2544: for benchmarks, never routed
    with SpacedCluster(tmp_path, name, subnet, {"replica.lag.time.max.ms": 2_000}) as made, made.spaces():
        made.start()
        made.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        made.wait_in_sync(TOPIC, PARTITIONS)
        yield made


def others(cluster: SpacedCluster, node: SpacedNode) -> list[SpacedNode]:
    return [each for each in cluster.nodes.values() if isinstance(each, SpacedNode) and each is not node]


def test_the_smaller_side_commits_nothing(cluster: SpacedCluster) -> None:
    lonely = cluster.nodes[quorum(next(iter(cluster.nodes.values())))[0]]
    assert isinstance(lonely, SpacedNode)
    majority = others(cluster, lonely)
    led = next(index for index in range(PARTITIONS) if cluster.leader(TOPIC, index) is lonely)
    writer = Writer(",".join(node.address for node in majority), QUICK_TO_ASK)
    writer.start()
    writer.wait_progress()
    for node in majority:
        cluster.cut_both_ways(lonely, node)

    refused: list[bool] = []
    stray = Producer(
        {
            "bootstrap.servers": lonely.address,
            "acks": "all",
            "delivery.timeout.ms": 4_000,
            "topic.metadata.refresh.interval.ms": -1,
            "log_level": 0,
        }
    )

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        refused.append(error is not None)

    stray.produce(TOPIC, b"-1", partition=led, on_delivery=on_delivery)
    writer.wait_progress()
    assert stray.flush(30) == 0
    assert refused == [True], "a leader without its followers has acknowledged a record"
    leader, epoch = quorum(majority[0])
    assert leader != lonely.node_id
    assert quorum(majority[1]) == (leader, epoch)

    cluster.heal()
    cluster.wait_in_sync(TOPIC, PARTITIONS)
    writer.wait_progress()
    writer.stop()
    wait_until(lambda: quorum(lonely) == quorum(majority[0]), "the lonely node follows the quorum's leader")
    check(writer, read_all(cluster.addresses))


def test_a_link_cut_one_way_causes_no_election(cluster: SpacedCluster) -> None:
    nodes = [node for node in cluster.nodes.values() if isinstance(node, SpacedNode)]
    before = quorum(nodes[0])
    leader = cluster.nodes[before[0]]
    assert isinstance(leader, SpacedNode)
    cut_off = others(cluster, leader)[0]
    writer = Writer(cluster.addresses, QUICK_TO_ASK)
    writer.start()
    writer.wait_progress()
    cluster.cut(cut_off, leader)
    wait_until(
        lambda: cut_off.says(r"Completed transition to Prospective"),
        "the node that cannot reach the leader begins an election",
    )
    writer.wait_progress(500)
    assert quorum(others(cluster, cut_off)[0]) == before
    cluster.heal()
    cluster.wait_in_sync(TOPIC, PARTITIONS)
    writer.wait_progress()
    writer.stop()
    assert quorum(nodes[0]) == before
    check(writer, read_all(cluster.addresses))
