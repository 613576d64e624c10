"""Every API can say that its whole request failed, in every version, so that what was asked for finds its answer."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.broker.failures import failure_response
from kalda.broker.modules.forwarding import FORWARDED
from kalda.protocol.apis import API, ApiKey, request_class, response_class
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.protocol.notation import Request

ERROR = ApiError(ErrorCode.REQUEST_TIMED_OUT, "nobody answered")
SERVED = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS, *FORWARDED)


@pytest.mark.parametrize("key", SERVED)
def test_an_empty_request_fails_in_every_version(key: ApiKey) -> None:
    api = API[key]
    for version in range(api.lowest, api.highest_served(False) + 1):
        response = failure_response(request_class(key)(), version, ERROR)
        assert decode(response_class(key), encode(response, version), version) is not None


def seen(request: Request, version: int) -> Any:
    """The failure as the client decodes it."""
    response = failure_response(request, version, ERROR)
    return decode(type(response), encode(response, version), version)


def test_partitions_of_a_produce() -> None:
    data = [PartitionProduceData(index=3), PartitionProduceData(index=4)]
    for version in range(3, 14):
        response = seen(ProduceRequest(topic_data=[TopicProduceData(name="a", partition_data=data)]), version)
        results = response.responses[0].partition_responses
        assert [(each.index, each.error_code, each.base_offset) for each in results] == [(3, 7, -1), (4, 7, -1)]


def test_partitions_of_a_fetch() -> None:
    topic = FetchRequestFetchTopic(topic="a", topic_id=Uuid(b"\1" * 16), partitions=[FetchRequestFetchPartition()])
    assert seen(FetchRequest(topics=[topic]), 18).error_code == ErrorCode.REQUEST_TIMED_OUT
    partition = seen(FetchRequest(topics=[topic]), 4).responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_partitions_of_list_offsets() -> None:
    topic = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=2)])
    for version in range(1, 12):
        partition = seen(ListOffsetsRequest(topics=[topic]), version).topics[0].partitions[0]
        assert (partition.partition_index, partition.error_code, partition.offset) == (2, 7, -1)


def test_topics() -> None:
    made = seen(CreateTopicsRequest(topics=[CreatableTopic(name="a")]), 7).topics[0]
    assert (made.name, made.error_code, made.error_message) == ("a", 7, "nobody answered")
    for version in range(14):
        found = seen(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), version).topics[0]
        assert (found.name, found.error_code) == ("a", 7)
