"""Produce requests of one batch, and the responses that acknowledge it, in fewer steps than the general codec needs.

A producer that waits for each record sends nothing else, and its round trip is a large part client. The general codec
encodes an example of each, once for a partition; from then on only the records are put into the request, and a response
that differs from the example in nothing but offsets and times is read by one call.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kalda.base.ids import TopicPartition, Uuid
from kalda.protocol.codec import encode
from kalda.protocol.framing import encode_response
from kalda.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kalda.protocol.notation import Buffer
from kalda.protocol.varint import encode_unsigned

FIRST_VERSION = 9
"""The first flexible version: in those before, the fields stand elsewhere."""
_NO_RECORDS = b"\x01"
_REQUEST_END = b"\x00\x00\x00"
"""No tagged fields: of the partition, the topic, and the request."""
_CORRELATION_BYTES = 4
_CHANGING = Struct(">qqq4siB")
"""Base offset, time of the append, log start offset; no errors, message and tagged fields; throttle time; no tagged
fields."""
_RESPONSE_MIDDLE = b"\x01\x00\x00\x00"
_new_tuple = tuple.__new__


class Acknowledged(NamedTuple):
    """What a response says of a batch that was written."""

    base_offset: int
    log_append_time_ms: int
    throttle_time_ms: int


class PartitionRequests:
    """The requests and responses of one partition, in one version."""

    __slots__ = ("_expected", "_request_start", "_response", "topic_id", "version")

    def __init__(self, request: ProduceRequest, version: int) -> None:
        """`request` is an example, with one partition and no records."""
        topic = request.topic_data[0]
        self.topic_id = topic.topic_id
        self.version = version
        index = topic.partition_data[0].index
        encoded = encode(request, version)
        self._request_start = encoded.removesuffix(_NO_RECORDS + _REQUEST_END)
        assert len(self._request_start) + 4 == len(encoded), "the records are the last field"
        answer = TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=[PartitionProduceResponse(index=index)]
        )
        response = b"".join(encode_response(0, ProduceResponse(responses=[answer]), version))
        self._expected = response[_CORRELATION_BYTES : -_CHANGING.size]
        self._response = Struct(f">i{len(self._expected)}s{_CHANGING.format[1:]}")

    def body(self, records: Buffer) -> list[Buffer]:
        """The body of the request with these records."""
        size = len(records) + 1
        length = bytes((size & 0x7F | 0x80, size >> 7)) if 0x80 <= size < 0x4000 else encode_unsigned(size)
        return [self._request_start + length, records, _REQUEST_END]

    def read(self, frame: memoryview, correlation_id: int) -> Acknowledged | None:
        """What the response says; None where it is not just an acknowledgement, or not valid."""
        if len(frame) != self._response.size:
            return None
        correlation, start, base_offset, append_ms, _, middle, throttle_ms, end = self._response.unpack_from(frame)
        if correlation != correlation_id or start != self._expected or middle != _RESPONSE_MIDDLE or end:
            return None
        return _new_tuple(Acknowledged, (base_offset, append_ms, throttle_ms))


class OneBatchRequests:
    """The partitions to which requests of one batch were sent."""

    def __init__(self, transactional_id: str | None, acks: int, timeout_ms: int) -> None:
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
        made = self._partitions[partition] = PartitionRequests(example, version)
        return made
