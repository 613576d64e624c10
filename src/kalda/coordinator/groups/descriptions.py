"""Groups as ConsumerGroupDescribe (69), ShareGroupDescribe (77) and StreamsGroupDescribe (89) show them, at an epoch of
the timeline. Topics that do not exist are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kalda.assignors.server_assignor import MemberTasks, TaskId, Tasks
from kalda.base.ids import Uuid
from kalda.coordinator.groups.classic_group import GROUP_TYPE, ClassicGroup, ClassicMember, GroupState
from kalda.coordinator.groups.config import ConsumerSettings, ShareGroupConfig, StreamsSettings
from kalda.coordinator.groups.consumer_group import ConsumerGroup, ConsumerGroups, ConsumerMember, MemberState
from kalda.coordinator.groups.kind_group import CONSUMER, SHARE, STREAMS
from kalda.coordinator.groups.kind_protocol import assignment_wait_ms
from kalda.coordinator.groups.rebalance_history import MemberName, NamedMember, Rebalance
from kalda.coordinator.groups.share_group import ShareGroup, ShareMember
from kalda.coordinator.groups.streams.group import MemberOffsets, StreamsGroup, StreamsGroups, Topology
from kalda.coordinator.groups.streams.member import StreamsMember, TaskState
from kalda.coordinator.groups.streams.topology import ConfiguredSubtopology, InternalTopic
from kalda.coordinator.timers import TimerTask
from kalda.protocol.messages.group_records import StreamsGroupTopologyValueTopicInfo
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)
from kalda.protocol.messages.share import (
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseEndpoint,
    StreamsGroupDescribeResponseKeyValue,
    StreamsGroupDescribeResponseMember,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTaskIds,
    StreamsGroupDescribeResponseTaskOffset,
    StreamsGroupDescribeResponseTopicInfo,
    StreamsGroupDescribeResponseTopology,
)

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1
_SHARE_ASSIGNOR = "simple"
NameOf = Callable[[Uuid], "str | None"]
"""The name of a topic id; None where there is no such topic."""


def describe_consumer_group(
    group: ConsumerGroup, epoch: int, default_assignor: str, name_of: NameOf
) -> ConsumerGroupDescribeResponseDescribedGroup:
    """A consumer group."""
    epochs = group.epochs_at(epoch)
    return ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state(epoch).value,
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=group.preferred_assignor(default_assignor, epoch),
        members=[
            _consumer_member(member, group.target(member.member_id, epoch), name_of)
            for member in group.members.values(epoch)
        ],
    )


def _consumer_member(
    member: ConsumerMember, target: Mapping[Uuid, Iterable[int]], name_of: NameOf
) -> ConsumerGroupDescribeResponseMember:
    """Its assignment has what it is to give back too: it is responsible for that until then."""
    owned: dict[Uuid, list[int]] = {}
    for topic_id, partition in member.owned():
        owned.setdefault(topic_id, []).append(partition)
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_consumer_assignment(owned, name_of),
        target_assignment=_consumer_assignment(target, name_of),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _consumer_assignment(
    topics: Mapping[Uuid, Iterable[int]], name_of: NameOf
) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions)
            )
            for topic_id, partitions in topics.items()
            if (name := name_of(topic_id)) is not None
        ]
    )


def describe_share_group(group: ShareGroup, epoch: int, name_of: NameOf) -> ShareGroupDescribeResponseDescribedGroup:
    """A share group."""
    epochs = group.epochs_at(epoch)
    return ShareGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state(epoch).value,
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=_SHARE_ASSIGNOR,
        members=[_share_member(member, name_of) for member in group.members.values(epoch)],
    )


def _share_member(member: ShareMember, name_of: NameOf) -> ShareGroupDescribeResponseMember:
    return ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=ShareGroupDescribeResponseAssignment(
            topic_partitions=[
                ShareGroupDescribeResponseTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=sorted(numbers)
                )
                for topic_id, numbers in member.assigned.items()
                if (name := name_of(topic_id)) is not None
            ]
        ),
    )


NO_DESCRIPTION_STORED = 1
"""The status of a description of the topology that was asked for: no plugin stores any here."""


def describe_streams_group(
    group: StreamsGroup, epoch: int, assignor: str, *, with_description: bool
) -> StreamsGroupDescribeResponseDescribedGroup:
    """The group. Internal topics have their numbers of partitions once the topology is configured with topics that
    agree with it."""
    epochs, topology = group.epochs_at(epoch), group.topology_at(epoch)
    return StreamsGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state(epoch).value,
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=assignor,
        topology=None if topology is None else _topology(group, topology),
        topology_description_status=NO_DESCRIPTION_STORED if with_description else 0,
        members=[
            _member(
                member,
                group.target(member.member_id, epoch),
                group.task_offsets.get(member.member_id, MemberOffsets()),
            )
            for member in group.members.values(epoch)
        ],
    )


def _topology(group: StreamsGroup, topology: Topology) -> StreamsGroupDescribeResponseTopology:
    configured = group.configured
    if configured is not None and configured.is_ready and configured.epoch == topology.epoch:
        subtopologies = [_configured(each, shape) for each, shape in configured.subtopologies.items()]
        return StreamsGroupDescribeResponseTopology(epoch=topology.epoch, subtopologies=subtopologies)
    return StreamsGroupDescribeResponseTopology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsGroupDescribeResponseSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sink_topics),
                repartition_source_topics=_stored_topics(each.repartition_source_topics),
                state_changelog_topics=_stored_topics(each.state_changelog_topics),
            )
            for subtopology_id, each in sorted(topology.by_id.items())
        ],
    )


def _configured(subtopology_id: str, shape: ConfiguredSubtopology) -> StreamsGroupDescribeResponseSubtopology:
    return StreamsGroupDescribeResponseSubtopology(
        subtopology_id=subtopology_id,
        source_topics=sorted(shape.source_topics),
        repartition_sink_topics=sorted(shape.repartition_sink_topics),
        repartition_source_topics=_topics(shape.repartition_source_topics),
        state_changelog_topics=_topics(shape.state_changelog_topics),
    )


def _topics(topics: Mapping[str, InternalTopic]) -> list[StreamsGroupDescribeResponseTopicInfo]:
    return [
        StreamsGroupDescribeResponseTopicInfo(
            name=name,
            partitions=topic.partitions,
            replication_factor=max(topic.replication_factor, 0),
            topic_configs=[
                StreamsGroupDescribeResponseKeyValue(key=key, value=value)
                for key, value in sorted(topic.configs.items())
            ],
        )
        for name, topic in sorted(topics.items())
    ]


def _stored_topics(
    topics: Iterable[StreamsGroupTopologyValueTopicInfo],
) -> list[StreamsGroupDescribeResponseTopicInfo]:
    return [
        StreamsGroupDescribeResponseTopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[
                StreamsGroupDescribeResponseKeyValue(key=each.key, value=each.value) for each in topic.topic_configs
            ],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(member: StreamsMember, target: MemberTasks, offsets: MemberOffsets) -> StreamsGroupDescribeResponseMember:
    endpoint = member.endpoint
    return StreamsGroupDescribeResponseMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else StreamsGroupDescribeResponseEndpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            StreamsGroupDescribeResponseKeyValue(key=key, value=value) for key, value in member.client_tags.items()
        ],
        task_offsets=_offsets(offsets.current),
        task_end_offsets=_offsets(offsets.end),
        assignment=_assignment(member.assigned.tasks),
        target_assignment=_assignment(target),
    )


def _offsets(offsets: Mapping[TaskId, int]) -> list[StreamsGroupDescribeResponseTaskOffset]:
    return [
        StreamsGroupDescribeResponseTaskOffset(subtopology_id=task.subtopology_id, partition=task.partition, offset=at)
        for task, at in sorted(offsets.items())
    ]


def _assignment(tasks: MemberTasks) -> StreamsGroupDescribeResponseAssignment:
    def listed(by_subtopology: Tasks) -> list[StreamsGroupDescribeResponseTaskIds]:
        return [
            StreamsGroupDescribeResponseTaskIds(subtopology_id=each, partitions=sorted(by_subtopology[each]))
            for each in sorted(by_subtopology)
        ]

    return StreamsGroupDescribeResponseAssignment(
        active_tasks=listed(tasks.active), standby_tasks=listed(tasks.standby), warmup_tasks=listed(tasks.warmup)
    )


# Who waits for whom in a group now, and its last rebalances, as JSON for `kalda explain rebalance`.
#
# Durations and moments are in ms of the coordinator's clock, whose present is in the document too.

_MEMBERS_SHOWN = 100
_Group: TypeAlias = ConsumerGroup | ShareGroup | StreamsGroup


def explain_classic(group: ClassicGroup, now_ms: int) -> dict[str, Any]:
    """The present of a classic group."""
    return {
        "type": GROUP_TYPE,
        "state": group.state.value,
        "generation": group.generation,
        "members": len(group.members),
        "waits": _waits(group, now_ms),
    }


def explain_consumers(
    group: ConsumerGroup, groups: ConsumerGroups, settings: ConsumerSettings, wall_ms: int
) -> dict[str, Any]:
    """The present of a consumer group, one of `groups`."""
    interval_ms = settings.config.assignment_interval_ms(group.group_id)
    waits = _target_waits(group, CONSUMER, interval_ms, wall_ms, is_computing=group.is_computing)
    return _present(group, CONSUMER, waits or _consumer_waits(group, groups))


def explain_shares(group: ShareGroup, config: ShareGroupConfig, wall_ms: int) -> dict[str, Any]:
    """The present of a share group, whose members have nothing to wait for of each other."""
    interval_ms = config.assignment_interval_ms(group.group_id)
    waits = _target_waits(group, SHARE, interval_ms, wall_ms, is_computing=False)
    late = [member for member in group.members.values() if member.epoch < group.epochs.assignment]
    if waits is None and late:
        waits = _document("their next heartbeat", None, late, [])
    return _present(group, SHARE, waits)


def explain_streams(
    group: StreamsGroup, groups: StreamsGroups, settings: StreamsSettings, wall_ms: int
) -> dict[str, Any]:
    """The present of a streams group, one of `groups`."""
    group_id = group.group_id
    interval_ms = settings.config.assignment_interval_ms(group_id)
    members, delay_left_ms = list(group.members.values()), groups.delay_left_ms(group_id)
    configured = group.configured
    if members and configured is not None and configured.status is not None:
        waits = _document(f"topics: {configured.status[1]}", None, members, [])
    elif members and delay_left_ms is not None:
        waits = _document("group.streams.initial.rebalance.delay.ms", delay_left_ms, members, [])
    else:
        found = _target_waits(group, STREAMS, interval_ms, wall_ms, is_computing=group.is_computing)
        return _present(group, STREAMS, found or _task_waits(group, groups))
    return _present(group, STREAMS, waits)


def _present(group: _Group, kind: str, waits: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "type": kind,
        "state": group.state().value,
        "generation": group.epochs.group,
        "members": len(group.members),
        "waits": waits,
    }


def _target_waits(
    group: _Group, kind: str, interval_ms: int, wall_ms: int, *, is_computing: bool
) -> dict[str, Any] | None:
    """Members wait for the target of the group epoch; None where it is computed."""
    epochs = group.epochs
    members: list[NamedMember] = [*group.members.values()]
    if not members or epochs.assignment >= epochs.group:
        return None
    if is_computing:
        return _document("the assignor", None, members, [])
    left_ms = assignment_wait_ms(epochs.assignment_ms, interval_ms, wall_ms)
    return _document(f"a heartbeat after group.{kind}.assignment.interval.ms", left_ms, members, [])


def _consumer_waits(group: ConsumerGroup, groups: ConsumerGroups) -> dict[str, Any] | None:
    """Members wait for partitions that others are to give back."""
    epoch, members = group.epochs.assignment, list(group.members.values())
    waiting = [member for member in members if member.state is MemberState.UNRELEASED_PARTITIONS]
    late = [member for member in members if member.epoch < epoch or member.state is MemberState.UNREVOKED_PARTITIONS]
    return _member_waits("partitions", group.group_id, groups, waiting, late)


def _task_waits(group: StreamsGroup, groups: StreamsGroups) -> dict[str, Any] | None:
    """Members wait for tasks that others are to give back."""
    epoch, members = group.epochs.assignment, list(group.members.values())
    waiting = [member for member in members if member.state is TaskState.UNRELEASED_TASKS]
    late = [member for member in members if member.epoch < epoch or member.state is TaskState.UNREVOKED_TASKS]
    return _member_waits("tasks", group.group_id, groups, waiting, late)


def _member_waits(
    what: str,
    group_id: str,
    groups: ConsumerGroups | StreamsGroups,
    waiting: Sequence[NamedMember],
    late: Sequence[NamedMember],
) -> dict[str, Any] | None:
    """Of the members that others wait for it is said how long they have."""
    if not waiting and not late:
        return None
    grace = [left for member in late if (left := groups.grace_left_ms(group_id, member.member_id)) is not None]
    found = _document(what, max(grace, default=None), waiting, late)
    for shown, member in zip(found["awaited"], late, strict=False):
        shown["session_left_ms"] = groups.session_left_ms(group_id, member.member_id)
    return found


def explain_rebalances(rebalances: Iterable[Rebalance]) -> list[dict[str, Any]]:
    """The last rebalances of a group, the oldest first."""
    return [
        {
            "started_ms": each.started_ms,
            "joined_ms": each.joined_ms,
            "assigned_ms": each.assigned_ms,
            "ended_ms": each.ended_ms,
            "outcome": each.outcome or None,
            "type": each.group_type,
            "generation": each.generation,
            "next_generation": each.next_generation,
            "members": each.member_count,
            "causes": [
                {
                    "what": cause.what,
                    "members": _names(cause.members),
                    "member_count": cause.member_count,
                    "reason": cause.reason or None,
                }
                for cause in each.causes
            ],
            "cause_count": each.cause_count,
            "last_member": None if each.last_member is None else each.last_member._asdict(),
            "last_ms": each.last_ms,
            "removed": _names(each.removed),
            "removed_count": each.removed_count,
        }
        for each in rebalances
    ]


def _waits(group: ClassicGroup, now_ms: int) -> dict[str, Any] | None:
    """For what a rebalance waits, which members wait with it, and whose requests are awaited."""
    members = group.members.values()
    if group.state is GroupState.PREPARING_REBALANCE:
        joined = [member for member in members if member.awaiting_join is not None]
        if group.previous_state is GroupState.EMPTY:
            return _wait("group.initial.rebalance.delay.ms", joined, [], group.join_timer, now_ms)
        awaited = [member for member in members if member.awaiting_join is None]
        found = _wait("JoinGroup", joined, awaited, group.join_timer, now_ms)
        found["pending"] = list(group.pending_joins)[:_MEMBERS_SHOWN]
        return found
    if group.state is GroupState.COMPLETING_REBALANCE:
        waiting = [member for member in members if member.awaiting_sync is not None]
        if group.is_assignment_being_written:
            return _wait("the commit of the assignment", waiting, [], None, now_ms)
        leader = [member for member in members if member.member_id == group.leader_id]
        return _wait("SyncGroup of the leader", waiting, leader, group.sync_timer, now_ms)
    return None


def _wait(
    what: str, waiting: Sequence[ClassicMember], awaited: Sequence[ClassicMember], timer: TimerTask | None, now_ms: int
) -> dict[str, Any]:
    left_ms = None if timer is None or timer.deadline_ms is None else max(timer.deadline_ms - now_ms, 0)
    found = _document(what, left_ms, waiting, awaited)
    for shown, member in zip(found["waiting"], waiting, strict=False):
        shown["since_ms"] = None if member.awaiting_join is None else member.awaiting_join.since_ms
    for shown, member in zip(found["awaited"], awaited, strict=False):
        shown["session_left_ms"] = _session_left_ms(member, now_ms)
    return found


def _document(
    what: str, left_ms: int | None, waiting: Sequence[NamedMember], awaited: Sequence[NamedMember]
) -> dict[str, Any]:
    return {
        "for": what,
        "left_ms": left_ms,
        "waiting": [{**_name(member), "since_ms": None} for member in waiting[:_MEMBERS_SHOWN]],
        "waiting_count": len(waiting),
        "awaited": [{**_name(member), "session_left_ms": None} for member in awaited[:_MEMBERS_SHOWN]],
        "awaited_count": len(awaited),
        "pending": [],
    }


def _session_left_ms(member: ClassicMember, now_ms: int) -> int | None:
    timer = member.session_timer
    return None if timer is None or timer.deadline_ms is None else max(timer.deadline_ms - now_ms, 0)


def _name(member: NamedMember) -> dict[str, Any]:
    return MemberName.of(member)._asdict()


def _names(members: Iterable[MemberName]) -> list[dict[str, Any]]:
    return [member._asdict() for member in members]
