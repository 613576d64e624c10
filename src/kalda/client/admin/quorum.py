"""The metadata quorum: its replicas (KIP-836), and its voters (KIP-853)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import METADATA_TOPIC_NAME, Uuid
from kalda.clientcore.administration import ANY, Ask, Plan, error_of, single
from kalda.clientcore.connections.errors import refused
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


class VoterListener(NamedTuple):
    """One listener of a controller."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://" + (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


def describe_quorum() -> Plan[Quorum]:
    """DescribeQuorum."""

    def check(answer: Any) -> ApiError | None:
        failed = [answer, *(partition for topic in answer.topics for partition in topic.partitions)]
        for each in failed:
            if each.error_code:
                return refused(each.error_code, "the metadata quorum", each.error_message)
        return None

    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC_NAME, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    return quorum_of((yield from single(Ask(ANY, request), check)))


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


def _replica(state: DescribeQuorumResponseReplicaState, leader_end: int) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        max(0, leader_end - state.log_end_offset),
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
    )


def add_voter(node_id: int, directory_id: Uuid, listeners: Collection[VoterListener], *, timeout_ms: int) -> Plan[None]:
    """AddRaftVoter."""
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[AddRaftVoterRequestListener(name=each.name, host=each.host, port=each.port) for each in listeners],
    )
    yield from single(Ask(ANY, request), error_of(f"controller {node_id}"))


def remove_voter(node_id: int, directory_id: Uuid) -> Plan[None]:
    """RemoveRaftVoter."""
    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=node_id, voter_directory_id=directory_id)
    yield from single(Ask(ANY, request), error_of(f"controller {node_id}"))
