"""Voters are added to and removed from a quorum of Kalda and Apache Kafka, with leaders of either kind (KIP-853).

Only where `KALDA_MIXED_ROUNDS` is set: it takes some minutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.blocking import BlockingConnection
from lone_node import CLUSTER_ID
from mixed_nodes import KAFKA, KALDA, MAX_LEAD, METADATA, MixedCluster, MixedNode
from mixed_requests import ROUNDS, change_metadata

from kalda.base.ids import ZERO_UUID, Uuid, uuid_from_text
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.admin import FeatureUpdateKey, UpdateFeaturesRequest
from kalda.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    RemoveRaftVoterRequest,
)
from kalda.protocol.notation import Request
from waiting import wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(ROUNDS == 1, reason="takes minutes: set KALDA_MIXED_ROUNDS"),
]

EVERYONE = {1, 2, 3}


def directory_of(node: MixedNode) -> Uuid:
    text = (node.home / "data" / "meta.properties").read_text().replace("\\", "")
    found = re.search(r"directory\.id=(\S+)", text)
    assert found is not None
    return uuid_from_text(found[1])


def ask(cluster: MixedCluster, request: Request) -> None:
    """Send the request to a broker, which forwards it."""
    with cluster.up[0].client() as client:
        response = client.request(request, timeout_ms=60_000)
    assert response.error_code == 0, response


def voters(cluster: MixedCluster) -> set[int]:
    return {voter.replica_id for voter in cluster.leader()[1].current_voters}


def add(cluster: MixedCluster, node: MixedNode) -> None:
    def keeps_up() -> bool:
        received = cluster.leader()[1]
        ends = {each.replica_id: each.log_end_offset for each in received.observers}
        return node.node_id in ends and received.high_watermark - ends[node.node_id] <= MAX_LEAD

    wait_until(keeps_up, f"{node} keeps up as an observer", 60)
    listener = AddRaftVoterRequestListener(name="CONTROLLER", host="127.0.0.1", port=node.controller_port)
    ask(
        cluster,
        AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=30_000,
            voter_id=node.node_id,
            voter_directory_id=directory_of(node),
            listeners=[listener],
        ),
    )


def remove(cluster: MixedCluster, node: MixedNode) -> None:
    """A leader that is removed also resigns."""
    ask(
        cluster,
        RemoveRaftVoterRequest(cluster_id=None, voter_id=node.node_id, voter_directory_id=directory_of(node)),
    )
    wait_until(lambda: cluster.leader()[0] is not node, f"another than {node} leads", 60)
    assert voters(cluster) == EVERYONE - {node.node_id}


def endpoint_told(cluster: MixedCluster, node: MixedNode) -> int:
    """A voter's endpoint in the leader's voter set."""
    topic = DescribeQuorumRequestTopicData(topic_name=METADATA, partitions=[DescribeQuorumRequestPartitionData()])
    with BlockingConnection("127.0.0.1", cluster.leader()[0].controller_port) as client:
        received: Any = client.request(DescribeQuorumRequest(topics=[topic]))
    [port] = [each.listeners[0].port for each in received.nodes if each.node_id == node.node_id]
    return int(port)


def a_trio(tmp_path: Path, jars: Path, kinds: tuple[str, ...], **settings: Any) -> MixedCluster:
    nodes = {node_id: (kind, "broker,controller") for node_id, kind in enumerate(kinds, 1)}
    return MixedCluster(tmp_path, jars, nodes, broker_session_timeout_ms=4_000, **settings)


@pytest.mark.parametrize("joins", [False, True], ids=["by request", "by themselves"])
@pytest.mark.parametrize("kinds", [(KALDA, KAFKA, KALDA), (KAFKA, KALDA, KAFKA)])
def test_voters_are_added_removed_and_moved(tmp_path: Path, jars: Path, kinds: tuple[str, ...], joins: bool) -> None:
    with a_trio(tmp_path, jars, kinds, dynamic=True, controller_quorum_auto_join_enable=str(joins).lower()) as cluster:
        first, second, third = cluster.nodes.values()
        first.format(CLUSTER_ID, "--standalone")
        for node in (second, third):
            node.format(CLUSTER_ID, "--no-initial-controllers")
        first.start()
        for node in (second, third):
            node.launch()
        changes = iter(range(1_000))
        for node in (second, third):
            node.wait_serving()
        for node in (second, third):
            if not joins:
                add(cluster, node)
            change_metadata(cluster, next(changes))
        wait_until(lambda: voters(cluster) == EVERYONE, "all are voters", 60)
        for _ in range(ROUNDS if not joins else 0):
            leader, _ = cluster.leader()
            remove(cluster, leader)
            change_metadata(cluster, next(changes))
            add(cluster, leader)
            change_metadata(cluster, next(changes))
            cluster.wait_quorum()
            cluster.check_same_metadata()
        for node in (second, third):
            node.stop()
            [node.controller_port] = free_ports(1)
            named = f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}"
            node.properties["listeners"] = node.properties["advertised.listeners"] = named
            node.start()
            wait_until(_has_new_endpoint(cluster, node), f"the quorum has the new endpoint of {node}", 60)
            cluster.wait_quorum()
            change_metadata(cluster, next(changes))
        cluster.check_quiet()


def _has_new_endpoint(cluster: MixedCluster, node: MixedNode) -> Callable[[], bool]:
    return lambda: endpoint_told(cluster, node) == node.controller_port


@pytest.mark.parametrize("kinds", [(KALDA, KALDA, KAFKA), (KALDA, KAFKA, KAFKA)])
def test_static_voters_become_dynamic(tmp_path: Path, jars: Path, kinds: tuple[str, ...]) -> None:
    """Either kind of leader raises `kraft.version` when all voters have sent UpdateRaftVoter."""
    with a_trio(tmp_path, jars, kinds) as cluster:
        cluster.start()
        update = FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        request = UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[update])

        def is_raised() -> bool:
            with cluster.up[0].client() as client:
                return bool(client.request(request, timeout_ms=60_000).error_code == 0)

        wait_until(is_raised, "kraft.version is 1", 60)
        for number in range(ROUNDS):
            change_metadata(cluster, 2 * number)
            leader, _ = cluster.leader()
            leader.kill()
            change_metadata(cluster, 2 * number + 1)
            leader.start()
            received = cluster.wait_quorum()
            assert all(voter.replica_directory_id != ZERO_UUID for voter in received.current_voters)
            cluster.check_same_metadata()
        cluster.check_quiet()
