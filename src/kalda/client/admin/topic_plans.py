"""Plans about topics, partitions and their offsets; an `ApiError` for each item that failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.offsets import FoundOffset
from kalda.client.admin.reassignments import Reassignment
from kalda.client.admin.topics import CreatedTopic, EligibleReplicas, NewTopic, creatable
from kalda.client.core.administration import ANY, PAUSE, Ask, Kind, Outcomes, Plan, Target, per_item, single
from kalda.client.core.cluster_values import UNKNOWN_TOPIC, Metadata, Topic, read_metadata
from kalda.client.core.errors import UnknownTopic, refused
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.fetch import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)
from kalda.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
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

_MAX_DELETE_BY_NAME = 5
"""The last version of DeleteTopics with a plain list of names."""
_CONSUMER = -1
_NO_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
"""What passes elsewhere, but is final where a topic is deleted or grown: these do not wait for a topic to appear."""


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
            error = refused(each.error_code, f"topic {each.name}", each.error_message) if each.error_code else None
            yield each.name, error

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
            yield name, refused(topic.error_code, f"topic {name}") if topic.error_code else topic

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
    return refused(topic.error_code, f"topic {name}") if topic.error_code else None


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
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in sorted(names)]
    )
    while True:
        try:
            answer = yield from single(Ask(ANY, request))
        except ApiError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return {}
            raise
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


def offsets_at(
    partitions: Collection[TopicPartition], mark: int, *, read_committed: bool, timeout_ms: int
) -> Plan[dict[TopicPartition, int]]:
    """The offset of each partition at `mark`, a timestamp in ms or an `OffsetSpec`; the latest offset where every
    record that a consumer may see is older. Raises `ApiError`."""

    def listed(which: Iterable[TopicPartition], at: int) -> Plan[dict[TopicPartition, int]]:
        found = yield from list_offsets(dict.fromkeys(which, at), read_committed=read_committed, timeout_ms=timeout_ms)
        return {partition: each.offset for partition, each in found.check().succeeded.items()}

    offsets = yield from listed(partitions, mark)
    missing = [partition for partition, offset in offsets.items() if offset < 0]
    if missing:
        offsets |= yield from listed(missing, int(OffsetSpec.LATEST))
    return offsets


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
        Ask(ANY, request),
        lambda found: refused(found.error_code, f"{election.name.lower()} elections") if found.error_code else None,
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
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    timeout_ms: int,
    allow_replication_factor_change: bool = True,
) -> Plan[Outcomes[TopicPartition, None]]:
    """AlterPartitionReassignments; None cancels a partition's reassignment."""

    def build(partitions: list[TopicPartition]) -> AlterPartitionReassignmentsRequest:
        topics: dict[str, ReassignableTopic] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, ReassignableTopic(name=partition.topic))
            replicas = targets[partition]
            chosen = None if replicas is None else list(replicas)
            topic.partitions.append(ReassignablePartition(partition_index=partition.partition, replicas=chosen))
        request = AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=list(topics.values()))
        if not allow_replication_factor_change:
            request.allow_replication_factor_change = False
        return request

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
