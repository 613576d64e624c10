"""Calls and replies: what replicas exchange, without its wire format.

A call is a request and a reply its response. A call has the epoch of its sender; a reply has the epoch of the replica
that sends it, and that replica's leader, so that every exchange spreads a newer epoch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from kalda.base.errors import ErrorCode
from kalda.raft.voters import OffsetAndEpoch, ReplicaKey, VoterEndpoint


class ReplyHeader(NamedTuple):
    """What every reply begins with."""

    error: ErrorCode
    epoch: int
    leader_id: int | None = None
    leader_endpoints: tuple[VoterEndpoint, ...] = ()


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
    """BeginQuorumEpoch: the sender leads `epoch`."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    voter: ReplicaKey | None
    leader_endpoints: tuple[VoterEndpoint, ...] = ()


class BeginEpochReply(NamedTuple):
    header: ReplyHeader


class EndEpochCall(NamedTuple):
    """EndQuorumEpoch: the sender leads `epoch` no longer; `successors` should stand for election, in this order."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    leader_endpoints: tuple[VoterEndpoint, ...] = ()


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
    """The follower's own (KIP-1166); the largest int64 where its version of Fetch has none."""


class Control(NamedTuple):
    """A control record of the log or of a snapshot, at its offset."""

    offset: int
    record: object


class FetchedBatch(NamedTuple):
    """The bounds of a fetched batch, and its control records."""

    base_offset: int
    last_offset: int
    epoch: int
    controls: tuple[Control, ...] = ()


class FetchReply(NamedTuple):
    """The machine of a leader sets `read_from` and `max_bytes`, and its driver reads `records` from there. On the
    follower `records` are as they arrived, and `batches` are the bounds of the sound ones among them."""

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
    """The machine of a leader leaves out `size`, the size of the file, and `data`: its driver reads them."""

    header: ReplyHeader
    snapshot: OffsetAndEpoch
    position: int = 0
    size: int = 0
    data: Any = None


class AddVoterCall(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
    timeout_ms: int = 30_000
    ack_when_committed: bool = True


class RemoveVoterCall(NamedTuple):
    cluster_id: str | None
    voter: ReplicaKey


class UpdateVoterCall(NamedTuple):
    cluster_id: str | None
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
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
    """Times are of the machine's clock: -1 is never, and 0 stands for the present, as in the leader's own."""

    header: ReplyHeader
    high_watermark: int = -1
    voters: tuple[ReplicaProgress, ...] = ()
    observers: tuple[ReplicaProgress, ...] = ()
    nodes: tuple[tuple[int, tuple[VoterEndpoint, ...]], ...] = ()


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
