"""Operators: one makes topics, lets them grow, changes their configs and deletes them, one moves replicas about, one
changes who votes in the quorum.

Each goes on whatever befalls the cluster, one thing after another. An attempt whose answer does not come may still be
carried out later, after its repetition and what followed that: so what must be there in the end, is what was asked for
last, or what was asked for before without an answer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    RemoveRaftVoterRequest,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ReassignablePartition,
    ReassignableTopic,
)
from kalda.protocol.notation import Request
from kalda.sim.client import SimClient
from kalda.sim.cluster import CLUSTER_ID, CONTROLLER_PORT, SimCluster

_TIMEOUT_MS = 3_000
_CERTAINLY_UNKNOWN = 30
"""So many attempts take longer than any controller is believed that is not the active one."""
_MAX_TOPICS = 6
_MAX_PARTITIONS = 5
_KEY = "retention.ms"
_NOT_NOW = frozenset((ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT))
"""Too few brokers are alive for what is asked."""
_UNKNOWN = frozenset((ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.BROKER_NOT_AVAILABLE))
"""No controller was found in time, or what it did was undone, or not."""


class Operator(ABC):
    """Does one thing after another until `finish`."""

    def __init__(self, client: SimClient, pause_s: float) -> None:
        self._client = client
        self._rng = client.rng
        self._pause_s = pause_s
        self._finishing = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        while not self._finishing:
            await asyncio.sleep(self._rng.uniform(0.2, self._pause_s))
            if not self._finishing:
                await self._act()

    @abstractmethod
    async def _act(self) -> None:
        """One thing."""

    async def _insist(self, request: Request, version: int, code_of: Callable[[Any], int], *done: ErrorCode) -> bool:
        """Ask until it is done. False: an attempt is left of which nobody knows what becomes."""
        known = True
        while True:
            try:
                code = ErrorCode(code_of(await self._client.ask_any(request, version)))
                if code is ErrorCode.NONE or code in done:
                    return known
                if not code.retriable and code not in _NOT_NOW | _UNKNOWN:
                    self._client.world.violated(f"{self._client.name}: {code.name} to {request}")
                    return known
                known = known and code in _NOT_NOW
            except ApiError:
                known = False
            await self._client.pause()


@dataclass(slots=True)
class Topic:
    """What was asked for."""

    partitions: int
    deleted: bool = False
    may_come_back: bool = False
    """An attempt to create it is still under way, for all that is known."""
    may_have: set[str | None] = field(default_factory=lambda: {None})
    """Values of the config."""


class Churner(Operator):
    """Topics come and go, get more partitions and other configs."""

    def __init__(self, client: SimClient, replicas: int, pause_s: float = 3.0) -> None:
        self._replicas = replicas
        self.topics: dict[str, Topic] = {}
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        there = [name for name, topic in self.topics.items() if not topic.deleted]
        if not there or (len(there) < _MAX_TOPICS and self._rng.random() < 0.4):
            await self._create(f"churn-{len(self.topics)}")
        else:
            act = self._rng.choice((self._delete, self._grow, self._configure, self._configure))
            await act(self._rng.choice(there))

    async def _create(self, name: str) -> None:
        topic = Topic(self._rng.randint(1, 3))
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=topic.partitions, replication_factor=self._replicas)],
            timeout_ms=_TIMEOUT_MS,
        )
        known = await self._insist(request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)
        topic.may_come_back = not known
        self.topics[name] = topic
        self._client.world.tell(self._client.name, f"created {name}")

    async def _delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_TIMEOUT_MS)
        gone, codes = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        self.topics[name].deleted = True

        def code_of(answer: Any) -> int:
            codes.append(answer.responses[0].error_code)
            return int(codes[-1])

        # Unknown is also what those say who have not heard of it yet, be it a node or a controller of before; but not
        # for long. And those who have deleted it at the first of two attempts, if a node that forwards it makes two.
        known = await self._insist(request, 5, code_of, gone)
        while (
            (known and 0 not in codes and len(codes) < _CERTAINLY_UNKNOWN)
            or (topics := await self._names()) is None
            or name in topics
        ):
            known = await self._insist(request, 5, code_of, gone) and known
            await self._client.pause()
        self._client.world.tell(self._client.name, f"deleted {name}")

    async def _names(self) -> set[str] | None:
        try:
            await self._client.refresh()
        except ApiError:
            return None
        return set(self._client.metadata.topics)

    async def _grow(self, name: str) -> None:
        topic = self.topics[name]
        if topic.partitions >= _MAX_PARTITIONS:
            return
        topic.partitions += 1
        more = CreatePartitionsTopic(name=name, count=topic.partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[more], timeout_ms=_TIMEOUT_MS)
        # Done before, it is refused.
        await self._insist(request, 3, lambda a: a.results[0].error_code, ErrorCode.INVALID_PARTITIONS)
        self._client.world.tell(self._client.name, f"let {name} grow to {topic.partitions}")

    async def _configure(self, name: str) -> None:
        value = str(self._rng.randint(10**9, 10**10))
        change = IncrementalAlterConfigsRequestAlterableConfig(
            name=_KEY, config_operation=ConfigOperation.SET, value=value
        )
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC, resource_name=name, configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        unknown = self.topics[name].may_have
        known = await self._insist(request, 1, lambda a: a.responses[0].error_code)
        self.topics[name].may_have = {value} if known else unknown | {value}
        self._client.world.tell(self._client.name, f"set {_KEY} of {name} to {value}")

    def judge(self, image: MetadataImage) -> None:
        """Hold the metadata against what was asked for."""
        world = self._client.world
        for name, topic in self.topics.items():
            found = image.topics.by_name.get(name)
            if topic.deleted:
                if found is not None and not topic.may_come_back:
                    world.violated(f"{name} was deleted, and is there")
            elif found is None:
                world.violated(f"{name} was created, and is not there")
            elif len(found.partitions) != topic.partitions:
                world.violated(f"{name} has {len(found.partitions)} partitions, and was given {topic.partitions}")
            elif (value := _config_of(image, name)) not in topic.may_have:
                world.violated(f"{name} has {_KEY}={value}, and was given {topic.may_have}")


def _config_of(image: MetadataImage, topic: str) -> str | None:
    return image.configs.of_topic(topic).get(_KEY)


class Reassigner(Operator):
    """Gives partitions other replicas, in another order, sometimes thinks better of it; moves leaderships back."""

    def __init__(
        self,
        client: SimClient,
        partitions: list[TopicPartition],
        brokers: list[int],
        replicas: int,
        pause_s: float = 4.0,
    ) -> None:
        self._partitions = partitions
        self._brokers = brokers
        self._replicas = replicas
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        partition, roll = self._rng.choice(self._partitions), self._rng.random()
        if roll < 0.25:
            await self._prefer(partition)
        elif roll < 0.4:
            await self._reassign(partition, None)
        else:
            await self._reassign(partition, self._rng.sample(self._brokers, self._replicas))

    async def _reassign(self, partition: TopicPartition, replicas: list[int] | None) -> None:
        wanted = ReassignablePartition(partition_index=partition.partition, replicas=replicas)
        topic = ReassignableTopic(name=partition.topic, partitions=[wanted])
        request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._once(request, 1, f"{partition} to {replicas}")

    async def _prefer(self, partition: TopicPartition) -> None:
        wanted = ElectLeadersRequestTopicPartitions(topic=partition.topic, partitions=[partition.partition])
        request = ElectLeadersRequest(topic_partitions=[wanted], timeout_ms=_TIMEOUT_MS)
        await self._once(request, 2, f"{partition} led by its first replica")

    async def _once(self, request: Request, version: int, what: str) -> None:
        """It may be refused, or be lost: nothing is promised but that no harm comes of it."""
        try:
            await self._client.ask_any(request, version)
        except ApiError as error:
            what += f": {error.code.name}"
        self._client.world.tell(self._client.name, f"wants {what}")


class VoterChanger(Operator):
    """Adds controllers to the quorum and takes others out, one at a time, down to `fewest`."""

    def __init__(self, client: SimClient, cluster: SimCluster, fewest: int, pause_s: float = 5.0) -> None:
        self._cluster = cluster
        self._fewest = fewest
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        voters = self._voters()
        outside = [node_id for node_id in self._cluster.nodes if node_id not in voters]
        if outside and (len(voters) <= self._fewest or self._rng.random() < 0.5):
            await self._once(self._add(self._rng.choice(outside)), 1)
        elif len(voters) > self._fewest:
            node_id = self._rng.choice(sorted(voters))
            directory_id = self._cluster.directory_ids[node_id]
            await self._once(
                RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory_id), 0
            )

    def _voters(self) -> set[int]:
        """As the node with the newest epoch knows them."""
        machines = [node.node.raft.machine for node in self._cluster if node.node is not None and node.serving]
        newest = max(machines, key=lambda machine: machine.epoch, default=None)
        return set() if newest is None else set(newest.voters.ids)

    def _add(self, node_id: int) -> AddRaftVoterRequest:
        listener = AddRaftVoterRequestListener(name="CONTROLLER", host=f"node-{node_id}", port=CONTROLLER_PORT)
        return AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=_TIMEOUT_MS,
            voter_id=node_id,
            voter_directory_id=self._cluster.directory_ids[node_id],
            listeners=[listener],
        )

    async def _once(self, request: AddRaftVoterRequest | RemoveRaftVoterRequest, version: int) -> None:
        try:
            answer = await self._client.ask_any(request, version)
            how = ErrorCode(answer.error_code).name
        except ApiError as error:
            how = error.code.name
        what = "add" if isinstance(request, AddRaftVoterRequest) else "remove"
        self._client.world.tell(self._client.name, f"wants to {what} the voter {request.voter_id}: {how}")
