"""Reassignments in progress, and the bytes that remain to be copied.

For an added replica the remainder is the size of the leader's log minus the size of its own log. Both grow while
records are written, so both are requested each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.reassignments import Reassignment
from kalda.clientcore.connections.cluster_values import Partition

_TIMEOUT_MS = 2_000


class ReassignmentProgress(NamedTuple):
    """Reassignments in progress; `remaining` has the bytes to copy by partition, None where unknown."""

    ongoing: dict[TopicPartition, Reassignment]
    remaining: dict[TopicPartition, int | None]

    @property
    def remaining_bytes(self) -> int:
        return sum(filter(None, self.remaining.values()))


def partitions_of(admin: CommandAdmin, topics: Iterable[str]) -> dict[TopicPartition, Partition]:
    """All current partitions of these topics; topics that do not exist are left out."""
    names = sorted(set(topics))
    if not names:
        return {}
    return {
        TopicPartition(topic.name, partition.partition): partition
        for topic in admin.topics(names).succeeded.values()
        for partition in topic.partitions
    }


def read_progress(admin: CommandAdmin, partitions: Iterable[TopicPartition] | None = None) -> ReassignmentProgress:
    """The progress of these partitions' reassignments, or with None of all. Raises `ApiError`."""
    ongoing = admin.list_reassignments(partitions)
    now = partitions_of(admin, (at.topic for at in ongoing))
    leaders = {at: now[at].leader for at in ongoing if at in now}
    by_node: dict[int, set[TopicPartition]] = {}
    for at, reassignment in ongoing.items():
        if reassignment.adding:
            for node_id in (leaders.get(at, -1), *reassignment.adding):
                by_node.setdefault(node_id, set()).add(at)
    sizes = {node_id: sizes_on(admin, node_id, on_node) for node_id, on_node in by_node.items() if node_id >= 0}
    remaining = {at: _remaining(at, each.adding, leaders.get(at, -1), sizes) for at, each in ongoing.items()}
    return ReassignmentProgress(ongoing, remaining)


def _remaining(
    at: TopicPartition, adding: tuple[int, ...], leader: int, sizes: Mapping[int, Mapping[TopicPartition, int]]
) -> int | None:
    if not adding:
        return 0
    whole = sizes.get(leader, {}).get(at)
    if whole is None:
        return None
    return sum(max(0, whole - sizes.get(node_id, {}).get(at, 0)) for node_id in adding)


def sizes_on(admin: CommandAdmin, node_id: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Sizes in bytes of these partitions on a broker; empty where it does not answer."""
    try:
        found = admin.describe_log_dirs([node_id], partitions=partitions, timeout=_TIMEOUT_MS / 1000)
        log_dirs = found.value(node_id)
    except ApiError:
        return {}
    return {at: size for log_dir in log_dirs for at, size in log_dir.partitions.items()}
