"""Sends batches to the leaders of their partitions, each partition's batches in order.

At most one Produce is in flight to each leader, with at most one batch of each partition in it, so that a retry cannot
reorder batches; the caller builds the next batches meanwhile. A batch is kept until its response has come. With
`idempotent`, batches have sequence numbers (KIP-98), so that a batch whose response was lost is not written twice.
After a retriable error a batch is sent again, with fresh metadata, until it is `timeout_ms` old.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.client.cluster_client import ClusterClient, version_within
from kalda.client.errors import refused
from kalda.client.metadata import Leader
from kalda.client.retry import Deadline
from kalda.network.calls import Call
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kalda.records.batch import advance_sequence, read_header, write_header

ACKS_ALL = -1
_LANE = "produce"
_MAX_PRODUCE_BY_NAME = 12
_RETRY_MS = 100
"""The pause after a failure, and the longest wait for a response before the next look at the queues."""
_SLACK_MS = 5_000
"""How long a response may take beyond the timeout of the request."""
_UNUSED_TIMEOUT_MS = 60_000
"""InitProducerId has to have a valid transaction timeout; it has no effect without a transactional id."""


class Delivery(NamedTuple):
    """A batch that was written. `base_offset` is -1 with acks=0, and for a duplicate whose offset is unknown."""

    topic: str
    partition: int
    base_offset: int
    records_count: int
    size_bytes: int
    log_append_time_ms: int


class _Outgoing(NamedTuple):
    partition: TopicPartition
    batch: bytearray
    records_count: int
    deadline: Deadline


class _InFlight(NamedTuple):
    """A Produce without a response. `by_topic` has each batch by topic name, and by topic id where that was sent."""

    call: Call
    due: Deadline
    by_topic: dict[tuple[str | Uuid, int], _Outgoing]

    @property
    def batches(self) -> list[_Outgoing]:
        return list({one.partition: one for one in self.by_topic.values()}.values())


class Sender:
    """A context manager; at its end it flushes, unless an exception ended the block."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = False,
        max_request_bytes: int = 4 * 1024 * 1024,
        max_buffered_bytes: int = 32 * 1024 * 1024,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Raises `ValueError` where `idempotent` is given with `acks` other than all."""
        if idempotent and acks != ACKS_ALL:
            raise ValueError(f"acks={acks} with idempotence: idempotence requires acks=all")
        self._cluster = cluster
        self._acks = acks
        self._idempotent = idempotent
        self._max_request_bytes = max_request_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._on_delivery = on_delivery
        self._queues: dict[TopicPartition, deque[_Outgoing]] = {}
        """Batches that are not written yet, those in flight included. No queue is empty."""
        self._in_flight: dict[int, _InFlight] = {}
        """By the leader's node id."""
        self._buffered_bytes = 0
        self._pause = Deadline(0)
        """No Produce is sent until it is past."""
        self._without_leader: dict[TopicPartition, Deadline] = {}
        """Partitions that had no leader, each with the time of its next attempt. Other partitions do not wait for
        it."""
        self._producer: tuple[int, int] | None = None
        """Producer id and epoch."""
        self._sequences: dict[TopicPartition, int] = {}
        """The sequence number of the partition's next batch."""

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        self.close()

    def send(self, topic: str, partition: int, batch: bytearray) -> None:
        """Queue a batch (magic 2, as `build_batch` makes it). Where idempotent, its header is numbered in place.

        Waits while more than `max_buffered_bytes` are queued. Raises `ApiError` where this batch or an earlier one
        cannot be written.
        """
        target = TopicPartition(topic, partition)
        header = read_header(batch)
        if self._idempotent:
            producer_id, producer_epoch = self._producer_id()
            sequence = self._sequences.get(target, 0)
            header = header._replace(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
            write_header(batch, 0, header)
            self._sequences[target] = advance_sequence(sequence, header.records_count)
        one = _Outgoing(target, batch, header.records_count, Deadline(self._cluster.timeout_ms))
        self._queues.setdefault(target, deque()).append(one)
        self._buffered_bytes += len(batch)
        self._dispatch()
        self._collect(0)
        while self._buffered_bytes > self._max_buffered_bytes:
            self._dispatch()
            self._collect(_RETRY_MS)

    def flush(self) -> None:
        """Wait until every batch is written. Raises `ApiError` where one cannot be."""
        while self._queues:
            self._dispatch()
            self._collect(_RETRY_MS)

    def close(self) -> None:
        """Drop the batches that are not written, and the connections with requests in flight."""
        for node_id in list(self._in_flight):
            self._cluster.drop(node_id, _LANE)
        self._in_flight.clear()
        self._queues.clear()
        self._buffered_bytes = 0

    def _producer_id(self) -> tuple[int, int]:
        if self._producer is None:
            from kalda.protocol.messages.transactions import InitProducerIdRequest

            def check(answer: Any) -> None:
                if answer.error_code:
                    raise refused(answer.error_code, "a producer id")

            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_UNUSED_TIMEOUT_MS)
            answer = self._cluster.any_broker(request, check=check)
            self._producer = answer.producer_id, answer.producer_epoch
        return self._producer

    # -- sending

    def _dispatch(self) -> None:
        """Send the oldest batch of each partition to its leader, unless that has a request in flight."""
        if not self._pause.is_past:
            return
        busy = {one.partition for flight in self._in_flight.values() for one in flight.by_topic.values()}
        self._without_leader = {p: at for p, at in self._without_leader.items() if not at.is_past}
        idle = [p for p in self._queues if p not in busy and p not in self._without_leader]
        if not idle:
            return
        by_node: dict[int, list[tuple[_Outgoing, Leader]]] = {}
        leaders, failures = self._cluster.leaders_now(idle)
        for partition, error in failures.items():
            self._raise_if_final(self._queues[partition][0], error)
            self._without_leader[partition] = Deadline(_RETRY_MS)
        for partition, leader in leaders.items():
            if leader.node_id not in self._in_flight:
                by_node.setdefault(leader.node_id, []).append((self._queues[partition][0], leader))
        for node_id, batches in by_node.items():
            chosen = self._within_request_limit(batches)
            try:
                self._send(node_id, chosen)
            except ApiError as error:
                self._connection_failed(node_id, [one for one, _ in chosen], error)

    def _within_request_limit(self, batches: list[tuple[_Outgoing, Leader]]) -> list[tuple[_Outgoing, Leader]]:
        """The first batches that together have at most `max_request_bytes`; at least one."""
        size = 0
        for count, (one, _) in enumerate(batches):
            size += len(one.batch)
            if size > self._max_request_bytes and count:
                return batches[:count]
        return batches

    def _send(self, node_id: int, batches: list[tuple[_Outgoing, Leader]]) -> None:
        connection = self._cluster.connection(node_id, _LANE)
        by_name = any(leader.topic_id == ZERO_UUID for _, leader in batches)
        version = version_within(connection, ProduceRequest.API_KEY, _MAX_PRODUCE_BY_NAME if by_name else None)
        topics: dict[str, TopicProduceData] = {}
        expected: dict[tuple[str | Uuid, int], _Outgoing] = {}
        for one, leader in batches:
            name, index = one.partition
            topic = topics.setdefault(name, TopicProduceData(name=name, topic_id=leader.topic_id))
            topic.partition_data.append(PartitionProduceData(index=index, records=one.batch))
            expected[name, index] = one
            if not by_name:
                expected[leader.topic_id, index] = one
        request = ProduceRequest(acks=self._acks, timeout_ms=self._cluster.timeout_ms, topic_data=list(topics.values()))
        if self._acks == 0:
            connection.send_only(request, version)
            for one, _ in batches:
                self._written(one, -1, -1)
            return
        due = Deadline(self._cluster.timeout_ms + _SLACK_MS)
        self._in_flight[node_id] = _InFlight(connection.send(request, version), due, expected)

    # -- receiving

    def _collect(self, timeout_ms: int) -> None:
        """Handle the responses that have come; where there are none, wait up to `timeout_ms` for one."""
        if not self._in_flight:
            waits_ms = [self._pause.remaining_ms]
            if self._queues and all(partition in self._without_leader for partition in self._queues):
                waits_ms.append(min(at.remaining_ms for at in self._without_leader.values()))
            if self._queues and max(waits_ms) > 0:
                select.select((), (), (), min(timeout_ms, max(waits_ms)) / 1000)
            return
        connections = {self._cluster.connection(node_id, _LANE): node_id for node_id in self._in_flight}
        readable = select.select(list(connections), (), (), timeout_ms / 1000)[0]
        for connection in readable:
            node_id = connections[connection]
            flight = self._in_flight.pop(node_id)
            try:
                answer = connection.receive(flight.call, timeout_ms=self._cluster.timeout_ms)
            except ApiError as error:
                self._connection_failed(node_id, flight.batches, error)
            else:
                self._handle_response(answer, flight)
        for node_id, flight in list(self._in_flight.items()):
            if flight.due.is_past:
                late = refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {node_id}", "no answer to a produce")
                self._connection_failed(node_id, flight.batches, late)

    def _handle_response(self, answer: ProduceResponse, flight: _InFlight) -> None:
        refusals: list[tuple[_Outgoing, ApiError]] = []
        for topic in answer.responses:
            for p in topic.partition_responses:
                one = flight.by_topic.get((topic.name, p.index)) or flight.by_topic.get((topic.topic_id, p.index))
                if one is None:
                    continue
                if p.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._written(one, p.base_offset, p.log_append_time_ms)
                else:
                    refusals.append((one, refused(p.error_code, f"partition {one.partition}", p.error_message)))
        for one, error in refusals:  # after all written batches were reported, since this raises
            self._retry_later(one, error)

    def _written(self, one: _Outgoing, base_offset: int, log_append_time_ms: int) -> None:
        queue = self._queues[one.partition]
        assert queue[0] is one, "a partition's batches are written in order"
        queue.popleft()
        if not queue:
            del self._queues[one.partition]
        self._buffered_bytes -= len(one.batch)
        if self._on_delivery is not None:
            self._on_delivery(
                Delivery(*one.partition, base_offset, one.records_count, len(one.batch), log_append_time_ms)
            )

    def _connection_failed(self, node_id: int, batches: list[_Outgoing], error: ApiError) -> None:
        self._cluster.drop(node_id, _LANE)
        self._in_flight.pop(node_id, None)
        for one in batches:
            self._retry_later(one, error)

    def _retry_later(self, one: _Outgoing, error: ApiError) -> None:
        """Send the batch again after `_RETRY_MS`; it is still the first of its queue. Raises `error` where it is not
        retriable, or the batch's deadline has passed."""
        self._raise_if_final(one, error)
        self._cluster.forget([one.partition.topic])
        self._pause = Deadline(_RETRY_MS)

    def _raise_if_final(self, one: _Outgoing, error: ApiError) -> None:
        if not error.code.retriable or one.deadline.is_past:
            raise error
