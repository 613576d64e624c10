"""Epochs and offsets that other replicas send, up to the ends of their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from raft_world import Replica, World, append, static_voter, topic

from kalda.base.errors import ErrorCode
from kalda.base.ids import METADATA_TOPIC_NAME
from kalda.protocol.messages import quorum as q
from kalda.protocol.notation import Request, Response
from kalda.raft import events as ev
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.log_state import RaftLogState
from kalda.raft.machine import RaftMachine
from kalda.raft.quorum_state import ElectionState, decode_quorum_state, encode_quorum_state
from kalda.raft.replica import EPOCHS_AHEAD, MAX_CALLED_EPOCH, MAX_REPLIED_EPOCH
from kalda.raft.roles import Follower, Resigned, Unattached
from kalda.raft.voters import (
    MAX_EPOCH,
    MAX_OFFSET,
    OffsetAndEpoch,
    RaftConfig,
    ReplicaKey,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
)

BEYOND = [MAX_EPOCH, MAX_EPOCH - 1, MAX_CALLED_EPOCH + EPOCHS_AHEAD + 1]
VOTERS = VoterSet.static("CONTROLLER", [(i, f"host{i}", 9000) for i in (1, 2, 3)])


def vote(epoch: int, *, pre_vote: bool = False) -> Request:
    data = q.VoteRequestPartitionData(
        replica_epoch=epoch, replica_id=2, last_offset=100, last_offset_epoch=epoch - 1, pre_vote=pre_vote
    )
    topics = [q.VoteRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[data])]
    return q.VoteRequest(cluster_id="cluster", topics=topics)


def begin(epoch: int) -> Request:
    data = q.BeginQuorumEpochRequestPartitionData(leader_id=2, leader_epoch=epoch)
    topics = [q.BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[data])]
    return q.BeginQuorumEpochRequest(cluster_id="cluster", topics=topics)


def end(epoch: int) -> Request:
    data = q.EndQuorumEpochRequestPartitionData(leader_id=2, leader_epoch=epoch)
    topics = [q.EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[data])]
    return q.EndQuorumEpochRequest(cluster_id="cluster", topics=topics)


def answer(replica: Replica, request: Request) -> Any:
    response = replica.driver.handle(request, 1)
    replica.world.run(1)
    assert isinstance(response, Response)
    return response.topics[0].partitions[0]  # type: ignore[attr-defined]


def a_leader(tmp_path: Path) -> Replica:
    replica = Replica(World(), f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    return replica


@pytest.mark.parametrize("epoch", BEYOND)
@pytest.mark.parametrize("request_of", [vote, lambda epoch: vote(epoch, pre_vote=True), begin, end])
def test_a_call_that_would_use_the_epochs_up_is_refused(tmp_path: Path, request_of: Any, epoch: int) -> None:
    replica = a_leader(tmp_path)
    answered = answer(replica, request_of(epoch))
    assert (answered.error_code, answered.leader_epoch, answered.leader_id) == (ErrorCode.INVALID_REQUEST, 1, 1)
    append(replica.driver, 1, [topic("a")])
    replica.world.run(60_000)
    assert not replica.failures
    assert replica.listener.leaders[-1] == (1, 1)


@pytest.mark.parametrize("request_of", [vote, begin, end])
def test_after_the_highest_epoch_that_a_call_may_name_elections_go_on_and_the_node_starts_again(
    tmp_path: Path, request_of: Any
) -> None:
    replica = a_leader(tmp_path)
    highest = MAX_CALLED_EPOCH + EPOCHS_AHEAD
    assert answer(replica, request_of(highest)).error_code == ErrorCode.NONE
    replica.world.run(60_000)
    assert not replica.failures
    epoch = replica.driver.machine.epoch
    assert replica.listener.leaders[-1] == (1, epoch)
    assert epoch > highest
    append(replica.driver, epoch, [topic("a")])
    replica.world.run(1)
    replica.driver.close()
    again = Replica(World(), f"{tmp_path}/m", static_voters=static_voter())
    again.start()
    assert again.listener.leaders[-1] == (1, epoch + 1)
    assert again.listener.records == [topic("a")]


@pytest.mark.parametrize("epoch", [MAX_EPOCH, MAX_EPOCH - 1])
def test_where_the_epochs_are_used_up_a_node_writes_nothing_that_it_cannot_read(tmp_path: Path, epoch: int) -> None:
    """A file with the last epoch, as an earlier version or another program may have left it."""
    (tmp_path / "m").mkdir()
    state = tmp_path / "m" / "quorum-state"
    state.write_bytes(encode_quorum_state(ElectionState(epoch), (1,), 0))
    for _ in range(3):
        replica = Replica(World(), f"{tmp_path}/m", static_voters=static_voter())
        replica.start()
        replica.world.run(60_000)
        assert not replica.failures
        assert decode_quorum_state(state.read_bytes()).epoch == MAX_EPOCH
        assert json.loads(state.read_bytes())["leaderEpoch"] == MAX_EPOCH
        replica.driver.resign(MAX_EPOCH)
        replica.world.run(60_000)
        assert not replica.failures
        replica.driver.close()


def a_machine(election: ElectionState, log: RaftLogState | None = None) -> RaftMachine:
    config = RaftConfig(ReplicaKey(2), "cluster", endpoints=(VoterEndpoint("CONTROLLER", "host2", 9000),))
    return RaftMachine(config, log or RaftLogState(), VoterHistory(VOTERS), election, lambda below: 0)


def fetch_of(effects: list[fx.Effect]) -> fx.SendCall:
    return next(e for e in effects if isinstance(e, fx.SendCall) and isinstance(e.call, rpc.FetchCall))


def test_a_leader_that_has_resigned_in_the_last_epoch_votes_for_nobody_in_it() -> None:
    machine = a_machine(ElectionState(MAX_EPOCH, 2))
    machine.step(ev.Start(), 0)
    for at_ms in range(0, 60_000, 500):
        machine.step(ev.Tick(), at_ms)
        call = rpc.VoteCall("cluster", MAX_EPOCH, ReplicaKey(1), ReplicaKey(2), OffsetAndEpoch(9, 1))
        (reply,) = [e.reply for e in machine.step(ev.CallReceived(1, call), at_ms) if isinstance(e, fx.SendReply)]
        assert isinstance(reply, rpc.VoteReply)
        assert not reply.granted
    assert isinstance(machine.role, Resigned)


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH])
@pytest.mark.parametrize(("epoch", "adopted"), [(MAX_EPOCH, 4), (MAX_REPLIED_EPOCH, MAX_REPLIED_EPOCH)])
def test_a_reply_raises_the_epoch_only_where_others_remain(epoch: int, adopted: int, error: ErrorCode) -> None:
    machine = a_machine(ElectionState(4, 1))
    sent = fetch_of(machine.step(ev.Start(), 0))
    machine.step(ev.ReplyReceived(sent.correlation, rpc.FetchReply(rpc.ReplyHeader(error, epoch))), 1)
    assert machine.epoch == adopted
    assert isinstance(machine.role, Follower if adopted == 4 else Unattached)


@pytest.mark.parametrize(
    "snapshot", [OffsetAndEpoch(10, 5), OffsetAndEpoch(10, MAX_EPOCH), OffsetAndEpoch(MAX_OFFSET + 1, 4)]
)
def test_no_snapshot_is_fetched_that_the_log_could_not_continue(snapshot: OffsetAndEpoch) -> None:
    machine = a_machine(ElectionState(4, 1))
    sent = fetch_of(machine.step(ev.Start(), 0))
    reply = rpc.FetchReply(rpc.ReplyHeader(ErrorCode.NONE, 4, 1), 5, 0, snapshot=snapshot)
    effects = machine.step(ev.ReplyReceived(sent.correlation, reply), 1)
    assert not [e for e in effects if isinstance(e, fx.SendCall)]
    assert isinstance(machine.role, Follower)
    assert machine.role.snapshot is None
