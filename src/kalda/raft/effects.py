"""What the machine wants done, in order. Nothing may be carried out before what stands before it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from kalda.raft.quorum_state import ElectionState
from kalda.raft.rpc import Call, Reply
from kalda.raft.values import Destination, OffsetAndEpoch


class Persist(NamedTuple):
    """Write and sync `quorum-state` before going on."""

    state: ElectionState
    voter_ids: tuple[int, ...]
    kraft_version: int


class AppendControls(NamedTuple):
    """Append one control batch with these records as the leader."""

    first_offset: int
    epoch: int
    records: tuple[object, ...]


class AppendPayload(NamedTuple):
    """Append the batch of an `Append` event as the leader."""

    first_offset: int
    epoch: int
    payload: object


class AppendFetched(NamedTuple):
    """Append batches from the leader as they are: the records of `first_offset` up to `end_offset`, exclusive. What
    the buffer holds after that is not wanted."""

    first_offset: int
    end_offset: int
    records: object


class TruncateLog(NamedTuple):
    """Cut the log so that it ends at `offset`."""

    offset: int


class FlushLog(NamedTuple):
    """Make everything before `offset` durable, then say `Flushed` with both values."""

    offset: int
    generation: int


class SendCall(NamedTuple):
    correlation: int
    destination: Destination
    call: Call
    timeout_ms: int


class SendReply(NamedTuple):
    """Answer a request. Where the answer has a `read_from`, read the records into it; where it is a snapshot answer
    without data, read that."""

    token: Hashable
    reply: Reply


class SetHighWatermark(NamedTuple):
    """Everything before `offset` is committed: deliver it."""

    offset: int


class LeaderChanged(NamedTuple):
    """Tell the listeners. The leader itself is told once its own first records are committed and delivered: then it
    has seen everything that was committed before it."""

    leader_id: int | None
    epoch: int


class SaveSnapshotChunk(NamedTuple):
    """Part of a snapshot that is being fetched. At position 0 a new file begins."""

    snapshot: OffsetAndEpoch
    position: int
    data: object


class InstallSnapshot(NamedTuple):
    """The snapshot has arrived: verify, sync and rename it, start the log anew at its end, say `SnapshotInstalled`; or
    `SnapshotDamaged`, where it is not what its leader wrote."""

    snapshot: OffsetAndEpoch


Effect: TypeAlias = (
    Persist
    | AppendControls
    | AppendPayload
    | AppendFetched
    | TruncateLog
    | FlushLog
    | SendCall
    | SendReply
    | SetHighWatermark
    | LeaderChanged
    | SaveSnapshotChunk
    | InstallSnapshot
)
