"""Replication by fetching: what a follower does with an reply, and a leader with a request.

A follower that is a voter, or may become one, fetches again only when it has flushed what it got: its next fetch offset
tells the leader that it has everything before durably, and what an observer has told counts once it is added. Where the
logs differ, the leader says up to where they may agree and the follower truncates; where the leader no longer has what
the follower lacks, the follower fetches a snapshot first (KIP-630).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.protocol.messages.control_records import KRaftVersionRecord, VotersRecord
from kalda.raft import effects as fx
from kalda.raft import elections, reconfiguration, rpc
from kalda.raft.leader import LeaderRole, ParkedFetch
from kalda.raft.roles import Candidate, Follower, Prospective
from kalda.raft.values import OffsetAndEpoch

if TYPE_CHECKING:
    from kalda.raft.machine import RaftMachine

MAX_PARKED_FETCHES = 10_000


# The leader's side.


def drive_leader(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    if not role.alone and role.quorum_deadline <= now:
        machine.become_resigned(now)
        return
    _expire_parked(machine, role, now)
    role.expire_observers(now)
    reconfiguration.drive_change(machine, role, now)
    if not role.alone:
        elections.send_begin_epoch(machine, role, now)


def leader_deadline(role: LeaderRole) -> int | None:
    times = [fetch.deadline for fetch in role.parked]
    if role.change is not None and role.change.token is not None:
        times.append(role.change.deadline)
    if not role.alone:
        times += [role.quorum_deadline, role.begin_at]
    return min(times, default=None)


def on_leader_flushed(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    """The leader acknowledges to itself what it has flushed, where it is a voter."""
    own = role.voters.get(machine.local.id)
    if own is not None:
        own.fetched(machine.log.flushed_offset, machine.log.end_offset, now)
        advance(machine, role, now)


def advance(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    """See whether a majority moved on; commit, and tell whoever waits for it."""
    offset = role.committed_offset()
    if offset is None:
        return
    role.high_watermark = offset
    machine.learn_committed(offset)
    machine.advance_high_watermark(offset)
    machine.announce_leader()
    answer_parked(machine)
    reconfiguration.committed(machine, role, now)


def _leader_refusal(machine: RaftMachine, cluster_id: str | None, epoch: int) -> ErrorCode | None:
    """The checks of every request that only a leader answers."""
    if machine.wrong_cluster(cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < machine.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > machine.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not isinstance(machine.role, LeaderRole):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return None


def handle_fetch(machine: RaftMachine, token: Hashable, call: rpc.FetchCall, now: int) -> rpc.FetchReply | None:
    """None where the fetch is parked until there is something to tell."""
    error = _leader_refusal(machine, call.cluster_id, call.epoch)
    if error is None and (call.fetch_from.offset < 0 or not 0 <= call.fetch_from.epoch <= call.epoch):
        error = ErrorCode.INVALID_REQUEST
    if error is not None:
        return rpc.FetchReply(machine.reply_header(error))
    role = machine.role
    assert isinstance(role, LeaderRole)
    offset, last_epoch = call.fetch_from
    relation = machine.log.check_fetch(offset, last_epoch)
    if relation is True:
        return _fetch_reply(machine, role, call)._replace(snapshot=machine.log.latest_snapshot)
    if isinstance(relation, OffsetAndEpoch):
        return _fetch_reply(machine, role, call)._replace(diverging=relation)
    _note_fetch(machine, role, call, now)
    if machine.role is not role:  # this fetch committed the leader's own removal
        return rpc.FetchReply(machine.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    if _has_news(machine, role, call) or call.max_wait_ms <= 0 or len(role.parked) >= MAX_PARKED_FETCHES:
        return _fetch_reply(machine, role, call)
    role.parked.append(ParkedFetch(token, call, now + call.max_wait_ms))
    return None


def _note_fetch(machine: RaftMachine, role: LeaderRole, call: rpc.FetchCall, now: int) -> None:
    key = call.replica
    if key.id < 0 or key.id == machine.local.id:
        return
    progress = role.progress_of(key, machine.voters)
    if progress is None:
        return
    progress.fetched(call.fetch_from.offset, machine.log.end_offset, now)
    if machine.voters.is_voter(key):
        if progress.key.directory_id == ZERO_UUID:
            progress.key = key
        role.fetched_from(key, machine.voters.majority, now, machine.config.quorum_timeout_ms)
        advance(machine, role, now)


def _has_news(machine: RaftMachine, role: LeaderRole, call: rpc.FetchCall) -> bool:
    return call.fetch_from.offset < machine.log.end_offset or (
        role.high_watermark is not None and call.high_watermark < role.high_watermark
    )


def _fetch_reply(machine: RaftMachine, role: LeaderRole, call: rpc.FetchCall) -> rpc.FetchReply:
    offset = call.fetch_from.offset
    return rpc.FetchReply(
        machine.reply_header(),
        -1 if role.high_watermark is None else role.high_watermark,
        machine.log.start_offset,
        read_from=offset if machine.log.start_offset <= offset < machine.log.end_offset else None,
        max_bytes=call.max_bytes,
    )


def answer_parked(machine: RaftMachine) -> None:
    """The log grew or the high watermark moved: answer the fetches that waited for that."""
    role = machine.role
    assert isinstance(role, LeaderRole)
    waiting, role.parked = role.parked, []
    for fetch in waiting:
        if _has_news(machine, role, fetch.call):
            machine.emit(fx.SendReply(fetch.token, _fetch_reply(machine, role, fetch.call)))
        else:
            role.parked.append(fetch)


def _expire_parked(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    if not any(fetch.deadline <= now for fetch in role.parked):
        return
    waiting, role.parked = role.parked, []
    for fetch in waiting:
        if fetch.deadline <= now:
            machine.emit(fx.SendReply(fetch.token, _fetch_reply(machine, role, fetch.call)))
        else:
            role.parked.append(fetch)


def refuse_parked(machine: RaftMachine, role: LeaderRole) -> None:
    """This role is over: whoever waits on it must ask the new leader."""
    header = machine.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for fetch in role.parked:
        machine.emit(fx.SendReply(fetch.token, rpc.FetchReply(header)))
    role.parked = []
    if role.change is not None and role.change.token is not None:
        machine.emit(fx.SendReply(role.change.token, rpc.VoterChangeReply(header, "the leader resigned")))
    role.change = None


def handle_snapshot(machine: RaftMachine, call: rpc.SnapshotCall, now: int) -> rpc.SnapshotReply:
    error = _leader_refusal(machine, call.cluster_id, call.epoch)
    if error is None and not machine.log.is_known_snapshot(call.snapshot):
        error = ErrorCode.SNAPSHOT_NOT_FOUND
    if error is None and call.position < 0:
        error = ErrorCode.POSITION_OUT_OF_RANGE
    if error is None:
        role = machine.role
        assert isinstance(role, LeaderRole)
        if machine.voters.is_voter(call.replica):
            role.fetched_from(call.replica, machine.voters.majority, now, machine.config.quorum_timeout_ms)
    return rpc.SnapshotReply(machine.reply_header(error or ErrorCode.NONE), call.snapshot, call.position)


def handle_describe(machine: RaftMachine) -> rpc.DescribeReply:
    role = machine.role
    if not isinstance(role, LeaderRole):
        return rpc.DescribeReply(machine.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    voters = []
    for progress in role.voters.values():
        report = progress.report()
        if progress.key.id == machine.local.id:
            report = report._replace(log_end_offset=machine.log.end_offset, last_fetch_ms=0, last_caught_up_ms=0)
        voters.append(report)
    observers = [progress.report() for progress in role.observers.values()]
    nodes = tuple((voter.key.id, voter.endpoints) for voter in machine.voters.voters)
    high_watermark = -1 if role.high_watermark is None else role.high_watermark
    return rpc.DescribeReply(machine.reply_header(), high_watermark, tuple(voters), tuple(observers), nodes)


# The follower's side.


def drive_follower(machine: RaftMachine, role: Follower, now: int) -> None:
    if role.deadline <= now:
        if machine.is_voter:
            machine.become_prospective(now)
        else:
            machine.become_unattached(role.epoch, now, role.leader_id, role.voted)
        return
    if not machine.outbox.ready(role.leader, now) or machine.installing:
        return
    if role.snapshot is not None:
        config = machine.config
        call = rpc.SnapshotCall(
            config.cluster_id,
            role.epoch,
            machine.local,
            role.snapshot,
            role.snapshot_position,
            config.fetch_snapshot_max_bytes,
        )
        machine.send(role.leader, call, now)
        return
    if machine.config.can_be_voter and machine.log.flushed_offset < machine.log.end_offset:
        return
    if machine.high_watermark == machine.log.end_offset:
        # Not sooner: the next fetch may be what a new leader's first commit waits for.
        change = reconfiguration.own_change(machine, role, now)
        if change is not None:
            machine.send(role.leader, change, now)
            return
    machine.send(role.leader, elections.fetch_call(machine), now, machine.config.fetch_max_wait_ms)


def on_fetch_reply(machine: RaftMachine, reply: rpc.FetchReply, call: rpc.FetchCall, now: int) -> bool:
    role = machine.role
    if not isinstance(role, Follower):
        return True  # it told us where the leader is, or that nobody knows
    role.deadline = now + machine.config.fetch_timeout_ms
    role.has_fetched = True
    machine.learn_committed(reply.high_watermark)
    if call.fetch_from != machine.log.end:
        return True  # a second fetch, to another address of the leader, was answered before: our log is another now
    if reply.diverging is not None:
        _truncate(machine, reply.diverging)
        return True
    if reply.snapshot is not None:
        if reply.snapshot.offset < machine.high_watermark or reply.snapshot.epoch < 0:
            return False  # it would undo what is committed
        role.snapshot, role.snapshot_position = reply.snapshot, 0
        return True
    if not _append_fetched(machine, role, reply):
        return False
    machine.advance_high_watermark(min(reply.high_watermark, machine.log.end_offset))
    return True


def _truncate(machine: RaftMachine, diverging: OffsetAndEpoch) -> None:
    offset = machine.log.truncation_point(diverging)
    assert offset >= machine.high_watermark, f"truncating to {offset} would undo what is committed"
    if offset < machine.log.end_offset:
        machine.flush_generation += 1
        machine.log.truncate_to(offset)
        machine.history.truncate_to(offset)
        machine.emit(fx.TruncateLog(offset))


def _append_fetched(machine: RaftMachine, role: Follower, reply: rpc.FetchReply) -> bool:
    """Append what continues our log; False where something in it does not fit, which is not appended."""
    first = machine.log.end_offset
    fits = True
    controls: list[rpc.Control] = []
    for batch in reply.batches:
        count = batch.last_offset - batch.base_offset + 1
        if (
            batch.base_offset != machine.log.end_offset
            or count <= 0
            or not (machine.log.last_epoch <= batch.epoch <= role.epoch)
        ):
            fits = False
            break
        machine.log.append(batch.epoch, count)
        controls += batch.controls
    if machine.log.end_offset > first:
        machine.emit(fx.AppendFetched(first, machine.log.end_offset, reply.records))
        for control in controls:
            machine.learn_control(control.offset, control.record)
        if machine.config.can_be_voter:
            machine.flush()
        else:
            machine.log.flushed_offset = machine.log.end_offset
    return fits


def on_snapshot_reply(machine: RaftMachine, reply: rpc.SnapshotReply, call: rpc.SnapshotCall, now: int) -> bool:
    role = machine.role
    if not isinstance(role, Follower) or role.snapshot != call.snapshot:
        return True
    data = reply.data
    size = len(data) if isinstance(data, bytes | bytearray | memoryview) else 0
    if (
        reply.snapshot != call.snapshot
        or reply.position != role.snapshot_position
        or (size == 0 and role.snapshot_position < reply.size)
    ):
        role.snapshot, role.snapshot_position = None, 0  # start over with a fetch
        return False
    role.deadline = now + machine.config.fetch_timeout_ms
    role.has_fetched = True
    machine.emit(fx.SaveSnapshotChunk(call.snapshot, role.snapshot_position, data))
    role.snapshot_position += size
    if role.snapshot_position >= reply.size:
        # Whoever leads meanwhile: what was fetched and acknowledged now would be lost when the log begins anew.
        machine.installing = True
        machine.emit(fx.InstallSnapshot(call.snapshot))
    return True


def on_snapshot_refused(machine: RaftMachine, error: ErrorCode) -> None:
    """Where the leader has dropped that snapshot, a fetch tells of the one to load instead."""
    role = machine.role
    if isinstance(role, Follower) and error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
        role.snapshot, role.snapshot_position = None, 0


def on_snapshot_installed(
    machine: RaftMachine, snapshot: OffsetAndEpoch, controls: tuple[rpc.Control, ...], now: int
) -> None:
    """The log is the snapshot now, and goes on from there, whoever leads by this time."""
    machine.installing = False
    machine.flush_generation += 1
    machine.log.restart_at(snapshot)
    machine.history.reset()
    for control in controls:
        if isinstance(control.record, VotersRecord | KRaftVersionRecord):
            machine.learn_control(snapshot.offset - 1, control.record)
    machine.advance_high_watermark(snapshot.offset)
    role = machine.role
    if isinstance(role, Follower):
        role.snapshot, role.snapshot_position = None, 0
        role.deadline = now + machine.config.fetch_timeout_ms
    elif isinstance(role, Prospective | Candidate):
        # It stands among the voters of before. Their votes for what its log is now may be no majority any more.
        machine.become_unattached(role.epoch, now, role.leader_id, role.voted)


def on_snapshot_damaged(machine: RaftMachine, snapshot: OffsetAndEpoch, now: int) -> None:
    """Fetch again: what it is then is for the leader to say. Not at once, since it may be the leader's disk that has it
    so, and that many bytes for nothing would be asked for again and again."""
    machine.installing = False
    role = machine.role
    if isinstance(role, Follower) and role.snapshot == snapshot:
        role.snapshot, role.snapshot_position = None, 0
        role.deadline = now + machine.config.fetch_timeout_ms
        machine.outbox.back_off(role.leader, now, machine.config.fetch_timeout_ms // 2)
