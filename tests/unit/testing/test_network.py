"""Faults of the network between the nodes of a test cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness.blocking import BlockingConnection

from kalda import Producer
from kalda.base.errors import ErrorCode, KafkaError
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch, read_records
from kalda.testing import Cluster, Network
from waiting import wait_until

TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, network_faults=True, config={"replica.lag.time.max.ms": 2_000}) as running:
        running.create_topic(TOPIC, configs={"min.insync.replicas": 2})
        yield running


def connect(cluster: Cluster, node_id: int) -> BlockingConnection:
    host, _, port = cluster.address(node_id).rpartition(":")
    return BlockingConnection(host, int(port))


def produce(cluster: Cluster, node_id: int, value: str, timeout_ms: int = 5_000) -> ErrorCode:
    """Produce one record with acks=all, as a client that retries does."""
    batch = build_batch([(1, None, value.encode(), ())])
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        acks=-1, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)]
    )
    with connect(cluster, node_id) as client:
        answer = client.request(request, 12, timeout_ms=timeout_ms + 20_000)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def produce_until_acknowledged(cluster: Cluster, node_id: int | None, value: str) -> None:
    """A new leader may lack the in-sync replicas at first. Without a node: to whichever leads by then."""
    deadline = time.monotonic() + 60
    while (code := produce(cluster, node_id or cluster.wait_for_leader(TOPIC), value)) is not ErrorCode.NONE:
        assert time.monotonic() < deadline, code


def values(cluster: Cluster, node_id: int) -> list[str]:
    asked = FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1 << 20, topics=[FetchRequestFetchTopic(topic=TOPIC, partitions=[asked])]
    )
    with connect(cluster, node_id) as client:
        records = client.request(request, 12).responses[0].partitions[0].records or b""
    found: list[str] = []
    for at, header in iter_batches(records):
        found += [bytes(record.value or b"").decode() for record in read_records(records, at, header)]
    return found


@pytest.mark.parametrize("breaks", [False, True])
def test_a_leader_that_is_separated_loses_its_leadership_and_nothing_is_lost(cluster: Cluster, breaks: bool) -> None:
    old = cluster.leader(TOPIC)
    acknowledged = [f"before-{number}" for number in range(5)]
    for value in acknowledged:
        produce_until_acknowledged(cluster, old, value)
    cluster.network.partition([old], breaks=breaks)
    assert produce(cluster, old, "lost", timeout_ms=500) is not ErrorCode.NONE, "it has no in-sync replica any more"
    new = cluster.wait_for_leader(TOPIC, other_than=old)
    for number in range(5):
        acknowledged.append(f"meanwhile-{number}")
        produce_until_acknowledged(cluster, new, acknowledged[-1])
    cluster.network.heal()
    produce_until_acknowledged(cluster, new, "after")
    found = values(cluster, cluster.leader(TOPIC))
    assert [value for value in dict.fromkeys(found) if value != "lost"] == [*acknowledged, "after"]
    if old != new:
        assert "lost" not in found, "what was not acknowledged is truncated on the old leader"


def test_a_delayed_link_delays_acknowledgements(cluster: Cluster) -> None:
    leader = cluster.leader(TOPIC)
    others = [node_id for node_id in cluster.nodes if node_id != leader]
    for other in others:
        cluster.network.delay(leader, other, 100)
    began = time.monotonic()
    produce_until_acknowledged(cluster, leader, "slow")
    assert time.monotonic() - began >= 0.1, "a follower's fetch crosses the link before the record counts"
    cluster.network.heal()
    produce_until_acknowledged(cluster, leader, "fast")


def test_two_nodes_that_do_not_reach_each_other(cluster: Cluster) -> None:
    """The leader and one follower. The other follower is in the ISR, so writes are acknowledged when the leader has
    removed the first; or when another leads, where the first is the active controller."""
    leader = cluster.leader(TOPIC)
    follower = next(node_id for node_id in cluster.nodes if node_id != leader)
    for fault in (cluster.network.stall, cluster.network.cut):
        name = fault.__name__
        fault(leader, follower)
        produce_until_acknowledged(cluster, None, f"during {name}")
        cluster.network.heal()
        produce_until_acknowledged(cluster, None, f"after {name}")
    acknowledged = [f"{when} {name}" for name in ("stall", "cut") for when in ("during", "after")]
    assert list(dict.fromkeys(values(cluster, cluster.leader(TOPIC)))) == acknowledged


def test_faults_name_nodes_of_the_cluster() -> None:
    with Cluster(nodes=2, network_faults=True) as cluster:
        with pytest.raises(ValueError, match="no node 3"):
            cluster.network.cut(1, 3)
        cluster.kill_node(2)
        cluster.start_node(2)
        network = cluster.network
    with pytest.raises(RuntimeError, match="network_faults"):
        _ = cluster.network
    assert network is not None
    with Cluster() as plain, pytest.raises(RuntimeError, match="network_faults"):
        _ = plain.network


def test_a_node_behind_an_open_link_that_is_down_is_refused() -> None:
    with Cluster(nodes=2, network_faults=True) as cluster:
        place = cluster._place(2)
        host = cluster.network.host(1)
        address = host.route("127.0.0.1", place.port)
        assert address[1] != place.port
        assert not cluster._run(host.is_refused(*address))
        cluster.kill_node(2)
        assert cluster._run(host.is_refused(*address))
        assert cluster._run(host.is_refused("127.0.0.1", place.port))
        cluster.network.stall(1, 2)
        assert not cluster._run(host.is_refused(*address)), "nothing answers over a stalled link"
        cluster.network.heal()
        cluster.start_node(2)


def test_clients_are_cut_off_from_a_node_that_the_others_reach() -> None:
    with Cluster(nodes=3, network_faults=True) as cluster:
        cluster.create_topic(TOPIC)
        leader = cluster.leader(TOPIC)
        cluster.network.cut(Network.CLIENTS, leader)
        with pytest.raises(KafkaError, match="the connection was lost"):
            connect(cluster, leader)
        config = {**cluster.client_config(), "delivery.timeout.ms": 500, "request.timeout.ms": 400, "linger.ms": 0}
        with Producer(config) as producer, pytest.raises(KafkaError):
            producer.send(TOPIC, b"lost").result()
        assert cluster.leader(TOPIC) == leader, "the nodes reach each other: nothing is elected"
        cluster.network.heal()
        cluster.produce(TOPIC, ["after"])
        assert [record.value for record in cluster.consume_all(TOPIC)] == [b"after"]


def test_clients_are_on_a_side_of_a_partition() -> None:
    with Cluster(nodes=3, network_faults=True) as cluster:
        cluster.create_topic(TOPIC, configs={"min.insync.replicas": 2})
        old = cluster.leader(TOPIC)
        others = sorted({1, 2, 3} - {old})
        cluster.network.partition([Network.CLIENTS, *others], breaks=True)
        cluster.wait_for_leader(TOPIC, other_than=old)
        assert len(cluster.produce(TOPIC, ["a", "b"])) == 2
        cluster.network.heal()
        wait_until(
            lambda: cluster.nodes[old].image.topics.by_name[TOPIC].partitions[0].leader != old,
            "the former leader, which a client may ask first, has received its successor",
        )
        assert [record.value for record in cluster.consume_all(TOPIC)] == [b"a", b"b"]


def test_a_node_that_is_added_is_on_the_network() -> None:
    with Cluster(network_faults=True) as cluster:
        added = cluster.add_node()
        cluster.create_topic(TOPIC, assignment=[[added, 1]])
        cluster.produce(TOPIC, ["a"])
        cluster.network.partition([added])
        assert cluster.wait_for_leader(TOPIC, other_than=added) == 1
        cluster.network.heal()
        with pytest.raises(ValueError, match="there is no node 3: the cluster has the nodes 1 to 2"):
            cluster.network.stall(1, 3)
