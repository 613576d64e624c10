"""Groups as ConsumerGroupDescribe (69), ShareGroupDescribe (77) and StreamsGroupDescribe (89) show them, at an epoch of
the timeline. Topics that do not exist are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kalda.assignors.task_assignor import MemberTasks, TaskId, Tasks
from kalda.base.ids import Uuid
from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.coordinator.groups.consumer_member import ConsumerMember
from kalda.coordinator.groups.share_group import ShareGroup, ShareMember
from kalda.coordinator.groups.streams.group import MemberOffsets, StreamsGroup, Topology
from kalda.coordinator.groups.streams.member import StreamsMember
from kalda.coordinator.groups.streams.topology import ConfiguredSubtopology, InternalTopic
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
