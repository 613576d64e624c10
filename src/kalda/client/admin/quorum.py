"""The metadata quorum: DescribeQuorum (KIP-836), AddRaftVoter and RemoveRaftVoter (KIP-853)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kalda.base.ids import METADATA_TOPIC_NAME, Uuid
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponseReplicaState,
    RemoveRaftVoterRequest,
)


class QuorumReplica(NamedTuple):
    """Timestamps are wall-clock ms of the leader; -1 where it has none. `lag` is in records."""

    node_id: int
    directory_id: Uuid
    log_end_offset: int
    lag: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


class Quorum(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[str, ...]]
    """`NAME://HOST:PORT` of each voter's controller listeners; empty where the response has none."""


def describe_quorum(cluster: ClusterClient) -> Quorum:
    """The quorum's replicas, from its leader. Raises `ApiError`."""

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, "the metadata quorum", answer.error_message)
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise refused(p.error_code, "the metadata quorum", p.error_message)

    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC_NAME, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    return quorum_of(cluster.any_broker(request, check=check))


def quorum_of(answer: Any) -> Quorum:
    """The quorum in a DescribeQuorum response."""
    p = answer.topics[0].partitions[0]
    end = max((voter.log_end_offset for voter in p.current_voters if voter.replica_id == p.leader_id), default=-1)
    return Quorum(
        p.leader_id,
        p.leader_epoch,
        p.high_watermark,
        tuple(_replica(voter, end) for voter in p.current_voters),
        tuple(_replica(observer, end) for observer in p.observers),
        {
            node.node_id: tuple(f"{point.name}://{point.host}:{point.port}" for point in node.listeners)
            for node in answer.nodes
        },
    )


class VoterListener(NamedTuple):
    """One listener of a controller."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://" + (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


def add_voter(cluster: ClusterClient, node_id: int, directory_id: Uuid, listeners: Collection[VoterListener]) -> None:
    """Make a controller that has caught up as an observer a voter. Raises `ApiError`."""
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=cluster.timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[AddRaftVoterRequestListener(name=each.name, host=each.host, port=each.port) for each in listeners],
    )
    _change_voters(cluster, request, node_id)


def remove_voter(cluster: ClusterClient, node_id: int, directory_id: Uuid) -> None:
    """Remove a controller from the voters. Raises `ApiError`."""
    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=node_id, voter_directory_id=directory_id)
    _change_voters(cluster, request, node_id)


def _change_voters(cluster: ClusterClient, request: AddRaftVoterRequest | RemoveRaftVoterRequest, node_id: int) -> None:
    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"controller {node_id}", answer.error_message)

    cluster.any_broker(request, check=check)


def _replica(state: DescribeQuorumResponseReplicaState, leader_end: int) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        max(0, leader_end - state.log_end_offset),
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
    )
