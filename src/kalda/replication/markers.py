"""WriteTxnMarkers (27): the markers that end transactions, appended to the partitions that this broker leads.

A transaction's coordinator sends a marker for each partition that the transaction has written to, and sends it again
until the partition has it. A marker is a control batch of one record. Its append is refused where the producer's state
has a later producer epoch, or a later epoch of the coordinator (`ProducerStates.check_marker`); a marker that the log
has already may be appended again, and ends nothing then. The answer for a partition is given when its marker is
committed: the coordinator forgets the transaction after that, so no leader may be without the marker.

The log of a coordinator is written by that coordinator alone. A marker for its partition is passed to it, and it
applies the marker as it appends it: `delegate`. A driver.

Not obvious:

- A marker in a coordinator's log is appended through its `CoordinatorPartition`, or its state lacks what its log has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kalda.records.control import transaction_marker_batch
from kalda.replication.counters import DelayedOperation
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.waiters import OffsetWaiter
from kalda.storage.log.snapshot_jobs import open_logs
from kalda.storage.values import AppendInfo, AppendOrigin, TransactionEnd

_ALL = -1
_APPENDED_ON_ARRIVAL = 15
"""So many markers of a request are appended as it arrives, within about a millisecond: all of most transactions."""
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
        return open_logs(self.replicas.jobs, list(dict.fromkeys(cold))).and_then(lambda _: self._write(request))

    def _write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        return _Writing(self, request, self._timeout_ms).run()

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

    def __init__(self, writer: MarkerWriter, request: WriteTxnMarkersRequest, timeout_ms: int) -> None:
        self._writer = writer
        self._timeout_ms = timeout_ms
        self._response = WriteTxnMarkersResponse()
        self._not_appended = deque(self._results(request))
        """Markers that are not appended yet, each with its topic and its result in the response."""
        self._required: dict[Partition, int] = {}
        """Partitions whose markers are not committed yet: the offset below which they have to be."""
        self._epochs: dict[Partition, int] = {}
        """The leader epochs in which these were appended."""
        self._appended: dict[Partition, list[WritableTxnMarkerPartitionResult]] = {}
        """Their results: errors are written into them where the wait ends badly."""
        self._left = 1
        """How many delegates have not settled, and one more until all is appended and the wait for followers over."""
        self._answer: Pending[WriteTxnMarkersResponse] | None = None
        """Where the response has to wait."""

    def run(self) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        waiting = self._not_appended
        for _ in range(min(len(waiting), _APPENDED_ON_ARRIVAL)):
            self._append(*waiting.popleft())
        if waiting:
            self._writer.replicas.background.run(self._append_others()).then(self._on_appended)
        else:
            self._on_appended(None, None)
        if not self._left:
            return self._response
        self._answer = Pending()
        return self._answer

    def _append_others(self) -> Steps[None]:
        while self._not_appended:
            self._append(*self._not_appended.popleft())
            yield

    def _on_appended(self, _: None, error: ApiError | None) -> None:
        if error is not None:
            assert self._answer is not None, "only what is appended in the background fails here"
            self._answer.fail(error)
        elif self._required:
            self._wait()
        else:
            self._settle_one()

    def _results(
        self, request: WriteTxnMarkersRequest
    ) -> Iterator[tuple[str, TransactionEnd, WritableTxnMarkerPartitionResult]]:
        """Each marker of each partition, and its empty result, which is in the response: those of one producer are
        together there."""
        answers: dict[int, WritableTxnMarkerResult] = {}
        named: dict[tuple[int, str], WritableTxnMarkerTopicResult] = {}
        for marker in request.markers:
            end = TransactionEnd(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                marker.transaction_version,
            )
            answer = answers.get(marker.producer_id)
            if answer is None:
                answer = answers[marker.producer_id] = WritableTxnMarkerResult(producer_id=marker.producer_id)
                self._response.markers.append(answer)
            for topic in marker.topics:
                of_topic = named.get((marker.producer_id, topic.name))
                if of_topic is None:
                    of_topic = named[marker.producer_id, topic.name] = WritableTxnMarkerTopicResult(name=topic.name)
                    answer.topics.append(of_topic)
                for index in topic.partition_indexes:
                    result = WritableTxnMarkerPartitionResult(partition_index=index)
                    of_topic.partitions.append(result)
                    yield topic.name, end, result

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
            self._epochs.setdefault(partition, partition.leader_epoch)
            self._appended.setdefault(partition, []).append(result)

    def _on_delegated(self, result: WritableTxnMarkerPartitionResult, error: ApiError | None) -> None:
        if error is not None:
            code = error.code
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code
        self._settle_one()

    def _wait(self) -> None:
        """Wait for the followers. What has been appended since may have raised high watermarks; and where this broker
        does not lead a partition in that epoch any more, other records may be at the offsets of its markers."""
        lost = [each for each, epoch in self._epochs.items() if not each.is_leader or each.leader_epoch != epoch]
        for partition in lost:
            self._fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            del self._required[partition], self._appended[partition]
        required = {each: offset for each, offset in self._required.items() if not each.is_committed(offset)}

        def finished() -> None:
            for partition in self._appended:
                if partition in waiter.unsatisfied:
                    is_late = partition.is_leader and partition.leader_epoch == self._epochs[partition]
                    self._fail(partition, ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NOT_LEADER_OR_FOLLOWER)
                elif not partition.has_enough_replicas:
                    self._fail(partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self._settle_one()

        waiter = OffsetWaiter(DelayedOperation.PRODUCE, required, Partition.is_committed, finished)
        if required:
            waiter.wait(list(required), self._writer.replicas.timers, self._timeout_ms)
        else:
            finished()

    def _fail(self, partition: Partition, code: ErrorCode) -> None:
        for result in self._appended[partition]:
            result.error_code = code

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
