"""WriteTxnMarkers (27): the markers that end transactions, appended to the partitions that this broker leads.

A transaction's coordinator sends a marker for each partition that the transaction has written to, and sends it again
until the partition has it. A marker is a control batch of one record. Its append is refused where the producer's state
has a later producer epoch, or a later epoch of the coordinator (`ProducerStates.check_marker`); a marker that the log
has already may be appended again, and ends nothing then. The answer for a partition is given when its marker is
committed: the coordinator forgets the transaction after that, so no leader may be without the marker.

The log of a coordinator is written by that coordinator alone. A marker for its partition is passed to it, and it
applies the marker as it appends it: `delegate`. A driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kalda.records.control import transaction_marker_batch
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.waiting import DelayedOperation, OffsetWaiter
from kalda.storage.opening import opening_job
from kalda.storage.values import AppendInfo, AppendOrigin, TransactionEnd

_ALL = -1
_NOT_READY = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""Errors of a delegate. A transaction coordinator expects errors of partitions, and retries after
NOT_LEADER_OR_FOLLOWER."""

Delegate = Callable[[str, int, TransactionEnd], Pending[None] | None]
"""`(topic, partition, end)`: what settles when a coordinator has committed the marker in its own log; None where the
topic is not a coordinator's."""


def append_marker(partition: Partition, end: TransactionEnd, now_ms: int) -> AppendInfo:
    """Append the marker to a partition that this broker leads. Raises `ApiError`."""
    batch = transaction_marker_batch(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        commit=end.is_commit,
        coordinator_epoch=end.coordinator_epoch,
        timestamp_ms=now_ms,
    )
    return partition.append(batch, _ALL, now_ms, AppendOrigin.COORDINATOR, transaction_version=end.transaction_version)


class MarkerWriter:
    """Answers WriteTxnMarkers requests."""

    def __init__(
        self, replicas: ReplicaManager, wall_ms: Callable[[], int], timeout_ms: int, delegate: Delegate
    ) -> None:
        """An answer waits at most `timeout_ms` for the followers."""
        self.replicas = replicas
        self._wall_ms = wall_ms
        self._timeout_ms = timeout_ms
        self._delegate = delegate

    def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        """Append the markers of a request; the response when each is committed or refused. Raises `ApiError` for the
        marker of no producer, which no coordinator sends."""
        if any(marker.producer_id < 0 or marker.producer_epoch < 0 for marker in request.markers):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a marker needs a producer id and a producer epoch")
        cold = [
            partition.log
            for _, topic, index in named_partitions(request)
            if (partition := self.replicas.find(topic, index)) is not None and partition.log.cold
        ]
        if not cold:
            return self._write(request)
        answer: Pending[WriteTxnMarkersResponse] = Pending()
        opening = opening_job(list(dict.fromkeys(cold)))

        def opened(_: None, error: BaseException | None) -> None:
            if error is None:
                opening.finish()
            done = self._write(request)
            if isinstance(done, Pending):
                done.then(answer.settle)
            else:
                answer.complete(done)

        self.replicas.jobs.run(opening.run, opened)
        return answer

    def _write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        writing = _Writing(self, request)
        return writing.run(self.replicas, self._timeout_ms)

    def append(self, topic: str, index: int, end: TransactionEnd) -> tuple[Partition, int] | Pending[None]:
        """Append one marker: the partition and the offset below which all has to be committed; or what settles when
        it is, where a coordinator appends it. Raises `ApiError`."""
        partition = self.replicas.find(topic, index)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        delegated = self._delegate(topic, index, end)
        if delegated is not None:
            return delegated
        return partition, append_marker(partition, end, self._wall_ms()).last_offset + 1


class _Writing:
    """One request, from its first append until all markers are committed or refused."""

    def __init__(self, writer: MarkerWriter, request: WriteTxnMarkersRequest) -> None:
        self._writer = writer
        self._request = request
        self._response = WriteTxnMarkersResponse()
        self._required: dict[Partition, int] = {}
        """Partitions whose markers are not committed yet: the offset below which they have to be."""
        self._appended: dict[Partition, list[WritableTxnMarkerPartitionResult]] = {}
        """Their results: errors are written into them where the wait ends badly."""
        self._left = 0
        """How many delegates have not settled, and whether the wait for followers lasts."""
        self._answer: Pending[WriteTxnMarkersResponse] | None = None
        """Where the response has to wait."""

    def run(
        self, replicas: ReplicaManager, timeout_ms: int
    ) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        self._left = 1  # until all has been appended
        for end, topics in self._results():
            for topic, results in topics:
                for result in results:
                    self._append(topic, end, result)
        if self._required:
            self._wait(replicas, timeout_ms)
        else:
            self._left -= 1
        if not self._left:
            return self._response
        self._answer = Pending()
        return self._answer

    def _results(self) -> Iterator[tuple[TransactionEnd, list[tuple[str, list[WritableTxnMarkerPartitionResult]]]]]:
        """Each marker, and the empty results of its partitions, which are in the response: those of one producer
        together."""
        by_producer: dict[int, dict[str, WritableTxnMarkerTopicResult]] = {}
        for marker in self._request.markers:
            topics = by_producer.get(marker.producer_id)
            if topics is None:
                topics = by_producer[marker.producer_id] = {}
                answer = WritableTxnMarkerResult(producer_id=marker.producer_id)
                self._response.markers.append(answer)
            else:
                answer = next(each for each in self._response.markers if each.producer_id == marker.producer_id)
            found = []
            for topic in marker.topics:
                named = topics.get(topic.name)
                if named is None:
                    named = topics[topic.name] = WritableTxnMarkerTopicResult(name=topic.name)
                    answer.topics.append(named)
                results = [WritableTxnMarkerPartitionResult(partition_index=index) for index in topic.partition_indexes]
                named.partitions.extend(results)
                found.append((topic.name, results))
            yield (
                TransactionEnd(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    marker.coordinator_epoch,
                    marker.transaction_version,
                ),
                found,
            )

    def _append(self, topic: str, end: TransactionEnd, result: WritableTxnMarkerPartitionResult) -> None:
        try:
            done = self._writer.append(topic, result.partition_index, end)
        except ApiError as error:
            result.error_code = error.code
            return
        if isinstance(done, Pending):
            self._left += 1
            done.then(lambda _, error: self._on_delegated(result, error))
            return
        partition, offset = done
        if not partition.is_committed(offset):
            self._required[partition] = max(offset, self._required.get(partition, 0))
            self._appended.setdefault(partition, []).append(result)

    def _on_delegated(self, result: WritableTxnMarkerPartitionResult, error: ApiError | None) -> None:
        if error is not None:
            code = error.code
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code
        self._settle_one()

    def _wait(self, replicas: ReplicaManager, timeout_ms: int) -> None:
        def finished() -> None:
            for partition, results in self._appended.items():
                code = ErrorCode.NONE
                if partition in waiter.unsatisfied:
                    code = ErrorCode.REQUEST_TIMED_OUT if partition.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif not partition.has_enough_replicas:
                    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                for result in results:
                    result.error_code = code
            self._settle_one()

        # An append of a later partition of the request may have raised the high watermark of an earlier one.
        required = {each: offset for each, offset in self._required.items() if not each.is_committed(offset)}
        waiter = OffsetWaiter(DelayedOperation.PRODUCE, required, Partition.is_committed, finished)
        if not required:
            finished()
            return
        waiter.wait(list(required), replicas.timers, timeout_ms)

    def _settle_one(self) -> None:
        self._left -= 1
        if not self._left and self._answer is not None:
            self._answer.complete(self._response)


def named_partitions(request: WriteTxnMarkersRequest) -> Iterator[tuple[int, str, int]]:
    """(producer id, topic, partition) of each marker of a request."""
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                yield marker.producer_id, topic.name, index
