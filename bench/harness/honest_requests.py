"""Honest requests: each names as many distinct existing partitions or topics as it has items.

They are what the worst requests are compared with: a request of as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.worst_requests import TOPIC
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages import configs, fetch, metadata, offsets, produce, transactions
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

PARTITIONS = 9_900
TOPICS = [f"topic-{number}" for number in range(4_900)]
_BATCH = build_batch([(0, None, b"value", ())])
_EVERY = range(PARTITIONS)


def _of(cls: Any, partitions: list[Any]) -> list[Any]:
    name = "topic" if "topic" in cls.declared else "name"
    inner = "partition_data" if "partition_data" in cls.declared else "partitions"
    return [cls(**{name: TOPIC, inner: partitions})]


def _produce() -> Request:
    data = [produce.PartitionProduceData(index=each, records=_BATCH) for each in _EVERY]
    return produce.ProduceRequest(acks=1, timeout_ms=60_000, topic_data=_of(produce.TopicProduceData, data))


def _fetch() -> Request:
    asked = [fetch.FetchRequestFetchPartition(partition=each, partition_max_bytes=1_000) for each in _EVERY]
    topics = _of(fetch.FetchRequestFetchTopic, asked)
    return fetch.FetchRequest(max_wait_ms=0, max_bytes=1_000_000, topics=topics, session_epoch=-1)


def _list_offsets() -> Request:
    asked = [fetch.ListOffsetsPartition(partition_index=each, timestamp=-1) for each in _EVERY]
    return fetch.ListOffsetsRequest(topics=_of(fetch.ListOffsetsTopic, asked))


def _epochs() -> Request:
    asked = [fetch.OffsetForLeaderPartition(partition=each, leader_epoch=0) for each in _EVERY]
    return fetch.OffsetForLeaderEpochRequest(topics=_of(fetch.OffsetForLeaderTopic, asked))


def _delete_records() -> Request:
    asked = [fetch.DeleteRecordsPartition(partition_index=each, offset=0) for each in _EVERY]
    return fetch.DeleteRecordsRequest(topics=_of(fetch.DeleteRecordsTopic, asked), timeout_ms=60_000)


def _commit() -> Request:
    asked = [offsets.OffsetCommitRequestPartition(partition_index=each, committed_offset=1) for each in _EVERY]
    return offsets.OffsetCommitRequest(group_id="g", topics=_of(offsets.OffsetCommitRequestTopic, asked))


def _producers() -> Request:
    asked = transactions.DescribeProducersRequestTopicRequest(name=TOPIC, partition_indexes=list(_EVERY))
    return transactions.DescribeProducersRequest(topics=[asked])


HONEST: Mapping[ApiKey, Callable[[], Request]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.DESCRIBE_PRODUCERS: _producers,
    ApiKey.METADATA: lambda: metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in TOPICS], allow_auto_topic_creation=False
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda: metadata.DescribeTopicPartitionsRequest(
        topics=[metadata.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in TOPICS]
    ),
    ApiKey.DESCRIBE_CONFIGS: lambda: configs.DescribeConfigsRequest(
        resources=[configs.DescribeConfigsResource(resource_type=2, resource_name=name) for name in TOPICS],
        include_synonyms=True,
        include_documentation=True,
    ),
}
OF_TOPICS = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS)
"""Those that name `TOPICS`; the others name partitions of one topic."""
