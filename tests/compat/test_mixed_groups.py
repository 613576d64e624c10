"""Groups of the new kinds whose coordinators move between Kalda, Apache Kafka 4.3.1 and 4.4.0, while members run.

They move by election, and each coordinator but the first is then killed by SIGKILL: the others take over its groups.
The cluster has the features of 4.3, which all of its nodes support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from apache_kafka import kafka_jars
from mixed_members import KaldaMember, RunningMembers, of_each_client
from mixed_nodes import KAFKA, KALDA, MixedCluster, MixedNode
from mixed_requests import OFFSETS, OFFSETS_PARTITIONS, ROUNDS, create, elect_preferred, reassign
from streams_application import Feed, StreamsApplication, compiled, started, streams_jars
from watched_clients import PARTITIONS, TOPIC, Writer

import kalda
from kalda.base.ids import SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kalda.protocol.messages.groups import ConsumerGroupDescribeRequest
from kalda.protocol.messages.share import ShareGroupDescribeRequest
from kalda.protocol.messages.streams import StreamsGroupDescribeRequest
from waiting import wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(ROUNDS == 1, reason="takes minutes: set KALDA_MIXED_ROUNDS to how often coordinators move"),
]

GROUPS = {"consumer": "readers", "share": "sharers", "streams": "counting"}
DESCRIBE = {
    "consumer": ConsumerGroupDescribeRequest,
    "share": ShareGroupDescribeRequest,
    "streams": StreamsGroupDescribeRequest,
}
STATE_PARTITIONS = 2
BROKERS = [1, 2, 3]
WAYS = [1, 2, 1, 3, 2, 3]
"""The nodes that coordinate one after another: each takes over from each, in six moves."""
SETTINGS: dict[str, object] = {
    "broker_session_timeout_ms": 4_000,
    "share_coordinator_state_topic_replication_factor": 3,
    "share_coordinator_state_topic_min_isr": 2,
    "share_coordinator_state_topic_num_partitions": STATE_PARTITIONS,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_min_isr": 2,
    "transaction_state_log_num_partitions": STATE_PARTITIONS,
    **{f"group_{kind}_{bound}heartbeat_interval_ms": 1_000 for kind in GROUPS for bound in ("", "min_")},
}


@pytest.fixture
def cluster(tmp_path: Path, jars: Path) -> Iterator[MixedCluster]:
    """A Kalda controller, and a broker of each."""
    newer = kafka_jars("4.4.0")
    if isinstance(newer, str):
        pytest.skip(newer)
    kinds = {0: (KALDA, "controller"), 1: (KALDA, "broker"), 2: (KAFKA, "broker"), 3: (KAFKA, "broker")}
    with MixedCluster(tmp_path, jars, kinds, {3: newer}, **SETTINGS) as made:
        made.nodes[0].properties["default.replication.factor"] = 3  # of the topics that Kafka Streams makes
        made.start()
        yield made
        made.check_quiet()


def move(cluster: MixedCluster, topics: Mapping[str, int], leader: int) -> None:
    """One node leads all partitions of these topics."""
    order = [leader, *(each for each in BROKERS if each != leader)]
    for topic, count in topics.items():
        for index in range(count):
            reassign(cluster, topic, index, order)
            cluster.wait_placed(topic, index, isr=BROKERS)  # one that restarts is not elected
        elect_preferred(cluster, topic, *range(count))
        for index in range(count):
            cluster.wait_placed(topic, index, leader, BROKERS)


def described(node: MixedNode, kind: str) -> Any:
    """The group as its coordinator has it; None where the node is not that, or has not loaded it."""
    with node.client() as client:
        (group,) = client.request(DESCRIBE[kind](group_ids=[GROUPS[kind]])).groups
    return group if group.error_code == 0 else None


def epoch(node: MixedNode, kind: str) -> int:
    """The group's epoch, when the coordinator has loaded it."""
    found: list[Any] = []

    def is_loaded() -> bool:
        found.append(described(node, kind))
        return found[-1] is not None

    wait_until(is_loaded, f"{node} describes the {kind} group", 90)
    return int(found[-1].group_epoch)


def size(cluster: MixedCluster, kind: str) -> int:
    """How many members a group has; 0 while no node coordinates it."""
    groups = [described(node, kind) for node in cluster.up]
    return max(len(group.members) if group is not None else 0 for group in groups)


def raise_epoch(cluster: MixedCluster, kind: str, members: RunningMembers) -> None:
    """Members join and leave: a coordinator that lost the group would have a lower epoch afterwards."""
    for _ in range(3):
        guest = KaldaMember(kind, cluster.addresses, GROUPS[kind], TOPIC)
        guest.start()
        wait_until(lambda: size(cluster, kind) == 4, f"{guest} joins")
        guest.stop()
        members.former.append(guest)
        wait_until(lambda: size(cluster, kind) == 3, f"{guest} leaves")


def begin_with_the_first(cluster: MixedCluster, group: str) -> None:
    resource = kalda.ConfigResource(kalda.ConfigResourceType.GROUP, group)
    begin = kalda.Alteration("share.auto.offset.reset", kalda.ConfigOperation.SET, "earliest")
    with kalda.Admin(bootstrap_servers=cluster.addresses) as admin:
        admin.alter_configs({resource: [begin]}).check()


def share_starts(cluster: MixedCluster) -> dict[int, int]:
    """Where the share group's partitions begin."""
    with kalda.Admin(bootstrap_servers=cluster.addresses) as admin:
        found = admin.list_share_group_offsets(GROUPS["share"]).check()
    return {partition.partition: each.start_offset for partition, each in found.items()}


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_members_of_three_clients_get_all_records(cluster: MixedCluster, jars: Path, kind: str) -> None:
    group = GROUPS[kind]
    moved = {TOPIC: PARTITIONS, OFFSETS: OFFSETS_PARTITIONS}
    create(cluster, TOPIC, [1, 2, 3], [2, 3, 1], [3, 1, 2], min_insync_replicas="2")
    if kind == "share":
        begin_with_the_first(cluster, group)
        moved[SHARE_STATE_TOPIC] = STATE_PARTITIONS
    writer = Writer(cluster.addresses)
    writer.start()
    mixed = of_each_client(jars, kind, cluster.addresses, group, TOPIC)
    with RunningMembers(mixed, lambda: [described(node, kind) for node in cluster.up]) as members:
        members.wait_progress("the start")
        raise_epoch(cluster, kind, members)
        last_epoch, starts = 6, dict.fromkeys(range(PARTITIONS), 0)
        for round_ in range(ROUNDS):
            node = cluster.nodes[WAYS[round_ % len(WAYS)]]
            move(cluster, moved, node.node_id)
            assert epoch(node, kind) >= last_epoch, "the coordinator has the group of its predecessor"
            last_epoch = epoch(node, kind)
            members.wait_progress(f"move {round_} to {node}")
            if kind == "share":
                before, starts = starts, share_starts(cluster)
                assert all(starts[index] >= before[index] for index in before), f"{starts} after {before}"
            if round_:
                node.kill()
                members.wait_progress(f"the kill of {node} in round {round_}")
                node.start()
        writer.stop()
        assert writer.failures == []
        members.wait_all(group, writer.acknowledged)


@pytest.mark.skipif(isinstance(streams_jars(), str), reason=str(streams_jars()))
def test_an_application_of_kafka_streams_counts_each_record_once(cluster: MixedCluster, tmp_path: Path) -> None:
    streams = streams_jars()
    assert isinstance(streams, Path)
    settings = {
        "application.id": GROUPS["streams"],
        "group.protocol": "streams",
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 100,
        "transaction.timeout.ms": 10_000,
        "bootstrap.servers": cluster.addresses,
    }
    feed = Feed(cluster.addresses, replication=3)
    with StreamsApplication(tmp_path / "one", compiled(streams, tmp_path / "classes"), streams, settings) as one:
        started([one])
        for round_ in range(ROUNDS):
            node = cluster.nodes[WAYS[round_ % len(WAYS)]]
            move(cluster, {OFFSETS: OFFSETS_PARTITIONS, TRANSACTIONS_TOPIC: STATE_PARTITIONS}, node.node_id)
            assert epoch(node, "streams") > 0
            feed.produce(200)
            feed.wait_counted()
            if round_:
                node.kill()
                feed.produce(200)
                feed.wait_counted()
                node.start()
        one.close()
    feed.check_exactly_once()
