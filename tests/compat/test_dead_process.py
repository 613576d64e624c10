"""Killed nodes, with sessions and fetch timeouts that no test could wait for: the cluster does not wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lone_node import SERVES
from node_cluster import NodeCluster
from watched_clients import PARTITIONS, TOPIC, Writer, check, quorum, read_all

pytestmark = pytest.mark.compat

ENDLESS_MS = 1_800_000
SETTINGS = {
    "broker.session.timeout.ms": ENDLESS_MS,
    "replica.lag.time.max.ms": ENDLESS_MS,
    "controller.quorum.fetch.timeout.ms": ENDLESS_MS,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as made:
        made.start()
        made.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        made.wait_in_sync(TOPIC, PARTITIONS)
        yield made


def test_a_killed_process_is_fenced_without_its_session(cluster: NodeCluster) -> None:
    """First one that is not the active controller, then the active one."""
    writer = Writer(cluster.addresses)
    writer.start()
    writer.wait_progress()
    for active in (False, True):
        leader_id = quorum(next(iter(cluster.nodes.values())))[0]
        victim = next(node for node in cluster.nodes.values() if (node.node_id == leader_id) is active)
        victim.kill()
        writer.wait_progress()
        victim.start()
        cluster.wait_in_sync(TOPIC, PARTITIONS)
        writer.wait_progress()
    writer.stop()
    check(writer, read_all(cluster.addresses))


def test_a_cluster_that_was_killed_whole_starts_without_the_old_sessions(cluster: NodeCluster) -> None:
    """When the new processes start, the old registrations are unfenced, and their sessions would end far too late."""
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.wait_line(SERVES)
    cluster.wait_in_sync(TOPIC, PARTITIONS)
