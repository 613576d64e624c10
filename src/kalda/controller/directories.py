"""A broker reports the log directories of its replicas (AssignReplicasToDirs, KIP-858).

When a directory fails, the controller then finds the affected partitions without the broker.
"""

from __future__ import annotations

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.controller.cluster import ClusterControl
from kalda.controller.features import FeatureControl
from kalda.controller.partition_index import TopicIdPartition
from kalda.controller.partitions import PartitionControl
from kalda.protocol.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result


class DirectoryControl:
    """Answers AssignReplicasToDirs."""

    def __init__(self, state: PartitionControl, features: FeatureControl, cluster: ClusterControl) -> None:
        self._state = state
        self._features = features
        self._cluster = cluster

    def assign(
        self, request: AssignReplicasToDirsRequest
    ) -> Steps[Result[VersionedRecord, AssignReplicasToDirsResponse]]:
        """Raises `ApiError` UNSUPPORTED_VERSION, STALE_BROKER_EPOCH. A replica in a directory that is offline is
        removed from its ISR."""
        if not self._features.metadata_version.is_directory_assignment_supported:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
        broker_id = request.broker_id
        self._cluster.check_broker_epoch(broker_id, request.broker_epoch)
        records: list[VersionedRecord] = []
        lost: dict[TopicIdPartition, None] = {}
        response = AssignReplicasToDirsResponse()
        done = 0
        for directory in request.directories:
            online = self._cluster.has_online_directory(broker_id, directory.id)
            topics = []
            for topic in directory.topics:
                answers = []
                for one in topic.partitions:
                    at = TopicIdPartition(topic.topic_id, one.partition_index)
                    code = self._assign_one(broker_id, directory.id, at, records)
                    answers.append(
                        AssignReplicasToDirsResponsePartitionData(partition_index=one.partition_index, error_code=code)
                    )
                    if code == ErrorCode.NONE and not online:
                        lost[at] = None
                    done += 1
                    if done % ITEMS_A_STEP == 0:
                        yield
                topics.append(AssignReplicasToDirsResponseTopicData(topic_id=topic.topic_id, partitions=answers))
            response.directories.append(AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics))
        records += self._state.leader_and_isr_updates(lost, removed=broker_id)
        return Result(records, response)

    def _assign_one(
        self, broker_id: int, directory: Uuid, at: TopicIdPartition, records: list[VersionedRecord]
    ) -> ErrorCode:
        if at.topic_id not in self._state.topic_names:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._state.partitions.get(at)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if broker_id not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        change = self._state.change(at, partition)
        change.move_to_directory(broker_id, directory)
        record = change.build()
        if record is not None:
            records.append(record)
        return ErrorCode.NONE
