"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): where a partition begins, ends, and may be cut."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.base.topic_names import INTERNAL_TOPICS
from kalda.broker.dispatch import RequestContext
from kalda.broker.opening import MAX_WAIT_MS, OpeningPartitions
from kalda.protocol.messages.fetch import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
    OffsetSpec,
)
from kalda.replication.fetch import READ_COMMITTED
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.waiting import OffsetWaiter
from kalda.storage.job import Job
from kalda.storage.values import TimestampOffset

_FIRST_WITH_EPOCHS = 4
_FIRST_NOT_AVAILABLE = 5
_OLDEST_VERSION_OF: dict[int, int] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


class Found(NamedTuple):
    """An offset, the timestamp of its record where that was asked for, and its leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


_NOTHING = Found(-1, -1, -1)


class _Search:
    """A search by time in a log, bounded by what its asker may see."""

    __slots__ = ("_end", "_job", "run")

    def __init__(self, job: Job[TimestampOffset | None], end: int) -> None:
        self._job = job
        self._end = end
        self.run = job.run

    def finish(self) -> Found:
        found = self._job.finish()
        if found is None or found.offset >= self._end:
            return _NOTHING
        return Found(found.timestamp, found.offset, found.leader_epoch)


def check_isolation(level: int) -> None:
    """Raises `ApiError` for a level that is none, with Kafka's code for what it did not expect."""
    if not 0 <= level <= READ_COMMITTED:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown isolation level {level}")


class OffsetHandlers:
    """Offsets of the partitions that this broker leads."""

    def __init__(self, replicas: ReplicaManager, opening: OpeningPartitions | None = None) -> None:
        """Requests for partitions that are `opening` wait until they are open; with None, none is."""
        self._replicas = replicas
        self._opening = opening if opening is not None else OpeningPartitions(replicas.timers)

    # -- ListOffsets

    def list_offsets(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Pending[ListOffsetsResponse]:
        """Offsets by special value at once; by time in a job, because the search may have to read the disk."""
        check_isolation(request.isolation_level)
        if self._opening.partitions:
            named = ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
            waiting = self._opening.wait(context, request, self.list_offsets, named, request.timeout_ms or MAX_WAIT_MS)
            if waiting is not None:
                return waiting
        answers: dict[str, ListOffsetsTopicResponse] = {}
        results: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
        searches: dict[tuple[str, int], tuple[ListOffsetsPartitionResponse, _Search]] = {}
        for topic in request.topics:
            answer = answers.get(topic.name)
            if answer is None:
                answer = answers[topic.name] = ListOffsetsTopicResponse(name=topic.name)
            for asked in topic.partitions:
                key = (topic.name, asked.partition_index)
                if key in results:
                    # Which of the two is meant, nobody can tell: one answer, and that is a refusal.
                    searches.pop(key, None)
                    _fill(results[key], _NOTHING)
                    results[key].error_code = ErrorCode.INVALID_REQUEST
                    continue
                result = results[key] = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
                answer.partitions.append(result)
                try:
                    if context.api_version < _OLDEST_VERSION_OF.get(asked.timestamp, 0):
                        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                    partition = self._replicas.get(*key)
                    partition.check_leader(asked.current_leader_epoch)
                    found = self._find(partition, request, asked)
                except ApiError as error:
                    result.error_code = error.code
                    if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < _FIRST_NOT_AVAILABLE:
                        result.error_code = ErrorCode.LEADER_NOT_AVAILABLE
                    continue
                if isinstance(found, _Search):
                    searches[key] = (result, found)
                else:
                    _fill(result, found)
        response = ListOffsetsResponse(topics=list(answers.values()))
        done = self._search(response, list(searches.values())) if searches else response
        if context.api_version < _FIRST_WITH_EPOCHS:
            return _without_epochs(done)
        return done

    def _find(self, partition: Partition, request: ListOffsetsRequest, asked: ListOffsetsPartition) -> Found | _Search:
        """The offset, or the search for it."""
        log = partition.log
        epochs = log.leader_epochs
        end = self._visible_end(partition, request, asked)
        match asked.timestamp:
            case OffsetSpec.LATEST:
                return Found(-1, end, partition.leader_epoch)
            case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
                epoch = epochs.epoch_for_offset(log.log_start_offset)
                return Found(-1, log.log_start_offset, -1 if epoch is None else epoch)
            case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
                # Both ask of remote storage, and nothing is there.
                return _NOTHING
            case OffsetSpec.MAX_TIMESTAMP:
                search = log.max_timestamp_job()
            case timestamp:
                if timestamp < 0:
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                search = log.timestamp_job(timestamp)
        return _Search(search, end)

    def _visible_end(self, partition: Partition, request: ListOffsetsRequest, asked: ListOffsetsPartition) -> int:
        if request.replica_id >= 0 or request.replica_id == -2:
            return partition.log.log_end_offset
        if asked.timestamp not in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL) and partition.knows_too_little:
            # The end must never seem to go back, and this new leader may not know all that is committed.
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return partition.readable_end(request.isolation_level == READ_COMMITTED)

    def _search(
        self,
        response: ListOffsetsResponse,
        searches: list[tuple[ListOffsetsPartitionResponse, _Search]],
    ) -> Pending[ListOffsetsResponse]:
        pending: Pending[ListOffsetsResponse] = Pending()

        def job() -> None:
            for _, search in searches:
                with contextlib.suppress(Exception):  # kept for `finish`: the others are searched all the same
                    search.run()

        def finish(_: None, error: BaseException | None) -> None:
            for result, search in searches:
                try:
                    _fill(result, search.finish())
                except ApiError as failure:
                    result.error_code = failure.code
                except OSError:
                    result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            pending.complete(response)

        self._replicas.jobs.run(job, finish)
        return pending

    # -- OffsetForLeaderEpoch

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Where an epoch ended: what a follower or consumer truncates to (KIP-101, KIP-320)."""
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            answer = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(answer)
            for asked in topic.partitions:
                result = OffsetForLeaderEpochResponseEpochEndOffset(partition=asked.partition)
                answer.partitions.append(result)
                try:
                    partition = self._replicas.get(topic.topic, asked.partition)
                    partition.check_leader(asked.current_leader_epoch)
                    result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
                except ApiError as error:
                    result.error_code = error.code
        return response

    # -- DeleteRecords

    def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Move log start offsets up, and answer when every living replica has done so."""
        response = DeleteRecordsResponse()
        waiting_for: dict[Partition, int] = {}
        results: dict[Partition, DeleteRecordsPartitionResult] = {}
        for topic in request.topics:
            answer = DeleteRecordsTopicResult(name=topic.name)
            response.topics.append(answer)
            for asked in topic.partitions:
                result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
                answer.partitions.append(result)
                try:
                    partition = self._replicas.get(topic.name, asked.partition_index)
                    if topic.name in INTERNAL_TOPICS:
                        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                    result.low_watermark = partition.delete_records(asked.offset)
                    goal = partition.log.high_watermark if asked.offset == -1 else asked.offset
                    if result.low_watermark < goal:
                        waiting_for[partition], results[partition] = goal, result
                except ApiError as error:
                    result.error_code = error.code
        if not waiting_for:
            return response
        return self._deleted_everywhere(request, response, waiting_for, results)

    def _deleted_everywhere(
        self,
        request: DeleteRecordsRequest,
        response: DeleteRecordsResponse,
        waiting_for: dict[Partition, int],
        results: dict[Partition, DeleteRecordsPartitionResult],
    ) -> Pending[DeleteRecordsResponse]:
        pending: Pending[DeleteRecordsResponse] = Pending()

        def finished() -> None:
            for partition, result in results.items():
                result.low_watermark = partition.low_watermark
                if partition in waiter.unsatisfied:
                    result.error_code = (
                        ErrorCode.REQUEST_TIMED_OUT if partition.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
                    )
            pending.complete(response)

        waiter = OffsetWaiter(waiting_for, Partition.deleted, finished)
        pending.on_abandoned = waiter.stop
        waiter.wait(list(waiting_for), self._replicas.timers, max(0, request.timeout_ms))
        return pending


def _without_epochs(
    done: ListOffsetsResponse | Pending[ListOffsetsResponse],
) -> ListOffsetsResponse | Pending[ListOffsetsResponse]:
    """The answer for versions that know no leader epochs."""
    if not isinstance(done, Pending):
        for topic in done.topics:
            for result in topic.partitions:
                result.leader_epoch = -1
        return done
    pending: Pending[ListOffsetsResponse] = Pending()

    def settle(response: ListOffsetsResponse | None, error: ApiError | None) -> None:
        if response is not None:
            _without_epochs(response)
        pending.settle(response, error)

    done.then(settle)
    return pending


def _fill(result: ListOffsetsPartitionResponse, found: Found) -> None:
    result.timestamp, result.offset, result.leader_epoch = found
