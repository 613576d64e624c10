"""Sends batches to the leaders of their partitions, and decides what becomes of each.

    run(now)            send what can be sent, fail what has expired
    deadline_ms(now)    when `run` is due, if nothing happens before

The answer to a batch, in this order:

    MESSAGE_TOO_LARGE, two records or more   split; no attempt is counted
    no error                                 succeeded
    an error that may pass, in time          queued again, behind a backoff (KIP-580)
    DUPLICATE_SEQUENCE_NUMBER                succeeded, at an unknown offset
    any other                                failed

An error that says the metadata is stale requests an update; a leader that an answer names is used at once (KIP-951). A
batch that is `delivery_timeout_ms` old fails, wherever it is. Its memory stays its own until its request has ended.

`finished` has the batches that are done, for the shell, which calls the callbacks. Those of a partition are in the
order of their records: a batch that is done before an earlier one waits for it, and not beyond its own timeout, since
the earlier one expires no later.

Not obvious:

- A batch that has expired in flight keeps its memory until its request has ended.
- The sender asks what is ready anew after each drain: what is behind a full batch may still linger.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.configs.producer import ProducerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.connections.connections import Connections
from kalda.clientcore.connections.errors import ADVICE
from kalda.clientcore.connections.metadata import Broker, ClusterMetadata
from kalda.clientcore.producing.accumulator import Accumulator
from kalda.clientcore.producing.idempotence import Idempotence
from kalda.clientcore.producing.producer_batch import FinalState, ProducerBatch
from kalda.clientcore.producing.producer_errors import DeliveryAborted, DeliveryTimeout, RecordTooLarge
from kalda.clientcore.producing.producer_metrics import ProducerMetrics
from kalda.protocol.apis import ApiKey
from kalda.protocol.codec import encode
from kalda.protocol.framing import encode_request_header, encode_response
from kalda.protocol.messages.partitions import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kalda.protocol.notation import Buffer
from kalda.protocol.varint import encode_unsigned

# Produce requests of one batch, and the responses that acknowledge it, in fewer steps than the general codec needs.
#
# A producer that waits for each record sends nothing else, and its round trip is a large part client. The general
# codec encodes an example of each, once for a partition; from then on only the correlation id and the records are put
# into the request, and a response that differs from the example in nothing but offsets and times is read by one call.

FIRST_VERSION = 9
"""The first flexible version: in those before, the fields stand elsewhere."""
_NO_RECORDS = b"\x01"
_REQUEST_END = b"\x00\x00\x00"
"""No tagged fields: of the partition, the topic, and the request."""
_CORRELATION_BYTES = 4
_KEY_AND_VERSION_BYTES = 4
_CHANGING = Struct(">qqq4siB")
"""Base offset, time of the append, log start offset; no errors, message and tagged fields; throttle time; no tagged
fields."""
_RESPONSE_MIDDLE = b"\x01\x00\x00\x00"


class Acknowledged(NamedTuple):
    """What a response says of a batch that was written."""

    base_offset: int
    log_append_time_ms: int
    throttle_time_ms: int


class PartitionRequests:
    """The requests and responses of one partition, in one version."""

    __slots__ = ("_expected", "_request", "_request_end", "_request_start", "_response", "topic_id", "version")

    def __init__(self, request: ProduceRequest, version: int, client_id: str) -> None:
        """`request` is an example, with one partition and no records."""
        topic = request.topic_data[0]
        self.topic_id = topic.topic_id
        self.version = version
        index = topic.partition_data[0].index
        encoded = encode(request, version)
        before_records = encoded.removesuffix(_NO_RECORDS + _REQUEST_END)
        assert len(before_records) + 4 == len(encoded), "the records are the last field"
        header = encode_request_header(ApiKey.PRODUCE, version, 0, client_id, is_flexible=True)
        self._request_start = header[:_KEY_AND_VERSION_BYTES]
        self._request_end = header[_KEY_AND_VERSION_BYTES + _CORRELATION_BYTES :] + before_records
        self._request = Struct(f">i{_KEY_AND_VERSION_BYTES}si{len(self._request_end)}s")
        """Size, API and version, correlation id, and the rest up to the length of the records."""
        answer = TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=[PartitionProduceResponse(index=index)]
        )
        response = b"".join(encode_response(0, ProduceResponse(responses=[answer]), version))
        self._expected = response[_CORRELATION_BYTES : -_CHANGING.size]
        self._response = Struct(f">i{len(self._expected)}s{_CHANGING.format[1:]}")

    def frame(self, correlation_id: int, records: Buffer) -> list[Buffer]:
        """The request with these records, with its size and header."""
        size = len(records) + 1
        length = bytes((size & 0x7F | 0x80, size >> 7)) if 0x80 <= size < 0x4000 else encode_unsigned(size)
        size += self._request.size - 2 + len(length)  # without its own four bytes, and with three at the end
        start = self._request.pack(size, self._request_start, correlation_id, self._request_end)
        return [start + length, records, _REQUEST_END]

    def read(self, frame: memoryview, correlation_id: int) -> Acknowledged | None:
        """What the response says; None where it is not just an acknowledgement, or not valid."""
        if len(frame) != self._response.size:
            return None
        correlation, start, base_offset, append_ms, _, middle, throttle_ms, end = self._response.unpack_from(frame)
        if correlation != correlation_id or start != self._expected or middle != _RESPONSE_MIDDLE or end:
            return None
        return new_tuple(Acknowledged, (base_offset, append_ms, throttle_ms))


class OneBatchRequests:
    """The partitions to which requests of one batch were sent."""

    def __init__(self, client_id: str, transactional_id: str | None, acks: int, timeout_ms: int) -> None:
        self._client_id = client_id
        self._transactional_id = transactional_id
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._partitions: dict[TopicPartition, PartitionRequests] = {}

    def of(self, partition: TopicPartition, topic_id: Uuid, version: int) -> PartitionRequests:
        """Of this partition."""
        known = self._partitions.get(partition)
        if known is not None and known.topic_id == topic_id and known.version == version:
            return known
        data = TopicProduceData(
            name=partition.topic,
            topic_id=topic_id,
            partition_data=[PartitionProduceData(index=partition.partition, records=b"")],
        )
        example = ProduceRequest(
            transactional_id=self._transactional_id, acks=self._acks, timeout_ms=self._timeout_ms, topic_data=[data]
        )
        made = self._partitions[partition] = PartitionRequests(example, version, self._client_id)
        return made


log = logging.getLogger(__name__)
_LAST_VERSION_BY_NAME = 12


class Sender:
    """The sending side of one producer. Runs on the I/O thread."""

    def __init__(
        self,
        config: ProducerConfig,
        metadata: ClusterMetadata,
        accumulator: Accumulator,
        connections: Connections,
        idempotence: Idempotence | None,
        metrics: ProducerMetrics,
    ) -> None:
        self._config = config
        self._keeps_order_by_muting = config.max_in_flight == 1
        """At most one request is in flight for each connection: the order is kept without sequence numbers too."""
        self._metadata = metadata
        self._accumulator = accumulator
        self._connections = connections
        self._idempotence = idempotence
        self._metrics = metrics
        self._in_flight: dict[ProducerBatch, None] = {}
        """Batches in requests, those that have expired there included."""
        self.finished: list[ProducerBatch] = []
        self._unreported: defaultdict[TopicPartition, deque[ProducerBatch]] = defaultdict(deque)
        """Batches that were sent and are not in `finished` yet, in the order of their records."""
        self.on_failure: Callable[[ProducerBatch, ApiError], None] = _nothing
        """Called with each batch that has failed: a transaction can only be aborted then."""
        self._next_check_ms: int | None = None
        self._one_batch_requests = OneBatchRequests(
            connections.client_id, config.transactional_id, config.acks, config.request_timeout_ms
        )

    # -- each turn

    def run(self, now_ms: int) -> None:
        """Send what can be sent, and fail what has expired."""
        accumulator = self._accumulator
        if self._in_flight:
            self._expire_in_flight(now_ms)
        self._next_check_ms = None
        if not accumulator.queued:
            return
        # What is behind a batch that was drained, or has expired, may still linger: what is ready is asked anew.
        while self._send_ready(now_ms) and accumulator.queued:
            pass

    def _send_ready(self, now_ms: int) -> bool:
        """Send one batch of each partition of the nodes that are ready. Whether anything has left a queue."""
        accumulator, connections = self._accumulator, self._connections
        ready = accumulator.ready(now_ms)
        for topic in ready.topics_without_leader:
            self._metadata.want(topic, now_ms)
            self._metadata.request_leader(topic)
        if ready.is_any_expired:
            for batch in accumulator.expired(now_ms):
                self._fail_expired(batch, now_ms)
            return True
        next_check_ms, is_any_sent = ready.next_check_ms, False
        for node_id, queues in ready.nodes.items():
            can_send = connections.is_ready(node_id, now_ms)
            accumulator.on_node_checked(node_id, now_ms, can_send)
            if not can_send:
                at_ms = connections.ready_at_ms(node_id, now_ms)
                if at_ms is not None and (next_check_ms is None or at_ms < next_check_ms):
                    next_check_ms = at_ms
                continue
            batches = accumulator.drain(node_id, queues, now_ms)
            if batches:
                self._send(node_id, batches, now_ms)
                is_any_sent = True
        self._next_check_ms = next_check_ms
        return is_any_sent

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due."""
        oldest_ms = min((batch.created_ms for batch in self._in_flight if not batch.final_state), default=None)
        times = [self._next_check_ms, self._accumulator.next_expiry_ms()]
        if oldest_ms is not None:
            times.append(oldest_ms + self._config.delivery_timeout_ms)
        return min((max(now_ms, time_ms) for time_ms in times if time_ms is not None), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is left."""
        return not self._in_flight and not self._accumulator.incomplete

    # -- requests

    def _send(self, node_id: int, batches: list[ProducerBatch], now_ms: int) -> None:
        for batch in batches:
            self._on_sending(batch)
        self._metrics.on_request(batches)
        if len(batches) == 1 and self._send_one_batch(node_id, batches, now_ms):
            return
        config = self._config
        by_topic: dict[str, TopicProduceData] = {}
        sent: dict[tuple[str | Uuid, int], ProducerBatch] = {}
        has_ids = True
        for batch in batches:
            name, index = batch.topic_partition
            data = by_topic.get(name)
            if data is None:
                known = self._metadata.topics.get(name)
                topic_id = ZERO_UUID if known is None else known.topic_id
                has_ids &= topic_id != ZERO_UUID
                data = by_topic[name] = TopicProduceData(name=name, topic_id=topic_id)
            assert batch.sealed is not None, "drained batches are sealed"
            data.partition_data.append(PartitionProduceData(index=index, records=batch.sealed))
            sent[name, index] = sent[data.topic_id, index] = batch
        request = ProduceRequest(
            transactional_id=config.transactional_id,
            acks=config.acks,
            timeout_ms=config.request_timeout_ms,
            topic_data=list(by_topic.values()),
        )

        def on_done(response: ProduceResponse | None, error: ApiError | None) -> None:
            self._on_done(node_id, batches, sent, response, error, now_ms)

        self._connections.send(
            node_id,
            request,
            now_ms,
            on_done,
            max_version=self._max_version(has_ids),
            expects_response=config.acks != 0,
        )

    def _on_sending(self, batch: ProducerBatch) -> None:
        batch.is_in_flight = True
        if not batch.is_tracked:
            batch.is_tracked = True
            self._unreported[batch.topic_partition].append(batch)
        self._in_flight[batch] = None
        if self._keeps_order_by_muting:
            self._accumulator.mute(batch.topic_partition, True)

    def _on_request_ended(self, batch: ProducerBatch) -> None:
        """The counterpart of `_on_sending`."""
        batch.is_in_flight = False
        self._in_flight.pop(batch, None)
        if self._keeps_order_by_muting:
            self._accumulator.mute(batch.topic_partition, False)

    def _send_one_batch(self, node_id: int, batches: list[ProducerBatch], now_ms: int) -> bool:
        """Send the only batch of a request in fewer steps. False: `_send` has to do it, as for the first request on a
        connection, which chooses the version."""
        batch = batches[0]
        place = batch.topic_partition
        topic = self._metadata.topics.get(place.topic)
        if topic is None or self._config.acks == 0:
            return False
        topic_id = topic.topic_id
        max_version = self._max_version(topic_id != ZERO_UUID)
        version = self._connections.chosen_version(node_id, ApiKey.PRODUCE, max_version)
        if version is None or version < FIRST_VERSION:
            return False
        requests = self._one_batch_requests.of(place, topic_id, version)
        assert batch.sealed is not None, "drained batches are sealed"
        on_done = partial(self._on_one_done, node_id, batches, topic_id, now_ms)
        self._connections.send_encoded(node_id, ApiKey.PRODUCE, requests, batch.sealed, now_ms, on_done)
        return True

    def _on_one_done(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        topic_id: Uuid,
        sent_ms: int,
        response: Acknowledged | ProduceResponse | None,
        error: ApiError | None,
    ) -> None:
        """The request of one batch has ended."""
        batch = batches[0]
        if not isinstance(response, Acknowledged):
            name, index = batch.topic_partition
            sent: dict[tuple[str | Uuid, int], ProducerBatch] = {(name, index): batch, (topic_id, index): batch}
            self._on_done(node_id, batches, sent, response, error, sent_ms)
            return
        self._on_request_ended(batch)
        self._metrics.on_response(self._metrics.node(node_id), self._now_ms() - sent_ms, response)
        self._succeed(batch, response.base_offset, response.log_append_time_ms)

    def _max_version(self, has_topic_ids: bool) -> int | None:
        version = None if self._idempotence is None else self._idempotence.max_produce_version
        return version if version is not None or has_topic_ids else _LAST_VERSION_BY_NAME

    def _on_done(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        sent: dict[tuple[str | Uuid, int], ProducerBatch],
        response: ProduceResponse | None,
        error: ApiError | None,
        sent_ms: int,
    ) -> None:
        """The request has ended: with a response, an error, or, for acks=0, when it was written."""
        now_ms = max(sent_ms, self._now_ms())
        for batch in batches:
            self._on_request_ended(batch)
        if response is not None:
            self._metrics.on_response(self._metrics.node(node_id), now_ms - sent_ms, response)
        left = dict.fromkeys(batches)
        if response is not None:
            brokers = [Broker(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
            for topic in response.responses:
                for result in topic.partition_responses:
                    found = sent.get((topic.name or topic.topic_id, result.index))
                    if found is None:
                        found = sent.get((topic.topic_id, result.index))
                    if found is not None and found in left:
                        del left[found]
                        self._complete(found, result, brokers, now_ms)
        elif error is None:
            for batch in left:
                self._succeed(batch, -1, -1)
            left = {}
        for batch in left:
            failed = error or ApiError(ErrorCode.NETWORK_EXCEPTION, "the response leaves the partition out")
            result = PartitionProduceResponse(error_code=failed.code, error_message=failed.message)
            self._complete(batch, result, (), now_ms)

    _now_ms: Callable[[], int] = staticmethod(lambda: 0)
    """The time of the event that is being processed; set by the producer's core."""

    # -- results

    def _complete(
        self,
        batch: ProducerBatch,
        result: PartitionProduceResponse,
        brokers: list[Broker] | tuple[Broker, ...],
        now_ms: int,
    ) -> None:
        """Decide what becomes of one batch."""
        partition = batch.topic_partition
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE:
            self._succeed(batch, result.base_offset, result.log_append_time_ms)
            return
        if code.invalid_metadata:
            named = result.current_leader
            if not self._metadata.update_leader(*partition, named.leader_id, named.leader_epoch, brokers):
                self._metadata.request_update()
            elif self._metadata.brokers:
                self._connections.set_nodes(self._metadata.brokers, now_ms)
        if batch.final_state is not None:
            self._accumulator.release(batch)  # it has expired meanwhile
        elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(batch)
        elif self._may_retry(batch, result, code, now_ms):
            log.debug("%s: %s, attempt %d", partition, code.name, batch.attempts + 1)
            why = result.error_message or ADVICE.get(code)
            batch.retried_for = f"{code.name}: {why}" if why else code.name
            self._metrics.on_retry(batch)
            self._accumulator.reenqueue(batch, now_ms)
        elif code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._succeed(batch, -1, -1)
        else:
            error = _error_of(batch, code, result.error_message, now_ms - batch.created_ms)
            if result.record_errors:
                batch.record_errors = _record_errors(batch, code, result, error)
            self._fail(batch, error, batch.attempts < self._config.retries)

    def _may_retry(self, batch: ProducerBatch, result: PartitionProduceResponse, code: ErrorCode, now_ms: int) -> bool:
        if now_ms - batch.created_ms >= self._config.delivery_timeout_ms or batch.attempts >= self._config.retries:
            return False
        if self._idempotence is not None and self._idempotence.may_retry(batch, code, result.log_start_offset):
            return True
        return code.retriable

    def _succeed(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        if self._idempotence is not None and batch.final_state is None:
            self._idempotence.on_acked(batch, base_offset)
        if batch.finish(FinalState.SUCCEEDED, base_offset=base_offset, log_append_time_ms=log_append_time_ms):
            self._report(batch)
        self._accumulator.release(batch)

    def _split(self, batch: ProducerBatch) -> None:
        log.info("%s: a batch of %d records is too large: it is split", batch.topic_partition, batch.count)
        parts = self._accumulator.split(batch)
        if self._idempotence is not None:
            self._idempotence.on_split(batch, parts)
        batch.finish(FinalState.SPLIT)
        unreported = self._unreported[batch.topic_partition]
        at = unreported.index(batch)
        for part in reversed(parts):
            part.is_tracked = True
            unreported.insert(at + 1, part)
        self._report(batch)
        self._metrics.on_split(batch)
        self._accumulator.release(batch)

    def _fail(
        self, batch: ProducerBatch, error: ApiError, was_surely_refused: bool, state: FinalState = FinalState.FAILED
    ) -> None:
        if self._idempotence is not None:
            self._idempotence.on_failed(batch, error.code, was_surely_refused)
        if batch.finish(state, error=error):
            self.on_failure(batch, error)
            self._report(batch)
            self._metrics.on_error(batch)
        self._accumulator.release(batch)

    def _report(self, batch: ProducerBatch) -> None:
        """The batch has a final state: it goes to `finished` behind those before it, with those that waited for it."""
        unreported = self._unreported[batch.topic_partition]
        if not batch.is_tracked:  # never sent: it is behind all that were
            batch.is_tracked = True
            unreported.append(batch)
        while unreported and unreported[0].final_state is not None:
            self.finished.append(unreported.popleft())

    # -- time and the end

    def _expire_in_flight(self, now_ms: int) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        overdue = [
            batch for batch in self._in_flight if not batch.final_state and now_ms - batch.created_ms >= timeout_ms
        ]
        for batch in overdue:
            self._fail_expired(batch, now_ms)

    def _fail_expired(self, batch: ProducerBatch, now_ms: int) -> None:
        may_be_written = batch.in_retry or batch.is_in_flight
        if self._idempotence is not None and may_be_written:
            self._idempotence.on_expired(batch)
        waited_ms = now_ms - batch.created_ms
        error = DeliveryTimeout(
            f"{batch.count} records for {batch.topic_partition} were not acknowledged: {waited_ms} ms have passed "
            f"since their batch was created, and delivery.timeout.ms is {self._config.delivery_timeout_ms}"
            f"{self._why_not_sent(batch)}"
        )
        self._fail(batch, error, False)

    def _why_not_sent(self, batch: ProducerBatch) -> str:
        """What the batch waits for, as the end of a sentence. Most often it is an address, of those that the brokers
        give in `advertised.listeners`, that cannot be reached from here."""
        topic, partition = batch.topic_partition
        leader = self._metadata.leader_of(topic, partition)
        if leader is None:
            count = len(self._metadata.partitions_of(topic))
            return ". The partition has no leader" if partition < count else f". The topic has {count} partitions now"
        failure = self._connections.failure_of(leader.node_id)
        if failure:
            return f". Its leader is broker {leader.node_id}, at the address that the cluster gives: {failure}"
        return f". The last of {batch.attempts} attempts: {batch.retried_for}" if batch.retried_for else ""

    @property
    def has_in_flight(self) -> bool:
        """Whether a request has no response yet."""
        return bool(self._in_flight)

    def abort(self, why: str) -> None:
        """Fail all batches: the producer ends."""
        error = DeliveryAborted(why)
        self.fail_queued(error, FinalState.ABORTED)
        for batch in list(self._in_flight):
            if batch.final_state is None:
                self._fail(batch, error, False, FinalState.ABORTED)

    def fail_queued(self, error: ApiError, state: FinalState = FinalState.FAILED) -> None:
        """Fail all batches that are not in flight: they cannot be sent."""
        for batch in self._accumulator.take_all():
            self._fail(batch, error, False, state)

    def take_finished(self) -> list[ProducerBatch]:
        """The batches that are done since the last call, in order."""
        if not self.finished:
            return []
        finished, self.finished = self.finished, []
        return finished


def _record_errors(
    batch: ProducerBatch, code: ErrorCode, result: PartitionProduceResponse, error: ApiError
) -> dict[int, Exception]:
    """The errors of the records that the broker names, and that of all others. The code is that of the first invalid
    record: where there are several, their messages tell what is wrong with each."""
    code = code if len(result.record_errors) == 1 else ErrorCode.INVALID_RECORD
    found: dict[int, Exception] = {
        each.batch_index: ApiError(code, f"{batch.topic_partition}: {each.batch_index_error_message or error.message}")
        for each in result.record_errors
    }
    found[-1] = ApiError(
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        f"{batch.topic_partition}: the record was not written, as it was part of a batch which had one or more invalid "
        "records; send it again",
    )
    return found


def _error_of(batch: ProducerBatch, code: ErrorCode, message: str | None, waited_ms: int) -> ApiError:
    partition: TopicPartition = batch.topic_partition
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return RecordTooLarge(f"{partition}: {message or 'the record is larger than the topic allows'}")
    text = f"{partition}: {message or ADVICE.get(code) or code.name.lower().replace('_', ' ')}"
    if code.retriable:
        text += f", after {batch.attempts + 1} attempts in {waited_ms} ms"
    return ApiError(code, text)


def _nothing(_batch: ProducerBatch, _error: ApiError) -> None:
    return None
