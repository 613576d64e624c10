"""Members of streams groups (KIP-1071): threads of an application, which run tasks and keep copies of them.

A member sends raw heartbeats to the coordinator, and processes nothing. Tasks that it has to give back it has for a
while yet, as a thread that closes them: meanwhile its heartbeats do not say what it has. At times it leaves, or ends
without a request, and joins as another member. Members are two to a process, and processes share nothing.

What a group promises:

- a task runs in one member at most, and a process has one copy of it at most, so that no standby copy is beside the
  task that runs: in one epoch, and of what members have at a time (`ownership`);
- no task is assigned that the topology does not have;
- in the end all members are in one epoch, every task runs in one of them, and those with state have their standby
  copies.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, random_uuid, uuid_to_text
from kalda.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
)
from kalda.sim.client import SimClient
from kalda.sim.ownership import Ownership, Thing

STANDBYS = 1
"""Copies of each task with state."""
_VERSION = 1
_HEARTBEAT_S = 0.4
_REBALANCE_MS = 2_500
_LEAVING = -1
_ANEW = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND))
_MEMBERS_A_PROCESS = 2

Task = tuple[str, int]
"""Subtopology and partition."""
Parts = tuple[frozenset[Task], frozenset[Task], frozenset[Task]]
"""Active, standby and warm-up tasks."""
_NOTHING: Parts = (frozenset(), frozenset(), frozenset())


class SimStreamsGroup:
    """One application, with a subtopology for each topic that it reads; the first one has state."""

    def __init__(self, name: str, partitions: list[TopicPartition], violated: Callable[[str], None]) -> None:
        self.name = name
        self.topics = sorted({topic for topic, _ in partitions})
        self.changelog = f"{name}-store-changelog"
        self.tasks = frozenset((str(self.topics.index(topic)), number) for topic, number in partitions)
        self.ownership = Ownership(name, violated, has_one_kind=True)
        self.done = False
        self.is_ending = False
        """Faults have ended: members stay."""
        self.current: dict[str, _Membership] = {}
        """The latest membership of each client."""
        self._violated = violated

    def topology(self) -> StreamsGroupHeartbeatRequestTopology:
        """What members join with."""
        subtopologies = [
            StreamsGroupHeartbeatRequestSubtopology(subtopology_id=str(number), source_topics=[topic])
            for number, topic in enumerate(self.topics)
        ]
        subtopologies[0].state_changelog_topics = [StreamsGroupHeartbeatRequestTopicInfo(name=self.changelog)]
        return StreamsGroupHeartbeatRequestTopology(epoch=0, subtopologies=subtopologies)

    def check(self, member: str, parts: Parts) -> None:
        """No member gets what does not exist."""
        unknown = frozenset().union(*parts) - self.tasks
        if unknown:
            self._violated(f"{self.name}: {member} gets tasks that the topology does not have: {sorted(unknown)}")

    def missing(self) -> str:
        """What the group has not come to yet; empty where it has come to everything."""
        members = list(self.current.values())
        epochs = {member.epoch for member in members}
        if len(epochs) != 1:
            return f"its members are in the epochs {sorted(epochs)}"
        active, standby = (Counter(task for each in members for task in each.assigned[part]) for part in (0, 1))
        processes = {member.process for member in members}
        copies = min(STANDBYS, len(processes) - 1)
        wrong = [task for task in self.tasks if active[task] != 1]
        wrong += [task for task in self.tasks if standby[task] != (copies if task[0] == "0" else 0)]
        return f"not all copies run of {sorted(set(wrong))}" if wrong else ""


class SimStreamsMember:
    """One thread's place in the application; `number` counts those of the group."""

    def __init__(self, client: SimClient, group: SimStreamsGroup, number: int) -> None:
        self._client = client
        self._group = group
        self._process = f"{group.name}-process-{number // _MEMBERS_A_PROCESS}"
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        group, client = self._group, self._client
        while not group.done:
            membership = group.current[client.name] = _Membership(client, group, self._process)
            await membership.run()
            await client.pause()


class _Membership:
    """A member from its first heartbeat to its end."""

    def __init__(self, client: SimClient, group: SimStreamsGroup, process: str) -> None:
        self.process = process
        self.epoch = 0
        self.assigned = _NOTHING
        self._client = client
        self._group = group
        self._rng = client.rng
        self._member_id = uuid_to_text(random_uuid(client.rng.randbytes))
        self._has = _NOTHING
        """What it has: what it was assigned, and what it has not closed yet."""
        self._closed_at_s = 0.0

    async def run(self) -> None:
        """Join, and stay until a random time."""
        client, group, world = self._client, self._group, self._client.world
        leave_at_s = world.now_s + self._rng.choice((1, 5, 20)) * self._rng.random()
        while not group.done and (group.is_ending or world.now_s < leave_at_s):
            try:
                await self._heartbeat()
            except ApiError as error:
                world.trace(client.name, f"{group.name}: {error}")
                if error.code in _ANEW:
                    return
                client.forget_leaders()
            await client.pause()
        if self._rng.random() < 0.5:
            self.epoch = _LEAVING
            with contextlib.suppress(ApiError):
                await self._heartbeat()

    async def _heartbeat(self) -> None:
        client, group, world = self._client, self._group, self._client.world
        request = StreamsGroupHeartbeatRequest(
            group_id=group.name, member_id=self._member_id, member_epoch=self.epoch, endpoint_information_epoch=-1
        )
        if self.epoch == 0:
            request.topology, request.process_id = group.topology(), self.process
            request.rebalance_timeout_ms = _REBALANCE_MS
        says = self.epoch >= 0 and world.now_s >= self._closed_at_s
        if says:
            self._has = self.assigned
            request.active_tasks, request.standby_tasks, request.warmup_tasks = map(_listed, self._has)
        ownership = group.ownership
        number = ownership.sent(self._member_id, self.epoch, set(self._things(self._has)) if says else None)
        address = await client.find_coordinator(group.name)
        answer = await client.ask(address, request, _VERSION)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            ownership.refused(self._member_id, code)
            raise ApiError(code, answer.error_message or "")
        if self.epoch == _LEAVING:
            return
        self.epoch = answer.member_epoch
        given = answer.active_tasks is not None
        if given:
            self._take((_tasks(answer.active_tasks), _tasks(answer.standby_tasks), _tasks(answer.warmup_tasks)))
        things = frozenset(self._things(self.assigned)) if given else None
        ownership.accepted(address[0], number, self._member_id, self.epoch, things)

    def _take(self, parts: Parts) -> None:
        """It has these from now on, and gives back what is not among them, at once or after a while."""
        group, client = self._group, self._client
        group.check(client.name, parts)
        self.assigned = parts
        if frozenset().union(*self._has) - frozenset().union(*parts):
            self._closed_at_s = client.world.now_s + self._rng.choice((0, 0, 0.5, 1.5)) * self._rng.random()
        active, standby, _ = ([f"{task[0]}_{task[1]}" for task in sorted(part)] for part in parts)
        client.world.trace(
            client.name, f"runs {', '.join(active) or 'nothing'}, copies {', '.join(standby) or 'nothing'}"
        )

    def _things(self, parts: Parts) -> Iterator[Thing]:
        """What is owned with these tasks: to run it, and the one copy in the process."""
        for task in parts[0]:
            yield "running", task
        for part in parts:
            for task in part:
                yield self.process, task


def _listed(tasks: frozenset[Task]) -> list[StreamsGroupHeartbeatRequestTaskIds]:
    numbers: dict[str, list[int]] = {}
    for subtopology, number in sorted(tasks):
        numbers.setdefault(subtopology, []).append(number)
    return [
        StreamsGroupHeartbeatRequestTaskIds(subtopology_id=subtopology, partitions=each)
        for subtopology, each in numbers.items()
    ]


def _tasks(listed: Any) -> frozenset[Task]:
    return frozenset((each.subtopology_id, number) for each in listed or () for number in each.partitions)
