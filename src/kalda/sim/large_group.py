"""One consumer group of very many members (KIP-848) on a cluster of whole nodes.

The members send heartbeats and read nothing; all of them are in one client process, so that thousands fit into a seed.
They join, one of them leaves, and the group's coordinator is killed and starts again. Each time the group must be
stable within `SETTLED_S`: all members in one epoch, every partition with one member. `Ownership` holds throughout.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.clientcore.groups.membership import FENCING, JOIN_EPOCH, LEAVE_EPOCH
from kalda.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.sim.client import SimClient
from kalda.sim.cluster import SimCluster
from kalda.sim.groups import Ownership
from kalda.sim.world import World

SETTLED_S = 60.0
_LIMIT_S = 600.0
_GROUP = "crowd"
_PARTITIONS_A_TOPIC = 1_000
_JOINING_S = 5.0
"""In which all members join."""
_HEARTBEAT_VERSION = 1
_REBALANCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class LargeGroupPlan:
    """What to simulate."""

    seed: int = 0
    members: int = 5_000
    partitions: int = 15_000
    nodes: int = 3


@dataclass(slots=True)
class LargeGroupVerdict:
    """`violation` describes what was violated; empty where all held. Times in virtual seconds."""

    violation: str = ""
    joined_s: float = 0.0
    """From the first join until the group was stable; likewise the others."""
    left_s: float = 0.0
    moved_s: float = 0.0
    heartbeats: int = 0

    @property
    def passed(self) -> bool:
        """Whether all promises were kept."""
        return not self.violation


class _Crowd:
    """All members of the group."""

    def __init__(self, client: SimClient, topics: list[str]) -> None:
        self.client = client
        self.topics = topics
        self.ownership = Ownership(_GROUP, client.world.violated, has_one_kind=True)
        self.members: dict[str, _Member] = {}
        self.heartbeats = 0

    def is_stable(self, partitions: int) -> bool:
        """Whether all members are in one epoch, and have so many partitions between them, each once."""
        members = self.members.values()
        epochs = {member.epoch for member in members}
        if len(epochs) != 1 or JOIN_EPOCH in epochs or sum(len(each.owned) for each in members) != partitions:
            return False
        return len(frozenset[tuple[Uuid, int]]().union(*(each.owned for each in members))) == partitions


class _Member:
    """One member, which gives back at once what it no longer has."""

    def __init__(self, crowd: _Crowd, member_id: str) -> None:
        self._crowd = crowd
        self._id = member_id
        self.epoch = JOIN_EPOCH
        self.owned: frozenset[tuple[Uuid, int]] = frozenset()
        self._says_all = True
        self._says_owned = False
        self._has_left = False

    async def run(self, delay_s: float) -> None:
        """Send heartbeats until it leaves."""
        await asyncio.sleep(delay_s)
        while not self._has_left:
            pause_s = await self._beat()
            await asyncio.sleep(pause_s)

    async def leave(self) -> None:
        """The last heartbeat."""
        self._has_left = True
        del self._crowd.members[self._id]
        await self._crowd.client.until(lambda: self._send(self._request(LEAVE_EPOCH)))

    async def _beat(self) -> float:
        """One heartbeat, and what follows of its answer; how long until the next one, in seconds."""
        crowd, request = self._crowd, self._request(self.epoch)
        if self._says_all:
            request.subscribed_topic_names, request.rebalance_timeout_ms = crowd.topics, _REBALANCE_MS
        if self._says_all or self._says_owned:
            request.topic_partitions = self._owned_topics()
        try:
            answer = await self._send(request)
        except ApiError as error:
            if error.code in FENCING:
                self.epoch, self.owned = JOIN_EPOCH, frozenset()
            elif not error.code.retriable:
                crowd.client.world.violated(f"{self._id}: {error}")
            self._says_all = True
            crowd.client.forget_leaders()
            return crowd.client.rng.uniform(0.1, 1.0)
        self._says_all = self._says_owned = False
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return float(answer.heartbeat_interval_ms / 1000)
        self.owned = frozenset(
            (each.topic_id, n) for each in answer.assignment.topic_partitions for n in each.partitions
        )
        self._says_owned = True
        return 0.0

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id=_GROUP, member_id=self._id, member_epoch=epoch)

    def _owned_topics(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        topics: dict[Uuid, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            topics.setdefault(topic_id, []).append(number)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in topics.items()
        ]

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> Any:
        """The answer. Raises `ApiError`, that of the answer too."""
        crowd = self._crowd
        address = await crowd.client.find_coordinator(_GROUP)
        crowd.heartbeats += 1
        on_answer = crowd.ownership.watched(int(address[0].removeprefix("node-")), request, lambda *_: None)
        answer = await crowd.client.ask(address, request, _HEARTBEAT_VERSION)
        on_answer(answer, None)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), answer.error_message or "")
        return answer


class _Run:
    def __init__(self, world: World, plan: LargeGroupPlan, verdict: LargeGroupVerdict) -> None:
        self.world = world
        self.plan = plan
        self.verdict = verdict
        self.cluster = SimCluster(world, plan.nodes, voters=min(3, plan.nodes))

    async def main(self) -> None:
        world, plan, verdict, cluster = self.world, self.plan, self.verdict, self.cluster
        await cluster.start()
        client = SimClient(world, "crowd", cluster.bootstrap)
        crowd = self._crowd = _Crowd(client, await client.spawn(self._create_topics(client)))
        for number in range(plan.members):
            member = crowd.members[f"m{number:05}"] = _Member(crowd, f"m{number:05}")
            client.spawn(member.run(_JOINING_S * number / plan.members))
        verdict.joined_s = await self._settled("all have joined")
        await client.spawn(next(iter(crowd.members.values())).leave())
        verdict.left_s = await self._settled("a member has left")
        host, _ = await client.spawn(client.find_coordinator(_GROUP))
        node = next(each for each in cluster if each.name == host)
        node.kill()
        if plan.nodes == 1:
            node.start()
        else:
            world.loop.call_later(10.0, node.start)
        await asyncio.sleep(12.0)
        await cluster.wait(cluster.all_serve, "all nodes serve again", SETTLED_S)
        # A member that leaves the moved group: its coordinator still decides.
        await client.spawn(next(iter(crowd.members.values())).leave())
        verdict.moved_s = await self._settled("a member has left the coordinator that has taken over")
        verdict.heartbeats = crowd.heartbeats

    async def _create_topics(self, client: SimClient) -> list[str]:
        names = []
        for first in range(0, self.plan.partitions, _PARTITIONS_A_TOPIC):
            names.append(f"crowd-{first // _PARTITIONS_A_TOPIC:02}")
            count = min(_PARTITIONS_A_TOPIC, self.plan.partitions - first)
            topic = CreatableTopic(name=names[-1], num_partitions=count, replication_factor=1)

            async def create(topic: CreatableTopic = topic) -> None:
                answer = await client.ask_any(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
                code = ErrorCode(answer.topics[0].error_code)
                if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise ApiError(code)

            await client.until(create)
        return names

    async def _settled(self, what: str) -> float:
        """Wait until the group is stable; how long that took."""
        began_s = self.world.now_s
        await self.cluster.wait(
            lambda: self._crowd.is_stable(self.plan.partitions), f"the group is stable after {what}", SETTLED_S
        )
        return self.world.now_s - began_s


def simulate_large_group(plan: LargeGroupPlan) -> LargeGroupVerdict:
    """Run one seed. The same plan gives the same verdict."""
    verdict = LargeGroupVerdict()
    with World(plan.seed) as world:
        verdict.violation = world.violation_of(_Run(world, plan, verdict).main(), _LIMIT_S)
    return verdict
