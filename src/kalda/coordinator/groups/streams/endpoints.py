"""Which partitions are found at which endpoint of an application, for interactive queries (KIP-1071).

A member that has set `application.server` is asked there for the state of its tasks: those that it runs, and its
standby and warm-up copies. All members get all endpoints when their epoch is not the group's. What is found at each is
kept until the member or the topology changes.
"""

from __future__ import annotations

from kalda.assignors.task_assignor import Tasks
from kalda.coordinator.groups.streams.group import StreamsGroup
from kalda.coordinator.groups.streams.member import StreamsMember
from kalda.coordinator.groups.streams.topology import ConfiguredTopology, PartitionCount
from kalda.protocol.messages.streams import (
    EndpointToPartitions,
    StreamsGroupHeartbeatResponseEndpoint,
    StreamsGroupHeartbeatResponseTopicPartition,
)


def endpoints_of(group: StreamsGroup, partition_count: PartitionCount) -> list[EndpointToPartitions]:
    """The endpoints of all members that have one, with the topics that exist."""
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
