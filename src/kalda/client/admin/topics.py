"""Topics: CreateTopics, DeleteTopics, CreatePartitions, Metadata, DescribeTopicPartitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.client.cluster import ClusterClient
from kalda.client.core.cluster_values import Topic
from kalda.client.core.errors import refused
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
)
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

BROKER_DEFAULT = -1
"""For partitions and replication factor: the cluster's default (KIP-464)."""

_MAX_DELETE_BY_NAME = 5
"""The last version of DeleteTopics with a plain list of names."""


class NewTopic(NamedTuple):
    """With an `assignment` (for each partition a list of broker ids), `partitions` and `replication_factor` must stay
    at their default."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = {}
    assignment: Sequence[Sequence[int]] = ()


class CreatedTopic(NamedTuple):
    """Partitions and replication factor are -1 where the caller has no right to see them, or the broker's version of
    CreateTopics does not have them."""

    name: str
    topic_id: Uuid
    partitions: int
    replication_factor: int


class EligibleReplicas(NamedTuple):
    """Replicas outside the ISR (KIP-966): `eligible` ones have all committed records and may become leader;
    `last_known` were the last eligible ones."""

    eligible: tuple[int, ...]
    last_known: tuple[int, ...]


def list_topics(cluster: ClusterClient, *, internal: bool = False) -> list[Topic]:
    """Topics sorted by name, with `internal` also the internal ones."""
    topics = cluster.metadata().topics.values()
    return sorted((topic for topic in topics if internal or not topic.is_internal), key=lambda topic: topic.name)


def describe_topics(cluster: ClusterClient, names: Collection[str]) -> list[Topic]:
    """Topics as they are now. Raises `ApiError` for the first that does not exist."""
    topics = cluster.metadata(list(names)).topics
    for name in names:
        code = topics[name].error_code if name in topics else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code:
            raise refused(code, f"topic {name}")
    return [topics[name] for name in names]


def eligible_replicas(cluster: ClusterClient, names: Collection[str]) -> dict[TopicPartition, EligibleReplicas]:
    """The eligible replicas of all partitions of the topics; empty where brokers do not support KIP-966."""
    if ApiKey.DESCRIBE_TOPIC_PARTITIONS not in cluster.versions():
        return {}
    found: dict[TopicPartition, EligibleReplicas] = {}
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in sorted(names)]
    )
    while True:
        answer = cluster.any_broker(request)
        before = len(found)
        for topic in answer.topics:
            for partition in topic.partitions:
                elr, last = partition.eligible_leader_replicas, partition.last_known_elr
                if topic.name is not None and elr is not None:
                    found[TopicPartition(topic.name, partition.partition_index)] = EligibleReplicas(
                        tuple(elr), tuple(last or ())
                    )
        cursor = answer.next_cursor
        if cursor is None or len(found) == before:
            return found
        request.cursor = DescribeTopicPartitionsRequestCursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index
        )


def create_topics(
    cluster: ClusterClient, topics: Collection[NewTopic], *, validate_only: bool = False
) -> list[CreatedTopic]:
    """Create topics, or only check whether they could be. Raises `ApiError` for the first that cannot."""
    request = CreateTopicsRequest(
        topics=[creatable(topic) for topic in topics], timeout_ms=cluster.timeout_ms, validate_only=validate_only
    )
    answer = cluster.any_broker(request, check=_check_topics)
    return [CreatedTopic(t.name, t.topic_id, t.num_partitions, t.replication_factor) for t in answer.topics]


def creatable(topic: NewTopic) -> CreatableTopic:
    """The topic as CreateTopics has it."""
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(broker_ids))
            for index, broker_ids in enumerate(topic.assignment)
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _check_topics(answer: Any) -> None:
    for topic in answer.topics:
        if topic.error_code:
            raise refused(topic.error_code, f"topic {topic.name}", topic.error_message)


def delete_topics(cluster: ClusterClient, names: Collection[str]) -> None:
    """Delete topics. Raises `ApiError` for the first that could not be; the others may have been deleted."""
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=cluster.timeout_ms)

    def check(answer: Any) -> None:
        for topic in answer.responses:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise _NoSuchTopic(topic.name or "")
            if topic.error_code:
                raise refused(topic.error_code, f"topic {topic.name}", topic.error_message)

    try:
        cluster.any_broker(request, check=check, max_version=_MAX_DELETE_BY_NAME)
    except _NoSuchTopic as name:
        raise refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}") from None


class _NoSuchTopic(Exception):
    """The topic does not exist. The error code is retriable, but these requests do not wait for a topic to appear."""


def create_partitions(
    cluster: ClusterClient,
    topic: str,
    count: int,
    *,
    assignment: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Add partitions to a topic until it has `count`; `assignment` places the new ones. Raises `ApiError`."""
    placed = None
    if assignment is not None:
        placed = [CreatePartitionsAssignment(broker_ids=list(broker_ids)) for broker_ids in assignment]
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=placed)],
        timeout_ms=cluster.timeout_ms,
        validate_only=validate_only,
    )

    def check(answer: Any) -> None:
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise _NoSuchTopic(topic)
            if result.error_code:
                raise refused(result.error_code, f"topic {topic}", result.error_message)

    try:
        cluster.any_broker(request, check=check)
    except _NoSuchTopic:
        raise refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}") from None
