"""What is on its way, and how many bytes remain: a replica that is added has what its log holds; it needs what the
leader's holds. Both grow while records come in, so the rest is measured anew each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.nodes import describe_log_dirs
from kalda.client.admin.reassignments import Reassignment, list_reassignments
from kalda.client.cluster_client import ClusterClient
from kalda.client.metadata import Partition

_PATIENCE_MS = 2_000


class Outlook(NamedTuple):
    """What remains of reassignments that run; bytes by partition are those to be copied, None where unknown."""

    ongoing: dict[TopicPartition, Reassignment]
    remaining: dict[TopicPartition, int | None]

    @property
    def remaining_bytes(self) -> int:
        return sum(filter(None, self.remaining.values()))


def partitions_of(cluster: ClusterClient, topics: Iterable[str]) -> dict[TopicPartition, Partition]:
    """All partitions of these topics as they are now; none of a topic that is not there."""
    names = sorted(set(topics))
    if not names:
        return {}
    return {
        TopicPartition(topic.name, partition.partition): partition
        for topic in cluster.metadata(names).topics.values()
        for partition in topic.partitions
    }


def look(cluster: ClusterClient, partitions: Iterable[TopicPartition] | None = None) -> Outlook:
    """How these, or all, reassignments are doing. Raises `ApiError`."""
    ongoing = list_reassignments(cluster, None if partitions is None else list(partitions))
    now = partitions_of(cluster, (at.topic for at in ongoing))
    leaders = {at: now[at].leader for at in ongoing if at in now}
    asked: dict[int, set[TopicPartition]] = {}
    for at, reassignment in ongoing.items():
        if reassignment.adding:
            for node_id in (leaders.get(at, -1), *reassignment.adding):
                asked.setdefault(node_id, set()).add(at)
    sizes = {node_id: sizes_on(cluster, node_id, wanted) for node_id, wanted in asked.items() if node_id >= 0}
    return Outlook(ongoing, {at: _rest(at, each.adding, leaders.get(at, -1), sizes) for at, each in ongoing.items()})


def _rest(
    at: TopicPartition, adding: tuple[int, ...], leader: int, sizes: Mapping[int, Mapping[TopicPartition, int]]
) -> int | None:
    if not adding:
        return 0
    whole = sizes.get(leader, {}).get(at)
    if whole is None:
        return None
    return sum(max(0, whole - sizes.get(node_id, {}).get(at, 0)) for node_id in adding)


def sizes_on(cluster: ClusterClient, node_id: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Bytes of these partitions on a broker; none where it cannot be asked."""
    try:
        log_dirs = describe_log_dirs(cluster, node_id, list(partitions), timeout_ms=_PATIENCE_MS)
    except ApiError:
        return {}
    return {at: size for log_dir in log_dirs for at, size in log_dir.partitions.items()}
