"""A leader whose host refuses connections is replaced at once; one that does not respond, after the fetch timeout."""

from __future__ import annotations

import pytest
from stepped_quorum import SteppedQuorum

from kalda.raft.voters import RaftConfig
from kalda.sim.quorum import CLUSTER, key_of, recover, storm

FETCH_TIMEOUT_MS = RaftConfig(key_of(1), CLUSTER).fetch_timeout_ms


def quorum_with_leader(seed: int, *voters: int, observers: tuple[int, ...] = ()) -> SteppedQuorum:
    cluster = SteppedQuorum(voters or (1, 2, 3), observers=observers, seed=seed)
    cluster.start()
    cluster.elect()
    cluster.append("a")
    cluster.run(2_000)
    return cluster


def time_to_replace(cluster: SteppedQuorum) -> int:
    """Crash the leader; the milliseconds until another one has committed a record."""
    old = cluster.leader
    assert old is not None
    cluster.crash(old.id)
    began = cluster.now
    cluster.run_until(lambda: cluster.leader is not None)
    return cluster.now - began


@pytest.mark.parametrize("voters", [(1, 2, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_refuses_connections_is_replaced_long_before_the_fetch_timeout(
    seed: int, voters: tuple[int, ...]
) -> None:
    assert time_to_replace(quorum_with_leader(seed, *voters)) < FETCH_TIMEOUT_MS // 4


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_does_not_respond_has_its_whole_fetch_timeout(seed: int) -> None:
    cluster = quorum_with_leader(seed)
    cluster.refusal_rate = 0.0
    assert time_to_replace(cluster) >= FETCH_TIMEOUT_MS - 500


@pytest.mark.parametrize("seed", range(5))
def test_an_observer_finds_the_next_leader_at_once(seed: int) -> None:
    cluster = quorum_with_leader(seed, observers=(9,))
    time_to_replace(cluster)
    leader, began = cluster.leader, cluster.now
    assert leader is not None
    cluster.run_until(lambda: cluster.nodes[9].leader[0] == leader.id)
    assert cluster.now - began < FETCH_TIMEOUT_MS // 2


@pytest.mark.parametrize("seed", range(5))
def test_a_firewall_before_a_leader_that_works_does_not_depose_it(seed: int) -> None:
    """One follower's connections are refused. The other one fetches, and so denies its pre-vote."""
    cluster = quorum_with_leader(seed)
    leader = cluster.leader
    assert leader is not None
    epoch = leader.leader[1]
    refused = next(i for i in cluster.nodes if i != leader.id)
    cluster.firewalls = {(refused, leader.id)}
    cluster.run(20_000)
    assert cluster.leader is leader
    assert leader.leader[1] == epoch


def test_a_follower_behind_a_firewall_stands_at_most_once_a_fetch_timeout() -> None:
    sent: list[str] = []
    cluster = quorum_with_leader(3)
    leader = cluster.leader
    assert leader is not None
    refused = next(i for i in cluster.nodes if i != leader.id)
    cluster.firewalls = {(refused, leader.id)}
    cluster.trace = sent.append
    cluster.run(20_000)
    pre_votes = [line for line in sent if f" {refused}: send" in line and "PreVote" in line]
    assert 2 <= len(pre_votes) <= 4 * (20_000 // FETCH_TIMEOUT_MS + 1), len(pre_votes)


@pytest.mark.parametrize("seed", range(40))
def test_storms_with_refused_connections_and_firewalls(seed: int) -> None:
    recover(storm(seed + 7_000))
