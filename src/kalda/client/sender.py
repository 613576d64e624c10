"""Batches to the leaders of their partitions, each partition's in order.

At most one Produce is in flight to each leader, with at most one batch of each partition in it, so that order holds
through every attempt; the caller builds the next batches meanwhile. A batch stays here until its answer came. With
`idempotent`, batches are numbered (KIP-98), so that one which was written before an answer got lost is not written
again. What can be tried again is, with fresh metadata, until a batch is `timeout_ms` old.
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
_SLACK_MS = 5_000
_UNKNOWN_TIMEOUT_MS = 60_000
"""The transaction timeout of a producer that has no transactions: not looked at, but it must be sane."""


class Delivery(NamedTuple):
    """A batch that was written. The offset is -1 with acks=0, and where it was found to have been written before."""

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
    call: Call
    due: Deadline
    by_name: dict[tuple[str | Uuid, int], _Outgoing]

    @property
    def batches(self) -> list[_Outgoing]:
        return list({one.partition: one for one in self.by_name.values()}.values())


class Sender:
    """A context manager, which flushes when all went well."""

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
        """Raises `ValueError` for acks other than all with `idempotent`."""
        if idempotent and acks != ACKS_ALL:
            raise ValueError(f"acks={acks} with idempotence: only acks=all keeps its promise")
        self._cluster = cluster
        self._acks = acks
        self._idempotent = idempotent
        self._max_request_bytes = max_request_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._on_delivery = on_delivery
        self._queues: dict[TopicPartition, deque[_Outgoing]] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._buffered_bytes = 0
        self._resting = Deadline(0)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        self.close()

    def send(self, topic: str, partition: int, batch: bytearray) -> None:
        """Take a batch (magic 2, as `build_batch` makes it), and numbers it in place where idempotent.

        Waits while too much is buffered. Raises `ApiError` for this batch or an earlier one that cannot be written.
        """
        wanted = TopicPartition(topic, partition)
        header = read_header(batch)
        if self._idempotent:
            producer_id, producer_epoch = self._producer_id()
            sequence = self._sequences.get(wanted, 0)
            header = header._replace(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
            write_header(batch, 0, header)
            self._sequences[wanted] = advance_sequence(sequence, header.records_count)
        one = _Outgoing(wanted, batch, header.records_count, Deadline(self._cluster.timeout_ms))
        self._queues.setdefault(wanted, deque()).append(one)
        self._buffered_bytes += len(batch)
        self._dispatch()
        self._collect(0)
        while self._buffered_bytes > self._max_buffered_bytes:
            self._dispatch()
            self._collect(_RETRY_MS)

    def flush(self) -> None:
        """Wait until every batch is written. Raises `ApiError` for one that cannot be."""
        while self._queues:
            self._dispatch()
            self._collect(_RETRY_MS)

    def close(self) -> None:
        """Give up what was not written."""
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

            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_UNKNOWN_TIMEOUT_MS)
            answer = self._cluster.any_broker(request, check=check)
            self._producer = answer.producer_id, answer.producer_epoch
        return self._producer

    # -- sending

    def _dispatch(self) -> None:
        """The oldest batch of each partition to its leader, where that one has nothing in flight."""
        if not self._resting.is_past:
            return
        busy = {one.partition for flight in self._in_flight.values() for one in flight.by_name.values()}
        idle = [partition for partition in self._queues if partition not in busy]
        if not idle:
            return
        by_node: dict[int, list[tuple[_Outgoing, Leader]]] = {}
        for partition, leader in self._cluster.leaders(idle).items():
            if leader.node_id not in self._in_flight:
                by_node.setdefault(leader.node_id, []).append((self._queues[partition][0], leader))
        for node_id, batches in by_node.items():
            chosen = self._fit(batches)
            try:
                self._send(node_id, chosen)
            except ApiError as error:
                self._lost(node_id, [one for one, _ in chosen], error)

    def _fit(self, batches: list[tuple[_Outgoing, Leader]]) -> list[tuple[_Outgoing, Leader]]:
        """As many as a request may hold, at least one."""
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
        """Take the answers that have come; wait so long for one where there is none."""
        if not self._in_flight:
            if self._queues and not self._resting.is_past:
                select.select((), (), (), min(timeout_ms, self._resting.remaining_ms) / 1000)
            return
        connections = {self._cluster.connection(node_id, _LANE): node_id for node_id in self._in_flight}
        readable = select.select(list(connections), (), (), timeout_ms / 1000)[0]
        for connection in readable:
            node_id = connections[connection]
            flight = self._in_flight.pop(node_id)
            try:
                answer = connection.receive(flight.call, timeout_ms=self._cluster.timeout_ms)
            except ApiError as error:
                self._lost(node_id, flight.batches, error)
            else:
                self._take(answer, flight)
        for node_id, flight in list(self._in_flight.items()):
            if flight.due.is_past:
                late = refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {node_id}", "no answer to a produce")
                self._lost(node_id, flight.batches, late)

    def _take(self, answer: ProduceResponse, flight: _InFlight) -> None:
        refusals: list[tuple[_Outgoing, ApiError]] = []
        for topic in answer.responses:
            for p in topic.partition_responses:
                one = flight.by_name.get((topic.name, p.index)) or flight.by_name.get((topic.topic_id, p.index))
                if one is None:
                    continue
                if p.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._written(one, p.base_offset, p.log_append_time_ms)
                else:
                    refusals.append((one, refused(p.error_code, f"partition {one.partition}", p.error_message)))
        for one, error in refusals:  # when all that was written is accounted for
            self._failed(one, error)

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

    def _lost(self, node_id: int, batches: list[_Outgoing], error: ApiError) -> None:
        self._cluster.drop(node_id, _LANE)
        self._in_flight.pop(node_id, None)
        for one in batches:
            self._failed(one, error)

    def _failed(self, one: _Outgoing, error: ApiError) -> None:
        """The batch stays at the head of its queue for another attempt. Raises where there shall be none."""
        if not error.code.retriable or one.deadline.is_past:
            raise error
        self._cluster.forget([one.partition.topic])
        self._resting = Deadline(_RETRY_MS)
