"""The task assignor `sticky` of streams groups (KIP-1071): tasks stay where their state is, as far as members stay
balanced.

Each member is to have its equal part of the active tasks, and of all tasks. An active task goes to the member that runs
it, else to one that has its state as a standby task, on its disk or in memory, else to the least loaded process; a
standby task goes to the member that ran its active copy before, else to one that has its state, else to the least
loaded process, never two copies of a task to one process. Which state is the more complete decides among members that
only have it on disk.

The result is the one of Apache Kafka 4.4, ties included: those are broken by the order of Java's hash tables
(`java_order`) and of its heap, so that a group whose coordinator moves between the two products moves no task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from kalda.assignors.server_assignor import AssignorError, MemberTasks, StreamsGroupSpec, TaskId
from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.java_order import java_order, java_order_steps

T = TypeVar("T")


class StickyTaskAssignor:
    """See the module."""

    name = "sticky"

    def assign(self, spec: StreamsGroupSpec) -> Steps[dict[str, MemberTasks]]:
        """The target of each member. Raises `AssignorError` where there are tasks and no members."""
        balance = _Balance(spec)
        yield from balance.remember()
        yield from balance.assign_active()
        if spec.num_standby_replicas > 0:
            yield from balance.assign_standby()
        return (yield from balance.result())


class _Heap(Generic[T]):
    """Java's PriorityQueue, which decides among equals by its history."""

    def __init__(self, key: Callable[[T], float], items: Iterable[T]) -> None:
        self._key = key
        self._items: list[T] = []
        for item in items:
            self.add(item)

    def add(self, item: T) -> None:
        items, key = self._items, self._key
        position, weight = len(items), key(item)
        items.append(item)
        while position > 0:
            parent = (position - 1) >> 1
            if weight >= key(items[parent]):
                break
            items[position] = items[parent]
            position = parent
        items[position] = item

    def poll(self) -> T | None:
        """The least, which is removed; None where there is nothing."""
        items, key = self._items, self._key
        if not items:
            return None
        least, last = items[0], items.pop()
        if items:
            position, weight = 0, key(last)
            while (child := 2 * position + 1) < len(items):
                if child + 1 < len(items) and key(items[child]) > key(items[child + 1]):
                    child += 1
                if weight <= key(items[child]):
                    break
                items[position] = items[child]
                position = child
            items[position] = last
        return least


class _Member:
    """One member, and what it is given."""

    __slots__ = ("active", "count", "member_id", "process", "standby", "weight")

    def __init__(self, member_id: str, process: _Process) -> None:
        self.member_id = member_id
        self.process = process
        self.active: defaultdict[str, set[int]] = defaultdict(set)
        self.standby: defaultdict[str, set[int]] = defaultdict(set)
        self.count = 0
        self.weight = 0
        """`count`, as the heap of its process has it."""


class _Process:
    """One instance of the application: its members, and the tasks of all of them."""

    __slots__ = ("_heap", "members", "tasks")

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.tasks: set[TaskId] = set()
        """Copies of all kinds; no two of one task."""
        self._heap: _Heap[_Member] | None = None

    @property
    def load(self) -> float:
        """Tasks a member."""
        return len(self.tasks) / len(self.members)

    def give(self, member: _Member, task: TaskId, is_active: bool) -> None:
        """The task to this member, which is one of the process."""
        self._heap = None
        self._add(member, task, is_active)

    def give_least_loaded(self, task: TaskId, is_active: bool) -> _Member:
        """The task to the member that has the fewest; that member is returned."""
        if len(self.members) == 1:
            self._add(self.members[0], task, is_active)
            return self.members[0]
        if self._heap is None:
            by_id = {member.member_id: member for member in self.members}
            for member in self.members:
                member.weight = member.count
            self._heap = _Heap(lambda each: each.weight, (by_id[each] for each in java_order(by_id)))
        member = self._heap.poll() or self.members[0]
        self._add(member, task, is_active)
        member.weight = member.count
        self._heap.add(member)
        return member

    def _add(self, member: _Member, task: TaskId, is_active: bool) -> None:
        (member.active if is_active else member.standby)[task.subtopology_id].add(task.partition)
        member.count += 1
        self.tasks.add(task)


@dataclass(slots=True)
class _Quota:
    """How many tasks a member may have. A member that has as many leaves the rest to the others, rounded up again."""

    tasks: int
    members: int

    @property
    def each(self) -> int:
        return -(-self.tasks // self.members) if self.members else 0

    def count(self, member: _Member) -> None:
        """The member has been given a task."""
        if member.count == self.each:
            self.members -= 1
            self.tasks -= member.count


class _Holder(NamedTuple):
    """A member that has the state of a task, though it does not run it."""

    member: _Member
    is_standby: bool
    """Whether it has the standby task. Else the state is on its disk."""
    offset: int


class _Balance:
    """One assignment in the making."""

    def __init__(self, spec: StreamsGroupSpec) -> None:
        self._spec = spec
        self._processes: dict[str, _Process] = {}
        self._members: list[_Member] = []
        tasks = sum(each.number_of_tasks for each in spec.subtopologies.values())
        stateful = sum(each.number_of_tasks for each in spec.subtopologies.values() if each.is_stateful)
        self._active_quota = _Quota(tasks, len(spec.members))
        self._quota = _Quota(tasks + stateful * spec.num_standby_replicas, len(spec.members))
        self._runners: dict[TaskId, _Member] = {}
        """By task, who ran it."""
        self._holders: dict[TaskId, list[_Holder]] = defaultdict(list)

    def remember(self) -> Steps[None]:
        """Find out who ran which task, and who has the state of which, the best first."""
        for member_id in (yield from java_order_steps(sorted(self._spec.members))):
            spec = self._spec.members[member_id]
            process = self._processes.setdefault(spec.process_id, _Process())
            member = _Member(member_id, process)
            process.members.append(member)
            self._members.append(member)
            for subtopology_id, partitions in spec.tasks.active.items():
                for partition in partitions:
                    self._runners[TaskId(subtopology_id, partition)] = member
            for subtopology_id, partitions in spec.tasks.standby.items():
                for partition in partitions:
                    task = TaskId(subtopology_id, partition)
                    self._holders[task].append(_Holder(member, True, spec.task_offsets.get(task, 0)))
            for task, offset in spec.task_offsets.items():
                if task.partition not in spec.tasks.standby.get(task.subtopology_id, ()):
                    self._holders[task].append(_Holder(member, False, offset))
            yield
        for count, holders in enumerate(self._holders.values()):
            holders.sort(key=lambda each: (not each.is_standby, -each.offset))
            if count % ITEMS_A_STEP == 0:
                yield

    def _tasks(self, *, only_stateful: bool) -> Steps[list[TaskId]]:
        """By partition, then by subtopology."""
        shapes = [
            (subtopology_id, shape.number_of_tasks)
            for subtopology_id, shape in sorted(self._spec.subtopologies.items(), key=itemgetter(0))
            if shape.is_stateful or not only_stateful
        ]
        tasks: list[TaskId] = []
        partition = 0
        while shapes := [each for each in shapes if each[1] > partition]:
            for count, (subtopology_id, _) in enumerate(shapes):
                tasks.append(TaskId(subtopology_id, partition))
                if count % ITEMS_A_STEP == 0:
                    yield
            partition += 1
        return tasks

    def _by_load(self) -> Steps[_Heap[_Process]]:
        """The processes in the order of a table that `computeIfAbsent` has filled, member by member: it puts a key at
        the head of its bucket, and doubles a table that is too full only when it is called again."""
        known = {self._spec.members[member.member_id].process_id for member in self._members[:-1]}
        capacity = 1 << max(len(self._members) - 1, 0).bit_length()
        order = yield from java_order_steps(reversed(self._processes), len(known), capacity)
        return _Heap(lambda process: process.load, (self._processes[each] for each in order))

    def _count_active(self, member: _Member) -> None:
        self._active_quota.count(member)
        self._quota.count(member)

    def assign_active(self) -> Steps[None]:
        """Each task to who ran it, else to who has its state, else to the process with the least load."""
        tasks = yield from self._tasks(only_stateful=False)
        for find in (self._runners.get, self._least_loaded_holder):
            left = []
            for count, task in enumerate(tasks):
                member = find(task)
                if member is not None and member.count < self._active_quota.each:
                    member.process.give(member, task, is_active=True)
                    self._count_active(member)
                else:
                    left.append(task)
                if count % ITEMS_A_STEP == 0:
                    yield
            tasks = left
        rest: dict[str, list[TaskId]] = defaultdict(list)
        for task in tasks:
            rest[task.subtopology_id].append(task)
        by_load = yield from self._by_load()
        for subtopology_id in sorted(rest):
            for count, task in enumerate(rest[subtopology_id]):
                process = by_load.poll()
                if process is None:
                    raise AssignorError(f"No process available to assign active task {task}.")
                self._count_active(process.give_least_loaded(task, is_active=True))
                by_load.add(process)
                if count % ITEMS_A_STEP == 0:
                    yield

    def _least_loaded_holder(self, task: TaskId, is_standby: bool = False) -> _Member | None:
        """Of those that have its state. For a standby task, only in processes that have no copy of it."""
        found: _Member | None = None
        for member, _, _ in self._holders.get(task, ()):
            if is_standby and task in member.process.tasks:
                continue
            if found is None or (member.process.load < found.process.load and member.count < found.count):
                found = member
        return found

    def _holder_for_standby(self, task: TaskId) -> _Member | None:
        """Who is given one more standby copy for the state that it has; None where no one is."""
        runner = self._runners.get(task)
        if runner is not None and task not in runner.process.tasks and runner.count < self._quota.each:
            return runner
        holder = self._least_loaded_holder(task, is_standby=True)
        return holder if holder is not None and holder.count < self._quota.each else None

    def assign_standby(self) -> Steps[None]:
        """As many copies of each task as there are replicas and processes for: first to who has the state."""
        tasks = yield from self._tasks(only_stateful=True)
        rest: dict[str, list[tuple[TaskId, int]]] = defaultdict(list)
        for count, task in enumerate(reversed(tasks)):
            missing = self._spec.num_standby_replicas
            while missing and (member := self._holder_for_standby(task)) is not None:
                member.process.give(member, task, is_active=False)
                self._quota.count(member)
                missing -= 1
            if missing:
                rest[task.subtopology_id].append((task, missing))
            if count % ITEMS_A_STEP == 0:
                yield
        by_load = yield from self._by_load()
        for subtopology_id in sorted(rest, reverse=True):
            for count, (task, missing) in enumerate(rest[subtopology_id]):
                while missing and self._give_standby(by_load, task):
                    missing -= 1
                if count % ITEMS_A_STEP == 0:
                    yield

    def _give_standby(self, by_load: _Heap[_Process], task: TaskId) -> bool:
        """A standby copy to the process with the least load that has no copy of it; False where all have one."""
        polled: list[_Process] = []
        while (process := by_load.poll()) is not None:
            polled.append(process)
            if task not in process.tasks:
                self._quota.count(process.give_least_loaded(task, is_active=False))
                break
        for each in reversed(polled):
            by_load.add(each)
        return process is not None

    def result(self) -> Steps[dict[str, MemberTasks]]:
        """What was given to whom."""
        given: dict[str, MemberTasks] = {}
        for member in self._members:
            given[member.member_id] = MemberTasks(
                active={each: frozenset(partitions) for each, partitions in member.active.items()},
                standby={each: frozenset(partitions) for each, partitions in member.standby.items()},
            )
            yield
        return given
