"""Three nodes: the active controller is killed; a leader is paused until it is fenced, and resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_cluster import NodeCluster
from watched_clients import PARTITIONS, QUICK_TO_ASK, TOPIC, Writer, check, quorum, read_all

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.builder import build_batch
from waiting import wait_until

pytestmark = pytest.mark.compat


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path, settings=getattr(request, "param", None)) as made:
        made.start()
        made.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        made.wait_in_sync(TOPIC, PARTITIONS)
        yield made


def produce(value: bytes, partition: int) -> ProduceRequest:
    """One record for one partition, acks=all."""
    data = PartitionProduceData(index=partition, records=build_batch([(0, None, value, ())]))
    return ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])


@pytest.mark.parametrize("cluster", [{"broker.session.timeout.ms": 9_000}], ids=["long sessions"], indirect=True)
def test_another_controller_becomes_active(cluster: NodeCluster) -> None:
    for made in ("first", "second", "third"):
        cluster.create(made, 2)
    leader, epoch = quorum(cluster.nodes[1])
    victim = cluster.nodes.pop(leader)
    witness = next(iter(cluster.nodes.values()))
    with victim:
        victim.kill()
        wait_until(lambda: quorum(witness)[0] in cluster.nodes, "one of the other two is the active controller")
        assert quorum(witness)[1] > epoch
        with witness.client() as client:
            received = client.request(MetadataRequest(topics=None))
            assert {broker.node_id for broker in received.brokers} >= set(cluster.nodes)
            assert {"first", "second", "third", TOPIC} <= {topic.name for topic in received.topics}
        cluster.create("fourth", 2)
        victim.start()
        with victim.client() as client:
            wait_until(
                lambda: "fourth" in {topic.name for topic in client.request(MetadataRequest(topics=None)).topics},
                "the killed node has learnt what was decided meanwhile",
            )
        for node in (victim, *cluster.nodes.values()):
            for survivor in cluster.nodes:
                assert not node.says(rf"Fencing broker {survivor} |broker {survivor} .* is dead")


def test_a_paused_leader_acknowledges_nothing_in_its_old_epoch(cluster: NodeCluster) -> None:
    paused = cluster.leader(TOPIC, 0)
    writer = Writer(cluster.addresses, QUICK_TO_ASK)
    writer.start()
    writer.wait_progress()
    assert paused.process is not None
    with paused.client() as client:
        paused.process.send_signal(signal.SIGSTOP)
        late = client.send(produce(b"-1", 0), 12)  # the last version that names the topic
        try:
            writer.wait_progress()
            witness = next(node for node in cluster.nodes.values() if node is not paused)
            assert witness.leader_in_metadata(TOPIC, 0) not in {None, paused.node_id}
        finally:
            paused.process.send_signal(signal.SIGCONT)
        received = client.receive(late).responses[0].partition_responses[0]
        assert received.error_code in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT}
    cluster.wait_in_sync(TOPIC, PARTITIONS)
    writer.wait_progress()
    writer.stop()
    found = read_all(cluster.addresses)
    assert -1 not in found[0]
    check(writer, found)
