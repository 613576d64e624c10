"""What nodes need from a cluster's controllers before they join it: the cluster's id, and the node ids in use.

Two nodes with the same id would both act as the holder of its replicas. The controllers list only nodes that fetch
metadata now, not those that are down. So the ids of joining nodes begin at a random multiple of 100 from 1000 on, which
is unlikely to be in use.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import METADATA_TOPIC_NAME
from kalda.cli.local.layout import LayoutError
from kalda.client.core.cluster_values import parse_bootstrap
from kalda.client.core.errors import refused
from kalda.client.one_node import OneNode
from kalda.protocol.messages.metadata import DescribeClusterRequest, EndpointType
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

_TIMEOUT_MS = 5_000
_FIRST_IDS = range(1_000, 100_000, 100)


class Found(NamedTuple):
    """A running cluster; `node_ids` are those of its live nodes."""

    cluster_id: str
    node_ids: frozenset[int]

    def first_id(self, count: int) -> int:
        """A random first id from which on `count` ids are not in use."""
        free = [first for first in _FIRST_IDS if self.node_ids.isdisjoint(range(first, first + count))]
        return random.choice(free)


def ask_controllers(servers: str) -> Found:
    """The cluster of the first controller that answers. Raises `LayoutError`; `ValueError` for a malformed address."""
    reasons: list[str] = []
    for host, port in parse_bootstrap(servers):
        try:
            return _ask_controller(host, port)
        except ApiError as error:
            reasons.append(error.message or error.code.name)
    raise LayoutError(f"no controller answers at {servers}: {'; '.join(reasons)}")


def _ask_controller(host: str, port: int) -> Found:
    with OneNode(host, port, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as controller:
        answer = controller.request(DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLERS))
    if answer.error_code:
        raise refused(answer.error_code, f"{host}:{port}", answer.error_message)
    leader = next((node for node in answer.brokers if node.broker_id == answer.controller_id), None)
    node_ids = frozenset(node.broker_id for node in answer.brokers)
    if leader is not None:
        node_ids |= _replicas(leader.host, leader.port)
    return Found(answer.cluster_id, node_ids)


def _replicas(host: str, port: int) -> frozenset[int]:
    """Ids of the voters and observers of the metadata log; the address is its leader's."""
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC_NAME, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    with OneNode(host, port, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as controller:
        answer = controller.request(request)
    return frozenset(
        replica.replica_id
        for topic in answer.topics
        for partition in topic.partitions
        for replica in (*partition.current_voters, *partition.observers)
    )
