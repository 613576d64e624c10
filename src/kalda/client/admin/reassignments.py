"""Leaders and replicas of partitions: elections on request (KIP-460), moving replicas to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import (
    ANY,
    Ask,
    Outcomes,
    Plan,
    any_broker,
    by_topic,
    error_in,
    error_of,
    errors_in,
    per_item,
    single,
)
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from kalda.protocol.naming import MAX_PARTITIONS_NAMED, pieces


class Reassignment(NamedTuple):
    """A reassignment in progress. `replicas` are all replicas, including those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def elect_leaders(
    partitions: Collection[TopicPartition] | None, election: ElectionType, *, timeout_ms: int
) -> Plan[Outcomes[TopicPartition, None]]:
    """ElectLeaders. With None all partitions are considered; the result then has those that needed an election."""
    if partitions is not None and len(partitions) > MAX_PARTITIONS_NAMED:
        merged: Outcomes[TopicPartition, None] = Outcomes()
        for some in pieces(partitions):
            merged.update((yield from elect_leaders(some, election, timeout_ms=timeout_ms)))
        return merged
    topics = None
    if partitions is not None:
        topics = [
            ElectLeadersRequestTopicPartitions(topic=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    request = ElectLeadersRequest(election_type=election, topic_partitions=topics, timeout_ms=timeout_ms)
    answer = yield from single(Ask(ANY, request), error_of(f"{election.name.lower()} elections"))
    outcomes: Outcomes[TopicPartition, None] = Outcomes()
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            partition = TopicPartition(topic.topic, each.partition_id)
            outcomes[partition] = error_in(each, f"partition {partition}")
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
        return errors_in(answer, answer.responses, partitions, "the reassignments")

    return per_item(targets, any_broker, build, read)


def list_reassignments(
    partitions: Collection[TopicPartition] | None, *, timeout_ms: int
) -> Plan[dict[TopicPartition, Reassignment]]:
    """ListPartitionReassignments; of very many partitions all are listed."""
    topics = None
    if partitions is not None and len(partitions) <= MAX_PARTITIONS_NAMED:
        topics = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    answer = yield from single(
        Ask(ANY, ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)),
        error_of("the reassignments"),
    )
    found = {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
        )
        for topic in answer.topics
        for each in topic.partitions
    }
    asked = found if partitions is None else frozenset(partitions)
    return {partition: each for partition, each in found.items() if partition in asked}
