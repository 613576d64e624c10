"""What a replica of the metadata log holds, and the transitions from one role to another.

Here is the state; what changes it is in the files above this one, as functions on it: `elections`, `replication`,
`snapshot_transfer`, `reconfiguration`. `machine` drives them. Whatever has to be done outside is emitted as an effect,
in the order in which it must be carried out. Between two steps of the machine these hold:

- `role.epoch` is the highest epoch ever received, never lower than the epoch of the log's last record, and persisted;
- at most one vote an epoch is granted, and it is persisted before it is sent;
- `high_watermark` never decreases, `high_watermark <= log.end_offset`, and the log is never truncated below it;
- records are appended to the log as the leader by a `LeaderRole` only, and in its own epoch only;
- `history` holds the control records of the log, from the first to the last, and of the snapshot before it.

Not obvious:

- An epoch of another replica is adopted only after `Replica.may_adopt_epoch`: the last one would end all elections.
- `Replica.log` of the quorum is ahead of the file by the effects that are queued. Every transition empties the
  outbox, every truncation raises the generation of flushes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.log_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
)
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.log_state import RaftLogState
from kalda.raft.quorum_state import ElectionState
from kalda.raft.roles import Ballot, Candidate, Follower, LeaderRole, Prospective, Resigned, Role, Unattached
from kalda.raft.rpc import Call
from kalda.raft.voters import (
    MAX_EPOCH,
    Destination,
    RaftConfig,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
)

# Calls under way: at most one for each destination, and the back-off after one that failed.
#
# One for each destination is enough, since the next call depends on the last reply; and it bounds all queues. A change
# of role drops all of them: a reply to a call of an earlier role is ignored.


class InFlight(NamedTuple):
    destination: Destination
    call: Call
    deadline: int


class Outbox:
    """Invariant: a destination is either free, busy with one call in flight, or backing off."""

    __slots__ = ("_backoff_ms", "_backoff_until", "_busy", "_in_flight", "_next_correlation", "_timeout_ms")

    def __init__(self, timeout_ms: int, backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._in_flight: dict[int, InFlight] = {}
        """By correlation."""
        self._busy: dict[Destination, int] = {}
        """The correlation of the call in flight to each destination; the same calls as `_in_flight`."""
        self._backoff_until: dict[Destination, int] = {}
        self._next_correlation = 0

    def ready(self, destination: Destination, now: int) -> bool:
        return destination not in self._busy and self._backoff_until.get(destination, now) <= now

    def send(self, destination: Destination, call: Call, now: int, extra_ms: int = 0) -> int:
        """Record `call` as under way; returns its correlation. `extra_ms` is how long the receiver may park it."""
        assert destination not in self._busy
        correlation, self._next_correlation = self._next_correlation, self._next_correlation + 1
        self._in_flight[correlation] = InFlight(destination, call, now + self._timeout_ms + extra_ms)
        self._busy[destination] = correlation
        self._backoff_until.pop(destination, None)
        return correlation

    def close(self, correlation: int) -> InFlight | None:
        """The call is over. None where it was dropped before."""
        request = self._in_flight.pop(correlation, None)
        if request is not None:
            del self._busy[request.destination]
        return request

    def back_off(self, destination: Destination, now: int, at_least_ms: int = 0) -> None:
        self._backoff_until[destination] = now + max(self._backoff_ms, at_least_ms)

    def expire(self, now: int) -> None:
        """End calls that have timed out, and back-offs that are over."""
        for correlation in [c for c, request in self._in_flight.items() if request.deadline <= now]:
            request = self.close(correlation)
            assert request is not None
            self.back_off(request.destination, now)
        for destination in [d for d, until in self._backoff_until.items() if until <= now]:
            del self._backoff_until[destination]

    def drop_all(self) -> None:
        self._in_flight.clear()
        self._busy.clear()
        self._backoff_until.clear()

    @property
    def deadline(self) -> int | None:
        times = [request.deadline for request in self._in_flight.values()]
        times += self._backoff_until.values()
        return min(times, default=None)


MAX_CALLED_EPOCH = 1 << 30
MAX_REPLIED_EPOCH = MAX_EPOCH - (1 << 20)
EPOCHS_AHEAD = 1_000
"""How far past these limits, or past its own epoch, a replica adopts one."""


class Replica:
    """One replica: its log's bounds, its voters, its role. `random_below(n)` gives an integer from 0 to n - 1."""

    def __init__(
        self,
        config: RaftConfig,
        log: RaftLogState,
        history: VoterHistory,
        election: ElectionState,
        random_below: Callable[[int], int],
    ) -> None:
        self.config = config
        self.local = config.local
        self.log = log
        """Counts an append from when it is emitted: the file is behind by the effects that are not carried out yet."""
        self.history = history
        self.random_below = random_below
        self.outbox = Outbox(config.request_timeout_ms, config.retry_backoff_ms)
        """Calls under way. All belong to the present role: a transition drops those of the role before."""
        self.role: Role = Unattached(election.epoch, election.leader_id, election.voted, 0)
        snapshot = log.latest_snapshot
        self.high_watermark = snapshot.offset if snapshot is not None else 0
        """Everything before it is committed and in this log."""
        self.leader_high_watermark: int | None = None
        """The highest high watermark that a leader has reported or this replica has reached as the leader. It may be
        past the end of this log. None until the first report; never decreases."""
        self.flush_generation = 0
        """Raised by every truncation, so that a flush of records that were truncated since is not taken for one of
        those that replaced them."""
        self.is_installing_snapshot = False
        """Between `InstallSnapshot` and its outcome. Nothing is fetched meanwhile, whatever the role: it would be lost
        when the log begins anew."""
        self.next_early_election = 0
        """When this replica may next give up a leader that refuses connections before the fetch timeout has passed."""
        self.persisted = (election, history.kraft_version)
        """What `quorum-state` holds once all emitted effects are carried out."""
        self._announced: tuple[int | None, int] = (None, 0)
        """Leader and epoch of the last `LeaderChanged`."""
        self._effects: list[fx.Effect] = []

    # What the fields say together.

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

    def bootstrap_destinations(self) -> tuple[Destination, ...]:
        """Where to send the fetches that find the leader, while none is known."""
        if self.config.bootstrap_servers:
            return tuple(
                Destination(-2 - at, host, port) for at, (host, port) in enumerate(self.config.bootstrap_servers)
            )
        others = (self.voters.destination(i, self.config.listener) for i in self.voters.ids if i != self.local.id)
        return tuple(destination for destination in others if destination is not None)

    def destination_of(self, node_id: int, endpoints: tuple[VoterEndpoint, ...]) -> Destination | None:
        return Voter(ReplicaKey(node_id), endpoints).destination(self.config.listener)

    def random_election_timeout_ms(self) -> int:
        """From one to two election timeouts."""
        return self.config.election_timeout_ms + self.random_below(max(1, self.config.election_timeout_ms))

    # Effects.

    def emit(self, effect: fx.Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[fx.Effect]:
        effects, self._effects = self._effects, []
        return effects

    def send(self, destination: Destination, call: rpc.Call, now: int, extra_ms: int = 0) -> None:
        """`extra_ms`: how long the receiver may park the call."""
        correlation = self.outbox.send(destination, call, now, extra_ms)
        self.emit(fx.SendCall(correlation, destination, call, self.config.request_timeout_ms + extra_ms))

    def send_fetch(self, destination: Destination, now: int) -> None:
        """Fetch what comes after the end of this log. Sent to a replica that does not lead, it finds the leader."""
        config = self.config
        call = rpc.FetchCall(
            config.cluster_id,
            self.epoch,
            self.local,
            self.log.end,
            config.fetch_max_wait_ms,
            config.fetch_max_bytes,
            self.high_watermark,
        )
        self.send(destination, call, now, config.fetch_max_wait_ms)

    # Checks and headers that calls and replies share.

    def is_wrong_cluster(self, cluster_id: str | None) -> bool:
        """A call may leave its cluster out."""
        return cluster_id is not None and self.config.cluster_id is not None and cluster_id != self.config.cluster_id

    def may_adopt_epoch(self, epoch: int, limit: int) -> bool:
        """Whether another replica may raise the epoch to `epoch`: at most `EPOCHS_AHEAD` beyond this one's, or beyond
        the `limit`. One message with the last epoch would end all elections, for good. So the limit of calls, which any
        node with the right to the cluster may send, leaves half of the epochs to elections. That of replies, which the
        voters' own addresses send, is higher: so a replica that was down while others passed the lower one gets their
        epoch."""
        return epoch <= max(self.epoch, limit) + EPOCHS_AHEAD

    def leader_refusal(self, cluster_id: str | None, epoch: int) -> ErrorCode | None:
        """Why this replica cannot answer a call that only the leader of `epoch` answers."""
        if self.is_wrong_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(self.role, LeaderRole):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None

    def reply_header(self, error: ErrorCode = ErrorCode.NONE) -> rpc.ReplyHeader:
        role = self.role
        endpoints: tuple[VoterEndpoint, ...] = ()
        if isinstance(role, LeaderRole):
            endpoints = self.config.endpoints
        elif isinstance(role, Follower | Prospective):
            endpoints = role.leader_endpoints
        return rpc.ReplyHeader(error, role.epoch, self.leader_id, endpoints if self.leader_id is not None else ())

    # The log, its high watermark and its control records.

    def flush(self) -> None:
        """Have the whole log synced."""
        self.emit(fx.FlushLog(self.log.end_offset, self.flush_generation))

    def append_controls(self, *records: object) -> int:
        """Append a control batch as the leader and apply its records at once. Returns its first offset."""
        role = self.role
        assert isinstance(role, LeaderRole)
        first = self.log.append(role.epoch, len(records))
        self.emit(fx.AppendControls(first, role.epoch, records))
        for at, record in enumerate(records):
            self.apply_control(first + at, record)
        self.flush()
        return first

    def apply_control(self, offset: int, record: object) -> None:
        """A voters or version record is in force as soon as it is in the log, before it is committed (KIP-853)."""
        if isinstance(record, VotersRecord):
            self.history.set_voters(offset, VoterSet.from_record(record))
            if isinstance(self.role, LeaderRole):
                self.role.set_voters(self.voters, self.local)
        elif isinstance(record, KRaftVersionRecord):
            self.history.set_kraft_version(offset, record.kraft_version)
            self.persist()

    def raise_leader_high_watermark(self, offset: int) -> None:
        """`offset` is -1 in a reply of a leader that has not committed in its epoch."""
        if offset >= 0:
            self.leader_high_watermark = max(offset, self.leader_high_watermark or 0)

    def advance_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            assert offset <= self.log.end_offset, "the high watermark is within the log"
            self.high_watermark = offset
            self.emit(fx.SetHighWatermark(offset))

    # Transitions.

    def maybe_follow(self, leader_id: int | None, epoch: int, endpoints: tuple[VoterEndpoint, ...], now: int) -> None:
        """A call or a reply names the leader of `epoch`, or none. A newer epoch is adopted in any case; in the present
        epoch the leader is adopted where none is known, and its endpoints where they have changed."""
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

    def become_unattached(
        self, epoch: int, now: int, leader_id: int | None = None, voted: ReplicaKey | None = None
    ) -> None:
        self._set_role(Unattached(epoch, leader_id, voted, now + self.random_election_timeout_ms()))

    def become_follower(
        self, epoch: int, leader_id: int, endpoints: tuple[VoterEndpoint, ...], leader: Destination, now: int
    ) -> None:
        voted = self.role.voted if self.role.epoch == epoch else None
        deadline = now + self.config.fetch_timeout_ms
        self._set_role(Follower(epoch, leader_id, endpoints, leader, voted, deadline))

    def become_prospective(self, now: int, retries: int = 1) -> None:
        role = self.role
        endpoints = role.leader_endpoints if isinstance(role, Follower | Prospective) else ()
        leader_id = None if isinstance(role, Candidate) else role.leader_id
        deadline = now + self.random_election_timeout_ms()
        self._set_role(Prospective(role.epoch, leader_id, endpoints, role.voted, self._ballot(), deadline, retries))

    def become_candidate(self, now: int, retries: int) -> None:
        """Where the epochs are used up, the replica stays in the last one without a leader."""
        assert self.is_voter, "only a voter stands for election"
        epoch = self.role.epoch + 1
        if epoch > MAX_EPOCH:
            self.become_unattached(self.role.epoch, now, None, self.role.voted)
            return
        deadline = now + self.random_election_timeout_ms()
        self._set_role(Candidate(epoch, self.local, self._ballot(), deadline, retries))

    def become_leader(self, role: Candidate, now: int) -> None:
        """Lead the epoch that `role` has won. The epoch begins with a batch of control records: nothing of an older
        epoch is committed before that is."""
        assert role.ballot.won
        config = self.config
        leader = LeaderRole(
            role.epoch,
            self.local,
            self.voters,
            role.ballot.granting,
            self.log.end_offset,
            now,
            config.check_quorum_timeout_ms,
        )
        if not self.history.dynamic:
            own = Voter(self.local, config.endpoints, 0, config.max_kraft_version)
            leader.reported_voters = self.voters.with_voter(own)
        self._set_role(leader)
        self.append_controls(*self._start_of_epoch_records(leader))

    def become_resigned(self, now: int) -> None:
        role = self.role
        assert isinstance(role, LeaderRole)
        others = [node_id for node_id in self.voters.ids if node_id != self.local.id]
        deadline = now + self.random_election_timeout_ms()
        self._set_role(Resigned(role.epoch, self.local.id, others, role.successors(), deadline))

    def resume_resigned(self, epoch: int, now: int) -> None:
        """After a restart of the leader of `epoch`. It may not lead that epoch again: what it appended after its last
        sync may be lost, though others fetched it."""
        self._set_role(Resigned(epoch, self.local.id, (), (), now + self.random_election_timeout_ms()))

    def grant_vote(self, candidate: ReplicaKey) -> None:
        """Vote in the present epoch without a change of role."""
        role = self.role
        assert isinstance(role, Unattached | Prospective)
        assert role.voted is None
        role.voted = candidate
        self.persist()

    def persist(self) -> None:
        """Write `quorum-state` where it changes."""
        role = self.role
        state = ElectionState(role.epoch, role.leader_id, role.voted)
        if (state, self.history.kraft_version) != self.persisted:
            self.persisted = (state, self.history.kraft_version)
            self.emit(fx.Persist(state, self.voters.ids, self.history.kraft_version))

    def announce_leader(self) -> None:
        """Emit `LeaderChanged` where leader or epoch changed; for this replica as the leader, only once a record of its
        epoch is committed."""
        role = self.role
        if isinstance(role, LeaderRole) and not role.has_committed_in_epoch:
            return
        leader = (self.leader_id, role.epoch)
        if leader != self._announced:
            self._announced = leader
            self.emit(fx.LeaderChanged(*leader))

    def _set_role(self, role: Role) -> None:
        old = self.role
        assert role.epoch >= old.epoch, f"epoch {role.epoch} after {old.epoch}"
        self.outbox.drop_all()
        self.role = role
        self.persist()
        if isinstance(old, LeaderRole):
            self._refuse_parked(old)
        self.announce_leader()

    def _refuse_parked(self, role: LeaderRole) -> None:
        """The role is over: the calls that are parked with it go to the next leader."""
        header = self.reply_header(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for fetch in role.parked_fetches:
            self.emit(fx.SendReply(fetch.token, rpc.FetchReply(header)))
        role.parked_fetches = []
        if role.pending_change is not None and role.pending_change.token is not None:
            self.emit(fx.SendReply(role.pending_change.token, rpc.VoterChangeReply(header, "the leader resigned")))
        role.pending_change = None

    def _ballot(self) -> Ballot:
        """With this replica's vote for itself."""
        ballot = Ballot(self.voters.ids)
        ballot.record(self.local.id, True)
        return ballot

    def _start_of_epoch_records(self, role: LeaderRole) -> tuple[object, ...]:
        """Voters that are only in the bootstrap snapshot, which is not replicated, are written to the log with it."""
        records: list[object] = [
            LeaderChangeMessage(
                leader_id=role.leader_id,
                voters=[LeaderChangeMessageVoter(voter_id=node_id) for node_id in self.voters.ids],
                granting_voters=[LeaderChangeMessageVoter(voter_id=node_id) for node_id in role.granting_voters],
            )
        ]
        if self.history.dynamic and self.history.voters_offset == -1:
            records.append(KRaftVersionRecord(kraft_version=self.history.kraft_version))
            records.append(self.voters.to_record())
        return tuple(records)
