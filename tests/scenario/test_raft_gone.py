"""A leader whose host refuses connections is gone, and is not waited for; one that is silent may be alive, and is."""

from __future__ import annotations

import pytest

from kalda.raft.config import RaftConfig
from kalda.sim.quorum import CLUSTER, SimQuorum, key_of
from kalda.sim.quorum_storm import calm, storm

FETCH_TIMEOUT_MS = RaftConfig(key_of(1), CLUSTER).fetch_timeout_ms


def led(seed: int, *voters: int, observers: tuple[int, ...] = ()) -> SimQuorum:
    """A quorum that works."""
    cluster = SimQuorum(voters or (1, 2, 3), observers=observers, seed=seed)
    cluster.start()
    cluster.elect()
    cluster.append("a")
    cluster.run(2_000)
    return cluster


def time_to_replace(cluster: SimQuorum) -> int:
    """Crash the leader; how long until another one has committed something."""
    old = cluster.leader
    assert old is not None
    cluster.crash(old.id)
    began = cluster.now
    cluster.run_until(lambda: cluster.leader is not None)
    return cluster.now - began


@pytest.mark.parametrize("voters", [(1, 2, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_is_gone_is_replaced_long_before_the_fetch_timeout(seed: int, voters: tuple[int, ...]) -> None:
    assert time_to_replace(led(seed, *voters)) < FETCH_TIMEOUT_MS // 4


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_is_silent_has_its_whole_fetch_timeout(seed: int) -> None:
    cluster = led(seed)
    cluster.refusal = 0.0
    assert time_to_replace(cluster) >= FETCH_TIMEOUT_MS - 500


@pytest.mark.parametrize("seed", range(5))
def test_an_observer_looks_for_the_next_leader_at_once(seed: int) -> None:
    cluster = led(seed, observers=(9,))
    time_to_replace(cluster)
    leader, began = cluster.leader, cluster.now
    assert leader is not None
    cluster.run_until(lambda: cluster.nodes[9].leader[0] == leader.id)
    assert cluster.now - began < FETCH_TIMEOUT_MS // 2


@pytest.mark.parametrize("seed", range(5))
def test_a_wall_before_a_leader_that_lives_does_not_unseat_it(seed: int) -> None:
    """One follower is refused in the leader's place. Another fetches, and so denies its pre-vote."""
    cluster = led(seed)
    leader = cluster.leader
    assert leader is not None
    epoch = leader.leader[1]
    fenced_in = next(i for i in cluster.nodes if i != leader.id)
    cluster.walls = {(fenced_in, leader.id)}
    cluster.run(20_000)
    assert cluster.leader is leader
    assert leader.leader[1] == epoch


def test_a_wall_is_not_run_against_all_the_time() -> None:
    """Who was denied once goes on as it would have without."""
    sent: list[str] = []
    cluster = led(3)
    leader = cluster.leader
    assert leader is not None
    fenced_in = next(i for i in cluster.nodes if i != leader.id)
    cluster.walls = {(fenced_in, leader.id)}
    cluster.trace = sent.append
    cluster.run(20_000)
    pre_votes = [line for line in sent if f" {fenced_in}: send" in line and "PreVote" in line]
    assert 2 <= len(pre_votes) <= 4 * (20_000 // FETCH_TIMEOUT_MS + 1), len(pre_votes)


@pytest.mark.parametrize("seed", range(40))
def test_storms_with_refusals_and_walls(seed: int) -> None:
    calm(storm(seed + 7_000))
