"""What happens to the machine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from kalda.raft.rpc import Call, Control, Reply
from kalda.raft.values import OffsetAndEpoch


class Start(NamedTuple):
    """The driver is ready to carry out effects. First, and once."""


class Tick(NamedTuple):
    """Time has passed: the machine's `deadline` was reached."""


class Append(NamedTuple):
    """The leader's state machine wants `count` records appended as one batch."""

    epoch: int
    records_count: int
    payload: object


class Flushed(NamedTuple):
    """All records before `offset` that `FlushLog` asked for at `generation` are durable."""

    offset: int
    generation: int


class CallReceived(NamedTuple):
    """A request came; its answer goes out with the same token."""

    token: Hashable
    call: Call


class ReplyReceived(NamedTuple):
    """The answer to the request of that correlation."""

    correlation: int
    reply: Reply


class CallFailed(NamedTuple):
    """No answer will come to that request: the connection broke, or could not be made. `gone`: connections to that
    replica are refused, so that no process is there."""

    correlation: int
    gone: bool = False


class SnapshotInstalled(NamedTuple):
    """The fetched snapshot is complete on disk, and the log was replaced by it."""

    snapshot: OffsetAndEpoch
    controls: tuple[Control, ...]


class SnapshotDamaged(NamedTuple):
    """What was fetched is not a whole snapshot; it was thrown away, and the log is what it was."""

    snapshot: OffsetAndEpoch


class SnapshotTaken(NamedTuple):
    """The state machine wrote a snapshot of its own."""

    snapshot: OffsetAndEpoch


class PrefixDeleted(NamedTuple):
    """Retention dropped snapshots, and the log before `start_offset`."""

    start_offset: int
    dropped: tuple[OffsetAndEpoch, ...]


class UpgradeKraftVersion(NamedTuple):
    """The leader of `epoch` is to finalize this kraft.version; `reconfiguration.upgrade_refusal` found no objection."""

    epoch: int
    version: int


class Resign(NamedTuple):
    """The state machine gives up the leadership of `epoch`."""

    epoch: int


class Shutdown(NamedTuple):
    """The node stops; a leader tells the others."""


Event: TypeAlias = (
    Start
    | Tick
    | Append
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
