"""A streams group as StreamsGroupDescribe (89) shows it, at an epoch of the timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kalda.assignors.task_assignor import MemberTasks, TaskId, Tasks
from kalda.coordinator.groups.streams.group import MemberOffsets, StreamsGroup, Topology
from kalda.coordinator.groups.streams.member import StreamsMember
from kalda.coordinator.groups.streams.topology import ConfiguredSubtopology, InternalTopic
from kalda.protocol.messages.group_records import StreamsGroupTopologyValueTopicInfo
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
