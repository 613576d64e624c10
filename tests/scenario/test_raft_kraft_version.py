"""Raising kraft.version from 0 to 1 while the quorum works (KIP-853): static voters become voters in the log."""

from __future__ import annotations

from stepped_quorum import SteppedQuorum

from kalda.base.errors import ErrorCode
from kalda.raft import events as ev
from kalda.raft import reconfiguration, rpc
from kalda.raft.machine import RaftMachine
from kalda.raft.voters import ReplicaKey
from kalda.sim.quorum import CLUSTER, QuorumNode, endpoint_of, key_of


def static_quorum(seed: int = 0) -> tuple[SteppedQuorum, QuorumNode]:
    cluster = SteppedQuorum((1, 2, 3), dynamic=False, seed=seed)
    cluster.start()
    leader = cluster.elect()
    return cluster, leader


def machine(node: QuorumNode) -> RaftMachine:
    assert node.machine is not None
    return node.machine


def upgrade(cluster: SteppedQuorum, leader: QuorumNode) -> None:
    assert reconfiguration.upgrade_refusal(machine(leader), 1) is None
    cluster.step(leader, ev.UpgradeKraftVersion(machine(leader).epoch, 1))


def test_the_voters_report_to_their_leader_and_are_written() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    described = cluster.call(leader.id, rpc.DescribeCall())[0]
    assert isinstance(described, rpc.DescribeReply)
    keys = {voter.key for voter in described.voters}
    assert keys == {ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)}, "a static quorum has no directory ids"
    upgrade(cluster, leader)
    cluster.run(2_000)
    for node in cluster.nodes.values():
        history = machine(node).history
        assert history.kraft_version == 1
        assert [voter.key for voter in history.voters.voters] == [key_of(1), key_of(2), key_of(3)]
        assert [voter.endpoints for voter in history.voters.voters] == [(endpoint_of(i),) for i in (1, 2, 3)]
    described = cluster.call(leader.id, rpc.DescribeCall())[0]
    assert isinstance(described, rpc.DescribeReply)
    assert {voter.key for voter in described.voters} == {key_of(1), key_of(2), key_of(3)}


def test_the_voters_survive_restarts_and_can_change_then() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    upgrade(cluster, leader)
    cluster.run(2_000)
    for node_id in (1, 2, 3):
        cluster.crash(node_id)
    cluster.start(1, 2, 3)
    leader = cluster.elect()
    cluster.run(2_000)
    removed = next(i for i in (1, 2, 3) if i != leader.id)
    replies = cluster.call(leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(removed)))
    cluster.run(2_000)
    assert replies[0].header.error is ErrorCode.NONE
    assert removed not in machine(leader).voters.ids


def test_the_voters_report_to_each_new_leader() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    cluster.crash(leader.id)
    successor = cluster.elect()
    cluster.run(2_000)
    refusal = reconfiguration.upgrade_refusal(machine(successor), 1)
    assert refusal == f"voter {leader.id} has not reported its directory id yet"
    cluster.start(leader.id)
    cluster.run(4_000)
    leading = cluster.leader
    assert leading is not None
    assert reconfiguration.upgrade_refusal(machine(leading), 1) is None


def test_an_upgrade_that_was_not_committed_is_truncated() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    cluster.cut = {frozenset((leader.id, i)) for i in (1, 2, 3) if i != leader.id}
    upgrade(cluster, leader)
    assert machine(leader).history.kraft_version == 1
    cluster.run(10_000)
    cluster.cut = set()
    cluster.run(10_000)
    cluster.check_logs_match()
    assert {machine(node).history.kraft_version for node in cluster.nodes.values()} == {0}
    assert machine(leader).voters == cluster.static_voters


def test_a_voter_that_does_not_support_the_version_prevents_the_upgrade() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    other = next(i for i in (1, 2, 3) if i != leader.id)
    old = rpc.UpdateVoterCall(CLUSTER, machine(leader).epoch, key_of(other), (endpoint_of(other),), 0, 0)
    assert cluster.call(leader.id, old)[0].header.error is ErrorCode.NONE
    assert reconfiguration.upgrade_refusal(machine(leader), 1) == f"voter {other} does not support it"


def test_the_report_of_a_static_voter_is_checked() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    epoch = machine(leader).epoch

    def reply(call: rpc.UpdateVoterCall) -> ErrorCode:
        return cluster.call(leader.id, call)[0].header.error

    good = rpc.UpdateVoterCall(CLUSTER, epoch, key_of(2), (endpoint_of(2),), 0, 1)
    assert reply(good) is ErrorCode.NONE
    assert reply(good._replace(epoch=epoch - 1)) is ErrorCode.FENCED_LEADER_EPOCH
    assert reply(good._replace(voter=ReplicaKey(9, key_of(2).directory_id))) is ErrorCode.VOTER_NOT_FOUND
    assert reply(good._replace(endpoints=())) is ErrorCode.INVALID_REQUEST
    assert reply(good._replace(min_kraft_version=1)) is ErrorCode.INVALID_REQUEST


def test_a_downgrade_is_refused() -> None:
    cluster, leader = static_quorum()
    cluster.run(2_000)
    upgrade(cluster, leader)
    assert reconfiguration.upgrade_refusal(machine(leader), 0) == "kraft.version 1 is finalized, and is not lowered"
    assert reconfiguration.upgrade_refusal(machine(leader), 1) is None
    end = machine(leader).log.end_offset
    cluster.step(leader, ev.UpgradeKraftVersion(machine(leader).epoch, 1))
    assert machine(leader).log.end_offset == end, "the version is finalized already: nothing is written"
