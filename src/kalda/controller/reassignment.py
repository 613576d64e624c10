"""Reassignment of replicas to other brokers (KIP-455).

During a reassignment, a partition's replicas are those of the target, followed by those to be removed; the added and
the removed ones are listed separately. No replica is removed before all added ones have caught up: the change that
brings the last of them into the ISR completes the reassignment (`partition_change.py`). A cancellation restores the
replicas without the added ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size, error_fields
from kalda.controller.configs import ConfigControl
from kalda.controller.partition_change import Election
from kalda.controller.partitions import PartitionControl, TopicIdPartition
from kalda.metadata.topics import PartitionRegistration
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result


class ReassignmentControl:
    """Starts, cancels and lists reassignments."""

    def __init__(
        self,
        state: PartitionControl,
        configs: ConfigControl,
        check_assignment: Callable[[Sequence[int], int | None], None],
    ) -> None:
        """`check_assignment(replicas, replication factor or None)` raises `ApiError` INVALID_REPLICA_ASSIGNMENT."""
        self._state = state
        self._configs = configs
        self._check_assignment = check_assignment

    def alter(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Steps[Result[VersionedRecord, AlterPartitionReassignmentsResponse]]:
        check_batch_size(len(request.topics) + sum(len(topic.partitions) for topic in request.topics))
        records: list[VersionedRecord] = []
        allow_factor_change = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow_factor_change, error_message=None if request.topics else ""
        )
        done = 0
        for topic in request.topics:
            answers: list[ReassignablePartitionResponse] = []
            response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
            for target in topic.partitions:
                failure: ApiError | None = None
                try:
                    record = self._alter_one(topic.name, target, allow_factor_change)
                    if record is not None:
                        records.append(record)
                except ApiError as error:
                    failure = error
                answers.append(
                    ReassignablePartitionResponse(partition_index=target.partition_index, **error_fields(failure))
                )
                done += 1
                if done % ITEMS_A_STEP == 0:
                    yield
        return Result(records, response, atomic=True)

    def list_ongoing(
        self, request: ListPartitionReassignmentsRequest, epoch: int
    ) -> ListPartitionReassignmentsResponse:
        """The reassignments in the committed state at `epoch`: of all partitions, or of those in the request."""
        state = self._state
        requested: list[TopicIdPartition]
        if request.topics is None:
            requested = sorted(state.index.reassigning.members(epoch))
        else:
            requested = []
            for topic in request.topics:
                topic_id = state.topic_ids.get(topic.name, epoch=epoch)
                if topic_id is not None:
                    requested += [TopicIdPartition(topic_id, at) for at in topic.partition_indexes]
        topics: dict[str, OngoingTopicReassignment] = {}
        for at in requested:
            partition = state.partitions.get(at, epoch=epoch)
            if partition is None or not partition.is_reassigning:
                continue
            name = state.topic_names.get(at.topic_id, epoch=epoch)
            assert name is not None, "a partition has a topic"
            ongoing = OngoingPartitionReassignment(
                partition_index=at.partition_id,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            topics.setdefault(name, OngoingTopicReassignment(name=name)).partitions.append(ongoing)
        return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

    def _alter_one(
        self, topic: str, target: ReassignablePartition, allow_factor_change: bool
    ) -> VersionedRecord | None:
        topic_id = self._state.topic_ids.get(topic)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
        at = TopicIdPartition(topic_id, target.partition_index)
        partition = self._state.partitions.get(at)
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{target.partition_index}."
            )
        if target.replicas is None:
            return self._cancel(topic, at, partition)
        return self._start(at, partition, target.replicas, allow_factor_change)

    def _start(
        self, at: TopicIdPartition, partition: PartitionRegistration, target: list[int], allow_factor_change: bool
    ) -> VersionedRecord | None:
        self._check_assignment(target, None)
        factor = len(partition.replicas) - len(partition.adding_replicas)
        if not allow_factor_change and factor != len(target):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {factor} to {len(target)}",
            )
        removing = sorted(replica for replica in partition.replicas if replica not in target)
        before = set(partition.replicas) - set(partition.adding_replicas)
        change = self._state.change(at, partition)
        change.replicas = (*target, *removing)
        # Both are computed anew, also where another reassignment was unfinished. A replica that it was adding and the
        # target lacks must not stay in `adding`: completion would wait for it, and remove it, for ever. A replica that
        # it was removing and the target has must not be removed.
        change.adding = tuple(sorted(replica for replica in target if replica not in before))
        change.removing = tuple(removing)
        return change.build()

    def _cancel(self, topic: str, at: TopicIdPartition, partition: PartitionRegistration) -> VersionedRecord | None:
        if not partition.is_reassigning:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        replicas = tuple(r for r in partition.replicas if r not in partition.adding_replicas)
        isr = tuple(r for r in partition.isr if r not in partition.adding_replicas)
        change = self._state.change(at, partition)
        if not isr:
            # Only added replicas are in sync: after the cancellation a replica out of sync must lead.
            if not self._configs.unclean_election_enabled(topic):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Unable to revert partition assignment for {topic}:{at.partition_id} because it would require an "
                    "unclean leader election.",
                )
            isr = replicas[:1]
            change.election = Election.UNCLEAN
        change.isr = isr
        change.replicas = replicas
        change.removing = change.adding = ()
        return change.build()
