"""In which log directories this broker's replicas are (KIP-113, KIP-858, KIP-1066).

Serves DescribeLogDirs and AlterReplicaLogDirs. Reports the directory of a replica to the controller where the metadata
names another one, moves replicas between directories, and cordons directories.
"""

from __future__ import annotations

from collections.abc import Collection

from kalda.base.configs.server import ServerConfig
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.sensors import SensorName
from kalda.broker.handlers.log_dirs import LogDirHandlers
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.process.disk import absolute_dir
from kalda.broker.replicas.assignments import DirectoryAssignments
from kalda.broker.requests.rows import Row
from kalda.metadata.image import MetadataImage
from kalda.quota.managers import Windows
from kalda.replication.dir_moves import DirMoves
from kalda.replication.replica_manager import ReplicaManager

_UNLIMITED = 2**62
_MOVERS = "kafka.server:type=ReplicaAlterLogDirsManager"
"""Bytes per second from which on a move is not limited at all; the default of the key is the largest long."""


class LogDirsModule(Module):
    """Rests on the replicas."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager) -> None:
        config = context.config
        self._node_id = config.node_id
        self._cache = context.cache
        self._logs = context.logs
        self._lifecycle = context.lifecycle
        self.assignments = DirectoryAssignments(
            config.node_id, context.broker_epoch, context.channel.send, context.timers, self._is_misplaced
        )
        self._moves = DirMoves(
            replicas,
            context.logs,
            context.jobs,
            context.timers,
            context.host.clock.mono_ms,
            self.assignments.placed,
            at_a_time=config["num.replica.alter.log.dirs.threads"] or len(config.log_dirs),
            windows=Windows(lambda key: int(config[key])).alter_log_dirs,
        )
        moved = SensorName("kafka.server:type=AlterLogDirsReplication", "byte-rate")
        context.sensors.add_source(lambda: ((moved, self._moves.rate),))
        context.sensors.gauge(
            "kafka.server:type=AssignmentsManager", "QueuedReplicaToDirAssignments", read=lambda: len(self.assignments)
        )
        tags = (("clientId", "ReplicaAlterLogDirs"),)
        context.sensors.gauge(_MOVERS, "MaxLag", tags, lambda: self._moves.max_lag)
        context.sensors.gauge(_MOVERS, "FailedPartitionsCount", tags, lambda: self._moves.failed)
        self._handlers = LogDirHandlers(context.logs, self._moves, context.jobs)

    def rows(self) -> list[Row]:
        """Sizes and moves."""
        return self._handlers.rows()

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Limit moves, and cordon the directories that `cordoned.log.dirs` names."""
        limit = current["replica.alter.log.dirs.io.max.bytes.per.second"]
        self._moves.bytes_per_second = None if limit >= _UNLIMITED else limit
        self._cordon({absolute_dir(path) for path in current.cordoned_log_dirs}, image)

    def start(self) -> None:
        """Resume the moves that the last stop interrupted."""
        self._moves.resume()

    async def close(self) -> None:
        """Move and report nothing more."""
        self._moves.close()
        self.assignments.close()

    def _cordon(self, paths: Collection[str], image: MetadataImage) -> None:
        """Place no new replicas in the directories at `paths`: neither here, nor by a decision of the controller.

        Before metadata.version supports it no directory is cordoned, and heartbeats do not carry the field.
        """
        version = image.features.metadata_version
        is_supported = version is not None and version.is_cordoned_log_dirs_supported
        for directory in self._logs.dirs:
            directory.cordoned = is_supported and directory.path in paths
        cordoned = [each.directory_id for each in self._logs.dirs if each.cordoned and each.directory_id is not None]
        self._lifecycle.set_cordoned_dirs(cordoned if is_supported else None)

    def _is_misplaced(self, topic_id: Uuid, partition: int, directory: Uuid) -> bool:
        """Whether the metadata names another directory than that one for this broker's replica."""
        topic = self._cache.topic_by_id(topic_id)
        registration = None if topic is None else topic.partitions.get(partition)
        assigned = None if registration is None else registration.directory(self._node_id)
        return assigned is not None and assigned != directory


def assigned_directory(
    image: MetadataImage, broker_id: int, topic_partition: TopicPartition, topic_id: Uuid | None
) -> Uuid | None:
    """The directory that `image` names for the broker's replica; None where the broker has none, or where another topic
    has that name now."""
    topic = None if topic_id is None else image.topics.by_id.get(topic_id)
    if topic is None or topic.name != topic_partition.topic:
        return None
    registration = topic.partitions.get(topic_partition.partition)
    return None if registration is None else registration.directory(broker_id)
