"""Nodes with several log directories: an operator that moves replicas between them, and the invariants.

When no move is in progress and nothing fails, each replica is in exactly one log directory of its node, complete and
without a copy in another one, and the metadata names this directory (KIP-113, KIP-858).
"""

from __future__ import annotations

from collections.abc import Iterator

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.administration import Kind, Target
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kalda.sim.admin import Operator
from kalda.sim.client import SimClient
from kalda.sim.cluster import SimCluster, SimNode
from kalda.storage.naming import DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX, parse_dir_name

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
            answer = await self._admin.ask(Target(Kind.BROKER, node.id), request, 2)
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
