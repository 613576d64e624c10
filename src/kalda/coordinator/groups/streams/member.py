"""A member of a streams group (KIP-1071) as a value, and its two records.

A member is one thread of a process of the application. It is replaced, never changed. StreamsGroupMemberMetadata has
what the client said of itself, StreamsGroupCurrentMemberAssignment which tasks the coordinator has given it so far.

Each active task has the epoch in which the member got it: offsets that the member commits in an older epoch than its
own are still its own if they are not older than that (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeAlias

from kalda.assignors.task_assignor import MemberTasks, TaskId, Tasks
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from kalda.protocol.messages.group_records import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupCurrentMemberAssignmentValueTaskIds,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMemberMetadataValueEndpoint,
    StreamsGroupMemberMetadataValueKeyValue,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMemberValueTaskIds,
)

_NO_TOPOLOGY = -1

ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""By subtopology and partition, the epoch in which the member got the task. No subtopology has none."""


class TaskState(IntEnum):
    """Where a member is on its way to its target. The values are those of its record."""

    STABLE = 1
    """It has all of the target of its epoch."""
    UNREVOKED_TASKS = 2
    """It must give tasks back before it comes to the next epoch."""
    UNRELEASED_TASKS = 3
    """It waits for tasks that others have not given back."""
    UNKNOWN = 127
    """Of a later release."""


class Endpoint(NamedTuple):
    """Where a process answers interactive queries (`application.server`)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Tasks that a member has, by the part that they play."""

    active: ActiveTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    @property
    def tasks(self) -> MemberTasks:
        """The same, without epochs."""
        active = {subtopology: frozenset(partitions) for subtopology, partitions in self.active.items()}
        return MemberTasks(active, self.standby, self.warmup)

    def joined_with(self, other: HeldTasks) -> tuple[Tasks, Tasks, Tasks]:
        """Active, standby and warm-up tasks of both."""
        return (
            _joined(self.active, other.active),
            _joined(self.standby, other.standby),
            _joined(self.warmup, other.warmup),
        )


NO_TASKS: Final = HeldTasks()


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """One member."""

    member_id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    """The epoch before: a member whose answer was lost still has that one."""
    state: TaskState = TaskState.STABLE
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = _NO_TOPOLOGY
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    assigned: HeldTasks = NO_TASKS
    revoking: HeldTasks = NO_TASKS
    """Tasks that it is to give back and still has."""

    @property
    def leaves_at_once(self) -> bool:
        """Its place is kept until it has left for a while, or for good."""
        return False

    def absent(self) -> StreamsMember:
        """A static member that has left for a while. Whoever returns in its place has its tasks since epoch 0."""
        active = {subtopology: dict.fromkeys(partitions, 0) for subtopology, partitions in self.assigned.active.items()}
        return replace(
            self, epoch=STATIC_LEAVING_EPOCH, assigned=replace(self.assigned, active=active), revoking=NO_TASKS
        )

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Whether it has all of the target of that epoch."""
        return self.state is TaskState.STABLE and self.epoch == assignment_epoch

    def assignment_epoch(self, subtopology: str, partition: int) -> int | None:
        """The epoch in which it got an active task that it has; None for others."""
        for held in (self.assigned, self.revoking):
            epoch = held.active.get(subtopology, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    # -- records -------------------------------------------------------------------------------------------------

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
        """With the fields that the client gives, as the record has them."""
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
            client_tags={each.key: each.value for each in value.client_tags},
        )

    def with_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsMember:
        """Which tasks it has, as the record has it."""
        known = value.state in TaskState._value2member_map_
        epoch = value.member_epoch
        return replace(
            self,
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=TaskState(value.state) if known else TaskState.UNKNOWN,
            assigned=HeldTasks(
                _active_from(value.active_tasks, epoch), tasks_from(value.standby_tasks), tasks_from(value.warmup_tasks)
            ),
            revoking=HeldTasks(
                _active_from(value.active_tasks_pending_revocation, epoch),
                tasks_from(value.standby_tasks_pending_revocation),
                tasks_from(value.warmup_tasks_pending_revocation),
            ),
        )

    def without_assignment(self) -> StreamsMember:
        """As it is when the record of its assignment has been deleted."""
        return replace(self, epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH, assigned=NO_TASKS, revoking=NO_TASKS)

    def metadata_value(self) -> StreamsGroupMemberMetadataValue:
        """The record of the fields that the client gives."""
        endpoint = self.endpoint
        return StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None
            if endpoint is None
            else StreamsGroupMemberMetadataValueEndpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[
                StreamsGroupMemberMetadataValueKeyValue(key=key, value=tag)
                for key, tag in sorted(self.client_tags.items())
            ],
        )

    def assignment_value(self) -> StreamsGroupCurrentMemberAssignmentValue:
        """The record of which tasks it has."""
        return StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state.value,
            active_tasks=_active_to(self.assigned.active),
            standby_tasks=_tasks_to(self.assigned.standby),
            warmup_tasks=_tasks_to(self.assigned.warmup),
            active_tasks_pending_revocation=_active_to(self.revoking.active),
            standby_tasks_pending_revocation=_tasks_to(self.revoking.standby),
            warmup_tasks_pending_revocation=_tasks_to(self.revoking.warmup),
        )


def _joined(first: Mapping[str, Iterable[int]], second: Mapping[str, Iterable[int]]) -> Tasks:
    found = {subtopology: frozenset(partitions) for subtopology, partitions in first.items()}
    for subtopology, partitions in second.items():
        found[subtopology] = found.get(subtopology, frozenset()).union(partitions)
    return found


def task_ids(tasks: Mapping[str, Iterable[int]]) -> Iterator[TaskId]:
    """Each task, on its own."""
    return chain.from_iterable(map(TaskId, repeat(each), partitions) for each, partitions in tasks.items())


def tasks_from(listed: Iterable[Any]) -> Tasks:
    """Tasks of a record or a request, which lists subtopologies (`subtopology_id`) with `partitions`."""
    found: dict[str, frozenset[int]] = {}
    for each in listed:
        if each.partitions:
            known = found.get(each.subtopology_id, frozenset())
            found[each.subtopology_id] = known.union(each.partitions)
    return found


def target_from(value: StreamsGroupTargetAssignmentMemberValue) -> MemberTasks:
    """The target of a member, as its record has it."""
    return MemberTasks(tasks_from(value.active_tasks), tasks_from(value.standby_tasks), tasks_from(value.warmup_tasks))


def target_value(target: MemberTasks) -> StreamsGroupTargetAssignmentMemberValue:
    """The record of a member's target."""

    def listed(tasks: Tasks) -> list[StreamsGroupTargetAssignmentMemberValueTaskIds]:
        return [
            StreamsGroupTargetAssignmentMemberValueTaskIds(subtopology_id=each, partitions=sorted(tasks[each]))
            for each in sorted(tasks)
        ]

    return StreamsGroupTargetAssignmentMemberValue(
        active_tasks=listed(target.active), standby_tasks=listed(target.standby), warmup_tasks=listed(target.warmup)
    )


def _active_from(listed: Iterable[StreamsGroupCurrentMemberAssignmentValueTaskIds], member_epoch: int) -> ActiveTasks:
    """Where a record has no epochs of its tasks, that of the member counts."""
    found: dict[str, Mapping[int, int]] = {}
    for each in listed:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [member_epoch] * len(each.partitions)
        if each.partitions:
            found[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
    return found


def _active_to(active: ActiveTasks) -> list[StreamsGroupCurrentMemberAssignmentValueTaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentValueTaskIds(
            subtopology_id=each,
            partitions=(partitions := sorted(active[each])),
            assignment_epochs=[active[each][partition] for partition in partitions],
        )
        for each in sorted(active)
    ]


def _tasks_to(tasks: Tasks) -> list[StreamsGroupCurrentMemberAssignmentValueTaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentValueTaskIds(subtopology_id=each, partitions=sorted(tasks[each]))
        for each in sorted(tasks)
    ]
