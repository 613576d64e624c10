"""Whole clusters, of which a process is killed, or is only silent: whose session is cut short, and whose is not.

Sessions and elections take many seconds here, so that what happens within one was not for want of waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kalda.sim.cluster import CONTROLLER_PORT, PORT, SimCluster, SimNode
from kalda.sim.network import Address, SimNetwork
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


class Ward:
    """A cluster of three that works, and who of it is fenced."""

    def __init__(self, world: World, **settings: str) -> None:
        self.world = world
        self.cluster = SimCluster(world, 3, {**SETTINGS, **settings})

    async def admit(self) -> None:
        await self.cluster.start(120)
        await self.cluster.wait(lambda: self.active() is not None, "somebody is the active controller", 120)

    def active(self) -> SimNode | None:
        """The active controller's node."""
        for node in self.cluster:
            if node.serving and node.node is not None and node.node.raft.leader_and_epoch().leader_id == node.id:
                return node
        return None

    def victim(self, active: bool) -> SimNode:
        """One that is the active controller, or is not."""
        return next(node for node in self.cluster if (node is self.active()) is active)

    def is_fenced(self, victim: SimNode) -> bool:
        """As any other node knows it."""
        return any(
            node.node is not None and node.node.image.cluster.brokers[victim.id].fenced
            for node in self.cluster
            if node is not victim and node.serving
        )

    async def time_to_fence(self, victim: SimNode, limit_s: float) -> float:
        """How long from now; `limit_s` where it is not fenced by then."""
        return await self.time_until(lambda: self.is_fenced(victim), limit_s)

    async def time_until(self, holds: Callable[[], bool], limit_s: float) -> float:
        """How long from now until it holds; at most `limit_s`."""
        began = self.world.now_s
        while not holds():
            if self.world.now_s - began >= limit_s:
                return limit_s
            await asyncio.sleep(0.02)
        return self.world.now_s - began

    def silence(self, victim: SimNode) -> None:
        """Its backlogs are full, and something between it and the others resets all its connections."""
        network = self.world.network
        for port in (PORT, CONTROLLER_PORT):
            network.listeners[Address(victim.name, port)].backlog = -1
        network.reset_all(victim.name)


def run(seed: int, scenario: Callable[[Ward], Coroutine[Any, Any, float]], **settings: str) -> float:
    """What the scenario measures."""
    with World(seed) as world:
        ward = Ward(world, **settings)

        async def main() -> float:
            await ward.admit()
            return await scenario(ward)

        return world.run(main(), 600)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_is_killed_is_fenced_at_once(seed: int, active: bool) -> None:
    async def scenario(ward: Ward) -> float:
        victim = ward.victim(active)
        victim.kill()
        return await ward.time_to_fence(victim, SESSION_S)

    assert run(seed, scenario) < SOON_S


def test_without_it_a_process_that_is_killed_costs_its_session() -> None:
    async def scenario(ward: Ward) -> float:
        victim = ward.victim(False)
        victim.kill()
        return await ward.time_to_fence(victim, 2 * SESSION_S)

    assert run(0, scenario, **{"kalda.dead.process.detection.enable": "false"}) > SESSION_S - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_is_killed_comes_back_without_waiting_for_the_session_of_the_dead(seed: int) -> None:
    async def scenario(ward: Ward) -> float:
        victim = ward.victim(False)
        victim.kill()
        await asyncio.sleep(0.3)
        victim.start()
        began = ward.world.now_s
        await ward.cluster.wait(lambda: victim.serving, "it serves again", SESSION_S)
        return ward.world.now_s - began

    assert run(seed, scenario) < SESSION_S / 3


async def pause(ward: Ward) -> float:
    """A broker is stopped, as by SIGSTOP, for most of its session."""
    victim = ward.victim(False)
    victim.machine.pause()
    taken = await ward.time_to_fence(victim, SESSION_S - 2)
    victim.machine.resume()
    return taken


async def pause_and_silence(ward: Ward) -> float:
    """The same, and its connections break, and nobody gets in any more."""
    victim = ward.victim(False)
    victim.machine.pause()
    await asyncio.sleep(0.1)
    ward.silence(victim)
    taken = await ward.time_to_fence(victim, SESSION_S - 2)
    victim.machine.resume()
    return taken


async def lose_power(ward: Ward) -> float:
    """There is no host that could refuse."""
    victim = ward.victim(False)
    victim.lose_power()
    return await ward.time_to_fence(victim, SESSION_S - 2)


def cut(outward: bool) -> Callable[[Ward], Coroutine[Any, Any, float]]:
    """One way nothing passes, and its connections break."""

    async def scenario(ward: Ward) -> float:
        victim = ward.victim(False)
        others = [node.name for node in ward.cluster if node is not victim]
        ward.world.network.cut |= {(victim.name, each) if outward else (each, victim.name) for each in others}
        for transport in [each for each in ward.world.network.connections if each.local.host in others]:
            if transport.remote.host == victim.name:
                transport.abort()
        taken = await ward.time_to_fence(victim, SESSION_S - 2)
        ward.world.network.cut.clear()
        return taken

    return scenario


SILENCES = {
    "paused": pause,
    "paused, with a full backlog": pause_and_silence,
    "without power": lose_power,
    "cut off outward": cut(outward=True),
    "cut off inward": cut(outward=False),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SILENCES)
def test_who_is_silent_is_not_taken_for_dead(name: str, seed: int) -> None:
    assert run(seed, SILENCES[name]) >= SESSION_S - 2


def test_silence_taken_for_a_refusal_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scenario, with a probe that takes everything for a refusal but an accepted connection."""
    original = SimNetwork.connect

    async def connect(self: SimNetwork, factory: Any, host: str, port: int) -> Any:
        server = self.listeners.get(Address(host, port))
        if server is not None and server.queued > server.backlog:
            raise ConnectionRefusedError
        return await original(self, factory, host, port)

    monkeypatch.setattr(SimNetwork, "connect", connect)
    assert run(0, pause_and_silence) < SESSION_S / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_an_active_controller_that_is_paused_keeps_its_fetch_timeout(seed: int) -> None:
    async def scenario(ward: Ward) -> float:
        victim = ward.victim(True)
        victim.machine.pause()
        await asyncio.sleep(0.1)
        ward.silence(victim)
        others = [node for node in ward.cluster if node is not victim]

        def is_given_up() -> bool:
            return any(
                node.node is not None and node.node.raft.leader_and_epoch().leader_id != victim.id for node in others
            )

        taken = await ward.time_until(is_given_up, FETCH_TIMEOUT_S)
        victim.machine.resume()
        return taken

    assert run(seed, scenario) >= FETCH_TIMEOUT_S - 1
