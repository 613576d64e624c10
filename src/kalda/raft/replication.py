"""Replication by Fetch, on both sides: the leader's log, high watermark and check-quorum; the follower's log.

A follower that is a voter, or may become one, fetches again only once it has flushed what it received: its fetch offset
is the end of what it holds durably, and counts as soon as it is a voter. Where the logs differ, the leader replies
with the largest offset and epoch up to which they may agree, and the follower truncates. Where the leader no longer has
the records that a follower lacks, the follower fetches a snapshot first (`snapshot_transfer`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import assert_never

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.raft import elections, reconfiguration, rpc, snapshot_transfer
from kalda.raft import events as fx
from kalda.raft.log_state import Diverging, SnapshotRequired, Valid
from kalda.raft.replica import Replica
from kalda.raft.roles import Follower, LeaderRole, ParkedFetch
from kalda.raft.voters import MAX_OFFSET, OffsetAndEpoch

MAX_PARKED_FETCHES = 10_000


# The leader's side.


def append(replica: Replica, epoch: int, count: int, payload: object) -> None:
    """Append one batch of the state machine's."""
    assert isinstance(replica.role, LeaderRole), "only a leader appends"
    assert replica.role.epoch == epoch, "a leader appends in its own epoch"
    first = replica.log.append(epoch, count)
    replica.emit(fx.AppendPayload(first, epoch, payload))
    replica.flush()
    _answer_parked(replica)


def on_flushed(replica: Replica, offset: int, generation: int, now: int) -> None:
    """The leader's own flush counts as its fetch, where it is a voter."""
    if generation != replica.flush_generation:
        return  # the log was truncated since
    log, role = replica.log, replica.role
    log.flushed_offset = max(log.flushed_offset, min(offset, log.end_offset))
    if isinstance(role, LeaderRole):
        own = role.voters.get(replica.local.id)
        if own is not None:
            own.on_fetch(log.flushed_offset, log.end_offset, now)
            _advance(replica, role, now)


def drive_leader(replica: Replica, role: LeaderRole, now: int) -> None:
    if not role.is_only_voter and role.check_quorum_deadline <= now:
        replica.become_resigned(now)
        return
    _expire_parked(replica, role, now)
    role.expire_observers(now)
    reconfiguration.drive_change(replica, role, now)
    if not role.is_only_voter:
        elections.send_begin_epoch(replica, role, now)


def leader_deadline(role: LeaderRole) -> int | None:
    times = [fetch.deadline for fetch in role.parked_fetches]
    if role.pending_change is not None and role.pending_change.token is not None:
        times.append(role.pending_change.deadline)
    if not role.is_only_voter:
        times += [role.check_quorum_deadline, role.next_begin_epoch]
    return min(times, default=None)


def _advance(replica: Replica, role: LeaderRole, now: int) -> None:
    """Commit what a majority has, and answer the fetches that waited for it. May end the role."""
    offset = role.committed_offset()
    if offset is None:
        return
    role.high_watermark = offset
    replica.raise_leader_high_watermark(offset)
    replica.advance_high_watermark(offset)
    replica.announce_leader()
    _answer_parked(replica)
    reconfiguration.on_commit(replica, role, now)


def handle_fetch(replica: Replica, token: Hashable, call: rpc.FetchCall, now: int) -> rpc.FetchReply | None:
    """None where the fetch is parked until there are records or a new high watermark for it."""
    is_valid = call.fetch_from.offset >= 0 and 0 <= call.fetch_from.epoch <= call.epoch
    error = replica.leader_refusal(call.cluster_id, call.epoch)
    if not is_valid and error is not ErrorCode.INCONSISTENT_CLUSTER_ID:
        error = ErrorCode.INVALID_REQUEST  # whoever leads, as in Kafka
    if error is not None:
        return rpc.FetchReply(replica.reply_header(error))
    role = replica.role
    assert isinstance(role, LeaderRole)
    match replica.log.validate_fetch(call.fetch_from):
        case SnapshotRequired(snapshot):
            return _fetch_reply(replica, role, call)._replace(snapshot=snapshot)
        case Diverging(end):
            return _fetch_reply(replica, role, call)._replace(diverging=end)
        case Valid():
            pass
        case other:
            assert_never(other)
    _record_fetch(replica, role, call, now)
    if replica.role is not role:  # this fetch has committed the leader's removal of itself
        return rpc.FetchReply(replica.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    if _has_news(replica, role, call) or call.max_wait_ms <= 0 or len(role.parked_fetches) >= MAX_PARKED_FETCHES:
        return _fetch_reply(replica, role, call)
    role.parked_fetches.append(ParkedFetch(token, call, now + call.max_wait_ms))
    return None


def _record_fetch(replica: Replica, role: LeaderRole, call: rpc.FetchCall, now: int) -> None:
    key = call.replica
    if key.id < 0 or key.id == replica.local.id:
        return
    progress = role.progress_of(key, replica.voters)
    if progress is None:
        return
    progress.on_fetch(call.fetch_from.offset, replica.log.end_offset, now)
    if replica.voters.is_voter(key):
        if progress.key.directory_id == ZERO_UUID:
            progress.key = key
        role.on_voter_fetch(key, replica.voters.majority, now, replica.config.check_quorum_timeout_ms)
        _advance(replica, role, now)


def _has_news(replica: Replica, role: LeaderRole, call: rpc.FetchCall) -> bool:
    return call.fetch_from.offset < replica.log.end_offset or (
        role.high_watermark is not None and call.high_watermark < role.high_watermark
    )


def _fetch_reply(replica: Replica, role: LeaderRole, call: rpc.FetchCall) -> rpc.FetchReply:
    offset = call.fetch_from.offset
    return rpc.FetchReply(
        replica.reply_header(),
        -1 if role.high_watermark is None else role.high_watermark,
        replica.log.start_offset,
        read_from=offset if replica.log.start_offset <= offset < replica.log.end_offset else None,
        max_bytes=call.max_bytes,
    )


def _answer_parked(replica: Replica) -> None:
    """The log has grown, or the high watermark has advanced."""
    role = replica.role
    assert isinstance(role, LeaderRole)
    parked, role.parked_fetches = role.parked_fetches, []
    for fetch in parked:
        if _has_news(replica, role, fetch.call):
            replica.emit(fx.SendReply(fetch.token, _fetch_reply(replica, role, fetch.call)))
        else:
            role.parked_fetches.append(fetch)


def _expire_parked(replica: Replica, role: LeaderRole, now: int) -> None:
    if not any(fetch.deadline <= now for fetch in role.parked_fetches):
        return
    parked, role.parked_fetches = role.parked_fetches, []
    for fetch in parked:
        if fetch.deadline <= now:
            replica.emit(fx.SendReply(fetch.token, _fetch_reply(replica, role, fetch.call)))
        else:
            role.parked_fetches.append(fetch)


def handle_describe(replica: Replica) -> rpc.DescribeReply:
    role = replica.role
    if not isinstance(role, LeaderRole):
        return rpc.DescribeReply(replica.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    voters = []
    for progress in role.voters.values():
        report = progress.report()
        if progress.key.id == replica.local.id:
            report = report._replace(log_end_offset=replica.log.end_offset, last_fetch_ms=0, last_caught_up_ms=0)
        voter = replica.voters.get(progress.key.id)
        if voter is not None:
            # The voters of a static quorum have no directory ids, though fetches may have shown them.
            report = report._replace(key=voter.key)
        voters.append(report)
    observers = [progress.report() for progress in role.observers.values()]
    nodes = tuple((voter.key.id, voter.endpoints) for voter in replica.voters.voters)
    high_watermark = -1 if role.high_watermark is None else role.high_watermark
    return rpc.DescribeReply(replica.reply_header(), high_watermark, tuple(voters), tuple(observers), nodes)


# The follower's side.


def drive_follower(replica: Replica, role: Follower, now: int) -> None:
    """Send the leader the next call: a fetch of the snapshot or of the log, or a change of the voters."""
    if role.deadline <= now:
        if replica.is_voter:
            replica.become_prospective(now)
        else:
            replica.become_unattached(role.epoch, now, role.leader_id, role.voted)
        return
    if not replica.outbox.ready(role.leader, now) or replica.is_installing_snapshot:
        return
    if role.snapshot is not None:
        snapshot_transfer.send_fetch_snapshot(replica, role, role.snapshot, now)
        return
    if replica.config.can_be_voter and replica.log.flushed_offset < replica.log.end_offset:
        return
    if replica.high_watermark == replica.log.end_offset:
        # Not before: the first commit of a new leader may depend on this replica's next fetch.
        change = reconfiguration.own_voter_change(replica, role, now)
        if change is not None:
            replica.send(role.leader, change, now)
            return
    replica.send_fetch(role.leader, now)


def on_fetch_reply(replica: Replica, reply: rpc.FetchReply, call: rpc.FetchCall, now: int) -> bool:
    """Whether the reply could be used; otherwise the next fetch waits for the back-off."""
    role = replica.role
    if not isinstance(role, Follower):
        return True  # it was sent to find the leader, and the header has named it or not
    role.deadline = now + replica.config.fetch_timeout_ms
    role.has_fetched = True
    replica.raise_leader_high_watermark(reply.high_watermark)
    if call.fetch_from != replica.log.end:
        # Another fetch, sent to the leader's other address, was answered first and has changed the log.
        return True
    if reply.diverging is not None:
        return _truncate(replica, reply.diverging)
    if reply.snapshot is not None:
        if not (
            replica.high_watermark <= reply.snapshot.offset <= MAX_OFFSET and 0 <= reply.snapshot.epoch <= role.epoch
        ):
            return False  # installing it would undo what is committed, or leave the log no room
        role.snapshot, role.snapshot_position = reply.snapshot, 0
        return True
    if not _append_fetched(replica, role, reply):
        return False
    replica.advance_high_watermark(min(reply.high_watermark, replica.log.end_offset))
    return True


def _truncate(replica: Replica, diverging: OffsetAndEpoch) -> bool:
    """Whether there was something to cut off; otherwise the next reply may be the same."""
    offset = replica.log.truncation_point(diverging)
    assert offset >= replica.high_watermark, f"truncating to {offset} would undo what is committed"
    if offset >= replica.log.end_offset:
        return False
    replica.flush_generation += 1
    replica.log.truncate_to(offset)
    replica.history.truncate_to(offset)
    replica.emit(fx.TruncateLog(offset))
    return True


def _append_fetched(replica: Replica, role: Follower, reply: rpc.FetchReply) -> bool:
    """Append the batches that continue the log, up to the first that does not. False where there is such a one, or
    where the first one is damaged."""
    first = replica.log.end_offset
    all_fit = bool(reply.batches) or not reply.records
    controls: list[rpc.Control] = []
    for batch in reply.batches:
        count = batch.last_offset - batch.base_offset + 1
        if (
            batch.base_offset != replica.log.end_offset
            or count <= 0
            or not (replica.log.last_epoch <= batch.epoch <= role.epoch)
        ):
            all_fit = False
            break
        replica.log.append(batch.epoch, count)
        controls += batch.controls
    if replica.log.end_offset > first:
        replica.emit(fx.AppendFetched(first, replica.log.end_offset, reply.records))
        for control in controls:
            replica.apply_control(control.offset, control.record)
        if replica.config.can_be_voter:
            replica.flush()
        else:
            replica.log.flushed_offset = replica.log.end_offset
    return all_fit
