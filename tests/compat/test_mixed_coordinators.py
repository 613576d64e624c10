"""Transactions in clusters of Kalda and Apache Kafka nodes: coordinators and leaders of both kinds, both ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mixed_nodes import KAFKA, KALDA, MixedCluster
from mixed_requests import create, elect_preferred
from transactional_clients import Committers, made, producer_of, send, visible, waited_for

pytestmark = pytest.mark.compat

STATE = "__transaction_state"


MORE = pytest.mark.skipif("KALDA_MIXED_ROUNDS" not in os.environ, reason="takes minutes: set KALDA_MIXED_ROUNDS")
"""The other majority: leaders and coordinators of either kind meet in both, and controllers of either kind are killed
in `test_mixed_transactions`."""


@pytest.mark.parametrize("kinds", [(KALDA, KALDA, KAFKA), pytest.param((KALDA, KAFKA, KAFKA), marks=MORE)])
def test_transactions_survive_nodes_of_either_kind(tmp_path: Path, jars: Path, kinds: tuple[str, ...]) -> None:
    """Each node is killed once, while producers of all coordinators run. So every coordinator writes markers to leaders
    of the other kind, and completes transactions that one of the other kind has begun."""
    nodes = {node_id: (kind, "broker,controller") for node_id, kind in enumerate(kinds, 1)}
    settings = {
        "transaction_state_log_num_partitions": 6,
        "transaction_state_log_replication_factor": 3,
        "transaction_state_log_min_isr": 2,
        "broker_session_timeout_ms": 4_000,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
    }
    with MixedCluster(tmp_path, jars, nodes, **settings) as cluster:
        cluster.start()
        create(cluster, "orders", [1, 3, 2], [3, 1, 2], min_insync_replicas="2")
        with Committers(cluster.addresses, "orders", 6) as committers:
            for node in cluster.nodes.values():
                committers.wait_progress()
                node.kill()
                committers.wait_progress()
                node.start()
                for index in range(6):
                    cluster.wait_placed(STATE, index, isr=[1, 2, 3])
                for index in range(2):
                    cluster.wait_placed("orders", index, isr=[1, 2, 3])
                elect_preferred(cluster, STATE, *range(6))
                elect_preferred(cluster, "orders", 0, 1)
            committers.wait_progress()
        committers.check()
        late = producer_of(cluster.addresses, "late", **{"transaction.timeout.ms": 1_000})
        made(cluster.addresses, "payments")
        late.begin_transaction()
        send(late, "payments", range(2), "late")
        waited_for(lambda: _has_ended(cluster), "a transaction is open for longer than its timeout")
        for index in range(6):
            cluster.wait_same_files(f"{STATE}-{index}")


def _has_ended(cluster: MixedCluster) -> bool:
    """A later transaction is visible: nothing before it is open."""
    producer = producer_of(cluster.addresses, "next")
    producer.begin_transaction()
    send(producer, "payments", range(2), "next")
    producer.commit_transaction(30)
    seen = visible(cluster.addresses, "payments")
    return bool(seen) and all(value.startswith("next") for value in seen)
