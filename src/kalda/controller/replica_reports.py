"""What brokers report of their replicas: ISRs (AlterPartition, KIP-497) and log directories (AssignReplicasToDirs).

A leader proposes its ISR, and the controller decides.

Only the leader has the replicas' fetch positions; only the controller has the brokers' sessions. So a proposal is
refused when it was made under an older leader or partition epoch, or when it contains a replica that is fenced,
shutting down (KIP-841), or of another incarnation than in the proposal (KIP-903).
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.controller.cluster import ClusterControl
from kalda.controller.features import FeatureControl
from kalda.controller.partitions import PartitionControl, TopicIdPartition
from kalda.metadata.topics import NO_LEADER_CHANGE, LeaderRecoveryState, PartitionRegistration
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from kalda.protocol.messages.metadata_records import PartitionChangeRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

_SKIP_EPOCH_CHECK = -1


class AlterPartitionControl:
    """Answers AlterPartition."""

    def __init__(self, state: PartitionControl, cluster: ClusterControl) -> None:
        self._state = state
        self._cluster = cluster

    def alter(self, request: AlterPartitionRequest) -> Steps[Result[VersionedRecord, AlterPartitionResponse]]:
        """Raises `ApiError` STALE_BROKER_EPOCH."""
        self._cluster.check_broker_epoch(request.broker_id, request.broker_epoch)
        response = AlterPartitionResponse()
        records: list[VersionedRecord] = []
        done = 0
        for topic in request.topics:
            answer = AlterPartitionResponseTopicData(topic_id=topic.topic_id)
            response.topics.append(answer)
            for data in topic.partitions:
                answer.partitions.append(self._alter_one(request.broker_id, topic.topic_id, data, records))
                done += 1
                if done % ITEMS_A_STEP == 0:
                    yield
        return Result(records, response)

    def _alter_one(
        self, broker_id: int, topic_id: Uuid, data: AlterPartitionRequestPartitionData, records: list[VersionedRecord]
    ) -> AlterPartitionResponsePartitionData:
        partition_id = data.partition_index
        answer = AlterPartitionResponsePartitionData(partition_index=partition_id)
        if topic_id not in self._state.topic_names:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            return answer
        at = TopicIdPartition(topic_id, partition_id)
        partition = self._state.partitions.get(at)
        if partition is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        proposed = data.new_isr_with_epochs or [
            AlterPartitionRequestBrokerState(broker_id=replica) for replica in data.new_isr
        ]
        answer.error_code = self._refusal(broker_id, partition, data, proposed)
        if answer.error_code != ErrorCode.NONE:
            return answer
        change = self._state.change(at, partition)
        change.isr = tuple(replica.broker_id for replica in proposed)
        change.leader_recovery_state = LeaderRecoveryState(data.leader_recovery_state)
        versioned = change.build()
        if versioned is not None:
            records.append(versioned)
            record = versioned.record
            assert isinstance(record, PartitionChangeRecord)
            partition = partition.merge(record)
            if record.leader not in (broker_id, NO_LEADER_CHANGE):
                # The new ISR completed a reassignment that removes the leader: the only case with both an error in the
                # response and a record. The old leader must read the metadata before its next proposal.
                answer.error_code = ErrorCode.NEW_LEADER_ELECTED
                return answer
        answer.leader_id = partition.leader
        answer.leader_epoch = partition.leader_epoch
        answer.isr = list(partition.isr)
        answer.leader_recovery_state = partition.leader_recovery_state.value
        answer.partition_epoch = partition.partition_epoch
        return answer

    def _refusal(
        self,
        broker_id: int,
        partition: PartitionRegistration,
        data: AlterPartitionRequestPartitionData,
        proposed: Sequence[AlterPartitionRequestBrokerState],
    ) -> ErrorCode:
        if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
            return ErrorCode.NOT_CONTROLLER  # the leader has read records that this controller lacks: another is active
        if data.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if broker_id != partition.leader:
            return ErrorCode.INVALID_REQUEST
        if data.partition_epoch < partition.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = [replica.broker_id for replica in proposed]
        valid = isr and len(set(isr)) == len(isr) and set(isr) <= set(partition.replicas)
        if not valid or partition.leader not in isr:
            return ErrorCode.INVALID_REQUEST
        if data.leader_recovery_state not in LeaderRecoveryState.__members__.values():
            return ErrorCode.INVALID_REQUEST
        if data.leader_recovery_state == LeaderRecoveryState.RECOVERING and (
            len(isr) > 1 or partition.leader_recovery_state is LeaderRecoveryState.RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        if not all(self._is_eligible(replica) for replica in proposed):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _is_eligible(self, replica: AlterPartitionRequestBrokerState) -> bool:
        if not self._cluster.is_active(replica.broker_id):
            return False
        epoch = self._cluster.brokers[replica.broker_id].epoch
        return replica.broker_epoch in (_SKIP_EPOCH_CHECK, epoch)


class DirectoryControl:
    """Answers AssignReplicasToDirs.

    A broker reports the log directories of its replicas (AssignReplicasToDirs, KIP-858).

    When a directory fails, the controller then finds the affected partitions without the broker.
    """

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
