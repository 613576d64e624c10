"""Events: what the driver feeds into the machine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from kalda.raft.rpc import Call, Control, Reply
from kalda.raft.values import OffsetAndEpoch


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
