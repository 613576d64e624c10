"""StreamsGroupHeartbeat: how members of streams groups join, keep their place, get and give back tasks, and leave
(KIP-1071).

What heartbeats of all kinds do alike, and their order, is in `kind_protocol.py`; the topology is written with the
member.

The topology of a large application takes long to convert and to configure, and the next step of a member of very many
tasks takes long to find: `prepare` does that in steps, before the heartbeat. What has changed since is done again at
once. The target assignment is computed for the group epoch by a task assignor, in steps too.

A heartbeat whose answer was lost is sent again: with the epoch before, it is accepted as long as the member has
nothing but what it was assigned. One that is older, or was forged, is fenced. A member that reports other tasks than it
was assigned gets its tasks in the answer again, since the answer with them may have been lost; Apache Kafka 4.4 sends
them once, and such a member has none until they change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kalda.assignors.server_assignor import (
    AssignorError,
    MemberTasks,
    StreamsGroupSpec,
    StreamsMemberSpec,
    SubtopologyShape,
    TaskId,
    Tasks,
)
from kalda.base.background import ITEMS_A_STEP, Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, is_topic_name
from kalda.base.scheduling import Pending
from kalda.base.stats import Meter
from kalda.coordinator.groups.config import StreamsSettings
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from kalda.coordinator.groups.kind_protocol import KindProtocol
from kalda.coordinator.groups.rebalance_history import Cause
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.groups.streams.group import (
    NO_TOPOLOGY_EPOCH,
    MemberOffsets,
    StreamsGroup,
    StreamsGroups,
    Topology,
    endpoints_of,
    topology_of,
)
from kalda.coordinator.groups.streams.member import (
    Endpoint,
    StreamsMember,
    TaskState,
    next_member,
    task_ids,
    tasks_from,
)
from kalda.coordinator.groups.streams.topology import ConfiguredTopology, InternalTopic, configure_topology
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock
from kalda.protocol.access import Caller
from kalda.protocol.messages.group_records import (
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueCopartitionGroup,
    StreamsGroupTopologyValueSubtopology,
    StreamsGroupTopologyValueTopicInfo,
    TopicConfig,
)
from kalda.protocol.messages.streams import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTaskOffset,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatResponseTaskIds,
    StreamsGroupStatus,
)

# What clients say in StreamsGroupHeartbeat: its checks, and its topology as the record that is stored of it.


def check_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST and STREAMS_INVALID_TOPOLOGY."""
    epoch, topology = request.member_epoch, request.topology
    if topology is not None:
        for each in topology.subtopologies:
            _require(not each.source_topic_regex, "Regular expressions for source topics are not supported yet.")
    _require(bool(request.member_id.strip()), "MemberId can't be empty.")
    _require(bool(request.group_id.strip()), "GroupId can't be empty.")
    _require(request.instance_id is None or bool(request.instance_id.strip()), "InstanceId can't be empty.")
    _require(request.rack_id is None or bool(request.rack_id.strip()), "RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        _require(request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        _require(request.active_tasks == [], "ActiveTasks must be empty when (re-)joining.")
        _require(request.standby_tasks == [], "StandbyTasks must be empty when (re-)joining.")
        _require(request.warmup_tasks == [], "WarmupTasks must be empty when (re-)joining.")
        if topology is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Topology must be non-null when (re-)joining.")
        _check_topology(topology)
    elif epoch == STATIC_LEAVING_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    else:
        _require(epoch >= STATIC_LEAVING_EPOCH, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    given = [tasks is not None for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks)]
    _require(all(given) or not any(given), "If one task-type is non-null, all must be non-null.")
    _require(epoch == JOINING_EPOCH or topology is None, "Topology can only be provided when (re-)joining.")


def _check_topology(topology: StreamsGroupHeartbeatRequestTopology) -> None:
    if topology.epoch < 0:
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, "Topology epoch must be non-negative.")
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise ApiError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def named_topics(topology: StreamsGroupHeartbeatRequestTopology) -> Steps[dict[str, int]]:
    """All topics that the topology names, in steps. Raises STREAMS_INVALID_TOPOLOGY for Kafka's own, and for names
    that no topic can have."""
    names: dict[str, int] = {}
    for count, each in enumerate(topology.subtopologies, 1):
        names.update(dict.fromkeys(each.source_topics, 1))
        names.update(dict.fromkeys(each.repartition_sink_topics, 1))
        names.update((topic.name, 1) for topic in each.repartition_source_topics)
        names.update((topic.name, 1) for topic in each.state_changelog_topics)
        if count % ITEMS_A_STEP == 0:
            yield
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        raise ApiError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited.",
        )
    invalid = [name for name in names if not is_topic_name(name)]
    if invalid:
        raise ApiError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names."
        )
    return names


def convert_topology(topology: StreamsGroupHeartbeatRequestTopology) -> Steps[Topology]:
    """The topology as it is stored. Raises STREAMS_INVALID_TOPOLOGY where two subtopologies have one id."""
    converted: list[StreamsGroupTopologyValueSubtopology] = []
    for count, each in enumerate(topology.subtopologies, 1):
        converted.append(_converted(each))
        if count % ITEMS_A_STEP == 0:
            yield
    found = topology_of(StreamsGroupTopologyValue(epoch=topology.epoch, subtopologies=converted))
    if len(found.by_id) < len(converted):
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, "Two subtopologies have the same id.")
    return found


def _converted(each: StreamsGroupHeartbeatRequestSubtopology) -> StreamsGroupTopologyValueSubtopology:
    return StreamsGroupTopologyValueSubtopology(
        subtopology_id=each.subtopology_id,
        source_topics=each.source_topics,
        source_topic_regex=each.source_topic_regex,
        state_changelog_topics=_infos(each.state_changelog_topics),
        repartition_sink_topics=each.repartition_sink_topics,
        repartition_source_topics=_infos(each.repartition_source_topics),
        copartition_groups=[
            StreamsGroupTopologyValueCopartitionGroup(
                source_topics=group.source_topics,
                source_topic_regex=group.source_topic_regex,
                repartition_source_topics=group.repartition_source_topics,
            )
            for group in each.copartition_groups
        ],
    )


def _infos(topics: Iterable[StreamsGroupHeartbeatRequestTopicInfo]) -> list[StreamsGroupTopologyValueTopicInfo]:
    return [
        StreamsGroupTopologyValueTopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[TopicConfig(key=each.key, value=each.value) for each in topic.topic_configs],
        )
        for topic in topics
    ]


def check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST for tasks that a member says it has and that the topology does not have."""
    listed: tuple[list[StreamsGroupHeartbeatRequestTaskIds] | None, ...] = (
        request.active_tasks,
        request.standby_tasks,
        request.warmup_tasks,
    )
    for each in (task for tasks in listed if tasks for task in tasks):
        subtopology = configured.subtopologies.get(each.subtopology_id)
        if subtopology is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Subtopology {each.subtopology_id} does not exist in the topology."
            )
        count = subtopology.number_of_tasks
        for partition in each.partitions:
            if not 0 <= partition < count:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Task {partition} for subtopology {each.subtopology_id} is invalid. Number of tasks for this "
                    f"subtopology: {count}",
                )


log = logging.getLogger(__name__)

_CLIENT_TAGS_FROM = 1
_NO_TARGET = MemberTasks()


class _StepOf(NamedTuple):
    """What a step of a member depends on, beside its heartbeat."""

    member: StreamsMember
    epoch: int
    target: MemberTasks
    holder_changes: int

    def is_same(self, other: _StepOf) -> bool:
        """Whether nothing has changed: members and targets are replaced, never changed."""
        return (
            self.member is other.member
            and self.target is other.target
            and (self.epoch, self.holder_changes) == (other.epoch, other.holder_changes)
        )


class _PreparedStep(NamedTuple):
    """A step that was found before its heartbeat."""

    of: _StepOf
    following: StreamsMember


class Prepared(NamedTuple):
    """What was done of a heartbeat before it."""

    topology: Topology | None = None
    """The request's; None where it has none."""
    configured: ConfiguredTopology | None = None
    """The topology that the group has then, with the topics of `metadata_hash`."""
    metadata_hash: int = 0
    step: _PreparedStep | None = None
    """The member's next step towards its target, where it takes long to find."""


class StreamsAnswer(NamedTuple):
    """What a heartbeat is answered with, and what the group needs for it."""

    response: StreamsGroupHeartbeatResponse
    missing_topics: Mapping[str, InternalTopic] = {}
    """Internal topics to create."""


class _Entered(NamedTuple):
    """A member that has come into the group."""

    group: StreamsGroup
    old: StreamsMember
    """As it was before this heartbeat; of a static member that returns, with the tasks of its predecessor."""
    has_new_id: bool = False
    """Whether the predecessor had another id."""


class StreamsProtocol(KindProtocol[StreamsGroup]):
    """Heartbeats on the streams groups of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        groups: StreamsGroups,
        settings: StreamsSettings,
        timers: CoordinatorTimer,
        clock: EventClock,
        rebalances: Meter,
    ) -> None:
        """`rebalances` counts group epochs."""
        super().__init__(partition, groups, settings.config, TaskAssigner(settings), timers, clock, rebalances)
        self._groups = groups
        self._config = settings.config
        self._catalog = settings.catalog

    # -- before the heartbeat --------------------------------------------------------------------------------------

    def prepare(self, request: StreamsGroupHeartbeatRequest) -> Steps[Prepared]:
        """Convert and configure the topology, where that is due. Raises `ApiError`."""
        given = None
        if request.topology is not None:
            given = yield from convert_topology(request.topology)
        group = self._groups.groups.get(request.group_id)
        step = None
        if group is not None and (member := group.members.get(request.member_id)) is not None:
            step = yield from self._prepare_step(group, member, request)
            group = self._groups.groups.get(request.group_id)
        topology = given if group is None or group.topology is None else group.topology
        if topology is None or (group is not None and group.configured is not None and not group.needs_refresh):
            return Prepared(given, step=step)
        metadata_hash = self._catalog.hash_of(topology.required_topics)
        if group is not None and group.configured is not None and group.epochs.metadata_hash == metadata_hash:
            return Prepared(given, step=step)
        configured = yield from configure_topology(topology.value, self._partition_count)
        return Prepared(given, configured, metadata_hash, step)

    def _prepare_step(
        self, group: StreamsGroup, member: StreamsMember, request: StreamsGroupHeartbeatRequest
    ) -> Steps[_PreparedStep | None]:
        """Only in a large group, for a member that is not at its target."""
        of = self._step_of(group, member)
        may_be_refused = request.member_epoch != member.epoch or member.state is TaskState.UNKNOWN
        if may_be_refused or member.is_reconciled(of.epoch) or self._assigner.is_small(group):
            return None
        yield
        following = next_member(member, of.epoch, of.target, group, _owned(request))
        yield
        return _PreparedStep(of, following)

    def _partition_count(self, name: str) -> int | None:
        found = self._catalog.shape_of(name)
        return None if found is None else found[1].partitions

    # -- the heartbeat ---------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        caller: Caller,
        request: StreamsGroupHeartbeatRequest,
        prepared: Prepared,
        ending: list[GroupLogRecord] | None,
    ) -> StreamsAnswer | Pending[StreamsAnswer]:
        """Answered when what it has changed is committed; at once where nothing is to be. `ending` ends a group of
        another kind that has the id; None where that cannot be. Raises `ApiError`."""
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(request)
        statuses: list[Status] = []
        records: list[GroupLogRecord] = []
        entered = self._enter(request, records, ending)
        group, old = entered.group, entered.old
        member = _updated(old, caller, request)
        topology = self._topology(group, prepared, records)
        if group.topology is not None and member.topology_epoch < topology.epoch:
            detail = f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            statuses.append(_status(StreamsGroupStatus.STALE_TOPOLOGY, f"{detail}{topology.epoch}."))
        configured, metadata_hash = self._configure(group, topology, prepared)
        if configured.is_ready:
            check_tasks(configured, request)
        offsets = _reported_offsets(group.task_offsets.get(request.member_id, MemberOffsets()), request)
        group = self._write_member(entered, member, topology, configured, metadata_hash, records)
        group.configured, group.needs_refresh = configured, False
        group.task_offsets[request.member_id] = offsets
        self._assign_or_say(group, statuses)
        member = self._reconcile(group, member.member_id, _owned(request), prepared.step)
        self._groups.start_session(group, member.member_id)
        if request.shutdown_application:
            self._shut_down(group, member.member_id)
        response = self._respond(group, entered, member, request)
        response.status = self._statuses(group, member, configured, statuses, caller.api_version)
        return self._partition.after_commit(StreamsAnswer(response, configured.internal_topics_to_create))

    # -- joining, and what the member says of itself ---------------------------------------------------------------

    def _enter(
        self, request: StreamsGroupHeartbeatRequest, records: list[GroupLogRecord], ending: list[GroupLogRecord] | None
    ) -> _Entered:
        """Adds to `records` what gives a static member that returns its place."""
        group = self._groups.groups.get(request.group_id)
        joins = request.member_epoch == JOINING_EPOCH
        if group is None:
            if ending is None or not joins:
                raise self._groups.missing_of_member(request.group_id)
            records += ending
            group = StreamsGroup(request.group_id, self._partition.registry)
        member_id, instance_id = request.member_id, request.instance_id
        if joins:
            self.check_size(group, member_id, instance_id)
        present = None if instance_id is None else group.static_member(instance_id)
        old = self._sender(group, request, member_id, instance_id, records)
        return _Entered(group, old, present is not None and present.member_id != member_id)

    def _owns_assigned(self, member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> bool:
        owned, tasks = _owned(request), member.assigned.tasks
        return owned is not None and all(
            partitions <= held.get(subtopology, frozenset())
            for reported, held in (
                (owned.active, tasks.active),
                (owned.standby, tasks.standby),
                (owned.warmup, tasks.warmup),
            )
            for subtopology, partitions in reported.items()
        )

    def _topology(self, group: StreamsGroup, prepared: Prepared, records: list[GroupLogRecord]) -> Topology:
        """The topology of the group; the one that the member brings where there is none yet. A member may bring an
        older one, and gets the status STALE_TOPOLOGY then."""
        given, present = prepared.topology, group.topology
        if present is None:
            if given is None:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Group {group.group_id} has no topology.")
            records.append(group.topology_record(given.value))
            return given
        if given is not None and present.epoch <= given.epoch and not present.is_same(given):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return present

    def _configure(self, group: StreamsGroup, topology: Topology, prepared: Prepared) -> tuple[ConfiguredTopology, int]:
        """The topology with the topics that exist, and their hash."""
        present = group.configured
        if present is not None and not group.needs_refresh:
            return present, group.epochs.metadata_hash
        metadata_hash = self._catalog.hash_of(topology.required_topics)
        if present is not None and metadata_hash == group.epochs.metadata_hash:
            return present, metadata_hash
        configured = prepared.configured
        if configured is None or prepared.metadata_hash != metadata_hash or configured.epoch != topology.epoch:
            configured = run_to_end(configure_topology(topology.value, self._partition_count))
        return configured, metadata_hash

    def _write_member(
        self,
        entered: _Entered,
        member: StreamsMember,
        topology: Topology,
        configured: ConfiguredTopology,
        metadata_hash: int,
        records: list[GroupLogRecord],
    ) -> StreamsGroup:
        """Write `records`, what the member says of itself where that is new, and the next group epoch where that, the
        topics or configs call for one; the group as it is then."""
        group, old = entered.group, entered.old
        epochs, was_empty = group.epochs, group.is_empty
        is_due = metadata_hash != epochs.metadata_hash
        if member != old:
            records.append(group.member_record(member))
            is_due |= member.instance_id is None or _is_relevant(old, member)
        validated = topology.epoch if configured.is_ready else NO_TOPOLOGY_EPOCH
        configs = self._config.assignment_configs(group.group_id)
        is_due |= validated != epochs.validated_topology or configs != group.assignment_configs
        if is_due:
            cause = _cause(group, old, member, metadata_hash, validated)
            self._groups.settle(group)
            epoch = epochs.group + 1
            records.append(group.epoch_record(epoch, metadata_hash, validated, configs))
            self._count_epoch(group, epoch)
        if records:
            self._partition.write_now(records)
            group = self._groups.groups.get(group.group_id, group)
        if is_due:
            self._groups.note_epoch(group, epochs.group, cause)
        if was_empty:
            self._groups.delay_assignment(group.group_id, self._assign_delayed)
        return group

    # -- the target, and the member's way to it --------------------------------------------------------------------

    def _assign_delayed(self, group: StreamsGroup) -> None:
        """The group has waited long enough for its first members."""
        if group.configured is None:
            return  # another coordinator has come between; the next heartbeat does it
        try:
            self.assign(group)
        except ApiError as error:
            log.error("group %s: the target assignment failed: %s", group.group_id, error)

    def _assign_or_say(self, group: StreamsGroup, statuses: list[Status]) -> None:
        """Assign; or add to `statuses` what delays it."""
        delayed = StreamsGroupStatus.ASSIGNMENT_DELAYED
        if self._groups.delays_assignment(group.group_id):
            statuses.append(_status(delayed, "Assignment delayed due to the configured initial rebalance delay."))
        elif not self.assign(group):
            statuses.append(_status(delayed, "Assignment delayed due to the configured assignment interval."))

    def _reconcile(
        self, group: StreamsGroup, member_id: str, owned: MemberTasks | None, step: _PreparedStep | None
    ) -> StreamsMember:
        """The member's next step towards its target, written where it changes the member. `step` was found before."""
        of = self._step_of(group, group.members[member_id])
        member, epoch = of.member, of.epoch
        if member.is_reconciled(epoch):
            following = member
        elif step is not None and step.of.is_same(of):
            following = step.following
        else:
            following = next_member(member, epoch, of.target, group, owned)
        taken: StreamsMember = self._take_step(group, member, following)
        return taken

    def _step_of(self, group: StreamsGroup, member: StreamsMember) -> _StepOf:
        """Before the first assignment a member has no tasks."""
        delayed = self._groups.delays_assignment(group.group_id)
        target = _NO_TARGET if delayed else group.target(member.member_id)
        return _StepOf(member, group.epochs.assignment, target, group.holder_changes)

    # -- the answer ------------------------------------------------------------------------------------------------

    def _respond(
        self,
        group: StreamsGroup,
        entered: _Entered,
        member: StreamsMember,
        request: StreamsGroupHeartbeatRequest,
    ) -> StreamsGroupHeartbeatResponse:
        group_id, old = group.group_id, entered.old
        response = StreamsGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._config.heartbeat_interval_ms(group_id),
            task_offset_interval_ms=self._config.task_offset_interval_ms(group_id),
            acceptable_recovery_lag=self._config.acceptable_recovery_lag(group_id),
        )
        has_other_tasks = member.assigned != old.assigned
        owned = _owned(request)
        may_have_missed = owned is not None and owned != member.assigned.tasks
        if request.member_epoch == JOINING_EPOCH or has_other_tasks or may_have_missed:
            tasks = member.assigned.tasks
            response.active_tasks, response.standby_tasks, response.warmup_tasks = (
                _listed(each) for each in (tasks.active, tasks.standby, tasks.warmup)
            )
        if member.endpoint != old.endpoint or (has_other_tasks and member.endpoint is not None) or entered.has_new_id:
            group.endpoint_epoch += 1
        response.endpoint_information_epoch = group.endpoint_epoch
        if group.endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = endpoints_of(group, self._partition_count)
        return response

    def _statuses(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        configured: ConfiguredTopology,
        statuses: list[Status],
        version: int,
    ) -> list[Status]:
        if configured.status is not None:
            statuses.append(_status(*configured.status))
        if group.shutdown_member is not None:
            detail = f"Streams group member {group.shutdown_member} encountered a fatal error and requested a shutdown "
            statuses.append(_status(StreamsGroupStatus.SHUTDOWN_APPLICATION, f"{detail}for the entire application."))
        if version >= _CLIENT_TAGS_FROM:
            wanted = self._config.rack_aware_assignment_tags(group.group_id)
            missing = ", ".join(tag for tag in wanted if tag not in member.client_tags)
            if missing:
                detail = f"Missing required client tags for rack-aware standby assignment: [{missing}]. "
                hint = "Configure them via 'client.tag.<tagKey>' in your Streams config."
                statuses.append(_status(StreamsGroupStatus.MISSING_CLIENT_TAGS, detail + hint))
        return statuses

    def _shut_down(self, group: StreamsGroup, member_id: str) -> None:
        if group.shutdown_member is None:
            log.info("group %s: member %s requests the end of the application", group.group_id, member_id)
            group.shutdown_member = member_id

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _leave(self, request: StreamsGroupHeartbeatRequest) -> StreamsAnswer | Pending[StreamsAnswer]:
        if request.shutdown_application:
            self._shut_down(self._groups.get(request.group_id), request.member_id)
        epoch = request.member_epoch
        self._end(request.group_id, request.member_id, request.instance_id, epoch)
        response = StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=epoch, status=[])
        return self._partition.write_with([], StreamsAnswer(response))


def _status(status: StreamsGroupStatus, detail: str) -> Status:
    return Status(status_code=int(status), status_detail=detail)


def _owned(request: StreamsGroupHeartbeatRequest) -> MemberTasks | None:
    """What the member says that it has; None where it says nothing."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return MemberTasks(tasks_from(active), tasks_from(standby), tasks_from(warmup))


def _updated(old: StreamsMember, caller: Caller, request: StreamsGroupHeartbeatRequest) -> StreamsMember:
    """The member as this heartbeat describes it; what it leaves out stays, but for the endpoint of one that joins."""
    given: Any = request.user_endpoint
    endpoint = None if given is None else Endpoint(given.host, given.port)
    if endpoint is None and request.member_epoch != JOINING_EPOCH:
        endpoint = old.endpoint
    timeout_ms, tags, topology = request.rebalance_timeout_ms, request.client_tags, request.topology
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack=old.rack if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=old.topology_epoch if topology is None else topology.epoch,
        process_id=old.process_id if request.process_id is None else request.process_id,
        endpoint=endpoint,
        client_tags=old.client_tags if tags is None else {each.key: each.value for each in tags},
        client_id=caller.client_id or "",
        client_host=f"/{caller.client_host}",
    )


def _cause(group: StreamsGroup, old: StreamsMember, member: StreamsMember, metadata_hash: int, validated: int) -> Cause:
    """Why the group gets a new epoch, which has this hash of topics and this validated epoch of the topology."""
    epochs = group.epochs
    if old.epoch == JOINING_EPOCH and old.member_id not in group.members:
        return Cause("joined", (member,))
    if member != old and (member.instance_id is None or _is_relevant(old, member)):
        return Cause("describes itself otherwise", (member,))
    if metadata_hash != epochs.metadata_hash:
        return Cause("topics of the topology have changed")
    if validated != epochs.validated_topology:
        return Cause("the topology is not validated yet")
    return Cause("configs of the group have changed")


def _is_relevant(old: StreamsMember, member: StreamsMember) -> bool:
    """Whether a static member has changed in what assignments depend on."""
    return (old.topology_epoch, old.rack, old.client_tags, old.process_id) != (
        member.topology_epoch,
        member.rack,
        member.client_tags,
        member.process_id,
    )


def _reported_offsets(present: MemberOffsets, request: StreamsGroupHeartbeatRequest) -> MemberOffsets:
    """Raises INVALID_REQUEST for a task that is named twice."""

    def by_task(reported: Iterable[StreamsGroupHeartbeatRequestTaskOffset]) -> dict[TaskId, int]:
        found: dict[TaskId, int] = {}
        for each in reported:
            task = TaskId(each.subtopology_id, each.partition)
            if task in found:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Task offsets contain a duplicate entry for subtopology {task.subtopology_id} and partition "
                    f"{task.partition}.",
                )
            found[task] = each.offset
        return found

    current, end = request.task_offsets, request.task_end_offsets
    return MemberOffsets(
        present.current if current is None else by_task(current), present.end if end is None else by_task(end)
    )


def _listed(tasks: Tasks) -> list[StreamsGroupHeartbeatResponseTaskIds]:
    return [
        StreamsGroupHeartbeatResponseTaskIds(subtopology_id=subtopology, partitions=sorted(partitions))
        for subtopology, partitions in tasks.items()
    ]


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
