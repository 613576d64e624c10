"""A producer of transactions: blocking, for one thread, over a `ClusterClient`.

Decisions are those of `TransactionManager`; this is its shell. Records are buffered until `flush`, which sends one
batch a partition and returns where they were written. A call blocks for at most the cluster client's `timeout_ms`;
`init`, `commit` and `abort` may be called again after REQUEST_TIMED_OUT, and continue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.features import describe_features
from kalda.client.cluster_client import ClusterClient, version_within
from kalda.client.core.transaction_manager import (
    MAX_PRODUCE_BEFORE_V2,
    GroupMember,
    Outgoing,
    TransactionManager,
)
from kalda.client.errors import refused
from kalda.client.metadata import Broker, Leader
from kalda.client.retry import Deadline
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.builder import NewRecord, build_batch

_LANE = "transactions"
_ACKS_ALL = -1
_FEATURES_MS = 5_000
"""How old the finalized transaction.version may be when a transaction begins."""
_FEATURE = "transaction.version"


class Written(NamedTuple):
    """Where a batch was written; -1 where it was a duplicate whose offset the leader has forgotten."""

    base_offset: int
    records_count: int


class TransactionalProducer:
    """One transactional id."""

    def __init__(
        self,
        cluster: ClusterClient,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self.manager = TransactionManager(transactional_id, transaction_timeout_ms)
        self._cluster = cluster
        self._request_timeout_ms = request_timeout_ms
        self._records: dict[TopicPartition, list[NewRecord]] = {}
        """Records that are not sent."""
        self._features_due = Deadline(0)
        """When the finalized features are requested again."""

    def init(self) -> None:
        """Get a producer id, and fence earlier producers of this transactional id. Raises `ApiError`."""
        self._refresh_features()
        self.manager.initialize()
        self._complete()

    def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        if self._features_due.is_past:
            self._refresh_features()
        self.manager.begin()

    def send(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
        """Buffer records. Raises `ApiError` where no transaction is open, or it has failed."""
        target = TopicPartition(topic, partition)
        self.manager.add_partition(target)
        self._records.setdefault(target, []).extend(records)

    def flush(self) -> dict[TopicPartition, Written]:
        """Send what is buffered. Raises `AbortableTransactionError` or `FatalTransactionError`, and REQUEST_TIMED_OUT
        before anything was sent."""
        self._complete()
        batches = {}
        for partition, records in self._records.items():
            stamp = self.manager.number(partition, len(records))
            batches[partition] = build_batch(records, is_transactional=True, **stamp._asdict())
        counts = {partition: len(records) for partition, records in self._records.items()}
        self._records.clear()
        if not batches:
            return {}
        try:
            offsets = self._produce(batches)
        except ApiError as error:
            self.manager.on_batch_failed(error.code, error.message)
            self.manager.check()
            raise
        return {partition: Written(offset, counts[partition]) for partition, offset in offsets.items()}

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMember | None = None
    ) -> None:
        """Commit a group's offsets within the transaction. Raises `ApiError`."""
        self.manager.send_offsets(group_id, offsets, member)
        self._complete()

    def commit(self) -> dict[TopicPartition, Written]:
        """Flush and commit; the result of the flush. Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not,
        and a second call has the outcome."""
        written = self.flush() if self._records else {}
        self.manager.begin_commit()
        self._complete()
        return written

    def abort(self) -> None:
        """Abort. Raises `ApiError`."""
        self._records.clear()
        self.manager.begin_abort()
        self._complete()

    # -- requests

    def _complete(self) -> None:
        """Send the manager's requests until it is idle. Raises its error, or REQUEST_TIMED_OUT."""
        deadline = Deadline(self._cluster.timeout_ms)
        while not self.manager.is_idle:
            outgoing = self.manager.next_request(_now_ms())
            if outgoing is not None:
                self._send(outgoing, deadline)
            elif not self.manager.is_idle:
                wait_ms = self.manager.retry_at_ms - _now_ms()
                time.sleep(max(0, min(wait_ms, deadline.remaining_ms)) / 1000)
            if deadline.is_past and not self.manager.is_idle:
                raise refused(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"transactional id {self.manager.transactional_id!r}",
                    f"still {self.manager.state.value} after {deadline.timeout_ms} ms",
                )
        self.manager.check()

    def _send(self, outgoing: Outgoing, deadline: Deadline) -> None:
        """One attempt."""
        timeout_ms = max(1, min(deadline.remaining_ms, self._request_timeout_ms))
        try:
            response = self._request(outgoing, timeout_ms)
        except ApiError as error:
            if outgoing.node_id is not None and error.code is not ErrorCode.UNSUPPORTED_VERSION:
                self._cluster.drop(outgoing.node_id, _LANE)
            self.manager.on_failure(error.code, error.message, _now_ms())
            return
        if isinstance(outgoing.request, FindCoordinatorRequest) and not response.error_code:
            self._cluster.brokers[response.node_id] = Broker(response.node_id, response.host, response.port, None)
        self.manager.on_response(response, _now_ms())

    def _request(self, outgoing: Outgoing, timeout_ms: int) -> Any:
        if outgoing.node_id is None:
            return self._cluster.any_broker(outgoing.request, max_version=outgoing.max_version, timeout_ms=timeout_ms)
        connection = self._cluster.connection(outgoing.node_id, _LANE, timeout_ms=timeout_ms)
        version = version_within(connection, outgoing.request.API_KEY, outgoing.max_version)
        return connection.request(outgoing.request, version, timeout_ms=timeout_ms)

    def _produce(self, batches: Mapping[TopicPartition, bytearray]) -> dict[TopicPartition, int]:
        """The base offset of each batch. Raises `ApiError`."""
        names: dict[Any, str] = {}

        def build(partitions: list[tuple[TopicPartition, Leader]]) -> ProduceRequest:
            topics: dict[str, TopicProduceData] = {}
            for partition, leader in partitions:
                names[leader.topic_id] = partition.topic
                topic = topics.setdefault(
                    partition.topic, TopicProduceData(name=partition.topic, topic_id=leader.topic_id)
                )
                topic.partition_data.append(PartitionProduceData(index=partition.partition, records=batches[partition]))
            return ProduceRequest(
                transactional_id=self.manager.transactional_id,
                acks=_ACKS_ALL,
                timeout_ms=self._request_timeout_ms,
                topic_data=list(topics.values()),
            )

        def read(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
            for topic in answer.responses:
                for p in topic.partition_responses:
                    is_duplicate = p.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                    partition = TopicPartition(topic.name or names[topic.topic_id], p.index)
                    yield partition, 0 if is_duplicate else p.error_code, -1 if is_duplicate else p.base_offset

        max_version = None if self.manager.is_v2 else MAX_PRODUCE_BEFORE_V2
        return self._cluster.ask_leaders(batches, build, read, max_version=max_version)

    def _refresh_features(self) -> None:
        """Raises `ApiError` at the first time only: later, the last version is used until an answer comes."""
        try:
            found = describe_features(self._cluster)
        except ApiError:
            if self.manager.producer_id < 0:
                raise
            return
        level = next((each.finalized for each in found.features if each.name == _FEATURE), 0)
        self.manager.on_features(found.epoch, level)
        self._features_due = Deadline(_FEATURES_MS)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
