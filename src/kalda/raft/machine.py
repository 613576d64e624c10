"""The KRaft machine: what a replica of the metadata log decides.

`step(event, now)` dispatches an event, then lets the present role do what is due, and returns the effects of both in
order. `deadline` says when the next `Tick` is wanted. Nothing else happens between steps, so between two steps these
hold:

- the role's epoch is the newest ever heard of, never lower than the log's last one, and persisted;
- one vote an epoch at most, persisted before it is sent;
- `high_watermark` never goes back, and the log is never truncated below it;
- only a Leader appends, only with its own epoch.

The rest of the behaviour is in the modules beside this one, as functions on the machine: `elections`, `replication`,
`reconfiguration`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.control_records import KRaftVersionRecord, VotersRecord
from kalda.raft import effects as fx
from kalda.raft import elections, events, reconfiguration, replication, rpc
from kalda.raft.leader import LeaderRole
from kalda.raft.log_state import LogState
from kalda.raft.outbox import Outbox
from kalda.raft.quorum_state import ElectionState
from kalda.raft.roles import Ballot, Candidate, Follower, Prospective, Resigned, Role, Unattached
from kalda.raft.values import Destination, Endpoint, ReplicaKey
from kalda.raft.voters import Voter, VoterHistory, VoterSet

MAX_TRANSITIONS_PER_STEP = 16


class RaftConfig(NamedTuple):
    """What does not change while the node runs. Defaults are Kafka's `controller.quorum.*`."""

    local: ReplicaKey
    cluster_id: str | None
    listener: str = "CONTROLLER"
    """The controller listener by which replicas reach one another."""
    endpoints: tuple[Endpoint, ...] = ()
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    can_be_voter: bool = True
    auto_join: bool = False
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    max_kraft_version: int = 1

    @property
    def quorum_timeout_ms(self) -> int:
        """How long a leader goes without a majority (check-quorum)."""
        return self.fetch_timeout_ms * 3 // 2


class RaftMachine:
    """One replica. `below(n)` gives a random integer from 0 to n - 1."""

    def __init__(
        self,
        config: RaftConfig,
        log: LogState,
        history: VoterHistory,
        election: ElectionState,
        below: Callable[[int], int],
    ) -> None:
        self.config = config
        self.local = config.local
        self.log = log
        self.history = history
        self.below = below
        self.outbox = Outbox(config.request_timeout_ms, config.retry_backoff_ms)
        self.role: Role = Unattached(election.epoch, election.leader_id, election.voted, 0)
        snapshot = log.latest_snapshot
        self.high_watermark = snapshot.offset if snapshot is not None else 0
        self.committed_end: int | None = None
        """How far the log is committed, as a leader that this replica heard of said; here that may be yet to come."""
        self.flush_generation = 0
        self.installing = False
        self.hasty_from = 0
        """From when on this replica may give up a leader that is gone before its fetch timeout."""
        self._persisted = (election, history.kraft_version)
        self._announced: tuple[int | None, int] = (None, 0)
        self._effects: list[fx.Effect] = []
        self._started = False
        self._stopped = False

    # What others may know.

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader_id(self) -> int | None:
        return self.role.leader_id if not isinstance(self.role, Resigned) else None

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.config.can_be_voter and self.history.voters.is_voter(self.local)

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, LeaderRole)

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due."""
        if not self._started or self._stopped:
            return None
        times = [time for time in (self._role_deadline(), self.outbox.deadline) if time is not None]
        return min(times, default=None)

    # Stepping.

    def step(self, event: events.Event, now: int) -> list[fx.Effect]:
        if isinstance(event, events.Start):
            self._start(now)
        elif self._started:
            self._dispatch(event, now)
        if self._started and not self._stopped:
            self.outbox.expire(now)
            self._drive(now)
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: fx.Effect) -> None:
        self._effects.append(effect)

    def _dispatch(self, event: events.Event, now: int) -> None:
        match event:
            case events.Tick():
                pass
            case events.Append(epoch, count, payload):
                self._append(epoch, count, payload)
            case events.Flushed(offset, generation):
                self._flushed(offset, generation, now)
            case events.CallReceived(token, call):
                self._asked(token, call, now)
            case events.ReplyReceived(correlation, reply):
                self._answered(correlation, reply, now)
            case events.CallFailed(correlation, gone):
                request = self.outbox.close(correlation)
                if request is not None:
                    self.outbox.back_off(request.destination, now)
                    if gone:
                        elections.replica_gone(self, request.destination, now)
            case events.SnapshotInstalled(snapshot, controls):
                replication.on_snapshot_installed(self, snapshot, controls, now)
            case events.SnapshotDamaged(snapshot):
                replication.on_snapshot_damaged(self, snapshot, now)
            case events.SnapshotTaken(snapshot):
                assert snapshot.offset <= self.high_watermark, "only committed records go into a snapshot"
                self.log.add_snapshot(snapshot)
            case events.PrefixDeleted(start_offset, dropped):
                self.log.advance_start(start_offset, list(dropped))
                self.history.trim_before(start_offset - 1)
            case events.UpgradeKraftVersion(epoch, version):
                if isinstance(self.role, LeaderRole) and self.role.epoch == epoch:
                    reconfiguration.upgrade(self, self.role, version)
            case events.Resign(epoch):
                if isinstance(self.role, LeaderRole) and self.role.epoch == epoch:
                    self.become_resigned(now)
            case events.Shutdown():
                self._shutdown(now)

    def _start(self, now: int) -> None:
        """Take up the role that `quorum-state` implies. A former leader may not lead its epoch again: it cannot know
        what it promised after the last fsync."""
        assert not self._started
        self._started = True
        election, _ = self._persisted
        epoch, leader_id, voted = election
        if epoch < self.log.last_epoch:
            epoch, leader_id, voted = self.log.last_epoch, None, None
        if leader_id == self.local.id:
            self._set_role(Resigned(epoch, self.local.id, (), (), now + self._election_timeout()))
        else:
            self._set_role(Unattached(epoch, leader_id, voted, now + self._election_timeout()))
            if leader_id is not None:
                self.maybe_follow(leader_id, epoch, (), now)
        if self.high_watermark:
            self.emit(fx.SetHighWatermark(self.high_watermark))
        if self.is_voter and self.voters.is_only_voter(self.local):
            self.become_candidate(now, retries=1)

    def _shutdown(self, now: int) -> None:
        if isinstance(self.role, LeaderRole):
            self.become_resigned(now)
            elections.send_end_epoch(self, now)
        self._stopped = True

    def _append(self, epoch: int, count: int, payload: object) -> None:
        assert isinstance(self.role, LeaderRole), "only a leader appends"
        assert self.role.epoch == epoch, "a leader appends in its own epoch"
        first = self.log.append(epoch, count)
        self.emit(fx.AppendPayload(first, epoch, payload))
        self.flush()
        replication.answer_parked(self)

    def append_controls(self, *records: object) -> int:
        """Append a control batch as the leader, and take what it says into account at once. Returns its first
        offset."""
        role = self.role
        assert isinstance(role, LeaderRole)
        first = self.log.append(role.epoch, len(records))
        self.emit(fx.AppendControls(first, role.epoch, records))
        for at, record in enumerate(records):
            self.learn_control(first + at, record)
        self.flush()
        return first

    def learn_control(self, offset: int, record: object) -> None:
        """A voters or version record is in the log: it counts from now on, committed or not."""
        if isinstance(record, VotersRecord):
            self.history.set_voters(offset, VoterSet.from_record(record))
            if isinstance(self.role, LeaderRole):
                self.role.set_voters(self.voters, self.local)
        elif isinstance(record, KRaftVersionRecord):
            self.history.set_kraft_version(offset, record.kraft_version)
            self._persist()

    def flush(self) -> None:
        self.emit(fx.FlushLog(self.log.end_offset, self.flush_generation))

    def _flushed(self, offset: int, generation: int, now: int) -> None:
        if generation != self.flush_generation:
            return  # what was flushed has been cut off since
        self.log.flushed_offset = max(self.log.flushed_offset, min(offset, self.log.end_offset))
        if isinstance(self.role, LeaderRole):
            replication.on_leader_flushed(self, self.role, now)

    def _asked(self, token: Hashable, call: rpc.Call, now: int) -> None:
        reply: rpc.Reply | None
        match call:
            case rpc.VoteCall():
                reply = elections.handle_vote(self, call, now)
            case rpc.BeginEpochCall():
                reply = elections.handle_begin_epoch(self, call, now)
            case rpc.EndEpochCall():
                reply = elections.handle_end_epoch(self, call, now)
            case rpc.FetchCall():
                reply = replication.handle_fetch(self, token, call, now)
            case rpc.SnapshotCall():
                reply = replication.handle_snapshot(self, call, now)
            case rpc.DescribeCall():
                reply = replication.handle_describe(self)
            case _:
                reply = reconfiguration.handle_voter_change(self, token, call, now)
        if reply is not None:
            self.emit(fx.SendReply(token, reply))

    def _answered(self, correlation: int, reply: rpc.Reply, now: int) -> None:
        request = self.outbox.close(correlation)
        if request is None:
            return
        unsupported = reply.header.error is ErrorCode.UNSUPPORTED_VERSION
        if unsupported and isinstance(request.call, rpc.VoteCall) and request.call.pre_vote:
            # A replica from before KIP-996 has no say in pre-votes, and must not hold one up.
            reply = rpc.VoteReply(rpc.ReplyHeader(ErrorCode.NONE, self.epoch), True)
        done = self._on_reply_header(reply.header, now)
        if done is None:
            match reply, request.call:
                case rpc.VoteReply(), rpc.VoteCall() as vote_call:
                    done = elections.on_vote_reply(self, reply, vote_call, request.destination.node_id)
                case rpc.BeginEpochReply(), rpc.BeginEpochCall():
                    done = elections.on_begin_epoch_reply(self, request.destination.node_id)
                case rpc.EndEpochReply(), rpc.EndEpochCall():
                    done = elections.on_end_epoch_reply(self, request.destination.node_id)
                case rpc.FetchReply(), rpc.FetchCall() as fetch_call:
                    done = replication.on_fetch_reply(self, reply, fetch_call, now)
                case rpc.SnapshotReply(), rpc.SnapshotCall() as snapshot_call:
                    done = replication.on_snapshot_reply(self, reply, snapshot_call, now)
                case rpc.VoterChangeReply(), _:
                    done = reconfiguration.on_voter_change_reply(self, request.call)
                case _:
                    done = False
        elif isinstance(reply, rpc.SnapshotReply):
            replication.on_snapshot_refused(self, reply.header.error)
        if not done:
            self.outbox.back_off(request.destination, now)

    def _on_reply_header(self, header: rpc.ReplyHeader, now: int) -> bool | None:
        """What every answer says: the epoch and the leader. None where the body is worth reading, else whether the
        request counts as well answered."""
        error, epoch, leader_id, endpoints = header
        looking = self.leader_id is None or isinstance(self.role, Unattached)
        if epoch > self.epoch or (epoch == self.epoch and leader_id is not None and looking):
            self.maybe_follow(leader_id, epoch, endpoints, now)
            return error is ErrorCode.NONE
        if epoch < self.epoch and error is ErrorCode.NONE:
            return True  # from an epoch that is over
        return None if error is ErrorCode.NONE else False

    # Transitions.

    def maybe_follow(self, leader_id: int | None, epoch: int, endpoints: tuple[Endpoint, ...], now: int) -> None:
        """Somebody says who leads `epoch`. A newer epoch is taken up in any case; in our own epoch only a leader that
        we did not know matters."""
        role = self.role
        if epoch < role.epoch:
            return
        if leader_id is None or leader_id == self.local.id:
            if epoch > role.epoch:
                self.become_unattached(epoch, now)
            return
        if not endpoints:
            voter = self.voters.get(leader_id)
            endpoints = voter.endpoints if voter is not None else ()
        destination = self.destination_of(leader_id, endpoints)
        if epoch == role.epoch and isinstance(role, LeaderRole | Follower | Resigned):
            if isinstance(role, Follower) and role.leader_id == leader_id and destination not in (None, role.leader):
                assert destination is not None
                role.leader, role.leader_endpoints = destination, endpoints
            return
        if destination is not None:
            self.become_follower(epoch, leader_id, endpoints, destination, now)
        elif epoch > role.epoch:
            self.become_unattached(epoch, now, leader_id)

    def destination_of(self, node_id: int, endpoints: tuple[Endpoint, ...]) -> Destination | None:
        return Voter(ReplicaKey(node_id), endpoints).destination(self.config.listener)

    def become_unattached(
        self, epoch: int, now: int, leader_id: int | None = None, voted: ReplicaKey | None = None
    ) -> None:
        self._set_role(Unattached(epoch, leader_id, voted, now + self._election_timeout()))

    def become_follower(
        self, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...], leader: Destination, now: int
    ) -> None:
        voted = self.role.voted if self.role.epoch == epoch else None
        deadline = now + self.config.fetch_timeout_ms
        self._set_role(Follower(epoch, leader_id, endpoints, leader, voted, deadline))

    def become_prospective(self, now: int, retries: int = 1) -> None:
        role = self.role
        endpoints = role.leader_endpoints if isinstance(role, Follower | Prospective) else ()
        ballot = Ballot(self.voters.ids)
        ballot.record(self.local.id, True)
        leader_id = None if isinstance(role, Candidate) else role.leader_id
        deadline = now + self._election_timeout()
        self._set_role(Prospective(role.epoch, leader_id, endpoints, role.voted, ballot, deadline, retries))

    def become_candidate(self, now: int, retries: int) -> None:
        assert self.is_voter, "only a voter stands for election"
        ballot = Ballot(self.voters.ids)
        ballot.record(self.local.id, True)
        epoch = self.role.epoch + 1
        self._set_role(Candidate(epoch, self.local, ballot, now + self._election_timeout(), retries))

    def become_leader(self, role: Candidate, now: int) -> None:
        assert role.ballot.won
        start = self.log.end_offset
        leader = LeaderRole(
            role.epoch,
            self.local,
            self.voters,
            role.ballot.granting,
            start,
            now,
            self.config.quorum_timeout_ms,
        )
        if not self.history.dynamic:
            leader.told = reconfiguration.told_by_itself(self)
        self._set_role(leader)
        self.append_controls(*elections.start_of_epoch_records(self, leader))

    def become_resigned(self, now: int) -> None:
        role = self.role
        assert isinstance(role, LeaderRole)
        others = [node_id for node_id in self.voters.ids if node_id != self.local.id]
        deadline = now + self._election_timeout()
        self._set_role(Resigned(role.epoch, self.local.id, others, role.successors(), deadline))

    def _set_role(self, role: Role) -> None:
        old = self.role
        assert role.epoch >= old.epoch, f"epoch {role.epoch} after {old.epoch}"
        self.outbox.forget_all()
        self.role = role
        self._persist()
        if isinstance(old, LeaderRole):
            replication.refuse_parked(self, old)
        self.announce_leader()

    def vote_in_place(self, candidate: ReplicaKey) -> None:
        """Give this epoch's vote, staying what we are."""
        role = self.role
        assert isinstance(role, Unattached | Prospective)
        assert role.voted is None
        role.voted = candidate
        self._persist()

    def _persist(self) -> None:
        role = self.role
        state = ElectionState(role.epoch, role.leader_id, role.voted)
        if (state, self.history.kraft_version) != self._persisted:
            self._persisted = (state, self.history.kraft_version)
            self.emit(fx.Persist(state, self.voters.ids, self.history.kraft_version))

    def announce_leader(self) -> None:
        """Tell the listeners who leads, when that changed; of oneself, only once everything before is committed."""
        role = self.role
        if isinstance(role, LeaderRole) and not role.established:
            return
        now_leads = (self.leader_id, role.epoch)
        if now_leads != self._announced:
            self._announced = now_leads
            self.emit(fx.LeaderChanged(*now_leads))

    # What is due.

    def _drive(self, now: int) -> None:
        for _ in range(MAX_TRANSITIONS_PER_STEP):
            before = self.role
            match self.role:
                case Unattached():
                    elections.drive_unattached(self, self.role, now)
                case Prospective():
                    elections.drive_prospective(self, self.role, now)
                case Candidate():
                    elections.drive_candidate(self, self.role, now)
                case LeaderRole():
                    replication.drive_leader(self, self.role, now)
                case Follower():
                    replication.drive_follower(self, self.role, now)
                case Resigned():
                    elections.drive_resigned(self, self.role, now)
            if self.role is before:
                return
        raise AssertionError("the role does not settle")

    def _role_deadline(self) -> int | None:
        match self.role:
            case LeaderRole():
                return replication.leader_deadline(self.role)
            case Candidate(backoff_until=until) if until is not None:
                return min(until, self.role.deadline)
            case Unattached() | Follower() if not self.is_voter and not self._may_look_for_leader():
                return None
            case role:
                return role.deadline

    def _may_look_for_leader(self) -> bool:
        return isinstance(self.role, Follower) or bool(self.bootstrap_destinations())

    def bootstrap_destinations(self) -> tuple[Destination, ...]:
        """Whom to ask who leads, when nobody said so."""
        if self.config.bootstrap_servers:
            return tuple(
                Destination(-2 - at, host, port) for at, (host, port) in enumerate(self.config.bootstrap_servers)
            )
        others = (self.voters.destination(i, self.config.listener) for i in self.voters.ids if i != self.local.id)
        return tuple(destination for destination in others if destination is not None)

    def send(self, destination: Destination, call: rpc.Call, now: int, extra_ms: int = 0) -> None:
        correlation = self.outbox.send(destination, call, now, extra_ms)
        self.emit(fx.SendCall(correlation, destination, call, self.config.request_timeout_ms + extra_ms))

    def _election_timeout(self) -> int:
        return self.config.election_timeout_ms + self.below(max(1, self.config.election_timeout_ms))

    # What every answer carries.

    def reply_header(self, error: ErrorCode = ErrorCode.NONE) -> rpc.ReplyHeader:
        role = self.role
        endpoints: tuple[Endpoint, ...] = ()
        if isinstance(role, LeaderRole):
            endpoints = self.config.endpoints
        elif isinstance(role, Follower | Prospective):
            endpoints = role.leader_endpoints
        return rpc.ReplyHeader(error, role.epoch, self.leader_id, endpoints if self.leader_id is not None else ())

    def wrong_cluster(self, cluster_id: str | None) -> bool:
        """A request need not name its cluster; where it does, it must be ours."""
        return cluster_id is not None and self.config.cluster_id is not None and cluster_id != self.config.cluster_id

    def learn_committed(self, offset: int) -> None:
        """A leader's high watermark."""
        if offset >= 0:
            self.committed_end = max(offset, self.committed_end or 0)

    def advance_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            assert offset <= self.log.end_offset, "nothing is committed that is not in the log"
            self.high_watermark = offset
            self.emit(fx.SetHighWatermark(offset))
