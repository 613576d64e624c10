"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): where a partition begins and ends."""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS
from kalda.base.scheduling import Pending
from kalda.broker.handlers.shared import error_on_items
from kalda.broker.module import Module
from kalda.broker.replicas.opening import MAX_WAIT_MS, OpeningPartitions
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import MAX_ELEMENTS_BETWEEN_NODES, Authorization, Items, Row
from kalda.protocol.access import CLUSTER_RESOURCE_NAME, DELETE_TOPIC, DESCRIBE_TOPIC, Need
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import (
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
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.replication.counters import DelayedOperation
from kalda.replication.fetch import READ_COMMITTED
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.waiters import OffsetWaiter
from kalda.storage.log.snapshot_jobs import TimeSearch
from kalda.storage.values import TimestampOffset

_DEBUGGING_REPLICA = -2
"""In place of a replica's id: a tool asks for the offsets of this replica, whether it leads or follows."""
_FIRST_WITH_EPOCHS = 4
_FIRST_NOT_AVAILABLE = 5
_OLDEST_VERSION_OF: dict[int, int] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


class Found(NamedTuple):
    """An offset, its leader epoch, and the timestamp of its record where the request was for a timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


_NOTHING = Found(-1, -1, -1)


class _Search(NamedTuple):
    """A search by time in a log, below the end that its client may see."""

    read: TimeSearch
    end: int
    """An offset from it on counts as not found."""

    def found(self, record: TimestampOffset | None) -> Found:
        if record is None or record.offset >= self.end:
            return _NOTHING
        return Found(record.timestamp, record.offset, record.leader_epoch)


def _need_for_epochs(context: RequestContext, request: OffsetForLeaderEpochRequest) -> Need | None:
    """A follower needs nothing for each topic."""
    if context.allows(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False):
        return None
    return DESCRIBE_TOPIC


def check_isolation(level: int) -> None:
    """Raises `ApiError` for an unknown isolation level, with the code that Kafka gives unexpected values."""
    if not 0 <= level <= READ_COMMITTED:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown isolation level {level}")


class OffsetHandlers(Module):
    """Offsets of the partitions that this broker leads, and where a tool asks for them, of those that it follows."""

    def __init__(self, replicas: ReplicaManager, opening: OpeningPartitions | None = None) -> None:
        """Requests for partitions that are `opening` wait until they are open; with None, none is."""
        self._replicas = replicas
        self._opening = opening if opening is not None else OpeningPartitions(replicas.timers, replicas.background)

    def rows(self) -> list[Row]:
        """One row an API."""
        per_item = Authorization.PER_ITEM
        list_offsets_failed = error_on_items("topics.partitions")
        delete_records_failed = error_on_items("topics.partitions", low_watermark=-1)
        epochs_of = Items(_need_for_epochs, offset_for_leader_epoch_failed, name_of=lambda each: str(each.topic))
        return [
            Row(
                ApiKey.LIST_OFFSETS,
                self.list_offsets,
                list_offsets_failed,
                per_item,
                items=Items(DESCRIBE_TOPIC, list_offsets_failed).stage,
            ),
            Row(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                self.offset_for_leader_epoch,
                offset_for_leader_epoch_failed,
                per_item,
                items=epochs_of.stage,
                max_elements=MAX_ELEMENTS_BETWEEN_NODES,
            ),
            Row(
                ApiKey.DELETE_RECORDS,
                self.delete_records,
                delete_records_failed,
                per_item,
                items=Items(DELETE_TOPIC, delete_records_failed).stage,
            ),
        ]

    # -- ListOffsets

    def list_offsets(self, context: RequestContext, request: ListOffsetsRequest) -> Reply[ListOffsetsResponse]:
        """Offsets by special value at once; by time in a job, because the search may have to read the disk."""
        check_isolation(request.isolation_level)
        if self._opening.partitions:
            named = ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
            waiting = self._opening.wait(context, request, self.list_offsets, named, request.timeout_ms or MAX_WAIT_MS)
            if waiting is not None:
                return waiting
        return self._listed(context, request)

    def _listed(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> Steps[ListOffsetsResponse | Pending[Steps[ListOffsetsResponse]]]:
        answers: dict[str, ListOffsetsTopicResponse] = {}
        results: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
        searches: dict[tuple[str, int], tuple[ListOffsetsPartitionResponse, _Search]] = {}
        for topic in request.topics:
            answer = answers.get(topic.name)
            if answer is None:
                answer = answers[topic.name] = ListOffsetsTopicResponse(name=topic.name)
            for requested in topic.partitions:
                if results and len(results) % ITEMS_A_STEP == 0:
                    yield
                key = (topic.name, requested.partition_index)
                if key in results:
                    # A partition that is named twice has one result, which is an error: the two may differ.
                    searches.pop(key, None)
                    _fill(results[key], _NOTHING)
                    results[key].error_code = ErrorCode.INVALID_REQUEST
                    continue
                result = results[key] = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
                answer.partitions.append(result)
                try:
                    if context.api_version < _OLDEST_VERSION_OF.get(requested.timestamp, 0):
                        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                    partition = self._replicas.get(*key)
                    if request.replica_id == _DEBUGGING_REPLICA:
                        partition.check_epoch(requested.current_leader_epoch)
                    else:
                        partition.check_leader(requested.current_leader_epoch)
                    found = self._find(partition, request, requested)
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
        has_epochs = context.api_version >= _FIRST_WITH_EPOCHS
        if not searches:
            return response if has_epochs else _without_epochs(response)
        wanted = list(searches.values())
        searched = self._replicas.read_later([search.read for _, search in wanted])
        return searched.and_then(lambda records: _filled(response, wanted, records, has_epochs))

    def _find(
        self, partition: Partition, request: ListOffsetsRequest, requested: ListOffsetsPartition
    ) -> Found | _Search:
        """The offset, or the search for it where the disk has to be read."""
        log = partition.log
        epochs = log.leader_epochs
        end = self._visible_end(partition, request, requested)
        match requested.timestamp:
            case OffsetSpec.LATEST:
                return Found(-1, end, partition.leader_epoch)
            case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL as earliest:
                is_local = earliest == OffsetSpec.EARLIEST_LOCAL
                start = log.local_log_start_offset if is_local else log.log_start_offset
                epoch = epochs.epoch_for_offset(start)
                return Found(-1, start, -1 if epoch is None else epoch)
            case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
                # Both are offsets in remote storage, which holds nothing.
                return _NOTHING
            case OffsetSpec.MAX_TIMESTAMP:
                search = TimeSearch(log, None)
            case timestamp:
                if timestamp < 0:
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                search = TimeSearch(log, timestamp)
        return _Search(search, end)

    def _visible_end(self, partition: Partition, request: ListOffsetsRequest, requested: ListOffsetsPartition) -> int:
        if request.replica_id >= 0 or request.replica_id == _DEBUGGING_REPLICA:
            return partition.log.log_end_offset
        earliest = (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL)
        if requested.timestamp not in earliest and partition.predecessor_hw_unknown:
            # The end that clients see must never go back, and the high watermark of this new leader may be lower
            # than the one that its predecessor has shown.
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return partition.readable_end(request.isolation_level == READ_COMMITTED)

    # -- OffsetForLeaderEpoch

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> Steps[OffsetForLeaderEpochResponse]:
        """The end offset of a leader epoch: what a follower or consumer truncates to (KIP-101, KIP-320)."""
        response = OffsetForLeaderEpochResponse()
        left = ITEMS_A_STEP
        for topic in request.topics:
            answer = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(answer)
            for requested in topic.partitions:
                if not left:
                    yield
                    left = ITEMS_A_STEP
                left -= 1
                result = OffsetForLeaderEpochResponseEpochEndOffset(partition=requested.partition)
                answer.partitions.append(result)
                try:
                    partition = self._replicas.get(topic.topic, requested.partition)
                    partition.check_leader(requested.current_leader_epoch)
                    result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
                except ApiError as error:
                    result.error_code = error.code
        return response

    # -- DeleteRecords

    def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> Steps[DeleteRecordsResponse | Pending[DeleteRecordsResponse]]:
        """Move log start offsets up, and answer when every replica that is alive has done so. A step is one partition:
        each makes a small file, the epochs of a log that starts later."""
        response = DeleteRecordsResponse()
        waiting_for: dict[Partition, int] = {}
        results: dict[Partition, DeleteRecordsPartitionResult] = {}
        for topic in request.topics:
            answer = DeleteRecordsTopicResult(name=topic.name)
            response.topics.append(answer)
            for requested in topic.partitions:
                if answer.partitions or len(response.topics) > 1:
                    yield
                result = DeleteRecordsPartitionResult(partition_index=requested.partition_index, low_watermark=-1)
                answer.partitions.append(result)
                try:
                    partition = self._replicas.get(topic.name, requested.partition_index)
                    if topic.name in INTERNAL_TOPICS:
                        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                    result.low_watermark = partition.delete_records(requested.offset)
                    goal = partition.log.high_watermark if requested.offset == -1 else requested.offset
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

        waiter = OffsetWaiter(DelayedOperation.DELETE_RECORDS, waiting_for, Partition.is_deleted, finished)
        pending.on_abandoned = waiter.stop
        waiter.wait(list(waiting_for), self._replicas.timers, max(0, request.timeout_ms))
        return pending


def _filled(
    response: ListOffsetsResponse,
    searches: list[tuple[ListOffsetsPartitionResponse, _Search]],
    records: list[TimestampOffset | ApiError | None],
    has_epochs: bool,
) -> Steps[ListOffsetsResponse]:
    """The response with what was found."""
    for count, ((result, search), record) in enumerate(zip(searches, records, strict=True)):
        if count and count % ITEMS_A_STEP == 0:
            yield
        if isinstance(record, ApiError):
            result.error_code = record.code
        else:
            _fill(result, search.found(record))
    return response if has_epochs else _without_epochs(response)


def _without_epochs(response: ListOffsetsResponse) -> ListOffsetsResponse:
    """The response for versions whose clients cannot read leader epochs."""
    for topic in response.topics:
        for result in topic.partitions:
            result.leader_epoch = -1
    return response


def _fill(result: ListOffsetsPartitionResponse, found: Found) -> None:
    result.timestamp, result.offset, result.leader_epoch = found


# How each API reports that the whole request failed.


offset_for_leader_epoch_failed = error_on_items("topics.partitions")
