"""Events: what the driver feeds into the machine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from kalda.raft.quorum_state import ElectionState
from kalda.raft.rpc import Call, Control, Reply
from kalda.raft.voters import Destination, OffsetAndEpoch


class Start(NamedTuple):
    """The first event, once. Every event before it is ignored."""


class Tick(NamedTuple):
    """The machine's `deadline` has passed."""


class AppendRecords(NamedTuple):
    """Append `records_count` records of the leader's state machine as one batch."""

    epoch: int
    records_count: int
    payload: object


class Flushed(NamedTuple):
    """The `FlushLog` with these values is done: the records before `offset` are durable."""

    offset: int
    generation: int


class CallReceived(NamedTuple):
    """Another replica, a client or an administrator calls. The reply has the same token."""

    token: Hashable
    call: Call


class ReplyReceived(NamedTuple):
    """The reply to the call that was sent with `correlation`."""

    correlation: int
    reply: Reply


class CallFailed(NamedTuple):
    """The call that was sent with `correlation` gets no reply: the connection broke, or could not be made.
    `connection_refused`: no process listens at the destination."""

    correlation: int
    connection_refused: bool = False


class SnapshotInstalled(NamedTuple):
    """The fetched snapshot is durable, and the log begins at its end. `controls` are its control records."""

    snapshot: OffsetAndEpoch
    controls: tuple[Control, ...]


class SnapshotDamaged(NamedTuple):
    """The fetched file was no whole snapshot and is removed; the log is unchanged."""

    snapshot: OffsetAndEpoch


class SnapshotTaken(NamedTuple):
    """A snapshot of this replica's own state was written."""

    snapshot: OffsetAndEpoch


class PrefixDeleted(NamedTuple):
    """Retention has deleted the snapshots `dropped`, and the log before `start_offset`."""

    start_offset: int
    dropped: tuple[OffsetAndEpoch, ...]


class UpgradeKraftVersion(NamedTuple):
    """As the leader of `epoch`, finalize this kraft.version. `reconfiguration.upgrade_refusal` has returned None."""

    epoch: int
    version: int


class Resign(NamedTuple):
    """Give up the leadership of `epoch`, where this replica has it."""

    epoch: int


class Shutdown(NamedTuple):
    """The last event: a leader resigns and sends EndQuorumEpoch."""


Event: TypeAlias = (
    Start
    | Tick
    | AppendRecords
    | Flushed
    | CallReceived
    | ReplyReceived
    | CallFailed
    | SnapshotInstalled
    | SnapshotDamaged
    | SnapshotTaken
    | PrefixDeleted
    | UpgradeKraftVersion
    | Resign
    | Shutdown
)


# Effects: what the driver has to do for the machine, in order. None is carried out before the one before it.


class Persist(NamedTuple):
    """Write and sync `quorum-state` before the next effect."""

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
    """Append fetched batches unchanged: those of `records` from `first_offset` up to `end_offset`, exclusive. What
    follows in the buffer is left out."""

    first_offset: int
    end_offset: int
    records: object


class TruncateLog(NamedTuple):
    """Truncate the log so that it ends at `offset`."""

    offset: int


class FlushLog(NamedTuple):
    """Sync everything before `offset`, then step `Flushed` with both values."""

    offset: int
    generation: int


class SendCall(NamedTuple):
    """Send `call`, then step `ReplyReceived` or `CallFailed` with the same correlation."""

    correlation: int
    destination: Destination
    call: Call
    timeout_ms: int


class SendReply(NamedTuple):
    """Reply to the call that was received with `token`. A `FetchReply` with a `read_from` gets its records, and a
    `SnapshotReply` without an error its data, from the driver."""

    token: Hashable
    reply: Reply


class SetHighWatermark(NamedTuple):
    """Everything before `offset` is committed: deliver it to the state machines."""

    offset: int


class LeaderChanged(NamedTuple):
    """Report the leader to the state machines. This replica is reported as the leader once the first records of its
    epoch are committed; they are delivered first, and with them everything that was committed before."""

    leader_id: int | None
    epoch: int


class SaveSnapshotChunk(NamedTuple):
    """Write part of the snapshot that is being fetched. Position 0 begins a new file."""

    snapshot: OffsetAndEpoch
    position: int
    data: object


class InstallSnapshot(NamedTuple):
    """The fetched snapshot is complete: verify, sync and rename its file, begin the log anew at its end, then step
    `SnapshotInstalled`; where the file is no whole snapshot, remove it and step `SnapshotDamaged`."""

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
