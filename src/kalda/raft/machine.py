"""The KRaft machine: one event in, ordered effects out.

`step(event, now)` applies an event, then does what is due in the present role, and returns the effects of both in
order. `deadline` is when the next `Tick` is due. Nothing changes between steps; `replica` lists what holds then.

Here is only the dispatch. The state and its transitions are in `replica`, what a call, a reply or a deadline does to it
is in `elections`, `replication`, `snapshot_transfer` and `reconfiguration`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum

from kalda.base.errors import ErrorCode
from kalda.raft import elections, events, reconfiguration, replication, rpc, snapshot_transfer
from kalda.raft import events as fx
from kalda.raft.log_state import RaftLogState
from kalda.raft.quorum_state import ElectionState
from kalda.raft.replica import MAX_REPLIED_EPOCH, Replica
from kalda.raft.roles import Candidate, Follower, LeaderRole, Prospective, Resigned, Unattached
from kalda.raft.voters import RaftConfig, VoterHistory

MAX_TRANSITIONS_PER_STEP = 16


class HeaderOutcome(Enum):
    """What the header of a reply leaves to do with the rest of it."""

    READ_BODY = "the reply is of this epoch, and without an error"
    DONE = "the header was all that counts"
    BACK_OFF = "the call failed, and is not repeated at once"


class RaftMachine(Replica):
    """A replica that is driven by events."""

    def __init__(
        self,
        config: RaftConfig,
        log: RaftLogState,
        history: VoterHistory,
        election: ElectionState,
        random_below: Callable[[int], int],
    ) -> None:
        super().__init__(config, log, history, election, random_below)
        self._is_started = False
        self._is_stopped = False

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due; None for never."""
        if not self._is_started or self._is_stopped:
            return None
        times = [time for time in (self._role_deadline(), self.outbox.deadline) if time is not None]
        return min(times, default=None)

    def step(self, event: events.Event, now: int) -> list[fx.Effect]:
        """`now` is in milliseconds of a clock that never goes back."""
        if isinstance(event, events.Start):
            self._start(now)
        elif self._is_started:
            self._dispatch(event, now)
        if self._is_started and not self._is_stopped:
            self.outbox.expire(now)
            self._drive(now)
        return self.take_effects()

    def _dispatch(self, event: events.Event, now: int) -> None:
        match event:
            case events.Tick():
                pass
            case events.AppendRecords(epoch, count, payload):
                replication.append(self, epoch, count, payload)
            case events.Flushed(offset, generation):
                replication.on_flushed(self, offset, generation, now)
            case events.CallReceived(token, call):
                self._handle(token, call, now)
            case events.ReplyReceived(correlation, reply):
                self._on_reply(correlation, reply, now)
            case events.CallFailed(correlation, connection_refused):
                request = self.outbox.close(correlation)
                if request is not None:
                    self.outbox.back_off(request.destination, now)
                    if connection_refused:
                        elections.on_connection_refused(self, request.destination, now)
            case events.SnapshotInstalled(snapshot, controls):
                snapshot_transfer.on_snapshot_installed(self, snapshot, controls, now)
            case events.SnapshotDamaged(snapshot):
                snapshot_transfer.on_snapshot_damaged(self, snapshot, now)
            case events.SnapshotTaken(snapshot):
                assert snapshot.offset <= self.high_watermark, "a snapshot holds committed records only"
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
        """Take the role that `quorum-state` implies."""
        assert not self._is_started
        self._is_started = True
        election, _ = self.persisted
        epoch, leader_id, voted = election
        if epoch < self.log.last_epoch:
            epoch, leader_id, voted = self.log.last_epoch, None, None
        if leader_id == self.local.id:
            self.resume_resigned(epoch, now)
        else:
            self.become_unattached(epoch, now, leader_id, voted)
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
        self._is_stopped = True

    # Calls and replies.

    def _handle(self, token: Hashable, call: rpc.Call, now: int) -> None:
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
                reply = snapshot_transfer.handle_snapshot(self, call, now)
            case rpc.DescribeCall():
                reply = replication.handle_describe(self)
            case _:
                reply = reconfiguration.handle_voter_change(self, token, call, now)
        if reply is not None:
            self.emit(fx.SendReply(token, reply))

    def _on_reply(self, correlation: int, reply: rpc.Reply, now: int) -> None:
        request = self.outbox.close(correlation)
        if request is None:
            return
        call, error = request.call, reply.header.error
        if error is ErrorCode.UNSUPPORTED_VERSION and isinstance(call, rpc.VoteCall) and call.pre_vote:
            # A replica from before KIP-996 cannot grant pre-votes, and must not hold one up.
            reply = rpc.VoteReply(rpc.ReplyHeader(ErrorCode.NONE, self.epoch), True)
        outcome = self._on_reply_header(reply.header, now)
        if outcome is HeaderOutcome.READ_BODY:
            is_usable = self._on_reply_body(call, reply, request.destination.node_id, now)
            outcome = HeaderOutcome.DONE if is_usable else HeaderOutcome.BACK_OFF
        elif isinstance(reply, rpc.SnapshotReply):
            snapshot_transfer.on_snapshot_refused(self, error)
        if outcome is HeaderOutcome.BACK_OFF:
            self.outbox.back_off(request.destination, now)

    def _on_reply_header(self, header: rpc.ReplyHeader, now: int) -> HeaderOutcome:
        """Every reply has the epoch and the leader of the replica that sent it."""
        error, epoch, leader_id, endpoints = header
        if not self.may_adopt_epoch(epoch, MAX_REPLIED_EPOCH):
            return HeaderOutcome.BACK_OFF
        has_no_leader = self.leader_id is None or isinstance(self.role, Unattached)
        if epoch > self.epoch or (epoch == self.epoch and leader_id is not None and has_no_leader):
            self.maybe_follow(leader_id, epoch, endpoints, now)
            return HeaderOutcome.DONE if error is ErrorCode.NONE else HeaderOutcome.BACK_OFF
        if error is not ErrorCode.NONE:
            return HeaderOutcome.BACK_OFF
        return HeaderOutcome.DONE if epoch < self.epoch else HeaderOutcome.READ_BODY

    def _on_reply_body(self, call: rpc.Call, reply: rpc.Reply, node_id: int, now: int) -> bool:
        """Whether the reply could be used. Otherwise the call is repeated only after the back-off."""
        match reply, call:
            case rpc.VoteReply(), rpc.VoteCall():
                elections.on_vote_reply(self, reply, call, node_id)
                return True
            case rpc.BeginEpochReply(), rpc.BeginEpochCall():
                elections.on_begin_epoch_reply(self, node_id)
                return True
            case rpc.EndEpochReply(), rpc.EndEpochCall():
                elections.on_end_epoch_reply(self, node_id)
                return True
            case rpc.FetchReply(), rpc.FetchCall():
                return replication.on_fetch_reply(self, reply, call, now)
            case rpc.SnapshotReply(), rpc.SnapshotCall():
                return snapshot_transfer.on_snapshot_reply(self, reply, call, now)
            case rpc.VoterChangeReply(), _:
                reconfiguration.on_voter_change_reply(self, call)
                return True
            case _:
                return False

    # What is due.

    def _drive(self, now: int) -> None:
        for _ in range(MAX_TRANSITIONS_PER_STEP):
            before = self.role
            match before:
                case Unattached():
                    elections.drive_unattached(self, before, now)
                case Prospective():
                    elections.drive_prospective(self, before, now)
                case Candidate():
                    elections.drive_candidate(self, before, now)
                case LeaderRole():
                    replication.drive_leader(self, before, now)
                case Follower():
                    replication.drive_follower(self, before, now)
                case Resigned():
                    elections.drive_resigned(self, before, now)
            if self.role is before:
                return
        raise AssertionError(f"more than {MAX_TRANSITIONS_PER_STEP} transitions in one step")

    def _role_deadline(self) -> int | None:
        role = self.role
        match role:
            case LeaderRole():
                return replication.leader_deadline(role)
            case Candidate(backoff_until=until) if until is not None:
                return min(until, role.deadline)
            case Unattached() if not self.is_voter and not self.bootstrap_destinations():
                return None
            case _:
                return role.deadline
