"""What replicas say to one another, without the wire around it.

An ask names the epoch of its sender; an answer always tells the answering replica's epoch and the leader it knows, so
that any exchange spreads the news of a new epoch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from kalda.base.errors import ErrorCode
from kalda.raft.values import Endpoint, OffsetAndEpoch, ReplicaKey


class Standing(NamedTuple):
    """The part that every answer shares."""

    error: ErrorCode
    epoch: int
    leader_id: int | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


class VoteAsk(NamedTuple):
    cluster_id: str | None
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    log_end: OffsetAndEpoch
    pre_vote: bool = False


class VoteAnswer(NamedTuple):
    standing: Standing
    granted: bool = False


class BeginAsk(NamedTuple):
    """BeginQuorumEpoch: I lead this epoch."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    voter: ReplicaKey | None
    leader_endpoints: tuple[Endpoint, ...] = ()


class BeginAnswer(NamedTuple):
    standing: Standing


class EndAsk(NamedTuple):
    """EndQuorumEpoch: I lead no longer; these should try next, in this order."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    leader_endpoints: tuple[Endpoint, ...] = ()


class EndAnswer(NamedTuple):
    standing: Standing


class FetchAsk(NamedTuple):
    cluster_id: str | None
    epoch: int
    replica: ReplicaKey
    fetch_from: OffsetAndEpoch
    max_wait_ms: int
    max_bytes: int
    high_watermark: int
    """What the follower knows of it (KIP-1166); the largest int64 where it does not say."""


class Control(NamedTuple):
    """A control record that the machine itself must understand, at its offset."""

    offset: int
    record: object


class FetchedBatch(NamedTuple):
    """What the machine must know of a batch that was fetched."""

    base_offset: int
    last_offset: int
    epoch: int
    controls: tuple[Control, ...] = ()


class FetchAnswer(NamedTuple):
    """`read_from` tells the driver of a leader what to read into the answer; `records` and `batches` are what a
    follower's driver found in it."""

    standing: Standing
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    read_from: int | None = None
    max_bytes: int = 0
    records: Any = None
    batches: tuple[FetchedBatch, ...] = ()


class SnapshotAsk(NamedTuple):
    cluster_id: str | None
    epoch: int
    replica: ReplicaKey
    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int


class SnapshotAnswer(NamedTuple):
    """`data` is None where the driver of the answering leader is to read it, `size` too then."""

    standing: Standing
    snapshot: OffsetAndEpoch
    position: int = 0
    size: int = 0
    data: Any = None


class AddVoterAsk(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    timeout_ms: int = 30_000
    ack_when_committed: bool = True


class RemoveVoterAsk(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey


class UpdateVoterAsk(NamedTuple):
    cluster_id: str | None
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    min_kraft_version: int = 0
    max_kraft_version: int = 1


class VoterChangeAnswer(NamedTuple):
    standing: Standing
    message: str = ""


class DescribeAsk(NamedTuple):
    pass


class ReplicaProgress(NamedTuple):
    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class DescribeAnswer(NamedTuple):
    """Times are on the machine's clock; -1 where unknown, 0 where it is the leader itself: now."""

    standing: Standing
    high_watermark: int = -1
    voters: tuple[ReplicaProgress, ...] = ()
    observers: tuple[ReplicaProgress, ...] = ()
    nodes: tuple[tuple[int, tuple[Endpoint, ...]], ...] = ()


Ask: TypeAlias = (
    VoteAsk | BeginAsk | EndAsk | FetchAsk | SnapshotAsk | AddVoterAsk | RemoveVoterAsk | UpdateVoterAsk | DescribeAsk
)
Answer: TypeAlias = (
    VoteAnswer | BeginAnswer | EndAnswer | FetchAnswer | SnapshotAnswer | VoterChangeAnswer | DescribeAnswer
)
