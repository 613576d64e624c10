"""Moving replicas between brokers, and between a broker's directories: AlterPartitionReassignments,
ListPartitionReassignments (KIP-455), AlterReplicaLogDirs (KIP-113)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.messages.admin import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)


class Reassignment(NamedTuple):
    """A reassignment in progress. `replicas` are all replicas, including those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def alter_reassignments(
    cluster: ClusterClient,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> dict[TopicPartition, ApiError | None]:
    """Start to move partitions to these replicas; None cancels a partition's reassignment. Returns each partition's
    error, None where it was accepted. Raises `ApiError` where the whole request was refused."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, partition), replicas in targets.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        chosen = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(partition_index=partition, replicas=chosen))
    request = AlterPartitionReassignmentsRequest(timeout_ms=cluster.timeout_ms, topics=list(topics.values()))
    if not allow_replication_factor_change:
        request.allow_replication_factor_change = False
    answer = cluster.any_broker(request, check=_check)
    return {
        TopicPartition(topic.name, p.partition_index): refused(
            p.error_code, f"partition {topic.name}-{p.partition_index}", p.error_message
        )
        if p.error_code
        else None
        for topic in answer.responses
        for p in topic.partitions
    }


def list_reassignments(
    cluster: ClusterClient, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The reassignments in progress, of these partitions or with None of all. Raises `ApiError`."""
    requested = None
    if partitions is not None:
        topics: dict[str, ListPartitionReassignmentsTopics] = {}
        for name, partition in partitions:
            topic = topics.setdefault(name, ListPartitionReassignmentsTopics(name=name))
            topic.partition_indexes.append(partition)
        requested = list(topics.values())
    request = ListPartitionReassignmentsRequest(timeout_ms=cluster.timeout_ms, topics=requested)
    answer = cluster.any_broker(request, check=_check)
    return {
        TopicPartition(topic.name, p.partition_index): Reassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in answer.topics
        for p in topic.partitions
    }


def _check(answer: Any) -> None:
    if answer.error_code:
        raise refused(answer.error_code, "the reassignments", answer.error_message)


def alter_replica_log_dirs(cluster: ClusterClient, broker_id: int, paths: Mapping[TopicPartition, str]) -> None:
    """Move replicas into these log directories of the broker. For a replica that the broker does not have yet, the
    directory is used when it is created. Raises `ApiError` for the first that is refused."""
    by_path: dict[str, dict[str, list[int]]] = {}
    for (name, partition), path in paths.items():
        by_path.setdefault(path, {}).setdefault(name, []).append(partition)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in topics.items()],
            )
            for path, topics in by_path.items()
        ]
    )

    def check(answer: Any) -> None:
        for topic in answer.results:
            for p in topic.partitions:
                if p.error_code:
                    raise refused(p.error_code, f"partition {topic.topic_name}-{p.partition_index} on {broker_id}")

    cluster.broker(broker_id, request, check=check)
