"""Changing the voters while the quorum works (KIP-853): AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter.

One change at a time, and only once the leader has committed something in its epoch: then any two voter sets in force
share a majority. A change counts from when its record is in the leader's log, and is answered when that is committed.
A leader that removed itself leads until then, without counting itself, and resigns after.

The voters of a static quorum (kraft.version 0) tell each new leader of themselves by UpdateRaftVoter, which keeps it in
memory: their directories are in no configuration, and the first VotersRecord, with which kraft.version is raised to 1,
must have all of them.

A voter that is to be added must have fetched lately and be caught up; that it names its directory when it fetches
shows that its software knows dynamic quorums, so it is not asked for its versions once more.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.protocol.messages.control_records import KRaftVersionRecord
from kalda.raft import effects as fx
from kalda.raft import rpc
from kalda.raft.leader import LeaderRole, VoterChange
from kalda.raft.roles import Follower
from kalda.raft.values import ReplicaKey
from kalda.raft.voters import Voter, VoterSet

if TYPE_CHECKING:
    from kalda.raft.machine import RaftMachine

CAUGHT_UP_WITHIN_MS = 3_600_000


def _refused(machine: RaftMachine, error: ErrorCode, message: str) -> rpc.VoterChangeReply:
    return rpc.VoterChangeReply(machine.reply_header(error), message)


def handle_voter_change(machine: RaftMachine, token: object, call: rpc.Call, now: int) -> rpc.VoterChangeReply | None:
    """None where the answer waits for the commit."""
    assert isinstance(call, rpc.AddVoterCall | rpc.RemoveVoterCall | rpc.UpdateVoterCall)
    role = machine.role
    if machine.wrong_cluster(call.cluster_id):
        return _refused(machine, ErrorCode.INCONSISTENT_CLUSTER_ID, "the request is for another cluster")
    if not isinstance(role, LeaderRole):
        return _refused(machine, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the quorum")
    if call.voter.id < 0:
        return _refused(machine, ErrorCode.INVALID_REQUEST, f"{call.voter.id} is no voter's id")
    if not machine.history.dynamic:
        if isinstance(call, rpc.UpdateVoterCall):
            return _told(machine, role, call)
        return _refused(
            machine,
            ErrorCode.UNSUPPORTED_VERSION,
            f"the voters of a quorum with kraft.version {machine.history.kraft_version} are fixed",
        )
    if not role.established:
        return _refused(machine, ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed in its epoch yet")
    if role.change is not None or _voters_uncommitted(machine, role):
        return _refused(machine, ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way")
    match call:
        case rpc.AddVoterCall():
            return _add(machine, role, token, call, now)
        case rpc.RemoveVoterCall():
            return _remove(machine, role, token, call, now)
        case rpc.UpdateVoterCall():
            return _update(machine, role, token, call, now)


def _voters_uncommitted(machine: RaftMachine, role: LeaderRole) -> bool:
    offset = machine.history.voters_offset
    return offset is not None and role.high_watermark is not None and offset >= role.high_watermark


def _add(
    machine: RaftMachine, role: LeaderRole, token: object, call: rpc.AddVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    if call.voter.directory_id == ZERO_UUID:
        return _refused(machine, ErrorCode.INVALID_REQUEST, f"voter {call.voter.id} needs a directory id")
    if not any(endpoint.name == machine.config.listener for endpoint in call.endpoints):
        return _refused(
            machine,
            ErrorCode.INVALID_REQUEST,
            f"voter {call.voter.id} has no endpoint for the listener {machine.config.listener}",
        )
    if machine.voters.get(call.voter.id) is not None:
        return _refused(machine, ErrorCode.DUPLICATE_VOTER, f"{call.voter.id} is a voter already")
    progress = role.observers.get(call.voter)
    if progress is None or progress.caught_up_ms < 0 or progress.fetched_ms < now - CAUGHT_UP_WITHIN_MS:
        return _refused(machine, ErrorCode.REQUEST_TIMED_OUT, f"voter {call.voter} has not caught up with the leader")
    voter = Voter(call.voter, call.endpoints, 0, machine.config.max_kraft_version)
    wait = call.ack_when_committed
    _change(machine, role, machine.voters.with_voter(voter), token if wait else None, now, call.timeout_ms)
    return None if wait else rpc.VoterChangeReply(machine.reply_header())


def _remove(
    machine: RaftMachine, role: LeaderRole, token: object, call: rpc.RemoveVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    known = machine.voters.get(call.voter.id)
    if known is None or known.key.directory_id != call.voter.directory_id:
        return _refused(machine, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    if len(machine.voters) == 1:
        return _refused(machine, ErrorCode.INVALID_REQUEST, f"{call.voter.id} is the only voter")
    _change(machine, role, machine.voters.without(call.voter.id), token, now, machine.config.request_timeout_ms)
    return None


def _update(
    machine: RaftMachine, role: LeaderRole, token: object, call: rpc.UpdateVoterCall, now: int
) -> rpc.VoterChangeReply | None:
    if call.epoch != role.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH if call.epoch < role.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return _refused(machine, error, f"the epoch is {role.epoch}")
    known = machine.voters.get(call.voter.id)
    if known is None or not machine.voters.is_voter(call.voter):
        return _refused(machine, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    refusal = _unfit(machine, call)
    if refusal is not None:
        return refusal
    voter = Voter(call.voter, call.endpoints, call.min_kraft_version, call.max_kraft_version)
    if voter == known:
        return rpc.VoterChangeReply(machine.reply_header())
    _change(machine, role, machine.voters.with_voter(voter), token, now, machine.config.request_timeout_ms)
    return None


def _unfit(machine: RaftMachine, call: rpc.UpdateVoterCall) -> rpc.VoterChangeReply | None:
    if not any(endpoint.name == machine.config.listener for endpoint in call.endpoints):
        return _refused(machine, ErrorCode.INVALID_REQUEST, f"no endpoint for the listener {machine.config.listener}")
    if not call.min_kraft_version <= machine.history.kraft_version <= call.max_kraft_version:
        return _refused(machine, ErrorCode.INVALID_REQUEST, "the kraft.version in use is not supported by the voter")
    return None


def _told(machine: RaftMachine, role: LeaderRole, call: rpc.UpdateVoterCall) -> rpc.VoterChangeReply:
    """A static voter tells of itself. It is known by its id alone."""
    if call.epoch != role.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH if call.epoch < role.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return _refused(machine, error, f"the epoch is {role.epoch}")
    if role.told is None or role.told.get(call.voter.id) is None:
        return _refused(machine, ErrorCode.VOTER_NOT_FOUND, f"{call.voter} is not a voter")
    refusal = _unfit(machine, call)
    if refusal is not None:
        return refusal
    role.told = role.told.with_voter(Voter(call.voter, call.endpoints, call.min_kraft_version, call.max_kraft_version))
    return rpc.VoterChangeReply(machine.reply_header())


def told_by_itself(machine: RaftMachine) -> VoterSet:
    """What a leader of a static quorum knows in the beginning: its configuration, and itself."""
    config = machine.config
    return machine.voters.with_voter(Voter(machine.local, config.endpoints, 0, config.max_kraft_version))


def upgrade_refusal(machine: RaftMachine, version: int) -> str | None:
    """Why this leader cannot finalize kraft.version `version`. Where it is finalized already, nothing is in the way."""
    role, current = machine.role, machine.history.kraft_version
    assert isinstance(role, LeaderRole)
    if version < current:
        return f"kraft.version {current} is finalized, and is not lowered"
    if version == current:
        return None
    if role.told is None or not role.established:
        return "the leader has not committed in its epoch yet"
    for voter in role.told.voters:
        if voter.key.directory_id == ZERO_UUID:
            return f"voter {voter.key.id} has not told its directory yet"
        if not voter.min_kraft_version <= version <= voter.max_kraft_version:
            return f"voter {voter.key.id} does not support it"
    return None


def upgrade(machine: RaftMachine, role: LeaderRole, version: int) -> None:
    """Write the version and the first VotersRecord, in one batch: no replica may have one without the other."""
    if version > machine.history.kraft_version and role.told is not None:
        voters, role.told = role.told, None
        machine.append_controls(KRaftVersionRecord(kraft_version=version), voters.to_record())


def _change(
    machine: RaftMachine, role: LeaderRole, voters: VoterSet, token: object | None, now: int, timeout_ms: int
) -> None:
    if role.alone:
        # Nobody had to be heard of until now.
        role.quorum_deadline = now + machine.config.quorum_timeout_ms
    offset = machine.append_controls(voters.to_record())
    assert token is None or isinstance(token, Hashable)
    role.change = VoterChange(offset, token, now + timeout_ms)


def committed(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    """The high watermark moved: a change may be complete, and with it this leader's time."""
    change = role.change
    if change is not None and role.high_watermark is not None and role.high_watermark > change.offset:
        role.change = None
        if change.token is not None:
            machine.emit(fx.SendReply(change.token, rpc.VoterChangeReply(machine.reply_header())))
        if not machine.voters.is_voter(machine.local):
            machine.become_resigned(now)


def drive_change(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    """Answer a change that took too long. It stays in the log, and may be committed yet."""
    change = role.change
    if change is not None and change.token is not None and change.deadline <= now:
        role.change = change._replace(token=None)
        machine.emit(
            fx.SendReply(change.token, _refused(machine, ErrorCode.REQUEST_TIMED_OUT, "not committed in time"))
        )


def own_change(machine: RaftMachine, role: Follower, now: int) -> rpc.Call | None:
    """What this replica itself wants changed: its endpoints, where the voter set has old ones; and its being a voter,
    where it is to join by itself (`controller.quorum.auto.join.enable`)."""
    config = machine.config
    if not config.can_be_voter or role.update_voter_at > now:
        return None
    known = machine.voters.get(machine.local.id)
    call: rpc.Call | None = None
    if not machine.history.dynamic:
        # Once it has fetched, lest the leader wait for its majority.
        if machine.is_voter and role.has_fetched and not role.has_told and config.endpoints:
            call = rpc.UpdateVoterCall(
                config.cluster_id, role.epoch, machine.local, config.endpoints, 0, config.max_kraft_version
            )
    elif machine.is_voter:
        wanted = Voter(machine.local, config.endpoints, 0, config.max_kraft_version)
        if known != wanted and config.endpoints:
            call = rpc.UpdateVoterCall(
                config.cluster_id, role.epoch, machine.local, config.endpoints, 0, config.max_kraft_version
            )
    elif config.auto_join and role.has_fetched:
        if known is not None:
            call = rpc.RemoveVoterCall(config.cluster_id, ReplicaKey(known.key.id, known.key.directory_id))
        else:
            call = rpc.AddVoterCall(
                config.cluster_id, machine.local, config.endpoints, config.request_timeout_ms, ack_when_committed=False
            )
    if call is not None:
        role.update_voter_at = now + config.fetch_timeout_ms
    return call


def on_voter_change_reply(machine: RaftMachine, call: rpc.Call) -> bool:
    """What this replica wanted is done, or appended."""
    if isinstance(call, rpc.UpdateVoterCall) and isinstance(machine.role, Follower):
        machine.role.has_told = True
    return True
