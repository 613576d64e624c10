"""Elections: pre-votes and votes (KIP-595, KIP-996), and the requests by which a leader begins and ends its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.protocol.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from kalda.raft import rpc
from kalda.raft.leader import LeaderRole
from kalda.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached
from kalda.raft.values import Destination, ReplicaKey

if TYPE_CHECKING:
    from kalda.raft.machine import RaftMachine

RETRY_BACKOFF_BASE_MS = 100
GONE_TURN_MS = 50
"""Time for a pre-vote and a vote, each synced by two replicas."""
GONE_RETRY_MS = 100
"""An observer that was told again of a leader that is gone asks around no more often than this."""


# Standing for election.


def drive_unattached(machine: RaftMachine, role: Unattached, now: int) -> None:
    """Wait for a leader, and ask around for it; a voter stands when nobody appears."""
    if machine.is_voter and role.deadline <= now:
        machine.become_prospective(now)
        return
    servers = machine.bootstrap_destinations()
    if servers and not any(not machine.outbox.ready(server, now) for server in servers):
        machine.send(servers[machine.below(len(servers))], fetch_call(machine), now, machine.config.fetch_max_wait_ms)
    if role.deadline <= now:
        role.deadline = now + machine.config.fetch_timeout_ms


def fetch_call(machine: RaftMachine) -> rpc.FetchCall:
    config = machine.config
    return rpc.FetchCall(
        config.cluster_id,
        machine.epoch,
        machine.local,
        machine.log.end,
        config.fetch_max_wait_ms,
        config.fetch_max_bytes,
        machine.high_watermark,
    )


def drive_prospective(machine: RaftMachine, role: Prospective, now: int) -> None:
    if role.ballot.won and machine.is_voter:
        machine.become_candidate(now, role.retries)
    elif role.ballot.lost or role.deadline <= now or not machine.is_voter:
        _give_up(machine, role, now)
    else:
        _ask_for_votes(machine, role.ballot.unrecorded, role.epoch, True, now)


def _give_up(machine: RaftMachine, role: Prospective, now: int) -> None:
    """Not electable now: back to the leader that we knew, or to waiting."""
    if role.leader_id is not None and role.leader_id != machine.local.id:
        leader = machine.destination_of(role.leader_id, role.leader_endpoints)
        if leader is not None:
            machine.become_follower(role.epoch, role.leader_id, role.leader_endpoints, leader, now)
            return
    machine.become_unattached(role.epoch, now, role.leader_id, role.voted)


def drive_candidate(machine: RaftMachine, role: Candidate, now: int) -> None:
    if role.ballot.won:
        machine.become_leader(role, now)
        return
    if role.ballot.lost and role.backoff_until is None:
        base = RETRY_BACKOFF_BASE_MS * machine.below(2 << min(20, role.retries - 1))
        role.backoff_until = now + min(base, machine.config.election_backoff_max_ms)
    if role.deadline <= now or (role.backoff_until is not None and role.backoff_until <= now):
        machine.become_prospective(now, role.retries + 1)
        return
    _ask_for_votes(machine, role.ballot.unrecorded, role.epoch, False, now)


def _ask_for_votes(machine: RaftMachine, node_ids: tuple[int, ...], epoch: int, pre_vote: bool, now: int) -> None:
    for node_id in node_ids:
        destination = machine.voters.destination(node_id, machine.config.listener)
        voter = machine.voters.get(node_id)
        if destination is not None and voter is not None and machine.outbox.ready(destination, now):
            call = rpc.VoteCall(machine.config.cluster_id, epoch, machine.local, voter.key, machine.log.end, pre_vote)
            machine.send(destination, call, now)


def on_vote_reply(machine: RaftMachine, reply: rpc.VoteReply, call: rpc.VoteCall, voter: int) -> bool:
    role = machine.role
    if isinstance(role, Prospective if call.pre_vote else Candidate) and role.epoch == call.epoch:
        role.ballot.record(voter, reply.granted)
    return True


def start_of_epoch_records(machine: RaftMachine, role: LeaderRole) -> tuple[object, ...]:
    """The batch that a leader's epoch begins with. Voters that are only in the bootstrap snapshot, which is not
    replicated, go into the log with it."""
    records: list[object] = [
        LeaderChangeMessage(
            leader_id=role.leader_id,
            voters=[LeaderChangeMessageVoter(voter_id=node_id) for node_id in machine.voters.ids],
            granting_voters=[LeaderChangeMessageVoter(voter_id=node_id) for node_id in role.granting],
        )
    ]
    if machine.history.dynamic and machine.history.voters_offset == -1:
        records.append(KRaftVersionRecord(kraft_version=machine.history.kraft_version))
        records.append(machine.voters.to_record())
    return tuple(records)


def replica_gone(machine: RaftMachine, destination: Destination, now: int) -> None:
    """No process is left at that address. If it was the leader's, it is not waited for until the fetch timeout.

    It is only the wait that is cut short: elections go as ever, pre-votes first. So this replica may well be mistaken,
    when a firewall refuses in the leader's place: others, who fetch from that leader, deny it their pre-vote. Then it
    does not ask again before it has waited for as long as it would have without.
    """
    role = machine.role
    if isinstance(role, Prospective | Candidate):
        # Its vote will not come; to wait for it would be to wait out the election.
        role.ballot.record(destination.node_id, False)
    if not isinstance(role, Follower) or role.leader != destination:
        return
    role.has_fetched = False  # nobody needs protecting it
    if now < machine.hasty_from:
        return
    if machine.is_voter:
        machine.hasty_from = now + machine.config.fetch_timeout_ms
        role.deadline = min(role.deadline, now + _turn_to_stand(machine, role))
    else:
        machine.hasty_from = now + GONE_RETRY_MS
        role.deadline = now


def _turn_to_stand(machine: RaftMachine, role: Follower) -> int:
    """All followers learn it at the same moment. They stand one after another, in the order of their ids, with some
    chance in it, so that they do not take the votes from each other."""
    left = sorted(node_id for node_id in machine.voters.ids if node_id != role.leader_id)
    turn = left.index(machine.local.id) if machine.local.id in left else len(left)
    return min(turn * GONE_TURN_MS, machine.config.election_timeout_ms) + machine.below(GONE_TURN_MS // 2)


# Being asked.


def handle_vote(machine: RaftMachine, call: rpc.VoteCall, now: int) -> rpc.VoteReply:
    error = _refusal(machine, call.cluster_id, call.candidate.id, call.epoch)
    if error is None:
        end = call.log_end
        newest_possible = call.epoch if call.pre_vote else call.epoch - 1
        if end.offset < 0 or not 0 <= end.epoch <= newest_possible:
            error = ErrorCode.INVALID_REQUEST
    if error is None:
        if call.epoch > machine.epoch:
            machine.become_unattached(call.epoch, now)
        if not _is_us(machine, call.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    if error is not None:
        return rpc.VoteReply(machine.reply_header(error))
    granted = _grants(machine, call)
    if granted and call.pre_vote and isinstance(machine.role, Prospective) and now < machine.hasty_from:
        _let_stand(machine, machine.role, call.candidate, now)
    if granted and not call.pre_vote and isinstance(machine.role, Unattached | Prospective):
        if machine.role.voted is None:
            machine.vote_in_place(call.candidate)
        if isinstance(machine.role, Unattached):
            # The candidate is given the time to win.
            machine.role.deadline = (
                now + machine.config.election_timeout_ms + machine.below(max(1, machine.config.election_timeout_ms))
            )
    return rpc.VoteReply(machine.reply_header(), granted)


def _grants(machine: RaftMachine, call: rpc.VoteCall) -> bool:
    """The rules by role. A log that ends before ours may lack what is committed: never a vote for it."""
    up_to_date = call.log_end.is_up_to_date(machine.log.end)
    match machine.role:
        case Unattached(voted=voted, leader_id=leader_id) | Prospective(voted=voted, leader_id=leader_id):
            if call.pre_vote:
                return up_to_date
            if voted is not None:
                return _same_candidate(voted, call.candidate)
            return leader_id is None and up_to_date
        case Follower(voted=voted, has_fetched=has_fetched):
            if call.pre_vote:
                # A leader that we fetched from works: who cannot see it must not unseat it.
                return up_to_date and not has_fetched
            return voted is not None and _same_candidate(voted, call.candidate)
        case Candidate() | Resigned():
            return call.pre_vote and up_to_date
        case LeaderRole():
            return False


def _let_stand(machine: RaftMachine, role: Prospective, candidate: ReplicaKey, now: int) -> None:
    """Of two that stand because the leader is gone, the one whose turn is later makes way for the other, lest each
    win a pre-vote, vote for itself, and neither be elected."""
    if candidate.id < machine.local.id:
        machine.become_unattached(role.epoch, now, role.leader_id, role.voted)


def _same_candidate(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    return voted.id == candidate.id and voted.directory_id in (ZERO_UUID, candidate.directory_id)


def handle_begin_epoch(machine: RaftMachine, call: rpc.BeginEpochCall, now: int) -> rpc.BeginEpochReply:
    error = _refusal(machine, call.cluster_id, call.leader_id, call.epoch)
    if error is None:
        machine.maybe_follow(call.leader_id, call.epoch, call.leader_endpoints, now)
        if not _is_us(machine, call.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    return rpc.BeginEpochReply(machine.reply_header(error or ErrorCode.NONE))


def handle_end_epoch(machine: RaftMachine, call: rpc.EndEpochCall, now: int) -> rpc.EndEpochReply:
    error = _refusal(machine, call.cluster_id, call.leader_id, call.epoch)
    if error is not None:
        return rpc.EndEpochReply(machine.reply_header(error))
    machine.maybe_follow(call.leader_id, call.epoch, call.leader_endpoints, now)
    role = machine.role
    if isinstance(role, Follower) and role.leader_id == call.leader_id:
        role.deadline = now + _successor_backoff(machine, call.successors)
        role.has_fetched = False  # the leader itself says that it is gone: nobody needs protecting it
    return rpc.EndEpochReply(machine.reply_header())


def _successor_backoff(machine: RaftMachine, successors: tuple[ReplicaKey, ...]) -> int:
    """The first of the preferred stands at once, each later one waits longer, the others longest."""
    longest = machine.config.election_backoff_max_ms
    for position, key in enumerate(successors):
        if key.id == machine.local.id and key.directory_id in (ZERO_UUID, machine.local.directory_id):
            if position == 0:
                return 0
            base = longest >> (len(successors) - 1)
            return min(longest, base << (position - 1))
    return longest


def _refusal(machine: RaftMachine, cluster_id: str | None, node_id: int, epoch: int) -> ErrorCode | None:
    if machine.wrong_cluster(cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < machine.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if node_id < 0:
        return ErrorCode.INVALID_REQUEST
    return None


def _is_us(machine: RaftMachine, voter: ReplicaKey | None) -> bool:
    """Whether a request that names whom it is for means this replica."""
    if voter is None:
        return True
    return voter.id == machine.local.id and voter.directory_id in (ZERO_UUID, machine.local.directory_id)


# Beginning and ending an epoch.


def on_begin_epoch_reply(machine: RaftMachine, voter: int) -> bool:
    role = machine.role
    if isinstance(role, LeaderRole) and voter in role.voters:
        role.voters[voter].acknowledged = True
    return True


def send_begin_epoch(machine: RaftMachine, role: LeaderRole, now: int) -> None:
    """At once to voters that have not acknowledged this leader; and to all of them now and then, for one that follows
    somebody else without knowing it."""
    everyone = role.begin_at <= now
    if everyone:
        role.begin_at = now + machine.config.fetch_timeout_ms // 2
    for node_id, progress in role.voters.items():
        if node_id == machine.local.id or (progress.acknowledged and not everyone):
            continue
        if progress.fetched_ms >= 0 and progress.fetched_ms > now - machine.config.fetch_timeout_ms // 2:
            continue  # it fetches, so it knows
        voter = machine.voters.get(node_id)
        destination = machine.voters.destination(node_id, machine.config.listener)
        if voter is not None and destination is not None and machine.outbox.ready(destination, now):
            config = machine.config
            call = rpc.BeginEpochCall(config.cluster_id, role.epoch, role.leader_id, voter.key, config.endpoints)
            machine.send(destination, call, now)


def drive_resigned(machine: RaftMachine, role: Resigned, now: int) -> None:
    if role.deadline <= now:
        # Its own epoch's leader cannot follow anyone in it, nor vote: it goes on in the next.
        machine.become_unattached(role.epoch + 1, now)
        return
    send_end_epoch(machine, now)


def send_end_epoch(machine: RaftMachine, now: int) -> None:
    role, config = machine.role, machine.config
    assert isinstance(role, Resigned)
    for node_id in role.unacknowledged:
        destination = machine.voters.destination(node_id, config.listener)
        if destination is not None and machine.outbox.ready(destination, now):
            call = rpc.EndEpochCall(config.cluster_id, role.epoch, role.leader_id, role.successors, config.endpoints)
            machine.send(destination, call, now)


def on_end_epoch_reply(machine: RaftMachine, voter: int) -> bool:
    if isinstance(machine.role, Resigned):
        machine.role.unacknowledged.pop(voter, None)
    return True
