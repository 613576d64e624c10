"""Brokers as a model, and a producer's core beside them, in virtual time.

The brokers append what they are sent as Kafka's do: sequence numbers are checked, the last five batches of a producer
are recognised. `Faults` says what goes wrong, by a seeded random source: connections that break before or after an
append, refusals, delays, leaders that move. The world is one list of events in order of time.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any

from kalda.base.configs.producer import producer_config
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.connections.connections import Close, Connect, Connections, Write
from kalda.clientcore.producer import ProducerCore
from kalda.clientcore.producing.outbound_record import Prepared
from kalda.clientcore.producing.producer_batch import FinalState, ProducerBatch
from kalda.protocol.apis import API, ApiKey, request_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_request_header, encode_response
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import InitProducerIdResponse
from kalda.records.appending import HEADER_SIZE, RECORD_OVERHEAD, Ticket
from kalda.records.batch import read_header
from kalda.records.builder import read_records

TOPIC_ID = Uuid(bytes(range(1, 17)))
REFUSALS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Faults:
    """Chances, each from 0 to 1. A fault is possible until `until_ms`."""

    def __init__(
        self, *, cut: float = 0, lose: float = 0, refuse: float = 0, move: float = 0, until_ms: int = 0
    ) -> None:
        self.cut = cut
        """The connection breaks before the request is processed."""
        self.lose = lose
        """The connection breaks after it was: the response is lost."""
        self.refuse = refuse
        self.move = move
        """Leadership moves before the request is processed."""
        self.until_ms = until_ms


class ModelPartition:
    """One partition's log, and what its leader holds of producers."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.epoch = 0
        self.values: list[bytes] = []
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        """By producer id: the epoch, and (first, last sequence, base offset) of the last five batches."""

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        base = len(self.values)
        if header.producer_id >= 0:
            epoch, kept = self.producers.get(header.producer_id, (-1, []))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if epoch >= 0 and header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                kept = []
            found = [one for one in kept if one[:2] == (header.base_sequence, header.last_sequence)]
            if found:
                return ErrorCode.NONE, found[0][2]
            expected = kept[-1][1] + 1 if kept else 0
            if header.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            kept = [*kept[-4:], (header.base_sequence, header.last_sequence, base)]
            self.producers[header.producer_id] = header.producer_epoch, kept
        self.values += [record.value or b"" for record in read_records(batch)]
        return ErrorCode.NONE, base


class World:
    """A producer, its cluster, and the time."""

    def __init__(
        self, seed: int = 0, *, brokers: int = 3, partitions: int = 4, faults: Faults | None = None, **keys: Any
    ) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        self.faults = faults or Faults()
        self.nodes = list(range(brokers))
        self.partitions = [ModelPartition(index % brokers) for index in range(partitions)]
        self.down: set[int] = set()
        """Nodes to which nobody can connect."""
        self.max_batch_bytes = 1 << 30
        self.throttle_ms = 0
        """In responses to Produce."""
        self.names_leaders = False
        """Errors name the partition's leader (KIP-951)."""
        self.requests: list[tuple[int, ApiKey, Any]] = []
        self.on_produce: Callable[[TopicPartition, bytes], ErrorCode | None] = lambda _partition, _batch: None
        """A refusal for a batch, where a test wants one."""
        self.done: list[ProducerBatch] = []
        self.delivered: list[tuple[bytes, Exception | None]] = []
        """The values of records, in the order of their callbacks, and their errors."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self._connected: dict[int, int] = {}
        """Node ids, by connection."""
        self._busy_until_ms: dict[int, int] = {}
        self._client_events = 0
        """Events of the producer's connections. Only these, and its deadline, make it take a turn."""
        self._written: list[int] = []
        """Connections to which requests were written in this turn."""
        config = producer_config({"bootstrap.servers": "n0:1", **keys}, {})
        self.core = ProducerCore(
            config, client_id="model", software_version="1", random=self.random.random, ticket_type=Ticket,
            lock=nullcontext(), now_ms=self.now_ms,
        )  # fmt: skip

    # -- the caller's side

    def send(self, value: bytes, partition: int | None = None, topic: str = "t") -> Ticket | None:
        """Append a record; None where there is no memory. Waits for metadata in virtual time."""
        self.core.metadata.want(topic, self.now_ms)
        waited = 0
        while not self.core.metadata.partitions_of(topic):
            self.run(10)
            waited += 1
            assert waited < 10_000, "metadata never came"
        ticket = Ticket()
        ticket.callback = value
        state = self.core.accumulator.topic(topic)
        record = Prepared(None, value, b"\0", HEADER_SIZE + RECORD_OVERHEAD + len(value) + 1)
        appended = self.core.accumulator.append(state, partition, self.now_ms, record, ticket, self.now_ms, None)
        return ticket if appended else None

    # -- time

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        turns = 0
        takes_turn = True
        due_ms: int | None = None
        while True:
            if takes_turn:
                self._turn()
                due_ms = self.core.deadline_ms(self.now_ms)
            assert due_ms is None or due_ms >= self.now_ms
            next_ms = min(
                [end_ms, *([due_ms] if due_ms is not None else []), *([self._events[0][0]] if self._events else [])]
            )
            turns = turns + 1 if next_ms <= self.now_ms else 0
            assert turns < 1_000, "the core does not let time pass"
            self.now_ms = max(self.now_ms, next_ms)
            if self.now_ms >= end_ms and not (self._events and self._events[0][0] <= end_ms):
                self._turn()
                return
            before = self._client_events
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
            takes_turn = self._client_events != before or (due_ms is not None and due_ms <= self.now_ms)

    def run_until_idle(self, limit_ms: int = 600_000) -> None:
        """Flush."""
        self.core.accumulator.flushes += 1
        end_ms = self.now_ms + limit_ms
        while not self.core.sender.is_idle:
            assert self.now_ms < end_ms, "batches are left"
            self.run(50)
        self.core.accumulator.flushes -= 1

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_number, event))

    def _turn(self) -> None:
        self.core.run(self.now_ms)
        while actions := self.core.connections.take_actions():
            for action in actions:
                match action:
                    case Connect(connection_id, address):
                        self._connect(connection_id, int(address.host[1:]))
                    case Write(connection_id, buffers):
                        self._write(connection_id, b"".join(buffers))
                    case Close(connection_id):
                        self._connected.pop(connection_id, None)
            # As the shells do: behind the actions, in the same turn.
            written, self._written = self._written, []
            for connection_id in written:
                self._client().on_written(connection_id)
        self._deliver()

    def _deliver(self) -> None:
        for batch in self.core.take_finished():
            self.done.append(batch)
            if batch.final_state is not FinalState.SPLIT:
                for ticket in batch.tickets or ():
                    self.delivered.append((ticket.callback, batch.error))
            batch.is_done = True

    # -- connections

    def _client(self) -> Connections:
        """The producer's connections, for an event."""
        self._client_events += 1
        return self.core.at(self.now_ms)

    def _connect(self, connection_id: int, node: int) -> None:
        self._connected[connection_id] = node

        def connected() -> None:
            if connection_id not in self._connected:
                return
            if node in self.down:
                del self._connected[connection_id]
                self._client().on_connect_failed(connection_id, "refused", self.now_ms)
            else:
                self._client().on_connected(connection_id, self.now_ms)

        self.at(1, connected)

    def cut(self, node: int) -> None:
        """All connections to a node break."""
        for connection_id in [each for each, peer in self._connected.items() if peer == node]:
            del self._connected[connection_id]
            self._client().on_lost(connection_id, "cut", self.now_ms)

    def _lose(self, connection_id: int) -> None:
        if self._connected.pop(connection_id, None) is not None:
            self._client().on_lost(connection_id, "cut", self.now_ms)

    def _write(self, connection_id: int, data: bytes) -> None:
        if connection_id not in self._connected:
            return
        self._written.append(connection_id)
        (size,) = struct.unpack_from(">i", data)
        assert size == len(data) - 4
        # Requests of a connection are processed in order, each some time after it was sent.
        at_ms = max(self.now_ms, self._busy_until_ms.get(connection_id, 0)) + self.random.choice((0, 1, 2, 15))
        self._busy_until_ms[connection_id] = at_ms
        self.at(at_ms - self.now_ms, lambda: self._process(connection_id, data[4:]))

    def _process(self, connection_id: int, frame: bytes) -> None:
        node = self._connected.get(connection_id)
        if node is None:
            return
        if node in self.down:
            self._lose(connection_id)
            return
        header = decode_request_header(frame)
        key = ApiKey(header.api_key)
        request = decode(request_class(key), frame, header.api_version, header.body_at)
        self.requests.append((node, key, request))
        has_faults = self.now_ms < self.faults.until_ms
        if has_faults and self.random.random() < self.faults.cut:
            self._lose(connection_id)
            return
        response = self._answer(node, key, request, has_faults)
        if response is None:
            return
        if has_faults and self.random.random() < self.faults.lose:
            self._lose(connection_id)
            return
        answer = b"".join(encode_response(header.correlation_id, response, header.api_version))

        def arrive() -> None:
            if connection_id in self._connected:
                self._client().on_frame(connection_id, memoryview(answer), self.now_ms)

        self.at(0, arrive)

    # -- brokers

    def _answer(self, node: int, key: ApiKey, request: Any, has_faults: bool) -> Any:
        match key:
            case ApiKey.API_VERSIONS:
                keys = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID)
                return ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(
                            api_key=each, min_version=API[each].lowest, max_version=API[each].highest_served(False)
                        )
                        for each in keys
                    ]
                )
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(producer_id=self.random.randrange(1, 1 << 40), producer_epoch=0)
            case _:
                return self._produce(node, request, has_faults)

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(
            cluster_id="model",
            brokers=[MetadataResponseBroker(node_id=node, host=f"n{node}", port=1) for node in self.nodes],
            topics=[
                MetadataResponseTopic(
                    name="t",
                    topic_id=TOPIC_ID,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=each.leader,
                            leader_epoch=each.epoch,
                            replica_nodes=self.nodes,
                        )
                        for index, each in enumerate(self.partitions)
                    ],
                )
            ],
        )

    def move_leader(self, index: int) -> None:
        partition = self.partitions[index]
        partition.leader = self.random.choice(self.nodes)
        partition.epoch += 1

    def _produce(self, node: int, request: Any, has_faults: bool) -> ProduceResponse | None:
        results = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                if has_faults and self.random.random() < self.faults.move:
                    self.move_leader(data.index)
                code, offset = self._append(node, data.index, bytes(data.records), has_faults)
                result = PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset)
                if self.names_leaders and code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    partition = self.partitions[data.index]
                    result.current_leader.leader_id = partition.leader
                    result.current_leader.leader_epoch = partition.epoch
                results.append(result)
        if request.acks == 0:
            return None
        return ProduceResponse(
            responses=[TopicProduceResponse(topic_id=TOPIC_ID, name="t", partition_responses=results)],
            throttle_time_ms=self.throttle_ms,
        )

    def _append(self, node: int, index: int, batch: bytes, has_faults: bool) -> tuple[ErrorCode, int]:
        if index >= len(self.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        partition = self.partitions[index]
        if partition.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if has_faults and self.random.random() < self.faults.refuse:
            return self.random.choice(REFUSALS), -1
        refusal = self.on_produce(TopicPartition("t", index), batch)
        if refusal is not None:
            return refusal, -1
        if len(batch) > self.max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        return partition.append(batch)

    @property
    def values(self) -> list[bytes]:
        """All records in all logs."""
        return [value for partition in self.partitions for value in partition.values]
