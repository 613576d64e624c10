"""Kalda and Apache Kafka nodes in one cluster: each works with the other's decisions, records and files.

Where both have a replica, their files have the same bytes. At the end no node may have logged a warning that a cluster
of one kind would not log. `KALDA_MIXED_ROUNDS` sets how often leaders are killed, and adds mixtures.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from mixed_nodes import KAFKA, KALDA, METADATA, MixedCluster, MixedNode
from mixed_requests import (
    GROUPS,
    OFFSETS,
    OFFSETS_PARTITIONS,
    ROUNDS,
    change_metadata,
    check_committed,
    create,
    earliest,
    elect_preferred,
    numbered,
    produce,
    read_as_group,
    reassign,
    set_config,
    values_of,
    wait_config,
)
from watched_clients import PARTITIONS, TOPIC, Writer, check, read_all

from waiting import wait_until

pytestmark = pytest.mark.compat

BOTH = [1, 2]


"""A group for each partition of `__consumer_offsets`, so that both kinds coordinate some."""


# Steps with a cluster of two brokers, one of each kind.


def settle(cluster: MixedCluster, topic: str) -> None:
    """Wait until both replicas of all partitions are in sync and equal; then elect the preferred replicas."""
    everything = [(topic, 0), (topic, 1), *((OFFSETS, index) for index in range(OFFSETS_PARTITIONS))]
    for name, index in everything:
        cluster.wait_placed(name, index, isr=BOTH)
    elect_preferred(cluster, topic, 0, 1)
    elect_preferred(cluster, OFFSETS, *range(OFFSETS_PARTITIONS))
    cluster.wait_placed(topic, 0, 1)
    cluster.wait_placed(topic, 1, 2)
    for name, index in everything:
        cluster.wait_same_files(f"{name}-{index}")


def lose_what_was_not_replicated(cluster: MixedCluster, topic: str, index: int, leader: int) -> list[bytes]:
    """The leader appends records that its follower does not get, is killed, and must truncate them after its restart.

    A fetch that waits at the leader is answered with the first of them, so that one may survive. Returns the values in
    the partition without it."""
    follower = cluster.nodes[BOTH[0] + BOTH[1] - leader]
    kept = numbered(f"kept of {leader}", 40)
    produce(cluster, topic, index, kept)
    cluster.wait_placed(topic, index, leader, BOTH)
    follower.pause()
    try:
        for lost in (numbered("maybe lost", 1), numbered("lost", 30)):
            produce(cluster, topic, index, lost, via=cluster.nodes[leader], acks=1)
    finally:
        cluster.nodes[leader].kill()
        follower.resume()
    cluster.wait_placed(topic, index, follower.node_id)
    later = numbered(f"later than {leader}", 20)
    produce(cluster, topic, index, later)
    return [*kept, *later]


def change_and_move(cluster: MixedCluster, topic: str) -> None:
    """Configs, deleted records, replicas that move from one kind to the other, deleted topics."""
    for node, value in zip(cluster.brokers, ("1000001", "1000002"), strict=True):
        set_config(node, topic, value)
        wait_config(cluster, topic, value)
    admin = cluster.new_admin()
    deleted = admin.delete_records([TopicPartition(topic, index, 30) for index in (0, 1)])
    assert [each.result(60).low_watermark for each in deleted.values()] == [30, 30]
    create(cluster, "movers", [1], [2])
    before = []
    for index, node in enumerate(cluster.brokers):
        produce(cluster, "movers", index, numbered("mover", 500))
        before.append(node.batches(f"movers-{index}"))
    for index, (old, new) in enumerate(zip(cluster.brokers, cluster.brokers[::-1], strict=True)):
        reassign(cluster, "movers", index, [new.node_id])
        cluster.wait_placed("movers", index, new.node_id, [new.node_id])
        assert new.batches(f"movers-{index}") == before[index]
        assert values_of(cluster, "movers", index) == numbered("mover", 500)
        wait_gone(old, f"movers-{index}")
        # A node of the other kind leads now, and its log start offset is that of the deletion.
        reassign(cluster, topic, index, [new.node_id, old.node_id])
        elect_preferred(cluster, topic, index)
        cluster.wait_placed(topic, index, new.node_id, BOTH)
        assert earliest(new, topic, index) == 30
    admin.delete_topics(["movers"])["movers"].result(60)
    for index, node in enumerate(cluster.brokers[::-1]):
        wait_gone(node, f"movers-{index}")


def wait_gone(node: MixedNode, partition: str) -> None:
    """Wait until a node has deleted its replica."""
    directory = node.partition_dir(partition)
    wait_until(lambda: not directory.exists(), f"{node} has deleted {partition}", 90)


def compare_stopped_brokers(cluster: MixedCluster) -> None:
    """The files of two stopped brokers are equal, high watermarks included."""
    first, second = cluster.brokers
    assert first.high_watermarks() == second.high_watermarks()
    assert f"{OFFSETS}-0" in first.high_watermarks()
    for partition in first.high_watermarks():
        assert first.batches(partition) == second.batches(partition), partition


def commit_more_than_a_snapshot(cluster: MixedCluster, controller: MixedNode, topic: str, since: int) -> None:
    """Wait until the controller has a snapshot that ends after `since`."""

    def is_taken() -> bool:
        for number in range(20):
            set_config(cluster.up[0], topic, str(2_000_000 + number))
        snapshots = controller.metadata_snapshots()
        return bool(snapshots) and int(snapshots[-1].partition("-")[0]) > since

    wait_until(is_taken, f"{controller} has a snapshot after {since}", 60)


def end_of_metadata(node: MixedNode) -> int:
    return node.batches(f"{METADATA}-0")[-1].base_offset


def check_fetched_snapshot(node: MixedNode, start: int) -> None:
    """Its metadata log ended before the leader's log start, so it begins at a snapshot that it fetched."""
    assert node.batches(f"{METADATA}-0")[0].base_offset >= start
    assert node.metadata_snapshots()


def test_a_kafka_broker_joins_kalda_controllers(tmp_path: Path, jars: Path) -> None:
    kinds = {0: (KALDA, "controller"), 1: (KALDA, "broker"), 2: (KAFKA, "broker")}
    with MixedCluster(tmp_path, jars, kinds, metadata_log_max_record_bytes_between_snapshots=1_000) as cluster:
        controller, kalda, kafka = cluster.nodes.values()
        cluster.start()
        create(cluster, "orders", [1, 2], [2, 1], min_insync_replicas="1")
        wanted = {index: numbered("first", 100) for index in (0, 1)}
        for index, values in wanted.items():
            produce(cluster, "orders", index, values)
        committed = {group: 10 + number for number, group in enumerate(GROUPS)}
        for group, offset in committed.items():
            read_as_group(cluster, group, "orders", offset)
        settle(cluster, "orders")

        wanted[1] += lose_what_was_not_replicated(cluster, "orders", 1, 2)
        check_committed(cluster, "orders", committed)
        commit_more_than_a_snapshot(cluster, controller, "orders", end_of_metadata(kafka))
        controller.stop()
        start = controller.forget_metadata_before_snapshot()
        controller.start()
        kafka.start()
        check_fetched_snapshot(kafka, start)
        settle(cluster, "orders")

        wanted[0] += lose_what_was_not_replicated(cluster, "orders", 0, 1)
        check_committed(cluster, "orders", committed)
        kalda.start()
        settle(cluster, "orders")
        for index, values in wanted.items():
            assert [value for value in values_of(cluster, "orders", index) if value != b"maybe lost 0"] == values

        change_and_move(cluster, "orders")
        kafka.stop()
        for index in (0, 1):
            cluster.wait_placed("orders", index, 1)
        check_committed(cluster, "orders", committed)
        kalda.stop()
        compare_stopped_brokers(cluster)
        cluster.check_quiet()


def test_a_kalda_broker_joins_kafka_controllers(tmp_path: Path, jars: Path) -> None:
    """Afterwards Apache Kafka continues with the directory of a Kalda node."""
    kinds = {1: (KAFKA, "broker,controller"), 2: (KALDA, "broker")}
    with MixedCluster(
        tmp_path,
        jars,
        kinds,
        metadata_log_max_record_bytes_between_snapshots=1_000,
        broker_session_timeout_ms=4_000,
    ) as cluster:
        kafka, kalda = cluster.nodes.values()
        cluster.format()
        kafka.kind = KALDA
        kafka.start()
        create(cluster, "heritage", [1])
        produce(cluster, "heritage", 0, numbered("old", 100))
        commit_more_than_a_snapshot(cluster, kafka, "heritage", 0)
        kafka.stop()
        start = kafka.forget_metadata_before_snapshot()
        kafka.kind = KAFKA
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            node.wait_serving()
        check_fetched_snapshot(kalda, start)
        cluster.wait_placed("heritage", 0, 1)
        assert values_of(cluster, "heritage", 0) == numbered("old", 100)

        create(cluster, "orders", [1, 2], [2, 1], min_insync_replicas="1")
        wanted = {index: numbered("first", 100) for index in (0, 1)}
        for index, values in wanted.items():
            produce(cluster, "orders", index, values)
        committed = {group: 10 + number for number, group in enumerate(GROUPS)}
        for group, offset in committed.items():
            read_as_group(cluster, group, "orders", offset)
        settle(cluster, "orders")

        for leave in (kalda.stop, kalda.kill):
            leave()
            for index in (0, 1):
                cluster.wait_placed("orders", index, 1)
                produce(cluster, "orders", index, numbered("alone", 30))
                wanted[index] += numbered("alone", 30)
            check_committed(cluster, "orders", committed)
            kalda.start()
            settle(cluster, "orders")
        for index, values in wanted.items():
            assert values_of(cluster, "orders", index) == values

        reassign(cluster, "heritage", 0, [1, 2])
        change_and_move(cluster, "orders")
        check_committed(cluster, "orders", committed)
        kalda.stop()
        kafka.stop()
        compare_stopped_brokers(cluster)
        cluster.check_quiet()


QUORUMS = [(KALDA, KALDA, KAFKA, True)]
if ROUNDS > 1:
    QUORUMS += [(KALDA, KALDA, KAFKA, False), (KALDA, KAFKA, KAFKA, True), (KALDA, KAFKA, KAFKA, False)]


@pytest.mark.parametrize(("first", "second", "third", "dynamic"), QUORUMS)
def test_a_quorum_of_both_kinds(tmp_path: Path, jars: Path, first: str, second: str, third: str, dynamic: bool) -> None:
    """Leaders are killed until each kind has become leader after the other."""
    kinds = {1: (first, "broker,controller"), 2: (second, "controller"), 3: (third, "broker,controller")}
    with MixedCluster(
        tmp_path,
        jars,
        kinds,
        dynamic=dynamic,
        metadata_log_max_record_bytes_between_snapshots=1_000,
        broker_session_timeout_ms=4_000,
    ) as cluster:
        # A follower refuses pre-votes until its own fetch timeout has passed: so the node with the longest timeout is
        # elected. Here it is the only one of its kind.
        for node in cluster.nodes.values():
            if [first, second, third].count(node.kind) == 1:
                node.properties["controller.quorum.fetch.timeout.ms"] = 2_500
                node.properties["kalda.dead.process.detection.enable"] = "false"
        cluster.start()
        changes = 0
        followed: list[tuple[str, str]] = []
        while len(followed) < ROUNDS or not {(KALDA, KAFKA), (KAFKA, KALDA)} <= set(followed):
            assert len(followed) < 8 + ROUNDS, f"leaders: {followed}"
            change_metadata(cluster, changes)
            leader, _ = cluster.leader()
            leader.kill()
            successor, _ = cluster.leader()
            followed.append((leader.kind, successor.kind))
            change_metadata(cluster, changes + 1)
            changes += 2
            leader.start()
            cluster.wait_quorum()
            cluster.check_same_metadata()
        for number in range(changes):
            cluster.wait_placed(f"topic-{number}", 0)
        cluster.check_quiet()


@pytest.mark.skipif(ROUNDS == 1, reason="takes minutes: set KALDA_MIXED_ROUNDS to how often a leader is killed")
@pytest.mark.parametrize("kinds", [(KALDA, KALDA, KAFKA), (KALDA, KAFKA, KAFKA)])
def test_killed_leaders_of_either_kind_lose_nothing(tmp_path: Path, jars: Path, kinds: tuple[str, ...]) -> None:
    """Under load, with acks=all and two in-sync replicas at least; every second one gets SIGTERM instead."""
    nodes = {node_id: (kind, "broker,controller") for node_id, kind in enumerate(kinds, 1)}
    with MixedCluster(tmp_path, jars, nodes, broker_session_timeout_ms=4_000) as cluster:
        cluster.start()
        create(cluster, TOPIC, [1, 2, 3], [2, 3, 1], [3, 1, 2], min_insync_replicas="2")
        writer = Writer(cluster.addresses)
        writer.start()
        for round_ in range(ROUNDS):
            writer.wait_progress()
            leader, _ = cluster.wait_placed(TOPIC, round_ % PARTITIONS, isr=[1, 2, 3])
            node = cluster.nodes[leader]
            (node.kill if round_ % 2 else node.stop)()
            writer.wait_progress()
            node.start()
            for index in range(PARTITIONS):
                cluster.wait_placed(TOPIC, index, isr=[1, 2, 3])
            elect_preferred(cluster, TOPIC, *range(PARTITIONS))
        writer.stop()
        check(writer, read_all(cluster.addresses))
        for index in range(PARTITIONS):
            cluster.wait_same_files(f"{TOPIC}-{index}")
        cluster.check_quiet()
