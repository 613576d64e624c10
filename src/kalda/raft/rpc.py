"""What replicas say to one another, without the wire around it.

An ask names the epoch of its sender; an answer always tells the answering replica's epoch and the leader it knows, so
that any exchange spreads the news of a new epoch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from kalda.base.errors import ErrorCode
from kalda.raft.values import Endpoint, OffsetAndEpoch, ReplicaKey


class ReplyHeader(NamedTuple):
    """The part that every answer shares."""

    error: ErrorCode
    epoch: int
    leader_id: int | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


class VoteCall(NamedTuple):
    cluster_id: str | None
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    log_end: OffsetAndEpoch
    pre_vote: bool = False


class VoteReply(NamedTuple):
    header: ReplyHeader
    granted: bool = False


class BeginEpochCall(NamedTuple):
    """BeginQuorumEpoch: I lead this epoch."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    voter: ReplicaKey | None
    leader_endpoints: tuple[Endpoint, ...] = ()


class BeginEpochReply(NamedTuple):
    header: ReplyHeader


class EndEpochCall(NamedTuple):
    """EndQuorumEpoch: I lead no longer; these should try next, in this order."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    leader_endpoints: tuple[Endpoint, ...] = ()


class EndEpochReply(NamedTuple):
    header: ReplyHeader


class FetchCall(NamedTuple):
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


class FetchReply(NamedTuple):
    """`read_from` tells the driver of a leader what to read into the answer; `records` and `batches` are what a
    follower's driver found in it."""

    header: ReplyHeader
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    read_from: int | None = None
    max_bytes: int = 0
    records: Any = None
    batches: tuple[FetchedBatch, ...] = ()


class SnapshotCall(NamedTuple):
    cluster_id: str | None
    epoch: int
    replica: ReplicaKey
    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int


class SnapshotReply(NamedTuple):
    """`data` is None where the driver of the answering leader is to read it, `size` too then."""

    header: ReplyHeader
    snapshot: OffsetAndEpoch
    position: int = 0
    size: int = 0
    data: Any = None


class AddVoterCall(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    timeout_ms: int = 30_000
    ack_when_committed: bool = True


class RemoveVoterCall(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey


class UpdateVoterCall(NamedTuple):
    cluster_id: str | None
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    min_kraft_version: int = 0
    max_kraft_version: int = 1


class VoterChangeReply(NamedTuple):
    header: ReplyHeader
    message: str = ""


class DescribeCall(NamedTuple):
    pass


class ReplicaProgress(NamedTuple):
    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class DescribeReply(NamedTuple):
    """Times are on the machine's clock; -1 where unknown, 0 where it is the leader itself: now."""

    header: ReplyHeader
    high_watermark: int = -1
    voters: tuple[ReplicaProgress, ...] = ()
    observers: tuple[ReplicaProgress, ...] = ()
    nodes: tuple[tuple[int, tuple[Endpoint, ...]], ...] = ()


Call: TypeAlias = (
    VoteCall
    | BeginEpochCall
    | EndEpochCall
    | FetchCall
    | SnapshotCall
    | AddVoterCall
    | RemoveVoterCall
    | UpdateVoterCall
    | DescribeCall
)
Reply: TypeAlias = (
    VoteReply | BeginEpochReply | EndEpochReply | FetchReply | SnapshotReply | VoterChangeReply | DescribeReply
)
