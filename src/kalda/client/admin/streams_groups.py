"""Streams groups (KIP-1071): what StreamsGroupDescribe says of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.group_values import Group, Member, StreamsTasks
from kalda.clientcore.connections.errors import refused
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseTaskIds,
)


def read_streams_groups(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Group | ApiError]]:
    """Each group of a StreamsGroupDescribe response."""
    for group in answer.groups:
        if group.error_code:
            yield group.group_id, refused(group.error_code, f"group {group.group_id!r}", group.error_message)
            continue
        subtopologies = () if group.topology is None else group.topology.subtopologies or ()
        sources = {
            each.subtopology_id: (*each.source_topics, *(topic.name for topic in each.repartition_source_topics))
            for each in subtopologies
        }
        members = tuple(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _read_by(member.assignment, sources),
                member.member_epoch,
                _read_by(member.target_assignment, sources),
                None,
                StreamsTasks(
                    _task_names(member.assignment.active_tasks),
                    _task_names(member.assignment.standby_tasks),
                    _task_names(member.assignment.warmup_tasks),
                ),
                member.process_id,
            )
            for member in group.members
        )
        yield (
            group.group_id,
            Group(
                group.group_id,
                "streams",
                group.group_state,
                group.assignor_name or "",
                -1,
                members,
                group.group_epoch,
                group.assignment_epoch,
            ),
        )


def _read_by(
    assignment: StreamsGroupDescribeResponseAssignment, sources: Mapping[str, Collection[str]]
) -> tuple[TopicPartition, ...]:
    """Partitions of the active tasks. A topic may have fewer partitions than its subtopology has tasks."""
    return tuple(
        TopicPartition(topic, index)
        for task in assignment.active_tasks
        for topic in sorted(sources.get(task.subtopology_id, ()))
        for index in task.partitions
    )


def _task_names(tasks: Collection[StreamsGroupDescribeResponseTaskIds]) -> tuple[str, ...]:
    return tuple(f"{each.subtopology_id}_{partition}" for each in tasks for partition in each.partitions)
