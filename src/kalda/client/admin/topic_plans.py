"""Plans about topics, partitions and their offsets; an `ApiError` for each item that failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.offsets import FoundOffset
from kalda.client.admin.reassignments import Reassignment
from kalda.client.admin.topics import CreatedTopic, NewTopic, creatable
from kalda.client.core.administration import ANY, Ask, Kind, Outcomes, Plan, Target, per_item, single
from kalda.client.core.cluster_values import Topic, read_metadata
from kalda.client.core.errors import refused
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.fetch import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from kalda.protocol.messages.transactions import DescribeProducersRequest, DescribeProducersRequestTopicRequest

_MAX_DELETE_BY_NAME = 5
"""The last version of DeleteTopics with a plain list of names."""
_CONSUMER = -1


def any_broker(_item: object) -> Target:
    """Every item goes to any broker."""
    return ANY


def leader_of(partition: TopicPartition) -> Target:
    """A partition goes to its leader."""
    return Target(Kind.LEADER, partition)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def create_topics(
    topics: Collection[NewTopic], *, timeout_ms: int, validate_only: bool
) -> Plan[Outcomes[str, CreatedTopic]]:
    """CreateTopics."""
    by_name = {topic.name: topic for topic in topics}

    def build(names: list[str]) -> CreateTopicsRequest:
        entries = [creatable(by_name[name]) for name in names]
        return CreateTopicsRequest(topics=entries, timeout_ms=timeout_ms, validate_only=validate_only)

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, CreatedTopic | ApiError]]:
        for each in answer.topics:
            if each.error_code:
                yield each.name, refused(each.error_code, f"topic {each.name}", each.error_message)
            else:
                yield each.name, CreatedTopic(each.name, each.topic_id, each.num_partitions, each.replication_factor)

    return per_item(by_name, any_broker, build, read)


def delete_topics(names: Collection[str], *, timeout_ms: int) -> Plan[Outcomes[str, None]]:
    """DeleteTopics."""

    def build(left: list[str]) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topic_names=left, timeout_ms=timeout_ms)

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.responses:
            error = refused(each.error_code, f"topic {each.name}", each.error_message) if each.error_code else None
            yield each.name, error

    return per_item(names, any_broker, build, read, max_version=_MAX_DELETE_BY_NAME)


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
            error = refused(each.error_code, f"topic {each.name}", each.error_message) if each.error_code else None
            yield each.name, error

    return per_item(counts, any_broker, build, read)


def list_topics(*, internal: bool) -> Plan[dict[str, Topic]]:
    """Metadata of all topics."""
    answer = yield from single(Ask(ANY, MetadataRequest(topics=None, allow_auto_topic_creation=False)))
    topics = read_metadata(answer).topics
    return {name: topic for name, topic in sorted(topics.items()) if internal or not topic.is_internal}


def describe_topics(names: Collection[str]) -> Plan[Outcomes[str, Topic]]:
    """Metadata of these topics."""

    def build(left: list[str]) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in left], allow_auto_topic_creation=False
        )

    def read(answer: Any, _names: list[str]) -> Iterator[tuple[str, Topic | ApiError]]:
        for name, topic in read_metadata(answer).topics.items():
            yield name, refused(topic.error_code, f"topic {name}") if topic.error_code else topic

    return per_item(names, any_broker, build, read)


def list_offsets(
    times: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    timeout_ms: int,
    leaders: Mapping[TopicPartition, int] | None = None,
) -> Plan[Outcomes[TopicPartition, FoundOffset]]:
    """ListOffsets, in one request to each leader. `leaders`: the node ids of leaders that the caller has from metadata,
    which is then not requested before those have failed."""
    known = {partition: leader for partition, leader in (leaders or {}).items() if leader >= 0 and partition in times}

    def build(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=i, timestamp=times[TopicPartition(name, i)]) for i in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ]
        return ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=int(read_committed), topics=topics, timeout_ms=timeout_ms
        )

    def read(answer: Any, _partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, FoundOffset | ApiError]]:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    yield partition, refused(each.error_code, f"partition {partition}")
                else:
                    yield partition, FoundOffset(each.offset, each.timestamp, each.leader_epoch)

    found = yield from per_item(known, lambda one: Target(Kind.BROKER, known[one]), build, read, retries=False)
    succeeded = found.succeeded
    rest = yield from per_item([one for one in times if one not in succeeded], leader_of, build, read)
    found.update(rest)
    return found


def delete_records(before: Mapping[TopicPartition, int], *, timeout_ms: int) -> Plan[Outcomes[TopicPartition, int]]:
    """DeleteRecords: the new log start offsets."""

    def build(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=i, offset=before[TopicPartition(name, i)]) for i in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)

    def read(answer: Any, _partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, int | ApiError]]:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                error = refused(each.error_code, f"partition {partition}") if each.error_code else None
                yield partition, each.low_watermark if error is None else error

    return per_item(before, leader_of, build, read)


def elect_leaders(
    partitions: Collection[TopicPartition] | None, election: ElectionType, *, timeout_ms: int
) -> Plan[Outcomes[TopicPartition, None]]:
    """ElectLeaders. With None all partitions are considered; the result then has those that needed an election."""
    topics = None
    if partitions is not None:
        topics = [
            ElectLeadersRequestTopicPartitions(topic=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    request = ElectLeadersRequest(election_type=election, topic_partitions=topics, timeout_ms=timeout_ms)
    answer = yield from single(
        Ask(ANY, request), lambda found: refused(found.error_code, "the election") if found.error_code else None
    )
    outcomes: Outcomes[TopicPartition, None] = Outcomes()
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            partition = TopicPartition(topic.topic, each.partition_id)
            outcomes[partition] = (
                refused(each.error_code, f"partition {partition}", each.error_message) if each.error_code else None
            )
    return outcomes


def alter_reassignments(
    targets: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int
) -> Plan[Outcomes[TopicPartition, None]]:
    """AlterPartitionReassignments; None cancels a partition's reassignment."""

    def build(partitions: list[TopicPartition]) -> AlterPartitionReassignmentsRequest:
        topics: dict[str, ReassignableTopic] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, ReassignableTopic(name=partition.topic))
            replicas = targets[partition]
            chosen = None if replicas is None else list(replicas)
            topic.partitions.append(ReassignablePartition(partition_index=partition.partition, replicas=chosen))
        return AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=list(topics.values()))

    def read(answer: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        if answer.error_code:
            failed = refused(answer.error_code, "the reassignments", answer.error_message)
            yield from ((partition, failed) for partition in partitions)
        for topic in answer.responses:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                error = refused(each.error_code, f"partition {partition}", each.error_message)
                yield partition, error if each.error_code else None

    return per_item(targets, any_broker, build, read)


def list_reassignments(
    partitions: Collection[TopicPartition] | None, *, timeout_ms: int
) -> Plan[dict[TopicPartition, Reassignment]]:
    """ListPartitionReassignments."""
    topics = None
    if partitions is not None:
        topics = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    answer = yield from single(
        Ask(ANY, ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)),
        lambda found: refused(found.error_code, "the reassignments", found.error_message) if found.error_code else None,
    )
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """DescribeProducers of these partitions."""
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequestTopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    )
