"""Members of consumer groups and of streams groups, and who owns what of a group.

Members of consumer groups share partitions, read from the committed offsets on, commit, leave and join again.

A member is Kalda's own consumer; the members of a group have one assignor. They use the classic protocol, that of
KIP-848, or each of them at times the one and at times the other; then the group changes its kind while it consumes.

The guarantees of a group: a committed offset never decreases, for any member that fetches it; so a commit of a member
of an earlier generation changes nothing. And no record is skipped: every record below the committed offset was read by
some member. What `Ownership` promises holds for members of the consumer protocol.

A commit without a response may still be carried out, even after later ones of the same generation, since commits have
no sequence number. So after a request to commit whose outcome is unknown, a member makes no other commit; it leaves the
group and joins it as another member.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, random_uuid, uuid_to_text
from kalda.client.consumer.consumer_calls import Offset, Partition
from kalda.clientcore.connections.connections import OnDone
from kalda.clientcore.consuming.positions import committed_errors, read_committed
from kalda.protocol.messages.groups import ConsumerGroupHeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kalda.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
)
from kalda.protocol.notation import Request
from kalda.sim.client import SimClient
from kalda.sim.history import RunHistory
from kalda.sim.workload import CheckedReader

# Who owns what of a group, as its members' heartbeats and their answers say: partitions of a consumer group
# (KIP-848), tasks of a streams group (KIP-1071).
#
# A member owns a thing from the answer that assigns it until its next heartbeat that does not name it, or until an
# answer says that it is no member any more. Two promises follow:
#
# - in one epoch of a group, a thing is assigned to one member at most;
# - where a thing is assigned while another member still has it, that one was removed: no heartbeat that it sends from
#   then on is accepted.
#
# A coordinator that was replaced, but has not received that yet, may accept heartbeats until then. So the second
# promise is checked for answers of the node that has assigned the thing.

Thing: TypeAlias = tuple[Any, ...]


class _Owner:
    """What one member owns."""

    __slots__ = ("assigned", "held", "replaced_by", "replaced_number")

    def __init__(self) -> None:
        self.assigned: frozenset[Thing] = frozenset()
        """By its latest answer with an assignment."""
        self.held: set[Thing] = set()
        self.replaced_by = ""
        """Who was given a thing that this member held, and by which node; empty where no member was."""
        self.replaced_number = 0
        """The heartbeats up to this number were sent before that."""


class Ownership:
    """Of one group."""

    def __init__(self, group: str, violated: Callable[[str], None], *, has_one_kind: bool) -> None:
        """`has_one_kind`: the group has members of the consumer protocol only, so that its epochs go on."""
        self._group = group
        self._violated = violated
        self._has_one_kind = has_one_kind
        self._owners: dict[str, _Owner] = {}
        self._holders: dict[Thing, set[str]] = {}
        """The members that hold each thing."""
        self._in_epoch: dict[tuple[int, Thing], str] = {}
        self._sent = 0
        self._ended: dict[str, int] = {}
        """The number of each member's latest heartbeat by which it left or began anew: it ignores answers to earlier
        ones."""

    def watched(self, node_id: int, request: ConsumerGroupHeartbeatRequest, on_done: OnDone) -> OnDone:
        """What is called with the answer to a heartbeat that is being sent to a node."""
        member, has = request.member_id, request.topic_partitions
        number = self.sent(member, request.member_epoch, None if has is None else set(_keys(has)))

        def answered(response: Any, error: ApiError | None) -> None:
            if request.member_epoch >= 0 and response is not None:
                if response.error_code:
                    self.refused(member, ErrorCode(response.error_code))
                else:
                    assigned = response.assignment
                    keys = None if assigned is None else frozenset(_keys(assigned.topic_partitions))
                    self.accepted(str(node_id), number, member, response.member_epoch, keys)
            on_done(response, error)

        return answered

    def sent(self, member: str, epoch: int, has: set[Thing] | None) -> int:
        """A member sends a heartbeat, which names what it has, or nothing of that. Returns the heartbeat's number."""
        self._sent += 1
        if epoch <= 0:  # it leaves, or begins anew without anything
            self._forget(member)
            self._ended[member] = self._sent
        elif has is not None and member in self._owners:
            self._hold(member, has)
        return self._sent

    def _hold(self, member: str, held: set[Thing]) -> None:
        owner = self._owners[member]
        for key in owner.held - held:
            self._holders[key].discard(member)
        for key in held - owner.held:
            self._holders.setdefault(key, set()).add(member)
        owner.held = held

    def _forget(self, member: str) -> None:
        if member in self._owners:
            self._hold(member, set())
            del self._owners[member]

    def refused(self, member: str, code: ErrorCode) -> None:
        """The answer to a heartbeat is an error."""
        if not code.retriable:
            self._forget(member)

    def accepted(self, node: str, number: int, member: str, epoch: int, assigned: frozenset[Thing] | None) -> None:
        """A node has accepted the heartbeat with this number, and assigns something else than before, unless that is
        None."""
        if number < self._ended.get(member, 0):
            return
        owner = self._owners.setdefault(member, _Owner())
        if owner.replaced_by.startswith(f"{node}:") and number > owner.replaced_number:
            self._violated(f"{self._group}: {member} is a member still, but {owner.replaced_by} has what it had")
        if assigned is not None:
            owner.assigned = assigned
            for key in sorted(assigned - owner.held):
                for name in sorted(self._holders.get(key, ())):
                    other = self._owners[name]
                    other.replaced_by, other.replaced_number = f"{node}:{member}", self._sent
            self._hold(member, owner.held | assigned)
        if self._has_one_kind:
            for key in sorted(owner.assigned):
                first = self._in_epoch.setdefault((epoch, key), member)
                if first != member:
                    self._violated(f"{self._group}: {key} has two owners in epoch {epoch}: {first} and {member}")


def _keys(topics: Iterable[Any]) -> Iterable[tuple[Uuid, int]]:
    return ((topic.topic_id, number) for topic in topics for number in topic.partitions)


SESSION_MS = 3_000
HEARTBEAT_MS = 500
_POLL_INTERVALS_MS = (2_500, 60_000)
_POLL_S = 0.5
_COMMIT_S = 4.0
_CLOSE_S = 5.0


class SimGroup:
    """What a group has read and committed."""

    def __init__(
        self, name: str, partitions: list[TopicPartition], rng: Random, protocols: tuple[str, ...] = ("classic",)
    ) -> None:
        """`protocols`: those of which a member has one each time it joins."""
        self.name = name
        self.protocols = protocols
        self.ownership: Ownership | None = None
        """Set where members use the consumer protocol."""
        self.assignor = rng.choice(("range", "roundrobin", "sticky", "cooperative-sticky"))
        self.topics = sorted({topic for topic, _ in partitions})
        self.read: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self.committed = dict.fromkeys(partitions, 0)
        """The highest offset whose commit was acknowledged, or that a member has fetched."""
        self.attempted = dict.fromkeys(partitions, 0)
        """The highest offset of which a commit was attempted."""
        self.ends: dict[TopicPartition, int] | None = None
        """The log end offsets, set when nothing is written any more: the members read up to these, and end."""

    @property
    def done(self) -> bool:
        """Every record was read, and the ends of all logs are committed."""
        return self.ends is not None and all(self.committed[each] >= end for each, end in self.ends.items())

    def config(self, rng: Random) -> dict[str, object]:
        """The configuration of a member."""
        common: dict[str, object] = {"group.id": self.name, "max.poll.interval.ms": rng.choice(_POLL_INTERVALS_MS)}
        if "consumer" in self.protocols and (len(self.protocols) == 1 or rng.random() < 0.5):
            return common | {"group.protocol": "consumer", "group.remote.assignor": rng.choice(("uniform", "range"))}
        return common | {
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }


class SimMember:
    """One member's process. At times it leaves, or drops its member id, and joins as a new member."""

    def __init__(self, client: SimClient, history: RunHistory, group: SimGroup, rack: str = "") -> None:
        self._client = client
        self._history = history
        self._group = group
        self._rack = rack
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        while not self._group.done:
            membership = _Membership(self._client, self._history, self._group, self._rack)
            await membership.run()
            await self._client.pause()


class _Membership(CheckedReader):
    """A member from its first join to its end."""

    def __init__(self, client: SimClient, history: RunHistory, group: SimGroup, rack: str) -> None:
        self._group = group
        self._may_commit = True
        """No request to commit of this member has an unknown outcome."""
        super().__init__(client, history, rack, group.config(client.rng))

    async def run(self) -> None:
        """Join, read and commit until a random time."""
        client, group, consumer = self._client, self._group, self.consumer
        rng, world = client.rng, client.world
        consumer.subscribe(group.topics, on_assigned=self._on_assigned)
        leave_at_s = world.now_s + rng.choice((1, 5, 20)) * rng.random()
        while not group.done and self._may_commit:
            for partition, records in (await self.poll(_POLL_S)).items():
                group.read[partition].update(offset for offset, _ in records)
            if rng.random() < 0.3 or group.ends is not None:
                await self._commit()
            if world.now_s > leave_at_s and group.ends is None:
                break
        leaves = rng.random() < 0.5
        if leaves and group.ends is None and self._may_commit:
            await self._commit()
        await consumer.close(timeout=_CLOSE_S, leave_group=None if leaves else False)

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._client.world.trace(self._client.name, f"gets {', '.join(map(str, partitions)) or 'no partition'}")

    def _on_skipped(self, partition: TopicPartition, start: int, end: int) -> None:
        self._group.read[partition].update(range(start, end))  # a later leader may still have their records

    async def _commit(self) -> None:
        """Commit what was read."""
        group = self._group
        offsets: dict[Partition, Offset] = {
            partition: position
            for partition, position in sorted(self.consumer.positions().items())
            if position.offset != group.committed[partition]
        }
        try:
            await self.consumer.commit(offsets, timeout=_COMMIT_S)
        except ApiError as error:
            self._client.world.trace(self._client.name, f"cannot commit: {error}")
        else:
            self._client.world.trace(self._client.name, f"committed {_text(offsets)}")

    # Requests of this member.

    def _tap(self, node_id: int, request: Request, on_done: OnDone) -> OnDone | None:
        if isinstance(request, OffsetCommitRequest):
            return self._watched_commit(request, on_done)
        if isinstance(request, OffsetFetchRequest):
            return self._watched_fetch(request, on_done)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and self._group.ownership is not None:
            return self._group.ownership.watched(node_id, request, on_done)
        return super()._tap(node_id, request, on_done)

    def _watched_commit(self, request: OffsetCommitRequest, on_done: OnDone) -> OnDone:
        group = self._group
        offsets = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in request.topics
            for each in topic.partitions
        }
        for partition, offset in offsets.items():
            group.attempted[partition] = max(group.attempted[partition], offset)

        def committed(response: Any, error: ApiError | None) -> None:
            if response is None:
                self._may_commit = False
            else:
                refused = {partition for partition, _ in committed_errors(request, response)}
                for partition, offset in offsets.items():
                    if partition not in refused:
                        group.committed[partition] = max(group.committed[partition], offset)
            on_done(response, error)

        return committed

    def _watched_fetch(self, request: OffsetFetchRequest, on_done: OnDone) -> OnDone:
        """The committed offsets must include every commit that was acknowledged before the request."""
        group, world = self._group, self._client.world
        floor = dict(group.committed)

        def fetched(response: Any, error: ApiError | None) -> None:
            if response is not None and not response.error_code:
                found, failed = read_committed(response)
                for topic in request.topics or ():
                    for index in topic.partition_indexes:
                        partition = TopicPartition(topic.name, index)
                        if partition in failed:
                            continue
                        offset = found[partition].offset if partition in found else 0
                        if offset < floor[partition]:
                            world.violated(
                                f"{group.name} had committed {floor[partition]} of {partition}, and now has {offset}"
                            )
                        if offset > group.attempted[partition]:
                            world.violated(f"no member of {group.name} committed {offset} of {partition}")
                        group.committed[partition] = max(group.committed[partition], offset)
            on_done(response, error)

        return fetched


def _text(offsets: Mapping[Any, Any]) -> str:
    return ", ".join(f"{topic}-{index} {position.offset}" for (topic, index), position in offsets.items())


def judge(group: SimGroup, partition: TopicPartition, log: dict[int, bytes]) -> str:
    """How the group has violated its guarantees for a partition with these final records; empty where it has not."""
    skipped = [offset for offset in log if offset < group.committed[partition] and offset not in group.read[partition]]
    return f"{group.name} never read {sorted(skipped)[:5]} of {partition}, but committed beyond" if skipped else ""


# Members of streams groups (KIP-1071): threads of an application, which run tasks and keep copies of them.
#
# A member sends raw heartbeats to the coordinator, and processes nothing. Tasks that it has to give back it has for a
# while yet, as a thread that closes them: meanwhile its heartbeats do not say what it has. At times it leaves, or
# ends without a request, and joins as another member. Members are two to a process, and processes share nothing.
#
# What a group promises:
#
# - a task runs in one member at most, and a process has one copy of it at most, so that no standby copy is beside the
#   task that runs: in one epoch, and of what members have at a time (`Ownership`);
# - no task is assigned that the topology does not have;
# - in the end all members are in one epoch, every task runs in one of them, and those with state have their standby
#   copies.

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
        self.current: dict[str, _StreamsMembership] = {}
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
            membership = group.current[client.name] = _StreamsMembership(client, group, self._process)
            await membership.run()
            await client.pause()


class _StreamsMembership:
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
