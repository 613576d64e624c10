"""Streams groups (KIP-1071): the replayed state of one, and all of one partition of `__consumer_offsets`.

Its members run one topology, which the first of them brings. A member that joins or changes, topics of the topology
that change, and configs of assignments raise the group epoch. Each member comes to the assignment epoch when it has
given back what it must (`member.py`).

Not replayed either, and lost with the coordinator: how far the topology is configured with the topics that exist
(`configured`), what members report of the state of their tasks (`task_offsets`), the request to shut the application
down, and the epoch of the information about endpoints.

A member's session ends where no heartbeat comes for `streams.session.timeout.ms`; a member that must give tasks back
and does not within its rebalance timeout is fenced too. A new group waits for more members before its first
assignment, for `streams.initial.rebalance.delay.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from kalda.assignors.server_assignor import MemberTasks, TaskId, Tasks
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.config import StreamsSettings
from kalda.coordinator.groups.kind_group import STREAMS, Epochs, KindGroup, KindKeys
from kalda.coordinator.groups.kind_protocol import HasGroup, KindGroups
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.groups.streams.member import StreamsMember, TaskState, target_from, target_value, task_ids
from kalda.coordinator.groups.streams.topology import ConfiguredTopology, PartitionCount
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.protocol.messages.group_records import (
    LastAssignmentConfig,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueSubtopology,
)
from kalda.protocol.messages.streams import (
    EndpointToPartitions,
    StreamsGroupHeartbeatResponseEndpoint,
    StreamsGroupHeartbeatResponseTopicPartition,
)
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict, TimelineValue

log = logging.getLogger(__name__)

NO_TOPOLOGY_EPOCH: Final = -1
_Parts: TypeAlias = tuple[Tasks, Tasks, Tasks]
"""Active, standby and warm-up tasks."""
_NO_PARTS: Final[_Parts] = ({}, {}, {})


class StreamsGroupState(Enum):
    """As StreamsGroupDescribe and ListGroups name it."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the topology are missing, or incorrectly partitioned."""
    ASSIGNING = "Assigning"
    """The target assignment of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Not every member has its target."""
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class StreamsEpochs(Epochs):
    """What the records of the group itself have."""

    validated_topology: int = NO_TOPOLOGY_EPOCH
    """The epoch of the topology with which the topics agree; -1 where they do not."""
    stored_description: int = NO_TOPOLOGY_EPOCH
    failed_description: int = NO_TOPOLOGY_EPOCH
    """Of descriptions of topologies, which only a node of Apache Kafka with a plugin stores."""


class Topology(NamedTuple):
    """What all members run."""

    value: StreamsGroupTopologyValue
    by_id: Mapping[str, StreamsGroupTopologyValueSubtopology]
    source_of: Mapping[str, str]
    """By topic that is read, the subtopology that reads it."""
    required_topics: frozenset[str]
    """All that it reads, and its changelogs."""

    @property
    def epoch(self) -> int:
        return self.value.epoch

    def is_same(self, other: Topology) -> bool:
        """Whether both have the same subtopologies, in any order."""
        return self.epoch == other.epoch and self.by_id == other.by_id


def topology_of(value: StreamsGroupTopologyValue) -> Topology:
    """The topology of a record."""
    source_of: dict[str, str] = {}
    changelogs: set[str] = set()
    for each in value.subtopologies:
        source_of.update(dict.fromkeys(each.source_topics, each.subtopology_id))
        source_of.update((topic.name, each.subtopology_id) for topic in each.repartition_source_topics)
        changelogs.update(topic.name for topic in each.state_changelog_topics)
    by_id = {each.subtopology_id: each for each in value.subtopologies}
    return Topology(value, by_id, source_of, frozenset(changelogs | source_of.keys()))


class MemberOffsets(NamedTuple):
    """How far the state of tasks is that a member has on its disk, as it reports it."""

    current: Mapping[TaskId, int] = {}
    end: Mapping[TaskId, int] = {}


class StreamsGroup(KindGroup[StreamsEpochs, StreamsMember, MemberTasks]):
    """One group."""

    kind = STREAMS
    keys = KindKeys(
        StreamsGroupMetadataKey,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMetadataValue,
        StreamsGroupMemberMetadataKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str, registry: SnapshotRegistry) -> None:
        super().__init__(group_id, registry, StreamsEpochs(), MemberTasks(), StreamsMember)
        self._topology: TimelineValue[Topology | None] = TimelineValue(registry, None)
        self._assignment_configs: TimelineValue[Mapping[str, str]] = TimelineValue(registry, {})
        self.active_processes: TimelineDict[TaskId, str] = TimelineDict(registry)
        """The process that runs each task. Those that have copies of it are in the next two."""
        self.standby_processes: TimelineDict[TaskId, frozenset[str]] = TimelineDict(registry)
        self.warmup_processes: TimelineDict[TaskId, frozenset[str]] = TimelineDict(registry)
        self.configured: ConfiguredTopology | None = None
        """The topology with the topics of the last hash; None before the first heartbeat here."""
        self.task_offsets: dict[str, MemberOffsets] = {}
        self.shutdown_member: str | None = None
        """The member that has asked for the end of the whole application."""
        self.holder_changes = 0
        """How often who has which task may have changed."""
        self.endpoint_epoch = 0
        """Raised when the endpoints, or what is found at them, change."""
        self.endpoints: dict[str, EndpointToPartitions] = {}
        """What is found at the endpoint of each member; absent where that has to be made anew."""

    # -- what is read --------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology | None:
        return self._topology.value

    def topology_at(self, epoch: int) -> Topology | None:
        """As it was at an epoch of the timeline."""
        return self._topology.get(epoch)

    @property
    def assignment_configs(self) -> Mapping[str, str]:
        """Those of the last group epoch, by name."""
        return self._assignment_configs.value

    def state(self, epoch: int = LATEST) -> StreamsGroupState:
        """Visits the members."""
        epochs, topology = self._epochs.get(epoch), self._topology.get(epoch)
        members = self.members.values(epoch)
        if not members:
            return StreamsGroupState.EMPTY
        if topology is None or topology.epoch != epochs.validated_topology:
            return StreamsGroupState.NOT_READY
        if epochs.group > epochs.assignment:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled(epochs.assignment) for member in members):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def is_stable(self) -> bool:
        """Whether every member has its target. Visits the members."""
        return self.state() is StreamsGroupState.STABLE

    @property
    def subscribed_topics(self) -> Iterable[str]:
        topology = self.topology
        return () if topology is None else topology.required_topics

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return self.topology is not None and bool(self.members) and topic in self.topology.source_of

    # -- checks --------------------------------------------------------------------------------------------------

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: Iterable[tuple[str, Uuid, int]],
        *,
        transactional: bool,
        version: int,
    ) -> None:
        """Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION and STALE_MEMBER_EPOCH.

        The epoch must be the member's, or not older than that in which it got the task of each of `partitions`
        (KIP-1251)."""
        member = self._behind_member(member_id, instance_id, epoch, transactional=transactional, version=version)
        if member is None:
            return
        topology = self.topology
        if topology is None:
            raise _stale("Topology is not available for offset commit validation.")
        for name, _, partition in partitions:
            subtopology = topology.source_of.get(name)
            if subtopology is None:
                raise _stale(f"Topic {name} is not in the topology.")
            since = member.assignment_epoch(subtopology, partition)
            if since is None:
                raise _stale(f"Task {subtopology}-{partition} is not assigned or pending revocation for member.")
            if epoch < since:
                raise _stale(
                    f"Received member epoch {epoch} is older than assignment epoch {since} for task "
                    f"{subtopology}-{partition}."
                )

    # -- replay --------------------------------------------------------------------------------------------------

    def _replay_own(self, key: Any, value: Any) -> None:
        if isinstance(key, StreamsGroupTopologyKey):
            self._replay_topology(value)
        elif value is not None:
            assert isinstance(value, StreamsGroupMetadataValue)
            self._change_epochs(
                group=value.epoch,
                metadata_hash=value.metadata_hash,
                validated_topology=value.validated_topology_epoch,
                stored_description=value.stored_description_topology_epoch,
                failed_description=value.failed_description_topology_epoch,
            )
            self._assignment_configs.value = {each.key: each.value for each in value.last_assignment_configs or ()}

    def _target_of(self, value: Any) -> MemberTasks:
        return target_from(value)

    def _replay_topology(self, value: StreamsGroupTopologyValue | None) -> None:
        self._topology.value = None if value is None else topology_of(value)
        self.configured = None
        self.endpoints.clear()

    def replay_member(self, member: StreamsMember) -> None:
        """A member is new or has changed."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        instance_id = None if old is None else old.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]
        self._note_holders(old, member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.endpoints.pop(member.member_id, None)

    def remove_member(self, member_id: str) -> StreamsMember | None:
        old = super().remove_member(member_id)
        if old is None:
            return None
        self._note_holders(old, None)
        self.endpoints.pop(member_id, None)
        self.task_offsets.pop(member_id, None)
        if not self.members:
            self.shutdown_member = None
        return old

    def _note_holders(self, old: StreamsMember | None, member: StreamsMember | None) -> None:
        """A member has changed, has joined or was removed: which member has which task follows. The tasks that it
        keeps are left alone, as a member may have very many."""
        before, after = (
            _NO_PARTS if each is None else each.assigned.joined_with(each.revoking) for each in (old, member)
        )
        gone, come = before, after
        if old is not None and member is not None and old.process_id == member.process_id:
            gone, come = _differences(before, after), _differences(after, before)
        if old is not None:
            self._release(old.process_id, *gone)
        if member is not None:
            self._hold(member.process_id, *come)
        self.holder_changes += 1

    def _hold(self, process_id: str, active: Tasks, standby: Tasks, warmup: Tasks) -> None:
        alone = frozenset((process_id,))
        self.active_processes.load(dict.fromkeys(task_ids(active), process_id))
        for processes, tasks in ((self.standby_processes, standby), (self.warmup_processes, warmup)):
            processes.load(
                {task: alone if (others := processes.get(task)) is None else others | alone for task in task_ids(tasks)}
            )

    def _release(self, process_id: str, active: Tasks, standby: Tasks, warmup: Tasks) -> None:
        own = [task for task in task_ids(active) if self.active_processes.get(task) == process_id]
        self.active_processes.remove_all(own)
        for processes, tasks in ((self.standby_processes, standby), (self.warmup_processes, warmup)):
            for task in task_ids(tasks):
                left = processes.get(task, frozenset()) - {process_id}
                if left:
                    processes[task] = left
                else:
                    processes.pop(task, None)

    # -- records -------------------------------------------------------------------------------------------------

    def epoch_record(
        self, epoch: int, metadata_hash: int, validated_topology: int, configs: Mapping[str, str]
    ) -> KindRecord:
        """The record of a group epoch."""
        value = StreamsGroupMetadataValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=validated_topology,
            last_assignment_configs=[LastAssignmentConfig(key=key, value=text) for key, text in configs.items()],
            stored_description_topology_epoch=self.epochs.stored_description,
            failed_description_topology_epoch=self.epochs.failed_description,
        )
        return self._of_group(StreamsGroupMetadataKey, value)

    def topology_record(self, value: StreamsGroupTopologyValue) -> KindRecord:
        """The record of the topology."""
        return self._of_group(StreamsGroupTopologyKey, value)

    def _target_value(self, target: MemberTasks) -> StreamsGroupTargetAssignmentMemberValue:
        return target_value(target)

    def _own_tombstones(self) -> Iterable[KindRecord]:
        return [self._of_group(StreamsGroupTopologyKey, None)]


def _differences(parts: _Parts, others: _Parts) -> _Parts:
    """What is in the first only, in each part."""
    active, standby, warmup = (
        {
            subtopology: partitions - held
            for subtopology, partitions in tasks.items()
            if (held := there.get(subtopology, frozenset())) != partitions
        }
        for tasks, there in zip(parts, others, strict=True)
    )
    return active, standby, warmup


def _stale(message: str) -> ApiError:
    return ApiError(ErrorCode.STALE_MEMBER_EPOCH, message)


def endpoints_of(group: StreamsGroup, partition_count: PartitionCount) -> list[EndpointToPartitions]:
    """The endpoints of all members that have one, with the topics that exist, for interactive queries (KIP-1071).

    A member that has set `application.server` is asked there for the state of its tasks: those that it runs, and its
    standby and warm-up copies. All members get all endpoints when their epoch is not the group's. What is found at each
    is kept until the member or the topology changes."""
    found = []
    for member in group.members.values():
        if member.endpoint is None:
            continue
        known = group.endpoints.get(member.member_id)
        if known is None:
            known = group.endpoints[member.member_id] = _endpoint(member, group.configured, partition_count)
        found.append(known)
    return found


def _endpoint(
    member: StreamsMember, configured: ConfiguredTopology | None, partition_count: PartitionCount
) -> EndpointToPartitions:
    assert member.endpoint is not None
    tasks = member.assigned.tasks
    copies = dict(tasks.standby)
    for subtopology, partitions in tasks.warmup.items():
        copies[subtopology] = copies.get(subtopology, frozenset()) | partitions
    return EndpointToPartitions(
        user_endpoint=StreamsGroupHeartbeatResponseEndpoint(host=member.endpoint.host, port=member.endpoint.port),
        active_partitions=_partitions(tasks.active, configured, partition_count),
        standby_partitions=_partitions(copies, configured, partition_count),
    )


def _partitions(
    tasks: Tasks, configured: ConfiguredTopology | None, partition_count: PartitionCount
) -> list[StreamsGroupHeartbeatResponseTopicPartition]:
    """Those that the tasks read. A topic may have fewer than there are tasks."""
    found = []
    for subtopology_id, partitions in tasks.items():
        subtopology = None if configured is None else configured.subtopologies.get(subtopology_id)
        if subtopology is None:
            continue
        for topic in sorted(subtopology.source_topics | subtopology.repartition_source_topics.keys()):
            count = partition_count(topic) or 0
            present = sorted(partition for partition in partitions if partition < count)
            if present:
                found.append(StreamsGroupHeartbeatResponseTopicPartition(topic=topic, partitions=present))
    return found


class StreamsGroups(KindGroups[StreamsGroup]):
    """Those of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        settings: StreamsSettings,
        timers: CoordinatorTimer,
        now_ms: Callable[[], int],
        history: RebalanceHistory,
        has_group: HasGroup,
    ) -> None:
        super().__init__(StreamsGroup, partition, settings.config, timers, now_ms, history, has_group)
        self._settings = settings
        self._revocations = self._member_timers()
        """Of members that are to give tasks back."""
        self._delays: dict[str, TimerTask] = {}
        """By group, until its first assignment."""

    def discard(self, group_id: str) -> None:
        """The group has ended, or its id belongs to a group of another kind now."""
        super().discard(group_id)
        self._end_delay(group_id)

    # -- what happens to the partition ---------------------------------------------------------------------------

    def on_unloaded(self) -> None:
        """Another node leads: no timer fires."""
        super().on_unloaded()
        for group_id in list(self._delays):
            self._end_delay(group_id)

    # -- timers --------------------------------------------------------------------------------------------------

    def watch_revocation(self, group: StreamsGroup, member: StreamsMember) -> None:
        """A member that is to give tasks back has its rebalance timeout for it, from when it entered its epoch; it is
        not watched in any other state."""
        key = (group.group_id, member.member_id)
        if member.state is TaskState.UNREVOKED_TASKS:
            self._watch_epoch(self._revocations, key, member, f"did not give tasks back in epoch {member.epoch}")
        else:
            self._revocations.disarm(key)

    def delays_assignment(self, group_id: str) -> bool:
        """Whether the group waits for more members."""
        return group_id in self._delays

    def delay_left_ms(self, group_id: str) -> int | None:
        """For how long the group still waits; None where it does not."""
        timer = self._delays.get(group_id)
        deadline_ms = None if timer is None else timer.deadline_ms
        return None if deadline_ms is None else max(deadline_ms - self._now_ms(), 0)

    def delay_assignment(self, group_id: str, on_end: Callable[[StreamsGroup], None]) -> None:
        """A group has got its first member: `on_end(group)` is called after the delay, if there is one and the group
        still has members. The group must not be waiting."""
        delay_ms = self._settings.config.initial_rebalance_delay_ms(group_id)
        if delay_ms <= 0 or group_id in self._delays:
            return

        def end(_: int) -> None:
            self._delays.pop(group_id, None)
            group = self.groups.get(group_id)
            if group is not None and group.members and self._partition.is_active:
                on_end(group)

        timer = self._delays[group_id] = TimerTask(end)
        self._timers.arm(timer, self._now_ms() + delay_ms)

    def _end_delay(self, group_id: str) -> None:
        timer = self._delays.pop(group_id, None)
        if timer is not None:
            self._timers.disarm(timer)

    # -- ends ----------------------------------------------------------------------------------------------------

    def end_member(self, group: StreamsGroup, member_id: str, what: str) -> Pending[None]:
        """After the last member the next one does not wait for an interval between assignments."""
        epochs = group.epochs
        epoch = epochs.group + 1
        records: list[GroupLogRecord] = [*group.tombstones_of([member_id])]
        records.append(
            group.epoch_record(epoch, epochs.metadata_hash, epochs.validated_topology, group.assignment_configs)
        )
        if len(group.members) == 1:
            records.append(group.target_epoch_record(epoch, 0))
        cause = Cause(what, (group.member(member_id),))
        self.settle(group)
        outcome = self._partition.write(records)
        if outcome.error is None:
            self.note_removal(group, epochs.group, cause)
        return outcome
