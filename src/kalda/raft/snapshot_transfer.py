"""FetchSnapshot on both sides, and what becomes of the fetched snapshot (KIP-630).

A snapshot is fetched in pieces, from position 0 on, while its role lasts: a transition drops the position, and another
role begins with a fetch of the log. Once complete it is installed, whatever the role is by then: the log is replaced by
the snapshot and begins anew at its end.
"""

from __future__ import annotations

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.log_records import KRaftVersionRecord, VotersRecord
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.replica import Replica
from kalda.raft.roles import Candidate, Follower, LeaderRole, Prospective
from kalda.raft.voters import OffsetAndEpoch

# The leader's side.


def handle_snapshot(replica: Replica, call: rpc.SnapshotCall, now: int) -> rpc.SnapshotReply:
    error = replica.leader_refusal(call.cluster_id, call.epoch)
    if error is None and not replica.log.has_snapshot(call.snapshot):
        error = ErrorCode.SNAPSHOT_NOT_FOUND
    if error is None and call.position < 0:
        error = ErrorCode.POSITION_OUT_OF_RANGE
    if error is None:
        role = replica.role
        assert isinstance(role, LeaderRole)
        if replica.voters.is_voter(call.replica):
            role.on_voter_fetch(call.replica, replica.voters.majority, now, replica.config.check_quorum_timeout_ms)
    return rpc.SnapshotReply(replica.reply_header(error or ErrorCode.NONE), call.snapshot, call.position)


# The follower's side.


def send_fetch_snapshot(replica: Replica, role: Follower, snapshot: OffsetAndEpoch, now: int) -> None:
    config = replica.config
    call = rpc.SnapshotCall(
        config.cluster_id,
        role.epoch,
        replica.local,
        snapshot,
        role.snapshot_position,
        config.fetch_snapshot_max_bytes,
    )
    replica.send(role.leader, call, now)


def on_snapshot_reply(replica: Replica, reply: rpc.SnapshotReply, call: rpc.SnapshotCall, now: int) -> bool:
    """Whether the reply could be used; otherwise the next fetch waits for the back-off."""
    role = replica.role
    if not isinstance(role, Follower) or role.snapshot != call.snapshot:
        return True
    data = reply.data
    size = len(data) if isinstance(data, bytes | bytearray | memoryview) else 0
    if (
        reply.snapshot != call.snapshot
        or reply.position != role.snapshot_position
        or (size == 0 and role.snapshot_position < reply.size)
    ):
        role.snapshot, role.snapshot_position = None, 0
        return False
    role.deadline = now + replica.config.fetch_timeout_ms
    role.has_fetched = True
    replica.emit(fx.SaveSnapshotChunk(call.snapshot, role.snapshot_position, data))
    role.snapshot_position += size
    if role.snapshot_position >= reply.size:
        replica.is_installing_snapshot = True
        replica.emit(fx.InstallSnapshot(call.snapshot))
    return True


def on_snapshot_refused(replica: Replica, error: ErrorCode) -> None:
    """The leader has deleted that snapshot. The next fetch of the log names the one to fetch instead."""
    role = replica.role
    if isinstance(role, Follower) and error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
        role.snapshot, role.snapshot_position = None, 0


def on_snapshot_installed(
    replica: Replica, snapshot: OffsetAndEpoch, controls: tuple[rpc.Control, ...], now: int
) -> None:
    """The log is empty and begins at the snapshot's end; `controls` are the snapshot's voters and kraft.version."""
    replica.is_installing_snapshot = False
    replica.flush_generation += 1
    replica.log.restart_at(snapshot)
    replica.history.reset()
    for control in controls:
        if isinstance(control.record, VotersRecord | KRaftVersionRecord):
            replica.apply_control(snapshot.offset - 1, control.record)
    replica.advance_high_watermark(snapshot.offset)
    role = replica.role
    if isinstance(role, Follower):
        role.snapshot, role.snapshot_position = None, 0
        role.deadline = now + replica.config.fetch_timeout_ms
    elif isinstance(role, Prospective | Candidate):
        # Its ballot is of the former voters: a majority of them may not be one of the voters of the snapshot.
        replica.become_unattached(role.epoch, now, role.leader_id, role.voted)


def on_snapshot_damaged(replica: Replica, snapshot: OffsetAndEpoch, now: int) -> None:
    """Begin again with a fetch of the log, after a back-off: where the file is damaged on the leader's disk, all its
    bytes arrive in vain each time."""
    replica.is_installing_snapshot = False
    role = replica.role
    if isinstance(role, Follower) and role.snapshot == snapshot:
        role.snapshot, role.snapshot_position = None, 0
        role.deadline = now + replica.config.fetch_timeout_ms
        replica.outbox.back_off(role.leader, now, replica.config.fetch_timeout_ms // 2)
