"""Seeds of controllers alone, and whole nodes whose active controller stalls or has a bug."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kalda.base.scheduling import LoopTime
from kalda.controller import broker_changes
from kalda.controller.quorum_controller import QuorumController
from kalda.sim.cluster import SimCluster
from kalda.sim.controllers import recover, stalls, storm
from kalda.sim.world import World, raise_once

FIRST, LAST = (int(part) for part in os.environ.get("KALDA_SIM_SEEDS", "0:25").split(":"))
STALL_S = 12
"""Four sessions of the simulated nodes."""


FOUND = (30000123, 30000180, 30000731, 30002971)
"""Seeds of a fault: a heartbeat whose handling raised started no session anew. And of what looks like one: a broker
that is silent for a session while its controller stalls, or for exactly one; a heartbeat after the refusal."""


@pytest.mark.parametrize("weather", [storm, stalls])
@pytest.mark.parametrize("seed", [*range(FIRST, LAST), *FOUND])
def test_a_storm_around_controllers(seed: int, weather: Callable[[int], Any]) -> None:
    recover(weather(seed))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_storm_around_controllers_that_take_many_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker is taken out of one partition in each event, so heartbeats and failures come in between."""
    monkeypatch.setattr(broker_changes, "PARTITIONS_A_STEP", 1)
    recover(storm(seed))


def controller_of(cluster: SimCluster, node_id: int) -> QuorumController:
    node = cluster.nodes[node_id].node
    assert node is not None
    return node.running.quorum.controller


def fenced_by(cluster: SimCluster) -> list[int]:
    brokers = controller_of(cluster, 1).cluster.brokers
    return [broker_id for broker_id, broker in brokers.items() if broker.fenced]


def run(world: World, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`main`, to its end."""
    with world:
        world.run(main(), 300)


def fencings_after_a_stall(seed: int) -> list[str]:
    """What a lone controller logs of brokers that it fences after a stall; all three nodes went on but its own."""
    lines: list[str] = []
    world = World(seed, lines.append, verbose=True)

    async def main() -> None:
        cluster = SimCluster(world, 3, voters=1)
        await cluster.start()
        await cluster.wait(lambda: not fenced_by(cluster), "no broker is fenced", 30)
        cluster.nodes[1].machine.pause()
        await asyncio.sleep(STALL_S)
        cluster.nodes[1].machine.resume()
        await asyncio.sleep(10)

    run(world, main)
    return [line for line in lines if "because its session has timed out" in line]


def test_a_lone_controller_fences_nobody_after_a_stall() -> None:
    assert [fencings_after_a_stall(seed) for seed in range(5)] == [[]] * 5


def test_without_the_care_for_stalls_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopTime, "turn", lambda self, machine_ms: 0)
    assert fencings_after_a_stall(0)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("part", [("broker_changes", "heartbeat"), ("_liveness", "fence_next")])
def test_the_active_controller_goes_on_after_a_bug(nodes: int, part: tuple[str, str]) -> None:
    world = World("bug")

    async def main() -> None:
        cluster = SimCluster(world, nodes)
        await cluster.start()
        (first,) = [node_id for node_id in cluster.nodes if controller_of(cluster, node_id).is_active]
        active = controller_of(cluster, first)
        epoch = active.runtime.claimed_epoch
        raise_once(active, *part, lambda: True)
        await cluster.wait(lambda: active.faults.count == 1, "the bug has shown", 30)
        offset = active.runtime.offsets.last_committed_offset
        await asyncio.sleep(10)
        assert active.runtime.claimed_epoch == epoch
        assert active.runtime.offsets.last_committed_offset > offset, "its periodic tasks run"
        assert not any(broker.fenced for broker in active.cluster.brokers.values())

    run(world, main)
    assert world.violations == []
