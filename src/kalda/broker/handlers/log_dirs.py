"""Log directories: DescribeLogDirs (35) lists what is in them, AlterReplicaLogDirs (34) moves replicas between them."""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.pending import Pending
from kalda.base.scheduling import Jobs
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Row, on_cluster
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
from kalda.replication.dir_moves import DirMoves
from kalda.storage.dirs.log_dir import LogDirDescription
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
            Row(
                ApiKey.DESCRIBE_LOG_DIRS,
                self.describe_log_dirs,
                describe_log_dirs_failed,
                describe,
                has_large_answer=True,
            ),
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


def describe_log_dirs_failed(request: DescribeLogDirsRequest, version: int, error: ApiError) -> DescribeLogDirsResponse:
    """The error on top. Versions 1 and 2 have no field for it: their clients take a response without any directory for
    a failed request."""
    return DescribeLogDirsResponse(error_code=error.code)


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
