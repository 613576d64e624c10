"""Elections in a running cluster in which no in-sync replica is alive."""

from __future__ import annotations

from typing import Any

from harness.blocking import BlockingConnection

from kalda.base.errors import ErrorCode
from kalda.metadata.topics import LeaderRecoveryState, PartitionRegistration
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.topics import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
)
from kalda.protocol.notation import Request
from kalda.testing.cluster import Cluster
from waiting import wait_until


def state(cluster: Cluster, node_id: int, topic: str) -> PartitionRegistration:
    return cluster.nodes[node_id].image.topics.by_name[topic].partitions[0]


def ask(cluster: Cluster, node_id: int, request: Request) -> Any:
    host, _, port = cluster.address(node_id).partition(":")
    with BlockingConnection(host, int(port), timeout_ms=30_000) as connection:
        return connection.request(request)


def test_only_an_unclean_election_gives_a_leader_to_a_partition_without_in_sync_replicas() -> None:
    elect = ElectLeadersRequest(
        election_type=1,
        topic_partitions=[ElectLeadersRequestTopicPartitions(topic="orders", partitions=[0])],
        timeout_ms=20_000,
    )
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", assignment=[[1, 2]])
        cluster.kill_node(2)
        wait_until(lambda: state(cluster, 3, "orders").isr == (1,), "2 is out of the ISR")
        cluster.kill_node(1)  # without it the quorum has no majority, until node 2 is started
        cluster.start_node(2)
        wait_until(lambda: state(cluster, 3, "orders").leader == -1, "1 is fenced")
        found = state(cluster, 3, "orders")
        assert (found.isr, found.elr) == ((), (1,)), "1 has everything, and 2 stopped uncleanly"
        answer = ask(cluster, 3, elect)
        assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
        wait_until(lambda: state(cluster, 3, "orders").leader == 2, "2 leads")
        found = state(cluster, 3, "orders")
        assert (found.isr, found.elr) == ((2,), ())
        assert found.leader_recovery_state is LeaderRecoveryState.RECOVERING
        cluster.start_node(1)
        wait_until(lambda: sorted(state(cluster, 3, "orders").isr) == [1, 2], "1 is back")
        assert state(cluster, 3, "orders").leader_recovery_state is LeaderRecoveryState.RECOVERED


def test_a_topic_with_unclean_elections_gets_any_live_replica_as_leader() -> None:
    with Cluster(nodes=3, config={"unclean.leader.election.interval.ms": 200}) as cluster:
        cluster.create_topic("orders", assignment=[[1, 2]])
        cluster.kill_node(2)
        wait_until(lambda: state(cluster, 3, "orders").isr == (1,), "2 is out of the ISR")
        cluster.kill_node(1)
        cluster.start_node(2)
        wait_until(lambda: state(cluster, 3, "orders").leader == -1, "1 is fenced")
        config = IncrementalAlterConfigsRequestAlterableConfig(name="unclean.leader.election.enable", value="true")
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="orders", configs=[config]
        )
        answer = ask(cluster, 3, IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.NONE
        wait_until(lambda: state(cluster, 3, "orders").leader == 2, "2 leads")


def test_an_eligible_replica_becomes_leader_without_loss() -> None:
    with Cluster(nodes=3, config={"min.insync.replicas": 2}) as cluster:
        cluster.create_topic("orders", assignment=[[1, 2]])
        cluster.stop_node(2)
        wait_until(lambda: state(cluster, 3, "orders").isr == (1,), "2 has left the ISR")
        assert state(cluster, 3, "orders").elr == (2,), "it stays eligible: nothing is committed without it"
        cluster.kill_node(1)
        cluster.start_node(2)
        wait_until(lambda: state(cluster, 3, "orders").leader == 2, "2, which stopped cleanly, leads")
        assert state(cluster, 3, "orders").leader_recovery_state is LeaderRecoveryState.RECOVERED
