"""Leader elections on an operator's request: ElectLeaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.topics import ElectLeadersRequest, ElectLeadersRequestTopicPartitions


def elect_leaders(
    cluster: ClusterClient, kind: ElectionType, partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, ApiError | None]:
    """The error of each partition's election, None where a leader was elected. With None for `partitions`, elections
    are held for all partitions that need one. Raises `ApiError` where the whole request was refused."""
    requested = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        requested = [ElectLeadersRequestTopicPartitions(topic=name, partitions=ids) for name, ids in by_topic.items()]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=requested, timeout_ms=cluster.timeout_ms)

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"{kind.name.lower()} elections")

    answer = cluster.any_broker(request, check=check)
    results: dict[TopicPartition, ApiError | None] = {}
    for topic in answer.replica_election_results:
        for result in topic.partition_result:
            at = TopicPartition(topic.topic, result.partition_id)
            results[at] = (
                refused(result.error_code, f"partition {at}", result.error_message) if result.error_code else None
            )
    return results
