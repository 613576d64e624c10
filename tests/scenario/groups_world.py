"""A coordinator in virtual time over a log in memory, and members whose requests take one line each.

`World` holds the log of `__consumer_offsets` (bytes of batches, as on disk), its high watermark, the topics and the
clock. A new coordinator can be elected over the same log at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kalda.assignors.server_assignor import GroupSpec, ServerAssignor, TargetAssignment, TaskAssignor, TopicShape
from kalda.assignors.sticky_task_assignor import StickyTaskAssignor
from kalda.base.background import Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey
from kalda.coordinator.groups.config import (
    ConsumerGroupConfig,
    GroupCoordinatorConfig,
    ShareGroupConfig,
    ShareServices,
    StreamsGroupConfig,
    StreamsServices,
)
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.coordinator.groups.shard import GroupShard
from kalda.coordinator.partition import TransactionalProducer
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.coordinator.share.records import StateSummary
from kalda.protocol.codec import encode
from kalda.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kalda.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.storage.values import TransactionEnd

LATEST = {JoinGroupRequest: 9, SyncGroupRequest: 5, HeartbeatRequest: 4, LeaveGroupRequest: 5}


class Context(NamedTuple):
    api_version: int
    client_id: str | None = "app"
    client_host: str = "127.0.0.1"
    authorizer: Any = None


class EvenAssignor:
    """Deals partitions in order to the members in order of their ids, keeping what a member has where it can."""

    name = "even"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        yield from ()
        assigned: dict[str, dict[Uuid, set[int]]] = {member_id: {} for member_id in spec.members}
        for topic_id, shape in sorted(spec.topics.items()):
            subscribers = sorted(each for each, member in spec.members.items() if topic_id in member.topics)
            most = -(-shape.partitions // len(subscribers)) if subscribers else 0
            free = set(range(shape.partitions))
            for member_id in subscribers:
                kept = sorted(spec.current.get(member_id, {}).get(topic_id, frozenset()) & free)[:most]
                assigned[member_id][topic_id] = set(kept)
                free -= set(kept)
            for partition in sorted(free):
                fewest = min(subscribers, key=lambda each: (len(assigned[each][topic_id]), each), default=None)
                if fewest is not None:
                    assigned[fewest][topic_id].add(partition)
        return {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in topics.items() if numbers}
            for member_id, topics in assigned.items()
        }


_MAX_MESSAGE_BYTES = 1_048_588


class MemoryLog:
    """Partitions as lists of batches. `replicated`: the high watermark follows each append at once."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.ends: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}
        self.replicated = True
        self.failure: ErrorCode | None = None
        """What every append fails with."""
        self.read_failure: str | None = None
        """Why every load fails."""
        self.appends = 0
        self.guards: list[object] = []
        """With which transactional batches came."""
        self.on_append: Any = None

    def append(
        self,
        partition: int,
        records: list[tuple[bytes, bytes | None]],
        now_ms: int,
        producer: TransactionalProducer | None = None,
    ) -> int:
        more: dict[str, Any] = {}
        if producer is not None:
            more = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "is_transactional": True}
            self.guards.append(producer.verification)
        start = self.ends.get(partition, 0)
        rows = [(now_ms, key, value, ()) for key, value in records]
        return self._append(partition, bytes(build_batch(rows, base_offset=start, **more)), len(records))

    def append_marker(self, partition: int, end: TransactionEnd, now_ms: int) -> int:
        batch = transaction_marker_batch(
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            commit=end.is_commit,
            coordinator_epoch=end.coordinator_epoch,
            timestamp_ms=now_ms,
            base_offset=self.ends.get(partition, 0),
        )
        return self._append(partition, bytes(batch), 1)

    def _append(self, partition: int, batch: bytes, count: int) -> int:
        if self.failure is not None:
            raise ApiError(self.failure)
        self.appends += 1
        if len(batch) > _MAX_MESSAGE_BYTES:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        self.batches.setdefault(partition, []).append(batch)
        self.ends[partition] = end = self.ends.get(partition, 0) + count
        if self.replicated:
            self.high_watermarks[partition] = end
            self.on_append(partition, end)
        return end

    def read_all(self, partition: int) -> Iterator[bytes]:
        yield from self.batches.get(partition, ())


class MemoryTopics:
    def __init__(self) -> None:
        self.ids: dict[str, Uuid] = {}
        self.partitions: dict[str, int] = {}

    def add(self, name: str, partitions: int = 4, generation: int = 1) -> Uuid:
        self.ids[name] = topic_id = Uuid(f"{name}/{generation}".encode().ljust(16, b"."))
        self.partitions[name] = partitions
        return topic_id

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        topic_id = self.ids.get(name)
        return None if topic_id is None else (topic_id, TopicShape(name, self.partitions[name]))

    def names(self) -> list[str]:
        return list(self.ids)

    def remove(self, name: str) -> None:
        del self.ids[name], self.partitions[name]

    def name_of(self, topic_id: Uuid) -> str | None:
        return next((name for name, held in self.ids.items() if held == topic_id), None)

    def id_of(self, name: str) -> Uuid | None:
        return self.ids.get(name)

    def has_partition(self, name: str, partition: int) -> bool:
        return 0 <= partition < self.partitions.get(name, 0)


class MemoryShareStates:
    """A share coordinator, and the ends of all partitions. Answers wait while `holds` is set."""

    def __init__(self) -> None:
        self.starts: dict[SharePartitionKey, int] = {}
        self.epochs: dict[SharePartitionKey, int] = {}
        self.completed: dict[SharePartitionKey, int] = {}
        self.failure: ErrorCode | None = None
        self.holds = False
        self.waiting: list[tuple[Pending[Any], Any]] = []
        self.end = 100

    def _answer(self, keys: Any, value: Any) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        errors = {key: None if self.failure is None else ApiError(self.failure) for key in keys}
        self.waiting.append((answer, errors if value is None or self.failure is not None else value))
        if not self.holds:
            self.settle()
        return answer

    def settle(self) -> None:
        waiting, self.waiting = self.waiting, []
        for answer, value in waiting:
            answer.complete(value)

    def initialize(self, offsets: Mapping[SharePartitionKey, int], state_epoch: int) -> Pending[Any]:
        if self.failure is None:
            self.starts.update(offsets)
            self.epochs.update(dict.fromkeys(offsets, state_epoch))
        return self._answer(offsets, None)

    def delete(self, keys: Collection[SharePartitionKey]) -> Pending[Any]:
        for key in keys if self.failure is None else ():
            self.starts.pop(key, None)
        return self._answer(keys, None)

    def summarize(self, keys: Collection[SharePartitionKey]) -> Pending[Any]:
        known = {key: StateSummary(self.starts.get(key, -1), 0, self.completed.get(key, 0)) for key in keys}
        return self._answer(keys, known)

    def find(self, partitions: Collection[tuple[str, int]]) -> Pending[Any]:
        return self._answer(partitions, dict.fromkeys(partitions, self.end))


class World:
    def __init__(self, *, partitions: int = 1, consumers: dict[str, int] | None = None, **config: int) -> None:
        """`consumers` are broker configs of consumer, share and streams groups."""
        self.consumers = consumers or {}
        self.states = MemoryShareStates()
        self.overrides: dict[str, dict[str, str]] = {}
        """Configs of single groups."""
        self.assignors: dict[str, ServerAssignor] = {"even": EvenAssignor()}
        self.task_assignors: dict[str, TaskAssignor] = {"sticky": StickyTaskAssignor()}
        self.now = 1_000_000
        self.partitions = partitions
        self.config = GroupCoordinatorConfig(**config)
        self.log = MemoryLog()
        self.topics = MemoryTopics()
        self.topics.add("orders")
        self.topics.add("payments")
        self.verify: Any = lambda index, request, version: None
        """How transactions are verified; see `VerifyTransaction`."""
        self._uuids = 0
        self.epoch = 0
        self.elect()

    def _fresh(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.config,
            self.log,
            self.topics,
            self._new_uuid,
            lambda: self.partitions,
            self.assignors,
            ShareServices(
                ShareGroupConfig(self.consumers, lambda group_id: self.overrides.get(group_id, {})),
                self.states,
                self.states,
            ),
            StreamsServices(
                StreamsGroupConfig(self.consumers, lambda group_id: self.overrides.get(group_id, {})),
                self.task_assignors,
            ),
            consumers=ConsumerGroupConfig(self.consumers, lambda group_id: self.overrides.get(group_id, {})),
            verify=lambda *verified: self.verify(*verified),
        )

    def elect(self, partitions: range | None = None) -> None:
        """A fresh coordinator loads the log: another broker, or this one after a restart."""
        self.epoch += 1
        self.coordinator = self._fresh()
        self.runtime = self.coordinator.runtime
        self.log.on_append = self.runtime.on_high_watermark
        for partition in partitions or range(self.partitions):
            self.runtime.on_elected(partition, self.epoch, self.now)
            self.load()

    def loaded_anew(self) -> GroupShard:
        """Partition 0 as another coordinator would load it now; this one goes on."""
        runtime = self._fresh().runtime
        runtime.on_elected(0, self.epoch, self.now)
        self._read(runtime)
        (shard,) = runtime.active_shards()
        return shard

    def load(self) -> None:
        """Read the partitions that the coordinator is to load, whole."""
        self._read(self.runtime)

    def _read(self, runtime: CoordinatorRuntime[GroupShard]) -> None:
        for load in runtime.take_loads():
            high_watermark = self.log.high_watermarks.get(load.partition, 0)
            if self.log.read_failure is not None:
                load.fail(self.log.read_failure, self.now)
            elif all(
                run_to_end(load.replay(batch, high_watermark, self.now)) for batch in self.log.read_all(load.partition)
            ):
                load.finish(high_watermark, self.now)

    def replicate(self) -> None:
        """Everything appended so far is committed."""
        for partition, end in self.log.ends.items():
            self.log.high_watermarks[partition] = end
            self.runtime.on_high_watermark(partition, end)

    def pass_time(self, ms: int) -> None:
        """Let time go by, with every timer at its moment."""
        until = self.now + ms
        while True:
            deadline = self.runtime.next_deadline_ms()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.runtime.poll(self.now)
            self.load()
        self.now = until
        self.runtime.poll(self.now)
        self.load()

    def shard(self, group_id: str = "g") -> GroupShard:
        return self.runtime.shard_for(group_id)

    def group(self, group_id: str = "g") -> Any:
        return self.shard(group_id).groups.get(group_id)

    def state(self, group_id: str = "g") -> str:
        group = self.group(group_id)
        return "Dead" if group is None else f"{group.state.value} {group.generation}"

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        metadata: str = "",
        retention_ms: int = -1,
    ) -> Any:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (name, partition), offset in offsets.items():
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
            if version >= 10:
                topic.name, topic.topic_id = "", self.topics.ids.get(name, Uuid(b"no such topic..."))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=generation,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=list(topics.values()),
        )
        return Answer(self.coordinator.offsets.commit(Context(version), request, self.now), version)

    def commit_in_transaction(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        producer: tuple[int, int] = (7, 0),
        group: str = "g",
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 4,
        metadata: str = "",
    ) -> Answer:
        """TxnOffsetCommit of a producer, given by id and epoch."""
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name))
            if version >= 6:
                topic.name, topic.topic_id = "", self.topics.ids.get(name, Uuid(b"no such topic..."))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=list(topics.values()),
        )
        return Answer(self.coordinator.offsets.commit_in_transaction(Context(version), request, self.now), version)

    def end_transaction(
        self, producer: tuple[int, int] = (7, 0), *, commit: bool, partition: int = 0, version: int = 0
    ) -> Pending[None]:
        """The marker of a producer's transaction."""
        end = TransactionEnd(*producer, commit, 1, version)
        return self.runtime.end_transaction(partition, end, self.now)

    def fetch(
        self,
        topics: dict[str, list[int]] | None = None,
        *,
        group: str = "g",
        stable: bool = False,
        version: int = 9,
        member: str | None = None,
        epoch: int = -1,
    ) -> dict[tuple[str, int], int] | str:
        """Offsets by topic and partition; the error's name where there is one."""
        requested = None
        if topics is not None:
            requested = [OffsetFetchRequestTopics(name=name, partition_indexes=list(at)) for name, at in topics.items()]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=requested)],
            require_stable=stable,
        )
        answer = Answer(self.coordinator.offsets.fetch(Context(version), request, self.now), version)
        found = answer.value.groups[0]
        if found.error_code:
            return ErrorCode(found.error_code).name
        return {
            (topic.name, each.partition_index): each.committed_offset if not each.error_code else -each.error_code
            for topic in found.topics
            for each in topic.partitions
        }

    def delete(self, *groups: str) -> list[str]:
        """DeleteGroups: the names of the errors."""
        request = DeleteGroupsRequest(groups_names=list(groups))
        answer = Answer(self.coordinator.delete_groups(Context(2), request, self.now), 2)
        return [ErrorCode(each.error_code).name for each in answer.value.results]

    def _new_uuid(self) -> Uuid:
        self._uuids += 1
        return Uuid(self._uuids.to_bytes(16, "big"))


class Answer:
    """A response, now or later. Each is encoded in its version, so that none has a value that the version lacks."""

    def __init__(self, outcome: Any, version: int) -> None:
        self._outcome = outcome
        self._version = version

    @property
    def waits(self) -> bool:
        return isinstance(self._outcome, Pending) and not self._outcome.done

    @property
    def value(self) -> Any:
        assert not self.waits, "no answer yet"
        outcome = self._outcome
        if isinstance(outcome, Pending):
            assert outcome.error is None, outcome.error
            outcome = outcome.value
        encode(outcome, self._version)
        return outcome

    @property
    def error(self) -> str:
        """The error's name; that of the first partition for offsets."""
        value = self.value
        code = value.topics[0].partitions[0].error_code if hasattr(value, "topics") else value.error_code
        return ErrorCode(code).name

    @property
    def errors(self) -> list[str]:
        return [ErrorCode(each.error_code).name for topic in self.value.topics for each in topic.partitions]


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """A consumer's metadata, version 1, without owned partitions."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    data = len(user_data).to_bytes(4, "big") + user_data
    return b"\x00\x01" + len(topics).to_bytes(4, "big") + names + data + bytes(4)


class Client:
    """A consumer of group `g`, with the member id and generation that it got last."""

    def __init__(
        self,
        world: World,
        name: str = "a",
        *,
        group: str = "g",
        instance: str | None = None,
        topics: tuple[str, ...] = ("orders",),
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
    ) -> None:
        self.world, self.name, self.group_id, self.instance = world, name, group, instance
        self.protocols = [JoinGroupRequestProtocol(name=each, metadata=subscription(*topics)) for each in protocols]
        self.protocol_type, self.version = protocol_type, version
        self.session_ms, self.rebalance_ms = session_ms, rebalance_ms
        self.member_id, self.generation = "", -1

    def join(self, *, retry: bool = True) -> Answer:
        """JoinGroup; with `retry`, again with the id of MEMBER_ID_REQUIRED."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms if self.version else -1,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
        )
        outcome = self.world.coordinator.join_group(Context(self.version, self.name), request, self.world.now)
        answer = Answer(outcome, self.version)
        if isinstance(outcome, Pending):
            outcome.then(lambda value, _: self._joined(value))
        elif outcome.error_code == ErrorCode.MEMBER_ID_REQUIRED and retry:
            self.member_id = answer.value.member_id
            return self.join()
        else:
            self._joined(outcome)
        return answer

    def _joined(self, response: Any) -> None:
        if response is not None and not response.error_code:
            self.member_id, self.generation = response.member_id, response.generation_id

    def sync(self, assignment: dict[Client, bytes] | None = None, **overrides: Any) -> Answer:
        version = overrides.pop("version", min(self.version, 5))
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocols[0].name,
            "assignments": [
                SyncGroupRequestAssignment(member_id=client.member_id, assignment=data)
                for client, data in (assignment or {}).items()
            ],
        }
        request = SyncGroupRequest(**{**fields, **overrides})
        return Answer(self.world.coordinator.sync_group(Context(version), request, self.world.now), version)

    def beat(self, generation: int | None = None) -> str:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        response = self.world.coordinator.heartbeat(Context(4), request, self.world.now)
        return ErrorCode(response.error_code).name

    def leave(self, version: int = 5) -> Answer:
        request = LeaveGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id if version < 3 else "",
            members=[MemberIdentity(member_id=self.member_id)] if version >= 3 else [],
        )
        return Answer(self.world.coordinator.leave_group(Context(version), request, self.world.now), version)

    def commit(self, offsets: dict[tuple[str, int], int], **more: Any) -> Answer:
        return self.world.commit(
            offsets,
            group=self.group_id,
            member=self.member_id,
            generation=self.generation,
            instance=self.instance,
            **more,
        )


def settle(world: World, *clients: Client) -> None:
    """All join, and the leader gives each client its name as assignment: a stable group."""
    joins = [client.join() for client in clients]
    world.pass_time(2 * world.config.initial_rebalance_delay_ms)  # newcomers prolong the first delay once
    leader_id = joins[0].value.leader
    leader = next(client for client in clients if client.member_id == leader_id)
    syncs = [client.sync() for client in clients if client is not leader]
    syncs.append(leader.sync({client: client.name.encode() for client in clients}))
    assert [sync.error for sync in syncs] == ["NONE"] * len(clients)


def describe(world: World, *groups: str, version: int = 6) -> list[tuple[str, str, str, int]]:
    answer = Answer(
        DescribeGroupsResponse(
            groups=list(
                world.coordinator.describe_groups(
                    Context(version), DescribeGroupsRequest(groups=list(groups)), world.now
                )
            )
        ),
        version,
    )
    return [
        (each.group_state, each.protocol_data, ErrorCode(each.error_code).name, len(each.members))
        for each in answer.value.groups
    ]


def list_groups(world: World, version: int = 5, **filters: list[str]) -> list[str]:
    listed = list(world.coordinator.list_groups(ListGroupsRequest(**filters), world.now))
    answer = Answer(ListGroupsResponse(groups=listed), version)
    return [f"{each.group_id} {each.protocol_type} {each.group_state}" for each in answer.value.groups]
