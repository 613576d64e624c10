"""What clients say in StreamsGroupHeartbeat: its checks, and its topology as the record that is stored of it."""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, is_topic_name
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, STATIC_LEAVING_EPOCH
from kalda.coordinator.groups.streams.group import Topology, topology_of
from kalda.coordinator.groups.streams.topology import ConfiguredTopology
from kalda.protocol.messages.group_records import (
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueCopartitionGroup,
    StreamsGroupTopologyValueSubtopology,
    StreamsGroupTopologyValueTopicInfo,
    TopicConfig,
)
from kalda.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
)


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
