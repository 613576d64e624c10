"""Topics: create, list, describe, delete, add partitions; wait for new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.administration import ANY, PAUSE, Ask, Outcomes, Plan, any_broker, error_in, per_item, single
from kalda.clientcore.connections.errors import UnknownTopic, refused
from kalda.clientcore.connections.metadata import UNKNOWN_TOPIC, Metadata, Topic, read_metadata
from kalda.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
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
from kalda.protocol.naming import pieces

BROKER_DEFAULT = -1
"""For partitions and replication factor: the cluster's default (KIP-464)."""


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


_MAX_DELETE_BY_NAME = 5
"""The last version of DeleteTopics with a plain list of names."""


_NO_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
"""What passes elsewhere, but is final where a topic is deleted or grown: these do not wait for a topic to appear."""


def create_topics(
    topics: Collection[NewTopic], *, timeout_ms: int, validate_only: bool
) -> Plan[Outcomes[str, CreatedTopic]]:
    """CreateTopics. Raises `TypeError` for what is no `NewTopic`."""
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"{topic!r}: a list of NewTopic is expected, as [NewTopic('orders', partitions=6)]")
    by_name = {topic.name: topic for topic in topics}

    def build(names: list[str]) -> CreateTopicsRequest:
        entries = [creatable(by_name[name]) for name in names]
        return CreateTopicsRequest(topics=entries, timeout_ms=timeout_ms, validate_only=validate_only)

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, CreatedTopic | ApiError]]:
        for each in answer.topics:
            made = CreatedTopic(each.name, each.topic_id, each.num_partitions, each.replication_factor)
            yield each.name, error_in(each, f"topic {each.name}") or made

    return per_item(by_name, any_broker, build, read)


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


def delete_topics(names: Collection[str], *, timeout_ms: int) -> Plan[Outcomes[str, None]]:
    """DeleteTopics."""

    def build(left: list[str]) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topic_names=left, timeout_ms=timeout_ms)

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.responses:
            error = error_in(each, f"topic {each.name}")
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                error = UnknownTopic(f"topic {each.name} does not exist; check the name")
            yield each.name, error

    return per_item(names, any_broker, build, read, max_version=_MAX_DELETE_BY_NAME, final=_NO_TOPIC)


def create_partitions(
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, Sequence[Sequence[int]]],
    timeout_ms: int,
    validate_only: bool,
) -> Plan[Outcomes[str, None]]:
    """CreatePartitions."""

    def build(names: list[str]) -> CreatePartitionsRequest:
        topics = []
        for name in names:
            placed = assignments.get(name)
            entries = None if placed is None else [CreatePartitionsAssignment(broker_ids=list(ids)) for ids in placed]
            topics.append(CreatePartitionsTopic(name=name, count=counts[name], assignments=entries))
        return CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.results:
            yield each.name, error_in(each, f"topic {each.name}")

    return per_item(counts, any_broker, build, read, final=_NO_TOPIC)


def list_topics(*, internal: bool) -> Plan[dict[str, Topic]]:
    """Metadata of all topics."""
    answer = yield from single(Ask(ANY, MetadataRequest(topics=None, allow_auto_topic_creation=False)))
    topics = read_metadata(answer).topics
    return {name: topic for name, topic in sorted(topics.items()) if internal or not topic.is_internal}


def _metadata_request(names: Iterable[str]) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)


def describe_topics(names: Collection[str], *, final: Collection[ErrorCode] = ()) -> Plan[Outcomes[str, Topic]]:
    """Metadata of these topics."""

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, Topic | ApiError]]:
        for name, topic in read_metadata(answer).topics.items():
            yield name, error_in(topic, f"topic {name}") or topic

    return per_item(names, any_broker, _metadata_request, read, final=final)


def existing_topics(names: Collection[str]) -> Plan[Metadata]:
    """Metadata of topics that all exist: one that is unknown may be new, and is requested again for a moment. Raises
    `ApiError`."""

    def check(answer: Any) -> ApiError | None:
        topics = read_metadata(answer).topics
        return next(filter(None, (_missing(name, topics.get(name, UNKNOWN_TOPIC)) for name in names)), None)

    return read_metadata((yield from single(Ask(ANY, _metadata_request(names)), check)))


def _missing(name: str, topic: Topic) -> ApiError | None:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"topic {name} does not exist; check the name, or create it first")
    return error_in(topic, f"topic {name}")


def wait_for_leaders(partitions: Collection[TopicPartition]) -> Plan[None]:
    """Wait until each partition has a leader. Raises `ApiError`."""
    names = list(dict.fromkeys(each.topic for each in partitions))
    while True:
        found = yield from existing_topics(names)
        failure: ApiError | None = None
        for each in partitions:
            known = found.topics[each.topic].partitions
            partition = next((p for p in known if p.partition == each.partition), None)
            if partition is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {each.topic} has no partition {each.partition}; it has {len(known)}, numbered from 0",
                )
            if partition.leader < 0 or partition.leader not in found.brokers:
                failure = refused(partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE, f"partition {each}")
        if failure is None:
            return
        if not failure.code.retriable or (yield PAUSE):
            raise failure


def eligible_replicas(names: Collection[str]) -> Plan[dict[TopicPartition, EligibleReplicas]]:
    """DescribeTopicPartitions, page by page: the eligible replicas of all partitions of the topics; empty where the
    brokers do not support KIP-966. Raises `ApiError`."""
    found: dict[TopicPartition, EligibleReplicas] = {}
    try:
        for some in pieces(sorted(names)):
            found.update((yield from _eligible_replicas(some)))
    except ApiError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    return found


def _eligible_replicas(names: list[str]) -> Plan[dict[TopicPartition, EligibleReplicas]]:
    """Those of as many topics as a request names."""
    found: dict[TopicPartition, EligibleReplicas] = {}
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
    )
    while True:
        answer = yield from single(Ask(ANY, request))
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
