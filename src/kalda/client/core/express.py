"""A record that is sent at once: the shortest way to a broker and back, for a caller that waits for each record.

    begin(record, ...)    where the producer is idle: the record's ticket, and the `request` to write; else None
    on_written()          the shell has written it
    finish(frame, now)    a response has come; the batch is among the sender's finished ones. False: the general codec
                          has to read it
    step_aside()          the other machines are about to run: a batch that has no response yet is theirs from now on

A record that finds nothing queued and nothing in flight needs no queue and no turn. The other machines give its batch
what they would have given it: its place among the partition's batches, its sequence number and its correlation id. But
they count neither number as used, and neither the sender nor the connections hold the batch, until `step_aside` is
called. That is sound because nothing else can take these numbers before: `ProducerCore` calls `step_aside` before it
runs any machine and before any event of a connection. Then the numbers are counted (`_settle`), and a batch without a
response is in flight as if the sender had sent it. So retries, errors, timeouts and all else that may become of a batch
are the general way's. Until then all is as `finish` has left it (`_is_sole`), and the next record to the same partition
needs no comparison.

The calls are made by the thread that may run the producer's turns, like all of `ProducerCore`.

Invariants: at most one batch is sent in this way at a time; it is in `Accumulator.incomplete` from `begin` until
`finish`, so that `flush` and `close` wait for it; what is appended to its partition meanwhile is sent behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kalda.client.core.accumulator import Accumulator, TopicState
from kalda.client.core.connections import Connections
from kalda.client.core.idempotence import Idempotence
from kalda.client.core.lone_batches import Acknowledged, LonePartition
from kalda.client.core.lone_request import LoneRequest
from kalda.client.core.metadata import ClusterMetadata
from kalda.client.core.outgoing import OnDelivery
from kalda.client.core.producer_batch import FinalState, ProducerBatch
from kalda.client.core.producer_metrics import ProducerMetrics
from kalda.client.core.sender import Sender
from kalda.protocol.apis import ApiKey
from kalda.protocol.calls import Call, frame_body
from kalda.records.appending import HEADER_SIZE, NO_HEADERS, Ticket, murmur2
from kalda.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, advance_sequence
from kalda.records.compression import Compression

if TYPE_CHECKING:
    from kalda.client.core.accumulator import PartitionQueue
    from kalda.client.core.client_metrics import NodeTraffic
    from kalda.client.core.sticky_partitioner import Sticky

_SIZE_BYTES = 4
REQUEST_BYTES = 4096
"""A record whose request is larger takes the general way."""
_IDLE_MS = 1_000
"""So long after it was last computed, what is due next is computed again; the topic counts as used then."""


class _Lane:
    """What the requests for one partition have in common, while its leader and the connection to that are the same."""

    __slots__ = (
        "connection_id", "leader_epoch", "metadata_version", "node_id", "partition", "queue", "request", "responses",
        "topic", "traffic",
    )  # fmt: skip

    connection_id: int
    leader_epoch: int
    metadata_version: int
    """For which the leader was found."""
    node_id: int
    partition: int
    queue: PartitionQueue
    request: LoneRequest
    responses: LonePartition
    topic: TopicState
    traffic: NodeTraffic


class Express:
    """The records that one producer sends at once."""

    def __init__(
        self,
        client_id: str,
        metadata: ClusterMetadata,
        accumulator: Accumulator,
        connections: Connections,
        idempotence: Idempotence | None,
        sender: Sender,
        metrics: ProducerMetrics,
        ticket_type: type[Ticket],
        deadline_ms: Callable[[int], int | None],
    ) -> None:
        """`deadline_ms` is the producer's."""
        self.batch: ProducerBatch | None = None
        """The batch that was begun, and has no response yet."""
        self.request = b""
        """Its request with the size, until that is written."""
        self.connection_id = -1
        """The connection on which the request is to be written."""
        self.response_bytes = 0
        """The size of a response that says that the batch was written, and nothing else."""
        self._client_id = client_id
        self._metadata = metadata
        self._accumulator = accumulator
        self._connections = connections
        self._idempotence = idempotence
        self._sender = sender
        self._metrics = metrics
        self._ticket_type = ticket_type
        self._deadline_ms = deadline_ms
        self._ignores_keys = accumulator.config.ignore_keys
        self._idle_until_ms = 0
        """Nothing is due in the producer before; 0: this has to be computed anew."""
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._lane: _Lane | None = None
        """Of the last batch."""
        self._is_sole = False
        """No machine has run since `finish`: the next record to the same lane may be sent."""
        self._correlation_id = 0
        """Of the last request; where `_is_sole`, of the next one."""
        self._producer_id, self._epoch, self._sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
        """Of the last batch; where `_is_sole`, of the next one."""
        self._record: tuple[int, bytes | None, bytes | None] = 0, None, None
        """Timestamp, key and value of `batch`."""
        self._sent_ms = 0
        """When `batch` was begun."""
        self._memory = bytearray(REQUEST_BYTES)
        """In which requests are made."""
        self._next_batch: ProducerBatch | None = None
        """Made for the next record to `_lane`."""
        self._unsettled: tuple[_Lane, Acknowledged, int, int, int] | None = None
        """The last response, when it came, its correlation id and sequence number. All before it since the last call of
        `_settle` were of the same partition, and need nothing more."""

    # -- sending

    def begin(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        callback: OnDelivery | None,
        now_ms: int,
    ) -> Ticket | None:
        """Make the request with this record, to be written to `connection_id`. None: the record has to be appended."""
        accumulator = self._accumulator
        if accumulator.incomplete:
            return None
        lane, sticky = self._lane if self._is_sole else None, None
        if partition is None or lane is None or lane.partition != partition or lane.topic.name != topic:
            state = accumulator.topics.get(topic)
            if state is None:
                return None
            if partition is None:
                partition, sticky = self._choose(state, key)
            if lane is None or lane.partition != partition or lane.topic is not state:
                lane = self._lane_of(state, partition)
                if lane is None:
                    return None
        if (not self._is_sole or now_ms >= self._idle_until_ms) and not self._may_send(lane, now_ms):
            return None
        request = lane.request.encode(
            self._correlation_id, self._producer_id, self._epoch, self._sequence, timestamp_ms, key, value
        )
        if request is None:
            return None
        batch = self._next_batch or self._new_batch(lane)
        batch.created_ms = batch.last_attempt_ms = batch.drained_ms = now_ms
        batch.position, batch.largest_record = lane.request.batch_size, lane.request.record_bound
        ticket = self._ticket_type(batch, 0, timestamp_ms, callback)
        if key is not None:
            ticket.key_size = len(key)
        if value is not None:
            ticket.value_size = len(value)
        if callback is not None:
            batch.tickets = [ticket]
        self._lane, self._sent_ms, self._record = lane, now_ms, (timestamp_ms, key, value)
        self.connection_id, self.response_bytes = lane.connection_id, lane.responses.response_bytes
        self.batch, self.request = batch, request
        if not accumulator.admit_alone(lane.topic, lane.queue, batch, sticky):
            self.batch, self.request = None, b""
            return None
        self._is_sole, self._next_batch = False, None
        return ticket

    def _choose(self, topic: TopicState, key: bytes | None) -> tuple[int, Sticky | None]:
        """The partition of a record without one; with the sticky partition, where that is it."""
        if key is not None and not self._ignores_keys:
            return (murmur2(key) & 0x7FFFFFFF) % len(topic.appender.open), None
        sticky = self._accumulator.sticky(topic)
        return sticky.partition, sticky

    def _lane_of(self, topic: TopicState, partition: int) -> _Lane | None:
        """None before a record has been sent to the partition in the general way, which chooses the API's version."""
        self._settle()
        self._is_sole, self._next_batch = False, None
        lane = self._lanes.get((topic.name, partition))
        if lane is not None and lane.metadata_version == self._metadata.version:
            return lane
        leader = self._metadata.leader_of(topic.name, partition)
        queue = topic.queues.get(partition)
        if leader is None or queue is None:
            return None
        responses = self._sender.lone_requests(queue.topic_partition, leader.node_id)
        if responses is None:
            return None
        lane = _Lane()
        lane.topic, lane.partition, lane.queue = topic, partition, queue
        lane.node_id, lane.leader_epoch = leader.node_id, leader.epoch
        lane.connection_id = self._connections.connection_id(leader.node_id)
        lane.metadata_version = self._metadata.version
        lane.responses = responses
        lane.traffic = self._metrics.node(leader.node_id)
        call = Call(ApiKey.PRODUCE, responses.version, 0)
        prefix = frame_body(call, responses.body(b"")[:1], self._client_id)
        lane.request = LoneRequest(b"".join(prefix)[:-1], self._memory)  # without the length of no records
        self._lanes[topic.name, partition] = lane
        return lane

    def _may_send(self, lane: _Lane, now_ms: int) -> bool:
        """Whether a batch to this partition may be sent now; its numbers."""
        self._settle()
        if self._sender.has_in_flight:
            return False
        if now_ms >= self._idle_until_ms:
            due_ms = self._deadline_ms(now_ms)
            if due_ms is not None and due_ms <= now_ms:
                return False
            self._metadata.want(lane.topic.name, now_ms)
            self._idle_until_ms = now_ms + _IDLE_MS if due_ms is None else min(due_ms, now_ms + _IDLE_MS)
        if not self._connections.is_idle(lane.node_id, lane.connection_id, now_ms):
            self._lanes.clear()
            return False
        if self._idempotence is not None:
            number = self._idempotence.next_number(lane.queue.topic_partition)
            if number is None:
                return False
            self._producer_id, self._epoch, self._sequence = number
        self._correlation_id = self._connections.next_correlation_id(lane.node_id)
        return True

    def _new_batch(self, lane: _Lane) -> ProducerBatch:
        """A batch with one record, whose bytes are in the request only."""
        batch = ProducerBatch(lane.queue.topic_partition, bytearray(), 0, 0)
        batch.is_open = False
        batch.buffer = None  # not the pool's
        batch.count = 1
        batch.io = self._accumulator.io
        batch.leader_epoch = lane.leader_epoch
        return batch

    def on_written(self) -> None:
        """The request was written, or a part of it. What is done here costs no time: the broker works meanwhile."""
        if not self.request or self.batch is None or self._lane is None:
            return
        self._lane.traffic.sent.append(len(self.request))
        self.request = b""
        self._metrics.on_request([self.batch], self._sent_ms)
        self._next_batch = self._new_batch(self._lane)

    # -- the end

    def finish(self, frame: memoryview, now_ms: int) -> bool:
        """A response has come: the batch was written. False, and nothing has changed, where it does not say just
        that."""
        batch, lane = self.batch, self._lane
        if batch is None or lane is None:
            return False
        answer = lane.responses.read(frame, self._correlation_id)
        if answer is None:
            return False
        batch.finish(FinalState.SUCCEEDED, base_offset=answer.base_offset, log_append_time_ms=answer.log_append_time_ms)
        self._sender.finished.append(batch)
        self.batch = None
        self._unsettled = lane, answer, now_ms, self._correlation_id, self._sequence
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if self._idempotence is not None:
            self._sequence = advance_sequence(self._sequence, 1)
        self._is_sole = answer.throttle_time_ms == 0
        self._accumulator.incomplete.pop(batch, None)  # it has no memory of the pool
        lane.traffic.received.append(len(frame) + _SIZE_BYTES)
        self._metrics.on_response(lane.traffic, now_ms - self._sent_ms, answer)
        return True

    def _settle(self) -> None:
        """Report the numbers of the requests that have ended to the machines that give them."""
        if self._unsettled is None:
            return
        (lane, answer, answered_ms, correlation_id, sequence), self._unsettled = self._unsettled, None
        self._connections.on_answered_at_once(lane.node_id, correlation_id, answer.throttle_time_ms, answered_ms)
        if self._idempotence is not None:
            self._idempotence.on_acked_at_once(lane.queue.topic_partition, sequence, answer.base_offset)

    def step_aside(self) -> None:
        """The producer's machines are about to run."""
        self._idle_until_ms, self._is_sole = 0, False
        self.on_written()
        self._settle()
        batch, lane = self.batch, self._lane
        if batch is None or lane is None:
            return
        self.batch = None
        timestamp_ms, key, value = self._record
        batch.data, batch.limit = bytearray(REQUEST_BYTES), REQUEST_BYTES
        batch.position, batch.count, batch.is_open = HEADER_SIZE, 0, True
        put = batch.put(timestamp_ms, key, value, NO_HEADERS, Ticket())
        assert put, "the record has room where its request had"
        batch.is_open = False
        if self._idempotence is not None:
            batch.set_producer(self._producer_id, self._epoch, self._sequence, False)
            self._idempotence.on_sent_at_once(batch)
        batch.seal(Compression.NONE, None)
        self._sender.take_over(batch, lane.node_id, lane.responses, self._sent_ms)
