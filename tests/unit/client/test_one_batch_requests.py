"""Requests of one batch and their responses: the same bytes and values as by the general codec."""

from __future__ import annotations

import pytest

from kalda.base.errors import InvalidRequest
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.producing.sender import FIRST_VERSION, Acknowledged, OneBatchRequests, PartitionRequests
from kalda.protocol.codec import decode
from kalda.protocol.framing import Call, encode_response, frame_request
from kalda.protocol.messages.partitions import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PARTITION = TopicPartition("orders", 3)
TOPIC_ID = Uuid(bytes(range(16)))
VERSIONS = range(FIRST_VERSION, 14)
CORRELATION_ID = 70_000


def made(version: int, transactional_id: str | None = None) -> PartitionRequests:
    return OneBatchRequests("client", transactional_id, -1, 30_000).of(PARTITION, TOPIC_ID, version)


def response_of(error_code: int = 0) -> ProduceResponse:
    result = PartitionProduceResponse(
        index=3, error_code=error_code, base_offset=2**40, log_append_time_ms=17, log_start_offset=5
    )
    topic = TopicProduceResponse(name="orders", topic_id=TOPIC_ID, partition_responses=[result])
    return ProduceResponse(responses=[topic], throttle_time_ms=12)


def frame_of(response: ProduceResponse, version: int) -> bytes:
    return b"".join(encode_response(CORRELATION_ID, response, version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [61, 126, 127, 128, 16_382, 16_383, 16_384, 100_000])
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_requests_are_those_of_the_general_codec(version: int, size: int, transactional_id: str | None) -> None:
    records = bytes(size)
    data = TopicProduceData(
        name="orders", topic_id=TOPIC_ID, partition_data=[PartitionProduceData(index=3, records=records)]
    )
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
    expected = frame_request(Call(0, version, CORRELATION_ID), request, "client")
    assert b"".join(made(version, transactional_id).frame(CORRELATION_ID, records)) == b"".join(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_acknowledgement_is_read(version: int) -> None:
    frame = memoryview(frame_of(response_of(), version))
    assert made(version).read(frame, CORRELATION_ID) == Acknowledged(2**40, 17, 12)
    assert made(version).read(frame, CORRELATION_ID + 1) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_just_an_acknowledgement_is_left_to_the_general_codec(version: int) -> None:
    requests = made(version)
    assert requests.read(memoryview(frame_of(response_of(error_code=6), version)), CORRELATION_ID) is None
    good = frame_of(response_of(), version)
    assert requests.read(memoryview(good[:-1]), CORRELATION_ID) is None
    assert requests.read(memoryview(good + b"\0"), CORRELATION_ID) is None


@pytest.mark.parametrize("version", [FIRST_VERSION, 13])
def test_no_damaged_response_is_read_otherwise_than_by_the_general_codec(version: int) -> None:
    requests, good = made(version), frame_of(response_of(), version)
    for at in range(len(good)):
        for flipped in (1, 0x80, 0xFF):
            frame = bytearray(good)
            frame[at] ^= flipped
            found = requests.read(memoryview(frame), CORRELATION_ID)
            if found is None:
                continue
            try:
                response = decode(ProduceResponse, bytes(frame), version, 5)
            except InvalidRequest:
                pytest.fail(f"byte {at}: the response is not valid")
            (topic,) = response.responses
            (result,) = topic.partition_responses
            assert (topic.name or topic.topic_id) in ("orders", TOPIC_ID)
            assert (result.index, result.error_code) == (3, 0)
            assert found == (result.base_offset, result.log_append_time_ms, response.throttle_time_ms)
