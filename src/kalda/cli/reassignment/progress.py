"""Reassignments in progress, and the bytes that remain to be copied.

For an added replica the remainder is the size of the leader's log minus the size of its own log. Both grow while
records are written, so both are requested each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.common.output import ProgressLine, counted
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


_FIRST_POLL_S = 0.1
_POLL_S = 1.0
_MB = 1_000_000


def wait_with_bar(
    admin: CommandAdmin, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> bool:
    """Wait until none of them is in progress, and return True; or False after the timeout. Raises `ApiError`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    copied = _Copied(len(targets))
    line = ProgressLine(copied.describe)
    pause_s = _FIRST_POLL_S
    try:
        while True:
            progress = read_progress(admin, targets)
            copied.update(progress)
            line.step()
            if not progress.ongoing:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 1.5)
    finally:
        line.clear()


class _Copied:
    """The bytes copied: the difference between the largest remainder so far and the current one."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._done = 0
        self._remaining = self._most_remaining = 0

    def update(self, progress: ReassignmentProgress) -> None:
        self._remaining = progress.remaining_bytes
        self._most_remaining = max(self._most_remaining, self._remaining)
        self._done = self._partitions - len(progress.ongoing)

    def describe(self, seconds: float) -> str:
        """`2 of 6 partitions are moved, 120 of 400 MB copied, 12.0 MB/s, 23 s to go`."""
        copied = self._most_remaining - self._remaining
        text = f"{self._done} of {counted(self._partitions, 'partition')} moved"
        if self._most_remaining:
            rate = copied / seconds
            left = f", {self._remaining / rate:.0f} s to go" if rate else ""
            text += f", {copied / _MB:,.0f} of {self._most_remaining / _MB:,.0f} MB copied, {rate / _MB:.1f} MB/s{left}"
        return text
