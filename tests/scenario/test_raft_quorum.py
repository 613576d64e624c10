"""Quorums of several voters: elections, replication, crashes, changes of the voters."""

from __future__ import annotations

import pytest
from stepped_quorum import SteppedQuorum

from kalda.base.errors import ErrorCode
from kalda.raft import rpc
from kalda.raft.roles import Follower, LeaderRole
from kalda.raft.voters import OffsetAndEpoch
from kalda.sim.quorum import CLUSTER, endpoint_of, key_of

NOTHING = OffsetAndEpoch(0, 0)


def started(*voters: int, **options: object) -> SteppedQuorum:
    cluster = SteppedQuorum(voters or (1, 2, 3), **options)  # type: ignore[arg-type]
    cluster.start()
    cluster.elect()
    return cluster


def settle(cluster: SteppedQuorum, ms: int = 2_000) -> None:
    cluster.run(ms)
    marks = {node.high_watermark for node in cluster.nodes.values() if node.up}
    assert len(marks) == 1, f"high watermarks differ: {marks}"
    cluster.check_logs_match()


def test_an_election_line_by_line() -> None:
    lines: list[str] = []
    cluster = SteppedQuorum((1, 2, 3), seed=4, trace=lambda line: lines.append(line[7:]))
    cluster.start()
    leader = cluster.elect()
    own = [line.removeprefix(f"{leader.id}: ") for line in lines if line.startswith(f"{leader.id}:")]
    votes = [line for line in own if "send" in line and "Vote" in line]
    others = [node_id for node_id in (1, 2, 3) if node_id != leader.id]
    assert votes == [
        *(f"send {node_id} PreVote epoch=0" for node_id in others),
        *(f"send {node_id} Vote epoch=1" for node_id in others),
    ]
    first_vote = own.index(votes[2])
    assert f"persist epoch=1 leader=None voted={leader.id}" in own[:first_vote], (
        "a vote is persisted before it is requested"
    )
    at = own.index(f"persist epoch=1 leader={leader.id} voted=-")
    assert own[at + 1 : at + 5] == [
        "append 0@1 LeaderChangeMessage KRaftVersionRecord VotersRecord",
        "flush 3",
        *(f"send {node_id} BeginQuorumEpoch epoch=1" for node_id in others),
    ]


def test_commits_reach_all_nodes_also_observers() -> None:
    cluster = started(observers=(8, 9))
    cluster.append("a", "b")
    cluster.append("c")
    settle(cluster, 1_500)
    assert [entry[1] for entry in cluster.nodes[9].entries[-3:]] == ["a", "b", "c"]
    assert cluster.nodes[9].high_watermark == 6


def test_static_voters_work_the_same() -> None:
    cluster = started(observers=(9,), dynamic=False)
    cluster.append("a")
    settle(cluster, 1_500)
    assert cluster.nodes[9].high_watermark == 2


def test_a_leader_that_dies_is_replaced_and_comes_back_as_a_follower() -> None:
    cluster = started()
    old = cluster.leader
    assert old is not None
    cluster.append("a")
    settle(cluster)
    cluster.crash(old.id)
    cluster.run_until(lambda: cluster.leader is not None)
    assert cluster.leader is not None
    assert cluster.leader.id != old.id
    cluster.append("b")
    cluster.start(old.id)
    settle(cluster, 5_000)
    assert old.machine is not None
    assert isinstance(old.machine.role, Follower)
    assert [entry[1] for entry in old.entries if isinstance(entry[1], str)] == ["a", "b"]


def test_what_only_a_lost_leader_had_is_truncated() -> None:
    cluster = started()
    old = cluster.leader
    assert old is not None
    settle(cluster)
    others = [node_id for node_id in cluster.nodes if node_id != old.id]
    cluster.cut = {frozenset((old.id, other)) for other in others}
    cluster.append("lost")
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.id != old.id)
    cluster.append("kept")
    cluster.cut = set()
    settle(cluster, 6_000)
    assert [entry[1] for entry in old.entries if isinstance(entry[1], str)] == ["kept"]


def test_a_leader_without_a_majority_steps_down() -> None:
    cluster = started()
    leader = cluster.leader
    assert leader is not None
    settle(cluster)
    cluster.cut = {frozenset((leader.id, other)) for other in cluster.nodes if other != leader.id}
    cluster.run(6_000)
    assert not leader.leads


def test_a_replica_that_was_cut_off_does_not_end_the_epoch() -> None:
    cluster = started()
    leader = cluster.leader
    assert leader is not None
    settle(cluster)
    epoch = leader.leader[1]
    isolated = next(node_id for node_id in cluster.nodes if node_id != leader.id)
    cluster.cut = {frozenset((isolated, other)) for other in cluster.nodes if other != isolated}
    cluster.run(20_000)
    cluster.cut = set()
    settle(cluster, 5_000)
    assert cluster.leader is leader
    assert leader.leader[1] == epoch, "its pre-votes are denied, so it never raises the epoch"


def test_a_follower_that_lacks_deleted_records_loads_the_snapshot() -> None:
    cluster = started()
    leader = cluster.leader
    assert leader is not None
    settle(cluster)
    late = next(node_id for node_id in cluster.nodes if node_id != leader.id)
    cluster.crash(late)
    for at in range(10):
        cluster.append(f"v{at}")
        cluster.run(100)
    snapshot = cluster.take_snapshot(leader.id, leader.end_offset - 2)
    cluster.start(late)
    settle(cluster, 5_000)
    node = cluster.nodes[late]
    assert list(node.snapshots) == [snapshot]
    assert node.machine is not None
    assert node.machine.voters.ids == (1, 2, 3)
    assert (node.start_offset, node.end_offset) == (snapshot.offset, leader.end_offset)


def test_a_voter_is_added_and_another_removed() -> None:
    cluster = started(joiners=(4,))
    leader = cluster.leader
    assert leader is not None
    cluster.append("a")
    settle(cluster)
    replies = cluster.call(leader.id, rpc.AddVoterCall(CLUSTER, key_of(4), (endpoint_of(4),)))
    assert not replies, "the reply waits for the commit"
    cluster.run(1_000)
    assert replies[0].header.error is ErrorCode.NONE
    settle(cluster)
    assert all(n.machine is not None and n.machine.voters.ids == (1, 2, 3, 4) for n in cluster.nodes.values())
    again = cluster.call(leader.id, rpc.AddVoterCall(CLUSTER, key_of(4), (endpoint_of(4),)))
    assert again[0].header.error is ErrorCode.DUPLICATE_VOTER
    removed = next(node_id for node_id in (1, 2, 3) if node_id != leader.id)
    replies = cluster.call(leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(removed)))
    cluster.run(1_000)
    assert replies[0].header.error is ErrorCode.NONE
    settle(cluster)
    assert leader.machine is not None
    assert removed not in leader.machine.voters.ids


def test_a_quorum_of_one_can_grow_at_any_time() -> None:
    """No other voter has fetched until then; check-quorum does not count that as a lost majority."""
    cluster = started(1, joiners=(2, 3))
    leader = cluster.leader
    assert leader is not None
    settle(cluster, 60_000)
    for joiner in (2, 3):
        replies = cluster.call(leader.id, rpc.AddVoterCall(CLUSTER, key_of(joiner), (endpoint_of(joiner),)))
        cluster.run(1_000)
        assert replies[0].header.error is ErrorCode.NONE
        settle(cluster, 20_000)
    assert leader.leads
    assert leader.machine is not None
    assert (leader.machine.epoch, leader.machine.voters.ids) == (1, (1, 2, 3))


def test_a_leader_that_is_removed_leads_until_that_is_committed() -> None:
    cluster = started()
    leader = cluster.leader
    assert leader is not None
    settle(cluster)
    replies = cluster.call(leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(leader.id)))
    cluster.run(1_000)
    assert replies[0].header.error is ErrorCode.NONE
    assert not leader.leads
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.id != leader.id)
    cluster.append("a")
    settle(cluster, 5_000)
    assert leader.machine is not None
    assert not leader.machine.is_voter
    assert leader.entries[-1][1] == "a"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (rpc.AddVoterCall(CLUSTER, key_of(7), (endpoint_of(7),)), ErrorCode.REQUEST_TIMED_OUT),
        (rpc.AddVoterCall(CLUSTER, key_of(7), ()), ErrorCode.INVALID_REQUEST),
        (rpc.AddVoterCall("other", key_of(7), (endpoint_of(7),)), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (rpc.RemoveVoterCall(CLUSTER, key_of(7)), ErrorCode.VOTER_NOT_FOUND),
        (rpc.RemoveVoterCall(CLUSTER, key_of(1, dynamic=False)), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_changes_that_are_refused(call: rpc.Call, error: ErrorCode) -> None:
    cluster = started()
    settle(cluster)
    assert cluster.leader is not None
    assert cluster.call(cluster.leader.id, call)[0].header.error is error


def test_a_static_quorum_does_not_change() -> None:
    cluster = started(dynamic=False)
    settle(cluster)
    assert cluster.leader is not None
    replies = cluster.call(cluster.leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(1)))
    assert replies[0].header.error is ErrorCode.UNSUPPORTED_VERSION


def test_a_vote_depends_on_the_log_and_is_granted_once_an_epoch() -> None:
    cluster = SteppedQuorum((1, 2, 3))
    cluster.start(1)

    def vote(candidate: int, epoch: int, end: OffsetAndEpoch = NOTHING, **more: object) -> rpc.VoteReply:
        call = rpc.VoteCall(CLUSTER, epoch, key_of(candidate), key_of(1), end, **more)  # type: ignore[arg-type]
        reply = cluster.call(1, call)[0]
        assert isinstance(reply, rpc.VoteReply)
        return reply

    assert vote(2, 5, pre_vote=True).granted
    assert cluster.nodes[1].election.epoch == 5
    assert cluster.nodes[1].election.voted is None
    assert vote(2, 5).granted
    assert vote(2, 5).granted, "the same candidate may repeat its call"
    assert not vote(3, 5).granted
    assert vote(3, 4).header.error is ErrorCode.FENCED_LEADER_EPOCH
    assert vote(3, 6, OffsetAndEpoch(3, 6)).header.error is ErrorCode.INVALID_REQUEST
    wrong = rpc.VoteCall(CLUSTER, 6, key_of(3), key_of(2), OffsetAndEpoch(0, 0))
    assert cluster.call(1, wrong)[0].header.error is ErrorCode.INVALID_VOTER_KEY


def test_describe_lists_voters_and_observers() -> None:
    cluster = started(observers=(9,))
    cluster.append("a")
    settle(cluster)
    leader = cluster.leader
    assert leader is not None
    reply = cluster.call(leader.id, rpc.DescribeCall())[0]
    assert isinstance(reply, rpc.DescribeReply)
    assert [progress.key.id for progress in reply.voters] == [1, 2, 3]
    assert [progress.key.id for progress in reply.observers] == [9]
    assert {progress.log_end_offset for progress in (*reply.voters, *reply.observers)} == {4}
    other = next(node_id for node_id in (1, 2, 3) if node_id != leader.id)
    assert cluster.call(other, rpc.DescribeCall())[0].header.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_clean_stop_hands_over_faster_than_a_crash() -> None:
    from kalda.raft import events as ev

    cluster = started()
    settle(cluster)
    leader = cluster.leader
    assert leader is not None
    assert leader.machine is not None
    role = leader.machine.role
    assert isinstance(role, LeaderRole)
    before = cluster.now
    cluster.step(leader, ev.Shutdown())
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.id != leader.id)
    assert cluster.now - before < 1_000
