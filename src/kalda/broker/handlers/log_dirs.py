"""In which log directories this broker's replicas are (KIP-113, KIP-858, KIP-1066).

DescribeLogDirs (35) lists what is in them, AlterReplicaLogDirs (34) moves replicas between them. The module reports the
directory of a replica to the controller where the metadata names another one, and cordons directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Pending
from kalda.base.sensors import SensorName
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.process.disk import absolute_dir
from kalda.broker.replicas.assignments import DirectoryAssignments
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Row, on_cluster
from kalda.metadata.image import MetadataImage
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kalda.protocol.messages.security import AclOperation
from kalda.quota.managers import Windows
from kalda.replication.dir_moves import DirMoves
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.dirs.log_dirs import LogDirDescription
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log

_UNKNOWN_LAG = -1

Wanted = dict[str, set[int]] | None
"""The partitions of each topic; None for all. A set for each topic, since a request may name very many partitions."""


class LogDirHandlers:
    """The log directories of this broker."""

    def __init__(self, logs: LogManager, moves: DirMoves, jobs: Jobs) -> None:
        self._logs = logs
        self._moves = moves
        self._jobs = jobs

    def rows(self) -> list[Row]:
        """Both APIs."""
        describe, alter = on_cluster(AclOperation.DESCRIBE), on_cluster(AclOperation.ALTER)
        return [
            Row(ApiKey.DESCRIBE_LOG_DIRS, self.describe_log_dirs, error_on_top, describe, has_large_answer=True),
            Row(ApiKey.ALTER_REPLICA_LOG_DIRS, self.alter_replica_log_dirs, alter_replica_log_dirs_failed, alter),
        ]

    # -- DescribeLogDirs

    def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> Pending[Steps[DescribeLogDirsResponse]]:
        """Sizes of the replicas in each log directory, or its error where it has failed. The sizes of the file systems
        are read on a thread."""
        wanted: Wanted = None
        if request.topics is not None:
            wanted = {}
            for topic in request.topics:
                wanted.setdefault(topic.topic, set()).update(topic.partitions)
        job = self._logs.dirs.describe_job()
        answer: Pending[Steps[DescribeLogDirsResponse]] = Pending()

        def finish(_: object, error: BaseException | None) -> None:
            if error is not None:
                answer.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            else:
                answer.complete(self._described(job.finish(), wanted))

        self._jobs.run(job.run, finish)
        return answer

    def _described(self, dirs: Iterable[LogDirDescription], wanted: Wanted) -> Steps[DescribeLogDirsResponse]:
        response = DescribeLogDirsResponse()
        for each in dirs:
            response.results.append((yield from self._describe(each, wanted)))
        return response

    def _describe(self, directory: LogDirDescription, wanted: Wanted) -> Steps[DescribeLogDirsResult]:
        result = DescribeLogDirsResult(log_dir=directory.path, is_cordoned=directory.cordoned)
        if not directory.online:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        result.total_bytes, result.usable_bytes = directory.total_bytes, directory.usable_bytes
        topics: dict[str, DescribeLogDirsTopic] = {}
        yield from self._add(topics, directory.logs, wanted, is_future=False)
        yield from self._add(topics, directory.futures, wanted, is_future=True)
        result.topics = list(topics.values())
        return result

    def _add(
        self, topics: dict[str, DescribeLogDirsTopic], logs: Iterable[Log], wanted: Wanted, *, is_future: bool
    ) -> Steps[None]:
        for count, log in enumerate(list(logs)):
            if count and count % ITEMS_A_STEP == 0:
                yield
            name, index = log.topic_partition
            if wanted is not None and index not in wanted.get(name, ()):
                continue
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=log.size_bytes,
                    offset_lag=self._future_lag(log) if is_future else max(0, log.high_watermark - log.log_end_offset),
                    is_future_key=is_future,
                )
            )

    def _future_lag(self, future: Log) -> int:
        """How many offsets the copy is behind; negative where it is ahead, as in Kafka."""
        current = self._logs.get(future.topic_partition)
        return _UNKNOWN_LAG if current is None else current.log_end_offset - future.log_end_offset

    # -- AlterReplicaLogDirs

    def alter_replica_log_dirs(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> Steps[AlterReplicaLogDirsResponse]:
        """Begin to move replicas to other directories; DescribeLogDirs shows their progress (KIP-113). A step is one
        replica, whose copy is a new directory."""
        orders = {
            TopicPartition(topic.name, index): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for index in topic.partitions
        }
        topics: dict[str, AlterReplicaLogDirTopicResult] = {}
        for topic_partition, path in orders.items():
            if topics:
                yield
            name, index = topic_partition
            topic = topics.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name))
            result = AlterReplicaLogDirPartitionResult(partition_index=index)
            topic.partitions.append(result)
            try:
                self._moves.alter(topic_partition, path)
            except ApiError as error:
                result.error_code = error.code
        return AlterReplicaLogDirsResponse(results=list(topics.values()))


def alter_replica_log_dirs_failed(
    request: AlterReplicaLogDirsRequest, version: int, error: ApiError
) -> AlterReplicaLogDirsResponse:
    """The error of every partition."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error.code)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


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
