"""Changing the voters while the quorum works (KIP-853): AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter.

One change at a time, and only once the leader has committed a record of its epoch: then any two voter sets in force
share a majority. A change is in force as soon as its record is in the leader's log, and is answered when the record is
committed. A leader that has removed itself leads until then, without counting itself, and then resigns.

The voters of a static quorum (kraft.version 0) report their directory ids, endpoints and supported kraft.versions to
each new leader by UpdateRaftVoter; the leader holds them in memory. `controller.quorum.voters` has no directory ids,
and the first VotersRecord, which is written when kraft.version is raised to 1, must have all of them.

A replica that is to be added must have fetched lately and be caught up. Its fetches name its directory id, which shows
that its software has dynamic quorums: no ApiVersions request is sent to it.
"""

from __future__ import annotations

from collections.abc import Hashable

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.protocol.messages.log_records import KRaftVersionRecord
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.replica import Replica
from kalda.raft.roles import Follower, LeaderRole, VoterChange
from kalda.raft.voters import Voter, VoterSet

CAUGHT_UP_WITHIN_MS = 3_600_000


# The leader's side.


def handle_voter_change(replica: Replica, token: object, call: rpc.Call, now: int) -> rpc.VoterChangeReply | None:
    """None where the reply waits for the commit."""
    assert isinstance(call, rpc.AddVoterCall | rpc.RemoveVoterCall | rpc.UpdateVoterCall)
    role = replica.role
    if replica.is_wrong_cluster(call.cluster_id):
        return _refused(replica, ErrorCode.INCONSISTENT_CLUSTER_ID, "the request is for another cluster")
    if not isinstance(role, LeaderRole):
        return _refused(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the quorum")
    if call.voter.id < 0:
        return _refused(replica, ErrorCode.INVALID_REQUEST, f"{call.voter.id} is no voter's id")
    if not replica.history.dynamic:
        if isinstance(call, rpc.UpdateVoterCall):
            return _record_report(replica, role, call)
        return _refused(
            replica,
            ErrorCode.UNSUPPORTED_VERSION,
            f"the voters of a quorum with kraft.version {replica.history.kraft_version} are fixed",
        )
    if not role.has_committed_in_epoch:
        return _refused(replica, ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed in its epoch yet")
    if role.pending_change is not None or _is_voter_set_uncommitted(replica, role):
        return _refused(replica, ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way")
    match call:
        case rpc.AddVoterCall():
            return _add(replica, role, token, call, now)
        case rpc.RemoveVoterCall():
            return _remove(replica, role, token, call, now)
        case rpc.UpdateVoterCall():
            return _update(replica, role, token, call, now)


def _refused(replica: Replica, error: ErrorCode, message: str) -> rpc.VoterChangeReply:
    return rpc.VoterChangeReply(replica.reply_header(error), message)


def _is_voter_set_uncommitted(replica: Replica, role: LeaderRole) -> bool:
    offset = replica.history.voters_offset
    return offset is not None and role.high_watermark is not None and offset >= role.high_watermark


def _add(
    replica: Replica, role: LeaderRole, token: object, call: rpc.AddVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    if call.voter.directory_id == ZERO_UUID:
        return _refused(replica, ErrorCode.INVALID_REQUEST, f"voter {call.voter.id} needs a directory id")
    if not any(endpoint.name == replica.config.listener for endpoint in call.endpoints):
        return _refused(
            replica,
            ErrorCode.INVALID_REQUEST,
            f"voter {call.voter.id} has no endpoint for the listener {replica.config.listener}",
        )
    if replica.voters.get(call.voter.id) is not None:
        return _refused(replica, ErrorCode.DUPLICATE_VOTER, f"{call.voter.id} is a voter already")
    progress = role.observers.get(call.voter)
    if progress is None or progress.last_caught_up_ms < 0 or progress.last_fetch_ms < now - CAUGHT_UP_WITHIN_MS:
        return _refused(replica, ErrorCode.REQUEST_TIMED_OUT, f"voter {call.voter} has not caught up with the leader")
    voter = Voter(call.voter, call.endpoints, 0, replica.config.max_kraft_version)
    waits = call.ack_when_committed
    _change(replica, role, replica.voters.with_voter(voter), token if waits else None, now, call.timeout_ms)
    return None if waits else rpc.VoterChangeReply(replica.reply_header())


def _remove(
    replica: Replica, role: LeaderRole, token: object, call: rpc.RemoveVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    current_voter = replica.voters.get(call.voter.id)
    if current_voter is None or current_voter.key.directory_id != call.voter.directory_id:
        return _refused(replica, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    if len(replica.voters) == 1:
        return _refused(replica, ErrorCode.INVALID_REQUEST, f"{call.voter.id} is the only voter")
    _change(replica, role, replica.voters.without(call.voter.id), token, now, replica.config.request_timeout_ms)
    return None


def _update(
    replica: Replica, role: LeaderRole, token: object, call: rpc.UpdateVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    refusal = _epoch_refusal(replica, role, call)
    if refusal is not None:
        return refusal
    current_voter = replica.voters.get(call.voter.id)
    if current_voter is None or not replica.voters.is_voter(call.voter):
        return _refused(replica, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    refusal = _details_refusal(replica, call)
    if refusal is not None:
        return refusal
    voter = Voter(call.voter, call.endpoints, call.min_kraft_version, call.max_kraft_version)
    if voter == current_voter:
        return rpc.VoterChangeReply(replica.reply_header())
    _change(replica, role, replica.voters.with_voter(voter), token, now, replica.config.request_timeout_ms)
    return None


def _epoch_refusal(replica: Replica, role: LeaderRole, call: rpc.UpdateVoterCall) -> rpc.VoterChangeReply | None:
    if call.epoch == role.epoch:
        return None
    error = ErrorCode.FENCED_LEADER_EPOCH if call.epoch < role.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    return _refused(replica, error, f"the epoch is {role.epoch}")


def _details_refusal(replica: Replica, call: rpc.UpdateVoterCall) -> rpc.VoterChangeReply | None:
    if not any(endpoint.name == replica.config.listener for endpoint in call.endpoints):
        return _refused(replica, ErrorCode.INVALID_REQUEST, f"no endpoint for the listener {replica.config.listener}")
    if not call.min_kraft_version <= replica.history.kraft_version <= call.max_kraft_version:
        return _refused(replica, ErrorCode.INVALID_REQUEST, "the kraft.version in use is not supported by the voter")
    return None


def _record_report(replica: Replica, role: LeaderRole, call: rpc.UpdateVoterCall) -> rpc.VoterChangeReply:
    """UpdateRaftVoter in a static quorum, whose voters are identified by their ids alone."""
    refusal = _epoch_refusal(replica, role, call)
    if refusal is not None:
        return refusal
    if role.reported_voters is None or role.reported_voters.get(call.voter.id) is None:
        return _refused(replica, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    refusal = _details_refusal(replica, call)
    if refusal is not None:
        return refusal
    voter = Voter(call.voter, call.endpoints, call.min_kraft_version, call.max_kraft_version)
    role.reported_voters = role.reported_voters.with_voter(voter)
    return rpc.VoterChangeReply(replica.reply_header())


def _change(
    replica: Replica, role: LeaderRole, voters: VoterSet, token: object | None, now: int, timeout_ms: int
) -> None:
    if role.is_only_voter:
        # Until now check-quorum had no other voter to wait for.
        role.check_quorum_deadline = now + replica.config.check_quorum_timeout_ms
    offset = replica.append_controls(voters.to_record())
    assert token is None or isinstance(token, Hashable)
    role.pending_change = VoterChange(offset, token, now + timeout_ms)


def on_commit(replica: Replica, role: LeaderRole, now: int) -> None:
    """The high watermark has advanced: a pending change may be committed, and with it the leader's own removal."""
    change = role.pending_change
    if change is not None and role.high_watermark is not None and role.high_watermark > change.offset:
        role.pending_change = None
        if change.token is not None:
            replica.emit(fx.SendReply(change.token, rpc.VoterChangeReply(replica.reply_header())))
        if not replica.voters.is_voter(replica.local):
            replica.become_resigned(now)


def drive_change(replica: Replica, role: LeaderRole, now: int) -> None:
    """Answer a change that was not committed in time. Its record stays in the log and may still be committed."""
    change = role.pending_change
    if change is not None and change.token is not None and change.deadline <= now:
        role.pending_change = change._replace(token=None)
        replica.emit(
            fx.SendReply(change.token, _refused(replica, ErrorCode.REQUEST_TIMED_OUT, "not committed in time"))
        )


# kraft.version.


def upgrade_refusal(replica: Replica, version: int) -> str | None:
    """Why this leader cannot finalize kraft.version `version`. None also where that version is finalized already."""
    role, current = replica.role, replica.history.kraft_version
    assert isinstance(role, LeaderRole)
    if version < current:
        return f"kraft.version {current} is finalized, and is not lowered"
    if version == current:
        return None
    if role.reported_voters is None or not role.has_committed_in_epoch:
        return "the leader has not committed in its epoch yet"
    for voter in role.reported_voters.voters:
        if voter.key.directory_id == ZERO_UUID:
            return f"voter {voter.key.id} has not reported its directory id yet"
        if not voter.min_kraft_version <= version <= voter.max_kraft_version:
            return f"voter {voter.key.id} does not support it"
    return None


def upgrade(replica: Replica, role: LeaderRole, version: int) -> None:
    """Write the version and the first VotersRecord in one batch: no replica may have one without the other."""
    if version > replica.history.kraft_version and role.reported_voters is not None:
        voters, role.reported_voters = role.reported_voters, None
        replica.append_controls(KRaftVersionRecord(kraft_version=version), voters.to_record())


# The follower's side.


def own_voter_change(replica: Replica, role: Follower, now: int) -> rpc.Call | None:
    """The change of the voters that this replica sends its leader. A voter updates its endpoints and versions where the
    voter set, or the leader of a static quorum, does not have them. An observer adds itself, where
    `controller.quorum.auto.join.enable` is set."""
    config = replica.config
    if not config.can_be_voter or role.next_voter_change > now:
        return None
    current_voter = replica.voters.get(replica.local.id)
    call: rpc.Call | None = None
    if not replica.history.dynamic:
        # After the first fetch, which the leader's majority may depend on.
        if replica.is_voter and role.has_fetched and not role.has_updated_leader and config.endpoints:
            call = _update_of_own(replica, role)
    elif replica.is_voter:
        if current_voter != Voter(replica.local, config.endpoints, 0, config.max_kraft_version) and config.endpoints:
            call = _update_of_own(replica, role)
    elif config.auto_join and role.has_fetched:
        if current_voter is not None:
            # A voter of this id with another directory: what this node was before it lost its disk.
            call = rpc.RemoveVoterCall(config.cluster_id, current_voter.key)
        else:
            call = rpc.AddVoterCall(
                config.cluster_id, replica.local, config.endpoints, config.request_timeout_ms, ack_when_committed=False
            )
    if call is not None:
        role.next_voter_change = now + config.fetch_timeout_ms
    return call


def _update_of_own(replica: Replica, role: Follower) -> rpc.UpdateVoterCall:
    config = replica.config
    return rpc.UpdateVoterCall(
        config.cluster_id, role.epoch, replica.local, config.endpoints, 0, config.max_kraft_version
    )


def on_voter_change_reply(replica: Replica, call: rpc.Call) -> None:
    """The leader has accepted this replica's change."""
    if isinstance(call, rpc.UpdateVoterCall) and isinstance(replica.role, Follower):
        replica.role.has_updated_leader = True
