"""Clusters of which one process is killed, or does not answer: the first is fenced at once, the second is not.

Sessions and elections take many seconds here, so that a fencing within fewer was not caused by a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kalda.sim.cluster import CONTROLLER_PORT, PORT, SimCluster, SimNode
from kalda.sim.network import SimAddress, SimNetwork
from kalda.sim.world import World

SESSION_S = 9.0
FETCH_TIMEOUT_S = 7.0
SOON_S = 2.0
SEEDS = range(2)
SETTINGS = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.fetch.timeout.ms": "7000",
    "controller.quorum.election.timeout.ms": "3000",
}


class Detection:
    """A cluster of three nodes, and whether one of them is fenced."""

    def __init__(self, world: World, **settings: str) -> None:
        self.world = world
        self.cluster = SimCluster(world, 3, {**SETTINGS, **settings})

    async def admit(self) -> None:
        await self.cluster.start(120)
        await self.cluster.wait(lambda: self.active() is not None, "there is an active controller", 120)

    def active(self) -> SimNode | None:
        """The active controller's node."""
        for node in self.cluster:
            if node.serving and node.node is not None and node.node.raft.leader_and_epoch().leader_id == node.id:
                return node
        return None

    def victim(self, active: bool) -> SimNode:
        """The active controller, or a node that is not."""
        return next(node for node in self.cluster if (node is self.active()) is active)

    def is_fenced(self, victim: SimNode) -> bool:
        """Whether it is fenced in the metadata of any other node."""
        return any(
            node.node is not None and node.node.image.cluster.brokers[victim.id].fenced
            for node in self.cluster
            if node is not victim and node.serving
        )

    async def time_to_fence(self, victim: SimNode, limit_s: float) -> float:
        """The seconds until it is fenced; at most `limit_s`."""
        return await self.time_until(lambda: self.is_fenced(victim), limit_s)

    async def time_until(self, holds: Callable[[], bool], limit_s: float) -> float:
        """The seconds until the condition holds; at most `limit_s`."""
        began = self.world.now_s
        while not holds():
            if self.world.now_s - began >= limit_s:
                return limit_s
            await asyncio.sleep(0.02)
        return self.world.now_s - began

    def silence(self, victim: SimNode) -> None:
        """Fill its backlogs, and reset all its connections."""
        network = self.world.network
        for port in (PORT, CONTROLLER_PORT):
            network.listeners[SimAddress(victim.name, port)].backlog = -1
        network.reset_all(victim.name)


def run(seed: int, scenario: Callable[[Detection], Coroutine[Any, Any, float]], **settings: str) -> float:
    """The seconds that the scenario measures."""
    with World(seed) as world:
        detection = Detection(world, **settings)

        async def main() -> float:
            await detection.admit()
            return await scenario(detection)

        return world.run(main(), 600)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_is_killed_is_fenced_at_once(seed: int, active: bool) -> None:
    async def scenario(detection: Detection) -> float:
        victim = detection.victim(active)
        victim.kill()
        return await detection.time_to_fence(victim, SESSION_S)

    assert run(seed, scenario) < SOON_S


def test_without_detection_a_killed_process_is_fenced_after_its_session() -> None:
    async def scenario(detection: Detection) -> float:
        victim = detection.victim(False)
        victim.kill()
        return await detection.time_to_fence(victim, 2 * SESSION_S)

    assert run(0, scenario, **{"kalda.dead.process.detection.enable": "false"}) > SESSION_S - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_process_restarts_without_waiting_for_its_old_session(seed: int) -> None:
    async def scenario(detection: Detection) -> float:
        victim = detection.victim(False)
        victim.kill()
        await asyncio.sleep(0.3)
        victim.start()
        began = detection.world.now_s
        await detection.cluster.wait(lambda: victim.serving, "it serves again", SESSION_S)
        return detection.world.now_s - began

    assert run(seed, scenario) < SESSION_S / 3


async def pause(detection: Detection) -> float:
    """A broker is stopped, as by SIGSTOP, for most of its session."""
    victim = detection.victim(False)
    victim.machine.pause()
    taken = await detection.time_to_fence(victim, SESSION_S - 2)
    victim.machine.resume()
    return taken


async def pause_and_silence(detection: Detection) -> float:
    """The same, and its connections break, and no new one is accepted."""
    victim = detection.victim(False)
    victim.machine.pause()
    await asyncio.sleep(0.1)
    detection.silence(victim)
    taken = await detection.time_to_fence(victim, SESSION_S - 2)
    victim.machine.resume()
    return taken


async def lose_power(detection: Detection) -> float:
    """Without power, the host refuses no connection."""
    victim = detection.victim(False)
    victim.lose_power()
    return await detection.time_to_fence(victim, SESSION_S - 2)


def cut(outwards: bool) -> Callable[[Detection], Coroutine[Any, Any, float]]:
    """The links in one direction pass nothing, and its connections break."""

    async def scenario(detection: Detection) -> float:
        victim = detection.victim(False)
        others = [node.name for node in detection.cluster if node is not victim]
        detection.world.network.cut |= {(victim.name, each) if outwards else (each, victim.name) for each in others}
        for transport in [each for each in detection.world.network.connections if each.local.host in others]:
            if transport.remote.host == victim.name:
                transport.abort()
        taken = await detection.time_to_fence(victim, SESSION_S - 2)
        detection.world.network.cut.clear()
        return taken

    return scenario


SILENCES = {
    "paused": pause,
    "paused, with a full backlog": pause_and_silence,
    "without power": lose_power,
    "cut off outwards": cut(outwards=True),
    "cut off inwards": cut(outwards=False),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SILENCES)
def test_a_process_that_does_not_answer_is_not_fenced_before_its_session_ends(name: str, seed: int) -> None:
    assert run(seed, SILENCES[name]) >= SESSION_S - 2


def test_a_probe_that_takes_silence_for_a_refusal_fails_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario above, with a probe that takes everything but an accepted connection for a refusal."""
    original = SimNetwork.connect

    async def connect(self: SimNetwork, factory: Any, host: str, port: int) -> Any:
        server = self.listeners.get(SimAddress(host, port))
        if server is not None and server.queued > server.backlog:
            raise ConnectionRefusedError
        return await original(self, factory, host, port)

    monkeypatch.setattr(SimNetwork, "connect", connect)
    assert run(0, pause_and_silence) < SESSION_S / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_an_active_controller_that_is_paused_keeps_its_fetch_timeout(seed: int) -> None:
    async def scenario(detection: Detection) -> float:
        victim = detection.victim(True)
        victim.machine.pause()
        await asyncio.sleep(0.1)
        detection.silence(victim)
        others = [node for node in detection.cluster if node is not victim]

        def has_other_leader() -> bool:
            return any(
                node.node is not None and node.node.raft.leader_and_epoch().leader_id != victim.id for node in others
            )

        taken = await detection.time_until(has_other_leader, FETCH_TIMEOUT_S)
        victim.machine.resume()
        return taken

    assert run(seed, scenario) >= FETCH_TIMEOUT_S - 1
