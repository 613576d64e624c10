"""A cluster of three nodes: replicas, failover, rolling restarts, with librdkafka's clients.

Every record that was acknowledged to an idempotent producer with acks=all is read once and in order, whichever nodes
were killed.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from node_cluster import NodeCluster
from watched_clients import PARTITIONS, Reader, Writer, check, read_all

from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from waiting import wait_until

pytestmark = pytest.mark.compat

ROUNDS = int(os.environ.get("KALDA_CLUSTER_ROUNDS", "3"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Each node has two log directories and a rack of its own. Each test has its own topic."""
    with NodeCluster(tmp_path_factory.mktemp("cluster")) as made:
        for node in made.nodes.values():
            node.properties["log.dirs"] = f"{node.home}/data,{node.home}/data2"
            node.properties["broker.rack"] = f"rack-{node.node_id}"
            node.properties["replica.selector.class"] = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        made.start()
        yield made


def test_killed_leaders_lose_nothing(cluster: NodeCluster) -> None:
    topic = "killed"
    cluster.create(topic, PARTITIONS, min_insync_replicas="2")
    writer, reader = Writer(cluster.addresses, topic=topic), Reader(cluster.addresses, topic)
    writer.start()
    reader.start()
    for round_ in range(ROUNDS):
        writer.wait_progress()
        victim = cluster.leader(topic, round_ % PARTITIONS)
        victim.kill()
        writer.wait_progress()
        reader.wait_progress()
        victim.start()
        cluster.wait_in_sync(topic, PARTITIONS)
    writer.wait_progress()
    writer.stop()
    found = read_all(cluster.addresses, topic)
    check(writer, found)
    wait_until(lambda: all(reader.seen[index] == set(found[index]) for index in found), "the group has read it all")
    reader.stop()


def test_a_rolling_restart_is_not_noticed(cluster: NodeCluster) -> None:
    topic = "rolling"
    cluster.create(topic, PARTITIONS, min_insync_replicas="2")
    writer = Writer(cluster.addresses, topic=topic)
    writer.start()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "workers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    seen: dict[int, list[int]] = defaultdict(list)

    def consume(records: int) -> None:
        goal = sum(map(len, seen.values())) + records
        deadline = time.monotonic() + 40
        while sum(map(len, seen.values())) < goal:
            assert time.monotonic() < deadline, f"the group is given no records: {sum(map(len, seen.values()))}/{goal}"
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    seen[message.partition()].append(int(message.value()))

    consume(100)
    for node in cluster.nodes.values():
        node.stop()
        writer.wait_progress()
        consume(100)
        node.start()
        cluster.wait_in_sync(topic, PARTITIONS)
    consume(100)
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], timeout=60)
    writer.stop()
    consumer.close()
    for index in range(PARTITIONS):
        assert seen[index] == sorted(set(seen[index])), f"the group read partition {index} twice or out of order"
    assert [each.offset for each in committed] == [len(seen[index]) for index in range(PARTITIONS)]
    check(writer, read_all(cluster.addresses, topic))


def log_dirs_with(cluster: NodeCluster, partition: str) -> list[Path]:
    """Log directories that hold a partition."""
    return sorted(path for node in cluster.nodes.values() for path in node.home.glob(f"data*/{partition}"))


def write(cluster: NodeCluster, topic: str, records: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.addresses, "acks": "all", "log_level": 0})
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


def test_replicas_move_and_leaders_return(cluster: NodeCluster) -> None:
    """Reassignment, preferred leaders, deleted records, a deleted topic."""
    topic = "moved"
    with cluster.nodes[1].client() as client:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        made = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=[assignment])
        assert client.request(CreateTopicsRequest(topics=[made])).topics[0].error_code == 0
        wait_until(lambda: cluster.partition(topic, 0) is not None, "the topic is known")
        write(cluster, topic, 500)
        moved = client.request(
            AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(
                        name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=[3, 2])]
                    )
                ]
            )
        )
        assert moved.responses[0].partitions[0].error_code == 0
        wait_until(lambda: not client.request(ListPartitionReassignmentsRequest()).topics, "the reassignment is over")

        def placed() -> tuple[list[int], list[int], int]:
            received = cluster.partition(topic, 0)
            return received.replicas, sorted(received.isrs), received.leader

        wait_until(lambda: placed() == ([3, 2], [2, 3], 3), "3 leads and 2 follows")
        wait_until(
            lambda: {path.parents[1].name for path in log_dirs_with(cluster, f"{topic}-0")} == {"node2", "node3"},
            "the log has moved from node 1 to node 3",
        )
        write(cluster, topic, 500)

        cluster.nodes[3].stop()
        wait_until(lambda: placed()[2] == 2, "2 leads instead of 3")
        cluster.nodes[3].start()
        wait_until(lambda: placed()[1] == [2, 3], "3 is in sync again")
        asked = ElectLeadersRequestTopicPartitions(topic=topic, partitions=[0])
        elected = client.request(ElectLeadersRequest(topic_partitions=[asked]))
        assert elected.replica_election_results[0].partition_result[0].error_code == 0
        cluster.wait_leader(topic, 0, 3)

        fresh = AdminClient({"bootstrap.servers": cluster.addresses, "log_level": 0})  # it has no cached leader
        deleted = fresh.delete_records([TopicPartition(topic, 0, 400)], request_timeout=60)
        assert next(iter(deleted.values())).result(20).low_watermark == 400
        fresh.delete_topics([topic])[topic].result(30)
        wait_until(lambda: log_dirs_with(cluster, f"{topic}-0") == [], "no log of the topic is left")


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: NodeCluster) -> None:
    topic = "racked"
    cluster.create(topic, PARTITIONS)
    write(cluster, topic, 300)
    near = cluster.nodes[next(node_id for node_id in cluster.nodes if node_id != cluster.leader(topic, 0).node_id)]
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "neighbours",
            "client.rack": f"rack-{near.node_id}",
            "debug": "fetch",
            "logger": logging.getLogger("consumer"),
            "fetch.wait.max.ms": 100,
        }
    )
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("consumer")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[int] = []
    deadline = time.monotonic() + 30
    while len(seen) < 300:
        assert time.monotonic() < deadline, f"only {len(seen)} records were read"
        seen += [int(each.value()) for each in consumer.consume(500, 0.2) if each.error() is None]
    consumer.close()
    assert seen == list(range(300))
    assert any(f"/{near.node_id}: Fetch topic {topic} [0]" in line for line in lines), "not read from the near replica"
