"""The target assignment of a streams group, computed for its group epoch by a task assignor, in steps, since a group
may have many members and tasks."""

from __future__ import annotations

from collections.abc import Mapping

from kalda.assignors.server_assignor import AssignorError
from kalda.assignors.task_assignor import MemberTasks, StreamsGroupSpec, StreamsMemberSpec, SubtopologyShape, TaskId
from kalda.base.background import Steps
from kalda.coordinator.groups.streams.config import StreamsSettings
from kalda.coordinator.groups.streams.group import MemberOffsets, StreamsGroup
from kalda.coordinator.groups.streams.member import task_ids
from kalda.coordinator.groups.streams.topology import ConfiguredTopology

_SMALL = 500
"""Members and tasks together."""
_MEMBERS_A_STEP = 20
_TASKS_A_STEP = 5_000


class TaskAssigner:
    """Computes the target assignments of one shard's streams groups."""

    def __init__(self, settings: StreamsSettings) -> None:
        self._settings = settings

    def is_small(self, group: StreamsGroup) -> bool:
        """Whether the target takes some milliseconds at most, so that a member need not wait for its next heartbeat to
        get it."""
        configured = group.configured
        tasks = 0 if configured is None else sum(each.number_of_tasks for each in configured.subtopologies.values())
        return len(group.members) + tasks <= _SMALL

    def target(self, group: StreamsGroup) -> Steps[tuple[Mapping[str, MemberTasks], str]]:
        """By member, and the name of the assignor. Without its topics a topology has no tasks, and all members get an
        empty target. Raises `AssignorError`."""
        configured = group.configured
        assert configured is not None, "a topology is configured before it is assigned"
        assignor = self._settings.assignor(group.group_id)
        if not configured.is_ready:
            return dict.fromkeys(group.members, MemberTasks()), assignor.name
        spec = yield from _spec(group, configured)
        target = yield from assignor.assign(spec)
        yield from _check_target(spec, target)
        return target, assignor.name


def _spec(group: StreamsGroup, configured: ConfiguredTopology) -> Steps[StreamsGroupSpec]:
    members: dict[str, StreamsMemberSpec] = {}
    for count, member in enumerate(list(group.members.values()), 1):
        offsets = group.task_offsets.get(member.member_id, MemberOffsets())
        members[member.member_id] = StreamsMemberSpec(
            member.process_id,
            member.assigned.tasks,
            offsets.current,
            offsets.end,
            member.instance_id,
            member.rack,
            member.client_tags,
        )
        if count % _MEMBERS_A_STEP == 0:
            yield
    configs = group.assignment_configs
    tags = configs.get("rack.aware.assignment.tags", "")
    return StreamsGroupSpec(
        members,
        {
            subtopology_id: SubtopologyShape(each.number_of_tasks, each.is_stateful)
            for subtopology_id, each in configured.subtopologies.items()
        },
        int(configs.get("num.standby.replicas", "0")),
        tuple(tags.split(",")) if tags else (),
    )


def _check_target(spec: StreamsGroupSpec, target: Mapping[str, MemberTasks]) -> Steps[None]:
    """Raises `AssignorError` unless every member has a target of tasks that the topology has, and none is to run in two
    members. An assignor may be a user's."""
    if target.keys() != spec.members.keys():
        raise AssignorError("the assignment does not have all members of the group, or has others")
    taken: set[TaskId] = set()
    done = 0
    for tasks in target.values():
        for each in (tasks.active, tasks.standby, tasks.warmup):
            for subtopology, partitions in each.items():
                shape = spec.subtopologies.get(subtopology)
                if shape is None or any(not 0 <= partition < shape.number_of_tasks for partition in partitions):
                    raise AssignorError(f"a task that subtopology {subtopology} does not have is assigned")
        active = set(task_ids(tasks.active))
        if not taken.isdisjoint(active):
            raise AssignorError("a task is assigned to two members")
        taken |= active
        done += 1 + tasks.count
        if done >= _TASKS_A_STEP:
            done = 0
            yield
