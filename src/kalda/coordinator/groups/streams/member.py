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
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from kalda.assignors.server_assignor import MemberTasks, TaskId, Tasks
from kalda.base.errors import ApiError, ErrorCode
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


# The next state of a member of a streams group, on the way from the tasks that it has to its target (KIP-1071).
#
# An active task changes hands in three steps: its member gets an assignment without it (UNREVOKED_TASKS), says in a
# heartbeat that it no longer has it, and only then another one gets it, which waits meanwhile (UNRELEASED_TASKS).
# Copies of one task share a directory within a process, so a process has at most one of them at a time, whatever part
# it plays: a member also waits for a standby or warm-up copy of another member of its process. The member itself
# changes the part of a copy at once, or keeps the copy until it may run the task: nothing is closed and restored for
# that.
#
# A member comes to the epoch of the target when it has given back all that it must. The rules are those of Apache
# Kafka 4.4. Pure: who has which task is looked up.

P = TypeVar("P")
_NO_EPOCHS: Final[Mapping[int, int]] = {}


class TaskHolders(Protocol):
    """Which processes have a task, of all members of the group."""

    @property
    def active_processes(self) -> Mapping[TaskId, str]:
        """The process that runs a task."""
        ...

    @property
    def standby_processes(self) -> Mapping[TaskId, frozenset[str]]:
        """Those that have a standby copy."""
        ...

    @property
    def warmup_processes(self) -> Mapping[TaskId, frozenset[str]]:
        """Those that have a warm-up copy."""
        ...


def next_member(
    member: StreamsMember, target_epoch: int, target: MemberTasks, holders: TaskHolders, owned: MemberTasks | None
) -> StreamsMember:
    """The member after its next step, or itself. `owned` is what it says that it has; None where it says nothing.
    Raises FENCED_MEMBER_EPOCH for a member in a state of a later release."""
    step = _Step(member, target_epoch, target, holders, owned)
    match member.state:
        case TaskState.STABLE:
            return member if member.epoch == target_epoch else step.advance(member.epoch)
        case TaskState.UNREVOKED_TASKS:
            return member if step.still_has(member.revoking.tasks) else step.advance(member.epoch + 1)
        case TaskState.UNRELEASED_TASKS:
            return step.advance(member.epoch)
        case TaskState.UNKNOWN:
            if owned is None or owned != MemberTasks():
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            return step.advance(target_epoch)


class _Step:
    """One step of one member."""

    def __init__(
        self,
        member: StreamsMember,
        target_epoch: int,
        target: MemberTasks,
        holders: TaskHolders,
        owned: MemberTasks | None,
    ) -> None:
        self._member = member
        self._target_epoch = target_epoch
        self._holders = holders
        self._owned = owned
        assigned = member.assigned
        self._kept = kept = _agreeing(assigned, target)
        """Subtopologies of which the member has its target exactly: no rule changes them."""
        self._target = MemberTasks(*(_without(part, kept) for part in (target.active, target.standby, target.warmup)))
        self._active = {
            TaskId(subtopology, partition): epoch
            for subtopology, partitions in _without(assigned.active, kept).items()
            for partition, epoch in partitions.items()
        }
        self._standby = set(task_ids(_without(assigned.standby, kept)))
        self._warmup = set(task_ids(_without(assigned.warmup, kept)))

    def still_has(self, tasks: MemberTasks) -> bool:
        """Whether the member may have one of these: one that does not say what it has may have all of them."""
        owned = self._owned
        return owned is None or any(
            not partitions.isdisjoint(held.get(subtopology, ()))
            for wanted, held in (
                (tasks.active, owned.active),
                (tasks.standby, owned.standby),
                (tasks.warmup, owned.warmup),
            )
            for subtopology, partitions in wanted.items()
        )

    def advance(self, epoch: int) -> StreamsMember:
        """Towards the target: `epoch` is kept while something is to be given back."""
        target, holders = self._target, self._holders
        processes = holders.active_processes, holders.standby_processes, holders.warmup_processes
        if not self._member.assigned and not any(processes):  # the first member: nothing is waited for
            first = {each: dict.fromkeys(tasks, self._target_epoch) for each, tasks in target.active.items()}
            held = HeldTasks(first, target.standby, target.warmup)
            return self._at(self._target_epoch, TaskState.STABLE, held, NO_TASKS)
        target_active, target_standby, target_warmup = (
            set(task_ids(tasks)) for tasks in (target.active, target.standby, target.warmup)
        )
        active = {task: since for task, since in self._active.items() if task in target_active}
        standby, warmup = self._standby & target_standby, self._warmup & target_warmup
        more_active = self._free_to_run(target_active - active.keys())
        more_standby = {task for task in target_standby - standby if not self._waits_for_standby(task)}
        more_warmup = {task for task in target_warmup - warmup if not self._waits_for_warmup(task)}
        waits = (
            len(target_active) > len(active) + len(more_active)
            or len(target_standby) > len(standby) + len(more_standby)
            or len(target_warmup) > len(warmup) + len(more_warmup)
        )
        # Copies whose part changes are not given back; those that are to run are kept until they may.
        revoking_standby = self._standby - target_standby - more_warmup - target_active
        revoking_warmup = self._warmup - target_warmup - more_standby - target_active
        demoted = more_standby & (self._active.keys() | self._warmup)
        cooled = more_warmup & self._standby
        standby |= demoted
        warmup |= cooled
        more_standby -= demoted
        more_warmup -= cooled
        revoking = HeldTasks(
            _by_subtopology({task: since for task, since in self._active.items() if task not in active}),
            _grouped(revoking_standby),
            _grouped(revoking_warmup),
        )
        must_revoke = bool(revoking) and self.still_has(revoking.tasks)
        promoted = set() if must_revoke else more_active
        standby |= (self._standby & target_active) - promoted
        warmup |= (self._warmup & target_active) - promoted
        if must_revoke:
            held = self._held(active, standby, warmup)
            return self._at(epoch, TaskState.UNREVOKED_TASKS, held, revoking)
        active.update(dict.fromkeys(more_active, self._target_epoch))
        held = self._held(active, standby | more_standby, warmup | more_warmup)
        state = TaskState.UNRELEASED_TASKS if waits else TaskState.STABLE
        return self._at(self._target_epoch, state, held, NO_TASKS)

    def _held(self, active: Mapping[TaskId, int], standby: set[TaskId], warmup: set[TaskId]) -> HeldTasks:
        """These, and those of subtopologies that no rule changes."""
        assigned, kept = self._member.assigned, self._kept
        return HeldTasks(
            _by_subtopology(active) | _only(assigned.active, kept),
            _grouped(standby) | _only(assigned.standby, kept),
            _grouped(warmup) | _only(assigned.warmup, kept),
        )

    def _free_to_run(self, tasks: set[TaskId]) -> set[TaskId]:
        """Those of which no process, and no other member of this one, has a copy that must be closed first."""
        free = tasks.difference(self._holders.active_processes)
        if self._holders.standby_processes:
            free = {task for task in free if not self._another_has_standby(task)}
        if self._holders.warmup_processes:
            free = {task for task in free if not self._another_has_warmup(task)}
        return free

    def _waits_for_standby(self, task: TaskId) -> bool:
        process_id = self._member.process_id
        runs_in_another = self._holders.active_processes.get(task) == process_id and task not in self._active
        return (
            runs_in_another
            or process_id in self._holders.standby_processes.get(task, ())
            or self._another_has_warmup(task)
        )

    def _waits_for_warmup(self, task: TaskId) -> bool:
        process_id = self._member.process_id
        return (
            self._holders.active_processes.get(task) == process_id
            or self._another_has_standby(task)
            or process_id in self._holders.warmup_processes.get(task, ())
        )

    def _another_has_standby(self, task: TaskId) -> bool:
        """Whether another member of the process has a standby copy."""
        return self._member.process_id in self._holders.standby_processes.get(task, ()) and task not in self._standby

    def _another_has_warmup(self, task: TaskId) -> bool:
        """Whether another member of the process has a warm-up copy."""
        return self._member.process_id in self._holders.warmup_processes.get(task, ()) and task not in self._warmup

    def _at(self, epoch: int, state: TaskState, assigned: HeldTasks, revoking: HeldTasks) -> StreamsMember:
        member = self._member
        return replace(
            member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking
        )


def _agreeing(held: HeldTasks, target: MemberTasks) -> frozenset[str]:
    """Subtopologies of which both have the same tasks, in the same parts."""
    none: frozenset[int] = frozenset()
    return frozenset(
        each
        for each in target.active.keys() | target.standby.keys() | target.warmup.keys()
        if held.active.get(each, _NO_EPOCHS).keys() == target.active.get(each, none)
        and held.standby.get(each, none) == target.standby.get(each, none)
        and held.warmup.get(each, none) == target.warmup.get(each, none)
    )


def _only(tasks: Mapping[str, P], subtopologies: frozenset[str]) -> dict[str, P]:
    return {each: partitions for each, partitions in tasks.items() if each in subtopologies}


def _without(tasks: Mapping[str, P], subtopologies: frozenset[str]) -> Mapping[str, P]:
    if not subtopologies:
        return tasks
    return {each: partitions for each, partitions in tasks.items() if each not in subtopologies}


def _grouped(tasks: Iterable[TaskId]) -> dict[str, frozenset[int]]:
    by_subtopology: dict[str, set[int]] = {}
    for subtopology, partition in tasks:
        by_subtopology.setdefault(subtopology, set()).add(partition)
    return {subtopology: frozenset(partitions) for subtopology, partitions in by_subtopology.items()}


def _by_subtopology(tasks: Mapping[TaskId, int]) -> dict[str, dict[int, int]]:
    by_subtopology: dict[str, dict[int, int]] = {}
    for (subtopology, partition), since in tasks.items():
        by_subtopology.setdefault(subtopology, {})[partition] = since
    return by_subtopology
