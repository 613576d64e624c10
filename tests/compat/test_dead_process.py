"""Sessions and fetch timeouts that no test could wait for, and nodes that are killed: nobody waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_cluster import NodeCluster
from watched_clients import PARTITIONS, TOPIC, Writer, check, quorum, read_all

pytestmark = pytest.mark.compat

ENDLESS_MS = 1_800_000
SETTINGS = {
    "broker.session.timeout.ms": ENDLESS_MS,
    "replica.lag.time.max.ms": ENDLESS_MS,
    "controller.quorum.fetch.timeout.ms": ENDLESS_MS,
}


@pytest.mark.parametrize("active", [False, True])
def test_nobody_waits_for_a_process_that_is_gone(tmp_path: Path, active: bool) -> None:
    with NodeCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.start()
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        cluster.wait_in_sync(TOPIC, PARTITIONS)
        writer = Writer(cluster.addresses)
        writer.start()
        writer.wait_progress()
        leader_id = quorum(next(iter(cluster.nodes.values())))[0]
        victim = next(node for node in cluster.nodes.values() if (node.node_id == leader_id) is active)
        victim.kill()
        writer.wait_progress()
        victim.start()
        cluster.wait_in_sync(TOPIC, PARTITIONS)
        writer.wait_progress()
        writer.stop()
        check(writer, read_all(cluster.addresses))
