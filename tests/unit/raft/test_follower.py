"""A follower and the replies that it gets, with one machine."""

from __future__ import annotations

import pytest

from kalda.base.errors import ErrorCode
from kalda.raft import events as ev
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.log_state import RaftLogState
from kalda.raft.machine import RaftMachine
from kalda.raft.quorum_state import ElectionState
from kalda.raft.roles import Candidate
from kalda.raft.roles import Follower as FollowerRole
from kalda.raft.voters import OffsetAndEpoch, RaftConfig, ReplicaKey, VoterEndpoint, VoterHistory, VoterSet

VOTERS = VoterSet.static("CONTROLLER", [(i, f"host{i}", 9000) for i in (1, 2, 3)])
EPOCH = 4


class Follower:
    """Follows voter 1 in epoch 4. `sent` are its calls without a reply."""

    def __init__(self, node_id: int, log: RaftLogState) -> None:
        config = RaftConfig(
            ReplicaKey(node_id), "cluster", endpoints=(VoterEndpoint("CONTROLLER", f"host{node_id}", 9000),)
        )
        election = ElectionState(EPOCH, 1)
        self.machine = RaftMachine(config, log, VoterHistory(VOTERS), election, lambda below: 0)
        self.now = 0
        self.sent: list[fx.SendCall] = []
        self.effects: list[fx.Effect] = []
        self.step(ev.Start())

    def step(self, event: ev.Event, wait_ms: int = 1) -> list[fx.Effect]:
        self.now += wait_ms
        self.effects = self.machine.step(event, self.now)
        self.sent += [effect for effect in self.effects if isinstance(effect, fx.SendCall)]
        return self.effects

    def fetch(self) -> fx.SendCall:
        """The fetch that is under way."""
        at = next(at for at, sent in enumerate(self.sent) if isinstance(sent.call, rpc.FetchCall))
        return self.sent.pop(at)

    def reply(self, request: fx.SendCall, reply: rpc.Reply) -> list[fx.Effect]:
        return self.step(ev.ReplyReceived(request.correlation, reply))


def header(error: ErrorCode = ErrorCode.NONE) -> rpc.ReplyHeader:
    return rpc.ReplyHeader(error, EPOCH, 1)


def fetched(first: int, end: int, epoch: int = EPOCH, high_watermark: int = 0) -> rpc.FetchReply:
    return rpc.FetchReply(header(), high_watermark, 0, records=b"", batches=(rpc.FetchedBatch(first, end - 1, epoch),))


def test_an_observer_that_may_become_a_voter_fetches_only_after_the_sync() -> None:
    observer = Follower(9, RaftLogState())
    observer.reply(observer.fetch(), fetched(0, 5))
    assert [(e.offset, e.generation) for e in observer.effects if isinstance(e, fx.FlushLog)] == [(5, 0)]
    assert not observer.sent, "its fetch offset counts as soon as it is a voter"
    observer.step(ev.Flushed(5, 0))
    call = observer.fetch().call
    assert isinstance(call, rpc.FetchCall)
    assert call.fetch_from == OffsetAndEpoch(5, EPOCH)


def test_a_diverging_reply_to_an_older_fetch_truncates_nothing() -> None:
    follower = Follower(2, RaftLogState(end_offset=10, epochs=[(1, 0), (3, 6)]))
    delayed = follower.fetch()
    moved = (VoterEndpoint("CONTROLLER", "elsewhere", 9000),)
    follower.step(ev.CallReceived(0, rpc.BeginEpochCall("cluster", EPOCH, 1, None, moved)))
    diverging = rpc.FetchReply(header(), 0, 0, diverging=OffsetAndEpoch(6, 1))
    follower.reply(follower.fetch(), diverging)
    assert follower.machine.log.end == OffsetAndEpoch(6, 1)
    follower.reply(follower.fetch(), fetched(6, 12))
    follower.step(ev.Flushed(12, follower.machine.flush_generation))
    call = follower.fetch().call
    assert isinstance(call, rpc.FetchCall)
    assert call.fetch_from.offset == 12, "by this fetch the leader may commit up to 12"
    follower.reply(delayed, diverging)
    assert follower.machine.log.end == OffsetAndEpoch(12, EPOCH)


def test_a_snapshot_that_the_leader_has_deleted_is_not_fetched_again() -> None:
    follower = Follower(9, RaftLogState())
    snapshot = OffsetAndEpoch(7, 2)
    follower.reply(follower.fetch(), rpc.FetchReply(header(), 9, 7, snapshot=snapshot))
    sent = follower.sent.pop()
    assert isinstance(sent.call, rpc.SnapshotCall)
    follower.reply(sent, rpc.SnapshotReply(header(ErrorCode.SNAPSHOT_NOT_FOUND), snapshot))
    follower.step(ev.Tick(), 100)
    assert [type(sent.call) for sent in follower.sent] == [rpc.FetchCall]


def test_votes_of_former_voters_do_not_count_after_a_snapshot_with_other_voters() -> None:
    follower = Follower(2, RaftLogState())
    snapshot = OffsetAndEpoch(7, 2)
    follower.reply(follower.fetch(), rpc.FetchReply(header(), 9, 7, snapshot=snapshot))
    sent = follower.sent.pop()
    follower.reply(sent, rpc.SnapshotReply(header(), snapshot, 0, 5, b"12345"))
    assert follower.effects[-1] == fx.InstallSnapshot(snapshot)
    follower.step(ev.Tick(), 2_000)
    for vote in list(follower.sent):
        assert isinstance(vote.call, rpc.VoteCall)
        follower.reply(vote, rpc.VoteReply(rpc.ReplyHeader(ErrorCode.UNSUPPORTED_VERSION, -1)))
    assert isinstance(follower.machine.role, Candidate)
    new_voters = VoterSet.static("CONTROLLER", [(i, f"host{i}", 9000) for i in (1, 2, 4, 5, 6)])
    follower.step(ev.SnapshotInstalled(snapshot, (rpc.Control(6, new_voters.to_record()),)))
    for vote in follower.sent:
        if isinstance(vote.call, rpc.VoteCall) and not vote.call.pre_vote and vote.destination.node_id == 1:
            follower.reply(vote, rpc.VoteReply(rpc.ReplyHeader(ErrorCode.NONE, EPOCH + 1), True))
    assert not follower.machine.is_leader, "two of five votes"


def test_a_damaged_snapshot_is_fetched_again_after_a_pause() -> None:
    """Damaged on the leader's disk, it arrives damaged every time. The follower keeps its leader meanwhile."""
    follower = Follower(9, RaftLogState())
    timeout_ms = follower.machine.config.fetch_timeout_ms
    snapshot = OffsetAndEpoch(7, 3)
    for _ in range(3):
        began = follower.now
        follower.reply(follower.fetch(), rpc.FetchReply(header(), 0, 0, snapshot=snapshot))
        sent = follower.sent.pop()
        assert isinstance(sent.call, rpc.SnapshotCall)
        follower.reply(sent, rpc.SnapshotReply(header(), snapshot, 0, 5, b"12345"))
        follower.step(ev.SnapshotDamaged(snapshot), wait_ms=timeout_ms - 1)
        assert follower.sent == []
        while not follower.sent:
            follower.step(ev.Tick(), wait_ms=20)
        assert follower.now - began > timeout_ms * 5 // 4
    assert isinstance(follower.machine.role, FollowerRole)


@pytest.mark.parametrize(
    "refused",
    [
        rpc.FetchReply(header(), 0, 0, records=b"damaged"),
        rpc.FetchReply(header(), 0, 0, diverging=OffsetAndEpoch(7, EPOCH)),
        fetched(3, 9),
    ],
    ids=["damaged", "diverging", "straddling"],
)
def test_a_reply_that_changes_nothing_is_followed_by_a_pause(refused: rpc.FetchReply) -> None:
    """The next one may be the same, at once."""
    follower = Follower(2, RaftLogState(end_offset=5, epochs=[(EPOCH, 0)]))
    follower.reply(follower.fetch(), refused)
    assert not [sent for sent in follower.sent if isinstance(sent.call, rpc.FetchCall)]
    follower.step(ev.Tick(), wait_ms=1_000)
    assert follower.fetch().call.fetch_from == OffsetAndEpoch(5, EPOCH)  # type: ignore[union-attr]
