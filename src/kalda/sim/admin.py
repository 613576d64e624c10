"""Operators: one creates, extends, configures and deletes topics, one reassigns replicas, one moves them between the
log directories of a node, one deletes records, one changes the quorum's voters.

Each makes one change after another, through all faults. A request without a response may still be carried out later,
even after its repetition and later changes. So the final state must be that of the last request, or of an earlier one
that got no response. When no move is in progress and nothing fails, each replica is in exactly one log directory of its
node, complete and without a copy in another one, and the metadata names this directory (KIP-113, KIP-858). Records
below a requested offset may be deleted, those below an acknowledged one are.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import Target, TargetKind
from kalda.clientcore.connections.requests import all_topics_request
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.partitions import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
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
from kalda.sim.client import SimAdmin, SimClient
from kalda.sim.cluster import CLUSTER_ID, CONTROLLER_PORT, SimCluster, SimNode
from kalda.sim.history import RunHistory
from kalda.storage.file_names import DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX, parse_dir_name

_TIMEOUT_MS = 3_000
_DELETION_MS = 2_000
_DELETE_RECORDS_VERSION = 2
_METADATA_VERSION = 12
_ENOUGH_UNKNOWN_ANSWERS = 30
"""This many attempts take longer than a former controller can still be taken for the active one."""
_MAX_TOPICS = 6
_MAX_PARTITIONS = 5
_KEY = "retention.ms"
_NOT_NOW = frozenset((ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT))
"""Too few brokers are alive for the request."""
_UNKNOWN = frozenset((ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.BROKER_NOT_AVAILABLE))
"""No controller was found in time, or it is unknown whether its records were committed."""


class Operator(ABC):
    """Makes one change after another until `finish`."""

    def __init__(self, client: SimClient, pause_s: float) -> None:
        self._client = client
        self._admin = SimAdmin(client)
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
        """Make one change."""

    async def delete_records(self, partition: TopicPartition, offset: int) -> bool:
        """Delete the records below `offset`. True where this was acknowledged; else they may be deleted, even later."""
        entry = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topic = DeleteRecordsTopic(name=partition.topic, partitions=[entry])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=_DELETION_MS)
        try:
            answer = await self._admin.ask(Target(TargetKind.LEADER, partition), request, _DELETE_RECORDS_VERSION)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
        except ApiError as error:
            code = error.code
        self._client.world.trace(self._client.name, f"requests deletion of {partition} below {offset}: {code.name}")
        if code is not ErrorCode.NONE:
            self._admin.forget_leaders()
        return code is ErrorCode.NONE

    async def _repeat_until_done(
        self, request: Request, version: int, code_of: Callable[[Any], int], *done: ErrorCode
    ) -> bool:
        """Repeat the request until it succeeds, or fails with one of `done`. False where the outcome of an earlier
        attempt is unknown, so that it may still be carried out."""
        outcomes_known = True
        while True:
            try:
                code = ErrorCode(code_of(await self._admin.ask_any(request, version)))
                if code is ErrorCode.NONE or code in done:
                    return outcomes_known
                if not code.retriable and code not in _NOT_NOW | _UNKNOWN:
                    self._client.world.violated(f"{self._client.name}: {code.name} in response to {request}")
                    return outcomes_known
                outcomes_known = outcomes_known and code in _NOT_NOW
            except ApiError:
                outcomes_known = False
            await self._client.pause()


@dataclass(slots=True)
class RequestedTopic:
    """A topic as it was requested."""

    partitions: int
    deleted: bool = False
    may_come_back: bool = False
    """The outcome of an attempt to create it is unknown, so it may be created after its deletion."""
    may_have: set[str | None] = field(default_factory=lambda: {None})
    """The values that its config may have."""


class Churner(Operator):
    """Creates and deletes topics, adds partitions and changes configs."""

    def __init__(self, client: SimClient, replicas: int, pause_s: float = 3.0) -> None:
        self._replicas = replicas
        self.topics: dict[str, RequestedTopic] = {}
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        existing = [name for name, topic in self.topics.items() if not topic.deleted]
        if not existing or (len(existing) < _MAX_TOPICS and self._rng.random() < 0.4):
            await self._create(f"churn-{len(self.topics)}")
        else:
            act = self._rng.choice((self._delete, self._grow, self._configure, self._configure))
            await act(self._rng.choice(existing))

    async def _create(self, name: str) -> None:
        topic = RequestedTopic(self._rng.randint(1, 3))
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=topic.partitions, replication_factor=self._replicas)],
            timeout_ms=_TIMEOUT_MS,
        )
        outcomes_known = await self._repeat_until_done(
            request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS
        )
        topic.may_come_back = not outcomes_known
        self.topics[name] = topic
        self._client.world.trace(self._client.name, f"created {name}")

    async def _delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_TIMEOUT_MS)
        unknown, codes = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        self.topics[name].deleted = True

        def code_of(answer: Any) -> int:
            codes.append(answer.responses[0].error_code)
            return int(codes[-1])

        # A node or a former controller that does not have the topic yet also answers that it is unknown; but not for
        # long. The active controller does too, where a forwarding node sent the request twice and the first deleted it.
        outcomes_known = await self._repeat_until_done(request, 5, code_of, unknown)
        while (
            (outcomes_known and 0 not in codes and len(codes) < _ENOUGH_UNKNOWN_ANSWERS)
            or (topics := await self._names()) is None
            or name in topics
        ):
            outcomes_known = await self._repeat_until_done(request, 5, code_of, unknown) and outcomes_known
            await self._client.pause()
        self._client.world.trace(self._client.name, f"deleted {name}")

    async def _names(self) -> set[str] | None:
        try:
            answer = await self._admin.ask_any(all_topics_request(), _METADATA_VERSION)
        except ApiError:
            return None
        return {topic.name for topic in answer.topics}

    async def _grow(self, name: str) -> None:
        topic = self.topics[name]
        if topic.partitions >= _MAX_PARTITIONS:
            return
        topic.partitions += 1
        more = CreatePartitionsTopic(name=name, count=topic.partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[more], timeout_ms=_TIMEOUT_MS)
        # A repetition after an attempt that succeeded is refused.
        await self._repeat_until_done(request, 3, lambda a: a.results[0].error_code, ErrorCode.INVALID_PARTITIONS)
        self._client.world.trace(self._client.name, f"extended {name} to {topic.partitions} partitions")

    async def _configure(self, name: str) -> None:
        value = str(self._rng.randint(10**9, 10**10))
        change = IncrementalAlterConfigsRequestAlterableConfig(
            name=_KEY, config_operation=ConfigOperation.SET, value=value
        )
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC, resource_name=name, configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        earlier = self.topics[name].may_have
        outcomes_known = await self._repeat_until_done(request, 1, lambda a: a.responses[0].error_code)
        self.topics[name].may_have = {value} if outcomes_known else earlier | {value}
        self._client.world.trace(self._client.name, f"set {_KEY} of {name} to {value}")

    def judge(self, image: MetadataImage) -> None:
        """Compare the final metadata with what was requested."""
        world = self._client.world
        for name, topic in self.topics.items():
            found = image.topics.by_name.get(name)
            if topic.deleted:
                if found is not None and not topic.may_come_back:
                    world.violated(f"{name} was deleted, but exists")
            elif found is None:
                world.violated(f"{name} was created, but does not exist")
            elif len(found.partitions) != topic.partitions:
                world.violated(f"{name} has {len(found.partitions)} partitions instead of {topic.partitions}")
            elif (value := _config_of(image, name)) not in topic.may_have:
                world.violated(f"{name} has {_KEY}={value} instead of one of {topic.may_have}")


def _config_of(image: MetadataImage, topic: str) -> str | None:
    return image.configs.of_topic(topic).get(_KEY)


class Reassigner(Operator):
    """Reassigns partitions to other replicas, cancels some of these reassignments, elects preferred leaders."""

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
        entry = ReassignablePartition(partition_index=partition.partition, replicas=replicas)
        topic = ReassignableTopic(name=partition.topic, partitions=[entry])
        request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._once(request, 1, f"reassign {partition} to {replicas}")

    async def _prefer(self, partition: TopicPartition) -> None:
        entry = ElectLeadersRequestTopicPartitions(topic=partition.topic, partitions=[partition.partition])
        request = ElectLeadersRequest(topic_partitions=[entry], timeout_ms=_TIMEOUT_MS)
        await self._once(request, 2, f"elect the first replica of {partition}")

    async def _once(self, request: Request, version: int, action: str) -> None:
        """One attempt, which may be refused or lost; only the general invariants must hold afterwards."""
        try:
            await self._admin.ask_any(request, version)
        except ApiError as error:
            action += f": {error.code.name}"
        self._client.world.trace(self._client.name, f"requests to {action}")


class VoterChanger(Operator):
    """Adds voters to the quorum and removes voters, one at a time; at least `fewest` remain."""

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
        """The voters of the node with the newest epoch."""
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
            answer = await self._admin.ask_any(request, version)
            how = ErrorCode(answer.error_code).name
        except ApiError as error:
            how = error.code.name
        action = "add" if isinstance(request, AddRaftVoterRequest) else "remove"
        self._client.world.trace(self._client.name, f"requests to {action} the voter {request.voter_id}: {how}")


_METADATA = "__cluster_metadata"


class DirMover(Operator):
    """Moves replicas to other directories of their brokers, some of them again before the first move is complete."""

    def __init__(
        self, client: SimClient, cluster: SimCluster, partitions: list[TopicPartition], pause_s: float = 2.0
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        rng = self._rng
        node = rng.choice(list(self._cluster))
        path = rng.choice(node.config.log_dirs)
        chosen = rng.sample(self._partitions, rng.randint(1, min(2, len(self._partitions))))
        topics = [AlterReplicaLogDirTopic(name=topic, partitions=[index]) for topic, index in chosen]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
        names = ", ".join(f"{topic}-{index}" for topic, index in chosen)
        try:
            answer = await self._admin.ask(Target(TargetKind.BROKER, node.id), request, 2)
            codes = {partition.error_code for result in answer.results for partition in result.partitions}
            how = ", ".join(sorted(ErrorCode(code).name for code in codes))
        except ApiError as error:
            how = error.code.name
        self._client.world.trace(self._client.name, f"requests to move {names} of {node.name} to {path}: {how}")


def misplaced(node: SimNode, image: MetadataImage) -> Iterator[str]:
    """Directories that are offline, replicas that are being moved, and those not in the directory of the metadata."""
    logs = None if node.node is None else node.node.logs
    if logs is None:
        return
    for directory in logs.dirs:
        if not directory.online:
            yield f"{directory.path} of {node.name} is offline"
    for future in logs.futures:
        yield f"{future.topic_partition} of {node.name} is being moved"
    for log in logs:
        topic, index = log.topic_partition
        home = logs.dir_of(log.topic_partition)
        in_image = image.topics.by_name.get(topic)
        registration = None if in_image is None else in_image.partitions.get(index)
        assigned = None if registration is None else registration.directory(node.id)
        if assigned is not None and home is not None and assigned != home.directory_id:
            yield f"{topic}-{index} of {node.name} is in {home.path}, but the metadata has another directory"


def judge(node: SimNode, image: MetadataImage) -> Iterator[str]:
    """Violations on the disk. Requires that nothing is `misplaced`."""
    assert node.node is not None
    logs = node.node.logs
    assert logs is not None
    found: dict[TopicPartition, list[str]] = {}
    for path in node.config.log_dirs:
        for name in node.machine.disk.names(path):
            placed = parse_dir_name(name)
            if placed is None or placed.topic == _METADATA or name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
                continue
            found.setdefault(placed, []).append(f"{path}/{name}")
    for placed, places in found.items():
        log = logs.get(placed)
        if len(places) > 1 or log is None or log.directory != places[0]:
            yield f"{placed} of {node.name} is at {places}, and served from {log.directory if log else 'nowhere'}"
    for topic in image.topics.by_id.values():
        for index, registration in topic.partitions.items():
            if node.id in registration.replicas and TopicPartition(topic.name, index) not in found:
                yield f"{topic.name}-{index} is not in any directory of {node.name}"


_MAX_STEP = 20


class Deleter(Operator):
    """Raises the log start offsets of partitions in small steps."""

    def __init__(
        self, client: SimClient, history: RunHistory, partitions: list[TopicPartition], pause_s: float = 4.0
    ) -> None:
        self._history = history
        self._partitions = partitions
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        partition = self._rng.choice(self._partitions)
        known = self._history.deletions(partition)
        read = len(self._history.seen.get(partition, ()))
        # Records are read from the first one on, and only committed ones: so `read` is at most the high watermark.
        offset = min(known.acknowledged + self._rng.randint(1, _MAX_STEP), read)
        if offset > known.acknowledged:
            known.requested = max(known.requested, offset)
            if await self.delete_records(partition, offset):
                known.acknowledged = max(known.acknowledged, offset)
