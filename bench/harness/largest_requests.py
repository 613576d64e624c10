"""Requests of some 95 MB, which is what `socket.request.max.bytes` allows: few items, each with a string of 32 KB whose
characters have two bytes, or one very large field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.worst_requests import TOPIC
from kalda.protocol.messages import admin, configs, fetch, groups, metadata, offsets, produce, security, topics
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

_SIZE = 95_000_000
_STRINGS = 2_900
_LONG = "é" * 16_300


def largest_requests() -> Iterator[tuple[str, Request]]:
    """(name, request)."""
    names = [f"{_LONG}{number}" for number in range(_STRINGS)]
    yield "Metadata", metadata.MetadataRequest(topics=_each(metadata.MetadataRequestTopic, "name", names))
    partitions_of = metadata.DescribeTopicPartitionsRequestTopicRequest
    yield (
        "DescribeTopicPartitions",
        metadata.DescribeTopicPartitionsRequest(topics=_each(partitions_of, "name", names)),
    )
    yield "DescribeGroups", groups.DescribeGroupsRequest(groups=names)
    yield "FindCoordinator", groups.FindCoordinatorRequest(key_type=0, coordinator_keys=names)
    resource = configs.DescribeConfigsResource
    yield (
        "DescribeConfigs",
        configs.DescribeConfigsRequest(resources=_each(resource, "resource_name", names, resource_type=2)),
    )
    yield (
        "CreateTopics",
        topics.CreateTopicsRequest(
            topics=_each(topics.CreatableTopic, "name", names, num_partitions=1, replication_factor=1),
            timeout_ms=10_000,
        ),
    )
    change = configs.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value=_LONG)
    yield (
        "IncrementalAlterConfigs",
        configs.IncrementalAlterConfigsRequest(
            resources=_each(
                configs.IncrementalAlterConfigsRequestAlterConfigsResource,
                "resource_name",
                [f"{TOPIC}-{number}" for number in range(_STRINGS)],
                resource_type=2,
                configs=[change],
            )
        ),
    )
    yield (
        "CreateAcls",
        security.CreateAclsRequest(
            creations=_each(
                security.AclCreation, "resource_name", names, resource_type=2, principal="User:a", host="*",
                operation=3, permission_type=3,
            )
        ),
    )  # fmt: skip
    op = admin.OpData(key="consumer_byte_rate", value=5.0)
    entities = _each(admin.AlterClientQuotasRequestEntityData, "entity_name", names, entity_type="user")
    entries = [admin.AlterClientQuotasRequestEntryData(entity=[each], ops=[op]) for each in entities]
    yield "AlterClientQuotas", admin.AlterClientQuotasRequest(entries=entries, validate_only=True)
    yield from _of_groups(names)
    yield "Produce, one batch", _produce([_SIZE])
    yield "Produce, batches of 1 MB", _produce([1_000_000] * 95)
    topic = fetch.FetchRequestFetchTopic
    yield "Fetch", fetch.FetchRequest(max_wait_ms=0, session_epoch=-1, topics=_each(topic, "topic", names))


def _of_groups(names: list[str]) -> Iterator[tuple[str, Request]]:
    commits = [
        offsets.OffsetCommitRequestPartition(partition_index=at, committed_offset=1, committed_metadata=each)
        for at, each in enumerate(names)
    ]
    yield (
        "OffsetCommit",
        offsets.OffsetCommitRequest(
            group_id="g", topics=[offsets.OffsetCommitRequestTopic(name=TOPIC, partitions=commits)]
        ),
    )
    yield (
        "JoinGroup",
        groups.JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=bytes(_SIZE))],
        ),
    )  # fmt: skip
    yield (
        "SyncGroup",
        groups.SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m",
            assignments=[groups.SyncGroupRequestAssignment(member_id="m", assignment=bytes(_SIZE))],
        ),
    )  # fmt: skip


def _each(cls: Any, field: str, values: list[str], **others: Any) -> list[Any]:
    return [cls(**{field: value, **others}) for value in values]


def _produce(sizes: list[int]) -> Request:
    data = [
        produce.PartitionProduceData(index=at, records=build_batch([(0, None, bytes(size - 100), ())]))
        for at, size in enumerate(sizes)
    ]
    return produce.ProduceRequest(
        acks=1, timeout_ms=1_000, topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=data)]
    )
