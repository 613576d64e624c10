"""What nodes that want to join a cluster learn of its controllers: its id, and which node ids are taken.

A node id that was given twice would let one node take the other's replicas for its own. Controllers tell the ids of
those that fetch metadata now, and none of nodes that are down; so nodes of another host are numbered from a random
multiple of 100, far from the small numbers that people give.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import METADATA_TOPIC_NAME
from kalda.cli.local.layout import LayoutError
from kalda.client.errors import refused
from kalda.client.metadata import parse_bootstrap
from kalda.network.blocking import BlockingConnection
from kalda.protocol.messages.metadata import DescribeClusterRequest, EndpointType
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

_TIMEOUT_MS = 5_000
_FIRST_IDS = range(1_000, 100_000, 100)


class Found(NamedTuple):
    """A cluster that runs; `node_ids` are those of its nodes that live."""

    cluster_id: str
    node_ids: frozenset[int]

    def first_id(self, count: int) -> int:
        """Where ids for so many nodes may begin."""
        free = [first for first in _FIRST_IDS if self.node_ids.isdisjoint(range(first, first + count))]
        return random.choice(free)


def ask_controllers(servers: str) -> Found:
    """Ask until one answers. Raises `LayoutError`; `ValueError` for an address that is none."""
    reasons: list[str] = []
    for host, port in parse_bootstrap(servers):
        try:
            return _ask(host, port)
        except ApiError as error:
            reasons.append(error.message or error.code.name)
    raise LayoutError(f"no controller answers at {servers}: {'; '.join(reasons)}")


def _ask(host: str, port: int) -> Found:
    with BlockingConnection(host, port, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as connection:
        answer = connection.request(DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLERS))
    if answer.error_code:
        raise refused(answer.error_code, f"{host}:{port}", answer.error_message)
    leader = next((node for node in answer.brokers if node.broker_id == answer.controller_id), None)
    known = frozenset(node.broker_id for node in answer.brokers)
    if leader is not None:
        known |= _replicas(leader.host, leader.port)
    return Found(answer.cluster_id, known)


def _replicas(host: str, port: int) -> frozenset[int]:
    """All that fetch the metadata log of its leader."""
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC_NAME, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    with BlockingConnection(host, port, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as connection:
        answer = connection.request(request)
    return frozenset(
        replica.replica_id
        for topic in answer.topics
        for partition in topic.partitions
        for replica in (*partition.current_voters, *partition.observers)
    )
