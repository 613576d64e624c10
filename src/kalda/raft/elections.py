"""Elections: pre-votes and votes (KIP-595, KIP-996), and the calls by which a leader begins and ends its epoch."""

from __future__ import annotations

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.raft import rpc
from kalda.raft.replica import MAX_CALLED_EPOCH, Replica
from kalda.raft.roles import Candidate, Follower, LeaderRole, Prospective, Resigned, Unattached
from kalda.raft.voters import MAX_EPOCH, Destination, ReplicaKey

RETRY_BACKOFF_BASE_MS = 100
EARLY_ELECTION_STAGGER_MS = 50
"""Between two followers that stand because the leader refuses connections: time for a pre-vote and a vote, each synced
by two replicas."""
LEADER_DISCOVERY_BACKOFF_MS = 100
"""How often an observer looks for another leader, where the one that it finds refuses connections."""


# Standing for election.


def drive_unattached(replica: Replica, role: Unattached, now: int) -> None:
    """A voter stands for election at the deadline. Until then, and without end for an observer, fetches are sent to
    bootstrap servers: their replies name the leader."""
    if replica.is_voter and role.deadline <= now:
        replica.become_prospective(now)
        return
    servers = replica.bootstrap_destinations()
    if servers and all(replica.outbox.ready(server, now) for server in servers):
        replica.send_fetch(servers[replica.random_below(len(servers))], now)
    if role.deadline <= now:
        role.deadline = now + replica.config.fetch_timeout_ms


def drive_prospective(replica: Replica, role: Prospective, now: int) -> None:
    if role.ballot.won and replica.is_voter:
        replica.become_candidate(now, role.retries)
    elif role.ballot.lost or role.deadline <= now or not replica.is_voter:
        _return_from_prospective(replica, role, now)
    else:
        _send_votes(replica, role.ballot.unrecorded, role.epoch, True, now)


def _return_from_prospective(replica: Replica, role: Prospective, now: int) -> None:
    """No majority of pre-votes: back to the leader of before, where there is one."""
    if role.leader_id is not None and role.leader_id != replica.local.id:
        leader = replica.destination_of(role.leader_id, role.leader_endpoints)
        if leader is not None:
            replica.become_follower(role.epoch, role.leader_id, role.leader_endpoints, leader, now)
            return
    replica.become_unattached(role.epoch, now, role.leader_id, role.voted)


def drive_candidate(replica: Replica, role: Candidate, now: int) -> None:
    if role.ballot.won:
        replica.become_leader(role, now)
        return
    if role.ballot.lost and role.backoff_until is None:
        backoff_ms = RETRY_BACKOFF_BASE_MS * replica.random_below(2 << min(20, role.retries - 1))
        role.backoff_until = now + min(backoff_ms, replica.config.election_backoff_max_ms)
    if role.deadline <= now or (role.backoff_until is not None and role.backoff_until <= now):
        replica.become_prospective(now, role.retries + 1)
        return
    _send_votes(replica, role.ballot.unrecorded, role.epoch, False, now)


def _send_votes(replica: Replica, node_ids: tuple[int, ...], epoch: int, pre_vote: bool, now: int) -> None:
    for node_id in node_ids:
        destination = replica.voters.destination(node_id, replica.config.listener)
        voter = replica.voters.get(node_id)
        if destination is not None and voter is not None and replica.outbox.ready(destination, now):
            call = rpc.VoteCall(replica.config.cluster_id, epoch, replica.local, voter.key, replica.log.end, pre_vote)
            replica.send(destination, call, now)


def on_vote_reply(replica: Replica, reply: rpc.VoteReply, call: rpc.VoteCall, voter: int) -> None:
    role = replica.role
    if isinstance(role, Prospective if call.pre_vote else Candidate) and role.epoch == call.epoch:
        role.ballot.record(voter, reply.granted)


def on_connection_refused(replica: Replica, destination: Destination, now: int) -> None:
    """No process listens at that address. Where it is the leader's, the fetch timeout is not waited for.

    Only the wait is shorter; the election is as any other, with pre-votes first. A firewall may refuse connections in
    the place of a leader that works: then the voters that fetch from that leader deny their pre-votes, and this replica
    does not stand early again before a whole fetch timeout has passed.
    """
    role = replica.role
    if isinstance(role, Prospective | Candidate):
        # No vote will come from there, and the other votes may decide without it.
        role.ballot.record(destination.node_id, False)
    if not isinstance(role, Follower) or role.leader != destination:
        return
    role.has_fetched = False  # pre-votes against this leader may be granted
    if now < replica.next_early_election:
        return
    if replica.is_voter:
        replica.next_early_election = now + replica.config.fetch_timeout_ms
        role.deadline = min(role.deadline, now + _early_election_delay_ms(replica, role))
    else:
        replica.next_early_election = now + LEADER_DISCOVERY_BACKOFF_MS
        role.deadline = now


def _early_election_delay_ms(replica: Replica, role: Follower) -> int:
    """All followers are refused at the same moment. They stand one after another, by id and with some chance, so that
    they do not split the vote."""
    others = sorted(node_id for node_id in replica.voters.ids if node_id != role.leader_id)
    turn = others.index(replica.local.id) if replica.local.id in others else len(others)
    delay_ms = min(turn * EARLY_ELECTION_STAGGER_MS, replica.config.election_timeout_ms)
    return delay_ms + replica.random_below(EARLY_ELECTION_STAGGER_MS // 2)


# Calls of other replicas.


def handle_vote(replica: Replica, call: rpc.VoteCall, now: int) -> rpc.VoteReply:
    error = _refusal(replica, call.cluster_id, call.candidate.id, call.epoch)
    if error is None:
        end = call.log_end
        max_last_epoch = call.epoch if call.pre_vote else call.epoch - 1
        if end.offset < 0 or not 0 <= end.epoch <= max_last_epoch:
            error = ErrorCode.INVALID_REQUEST
    if error is None:
        if call.epoch > replica.epoch:
            replica.become_unattached(call.epoch, now)
        if not _is_addressed_to(replica, call.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    if error is not None:
        return rpc.VoteReply(replica.reply_header(error))
    granted = _grants(replica, call)
    if granted and call.pre_vote and isinstance(replica.role, Prospective) and now < replica.next_early_election:
        _yield_to_lower_id(replica, replica.role, call.candidate, now)
    if granted and not call.pre_vote and isinstance(replica.role, Unattached | Prospective):
        if replica.role.voted is None:
            replica.grant_vote(call.candidate)
        if isinstance(replica.role, Unattached):
            # Time for the candidate to win.
            replica.role.deadline = now + replica.random_election_timeout_ms()
    return rpc.VoteReply(replica.reply_header(), granted)


def _grants(replica: Replica, call: rpc.VoteCall) -> bool:
    """The rules by role. A log that ends before this one may lack committed records: it never gets a vote."""
    up_to_date = call.log_end.is_up_to_date(replica.log.end)
    match replica.role:
        case Unattached(voted=voted, leader_id=leader_id) | Prospective(voted=voted, leader_id=leader_id):
            if call.pre_vote:
                return up_to_date
            if voted is not None:
                return _same_candidate(voted, call.candidate)
            return leader_id is None and up_to_date
        case Follower(voted=voted, has_fetched=has_fetched):
            if call.pre_vote:
                # A leader that answers this replica's fetches works. A candidate that cannot reach it must not win.
                return up_to_date and not has_fetched
            return voted is not None and _same_candidate(voted, call.candidate)
        case Candidate() | Resigned():
            return call.pre_vote and up_to_date
        case LeaderRole():
            return False


def _yield_to_lower_id(replica: Replica, role: Prospective, candidate: ReplicaKey, now: int) -> None:
    """Two followers of a leader that refuses connections may both be Prospective. The one with the higher id steps
    back: otherwise each could win its pre-vote and vote for itself, and neither would be elected."""
    if candidate.id < replica.local.id:
        replica.become_unattached(role.epoch, now, role.leader_id, role.voted)


def _same_candidate(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    return voted.id == candidate.id and voted.directory_id in (ZERO_UUID, candidate.directory_id)


def handle_begin_epoch(replica: Replica, call: rpc.BeginEpochCall, now: int) -> rpc.BeginEpochReply:
    error = _refusal(replica, call.cluster_id, call.leader_id, call.epoch)
    if error is None:
        replica.maybe_follow(call.leader_id, call.epoch, call.leader_endpoints, now)
        if not _is_addressed_to(replica, call.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    return rpc.BeginEpochReply(replica.reply_header(error or ErrorCode.NONE))


def handle_end_epoch(replica: Replica, call: rpc.EndEpochCall, now: int) -> rpc.EndEpochReply:
    error = _refusal(replica, call.cluster_id, call.leader_id, call.epoch)
    if error is not None:
        return rpc.EndEpochReply(replica.reply_header(error))
    replica.maybe_follow(call.leader_id, call.epoch, call.leader_endpoints, now)
    role = replica.role
    if isinstance(role, Follower) and role.leader_id == call.leader_id:
        role.deadline = now + _successor_delay_ms(replica, call.successors)
        role.has_fetched = False  # pre-votes against a leader that has resigned may be granted
    return rpc.EndEpochReply(replica.reply_header())


def _successor_delay_ms(replica: Replica, successors: tuple[ReplicaKey, ...]) -> int:
    """The first of the preferred candidates stands at once, each later one waits longer, other voters longest."""
    longest_ms = replica.config.election_backoff_max_ms
    for position, key in enumerate(successors):
        if key.id == replica.local.id and key.directory_id in (ZERO_UUID, replica.local.directory_id):
            if position == 0:
                return 0
            base_ms = longest_ms >> (len(successors) - 1)
            return min(longest_ms, base_ms << (position - 1))
    return longest_ms


def _refusal(replica: Replica, cluster_id: str | None, node_id: int, epoch: int) -> ErrorCode | None:
    if replica.is_wrong_cluster(cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if epoch < replica.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if node_id < 0 or not replica.may_adopt_epoch(epoch, MAX_CALLED_EPOCH):
        return ErrorCode.INVALID_REQUEST
    return None


def _is_addressed_to(replica: Replica, voter: ReplicaKey | None) -> bool:
    """A call may leave the voter out that it is for."""
    if voter is None:
        return True
    return voter.id == replica.local.id and voter.directory_id in (ZERO_UUID, replica.local.directory_id)


# Beginning and ending an epoch.


def on_begin_epoch_reply(replica: Replica, voter: int) -> None:
    role = replica.role
    if isinstance(role, LeaderRole) and voter in role.voters:
        role.voters[voter].has_acknowledged = True


def send_begin_epoch(replica: Replica, role: LeaderRole, now: int) -> None:
    """At once to voters that have not acknowledged this leader. Every half fetch timeout to all that have not fetched
    within one: they may follow another leader, or none."""
    is_due_to_all = role.next_begin_epoch <= now
    if is_due_to_all:
        role.next_begin_epoch = now + replica.config.fetch_timeout_ms // 2
    for node_id, progress in role.voters.items():
        if node_id == replica.local.id or (progress.has_acknowledged and not is_due_to_all):
            continue
        if progress.last_fetch_ms >= 0 and progress.last_fetch_ms > now - replica.config.fetch_timeout_ms // 2:
            continue
        voter = replica.voters.get(node_id)
        destination = replica.voters.destination(node_id, replica.config.listener)
        if voter is not None and destination is not None and replica.outbox.ready(destination, now):
            config = replica.config
            call = rpc.BeginEpochCall(config.cluster_id, role.epoch, role.leader_id, voter.key, config.endpoints)
            replica.send(destination, call, now)


def drive_resigned(replica: Replica, role: Resigned, now: int) -> None:
    if role.deadline <= now:
        # It can neither follow nor vote in the epoch that it has led.
        if role.epoch < MAX_EPOCH:
            replica.become_unattached(role.epoch + 1, now)
            return
        role.deadline = now + replica.config.election_timeout_ms
    send_end_epoch(replica, now)


def send_end_epoch(replica: Replica, now: int) -> None:
    role, config = replica.role, replica.config
    assert isinstance(role, Resigned)
    for node_id in role.unacknowledged:
        destination = replica.voters.destination(node_id, config.listener)
        if destination is not None and replica.outbox.ready(destination, now):
            call = rpc.EndEpochCall(config.cluster_id, role.epoch, role.leader_id, role.successors, config.endpoints)
            replica.send(destination, call, now)


def on_end_epoch_reply(replica: Replica, voter: int) -> None:
    if isinstance(replica.role, Resigned):
        replica.role.unacknowledged.pop(voter, None)
