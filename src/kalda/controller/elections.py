"""Elections on request: by an operator (ElectLeaders, KIP-460), or by the controller's own periodic tasks."""

from __future__ import annotations

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.controller.answers import check_batch_size, error_fields
from kalda.controller.partition_change import Election
from kalda.controller.partitions import PartitionControl, TopicIdPartition
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.topics import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ReplicaElectionResult,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

MAX_ELECTIONS_PER_RUN = 1_000


class ElectionControl:
    """Elects leaders of single partitions. A failure for one does not affect the others."""

    def __init__(self, state: PartitionControl) -> None:
        self._state = state

    def elect(self, request: ElectLeadersRequest) -> Steps[Result[VersionedRecord, ElectLeadersResponse]]:
        """Without partitions in the request, all partitions; the response then omits those that need no election."""
        if request.election_type not in ElectionType.__members__.values():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        election = ElectionType(request.election_type)
        records: list[VersionedRecord] = []
        results: list[ReplicaElectionResult] = []
        requested = request.topic_partitions
        if requested is None:
            requested = self._elections_needed(election)
        else:
            check_batch_size(len(requested))
        check_batch_size(sum(len(one.partitions) for one in requested))
        done = 0
        for one in requested:
            answers: list[ElectLeadersResponsePartitionResult] = []
            results.append(ReplicaElectionResult(topic=one.topic, partition_result=answers))
            for partition_id in one.partitions:
                answers.append(self._elect(one.topic, partition_id, election, records))
                done += 1
                if done % ITEMS_A_STEP == 0:
                    yield
        return Result(records, ElectLeadersResponse(replica_election_results=results))

    def _elections_needed(self, election: ElectionType) -> list[ElectLeadersRequestTopicPartitions]:
        """All topics, each with its partitions that need such an election."""
        index = self._state.index
        by_topic: dict[Uuid, list[int]] = {topic_id: [] for topic_id in self._state.topic_ids.values()}
        for at in sorted(index.imbalanced if election is ElectionType.PREFERRED else index.leaderless):
            by_topic[at.topic_id].append(at.partition_id)
        return [
            ElectLeadersRequestTopicPartitions(topic=self._state.topic_names[topic_id], partitions=partitions)
            for topic_id, partitions in by_topic.items()
        ]

    def balance(self) -> tuple[list[VersionedRecord], bool]:
        """The records that move leaderships to preferred replicas where that is possible, and whether another run is
        needed for more."""
        records: list[VersionedRecord] = []
        for at in self._state.index.imbalanced:
            if len(records) >= MAX_ELECTIONS_PER_RUN:
                return records, True
            change = self._state.change(at, self._state.partitions[at])
            change.election = Election.PREFERRED
            record = change.build()
            if record is not None:
                records.append(record)
        return records, False

    def elect_unclean(self, replica: int | None = None) -> tuple[list[VersionedRecord], bool]:
        """The records that elect leaders of leaderless partitions uncleanly, where their topic allows that, and whether
        another run is needed for more. With `replica`, only of partitions that have a replica on that broker."""
        records: list[VersionedRecord] = []
        for at in self._state.index.leaderless:
            if len(records) >= MAX_ELECTIONS_PER_RUN:
                return records, True
            topic, partition = self._state.topic_names[at.topic_id], self._state.partitions[at]
            if replica is not None and replica not in partition.replicas:
                continue
            if self._state.may_elect_uncleanly(topic, partition):
                self._elect(topic, at.partition_id, ElectionType.UNCLEAN, records)
        return records, False

    def _elect(
        self, topic: str, partition_id: int, election: ElectionType, records: list[VersionedRecord]
    ) -> ElectLeadersResponsePartitionResult:
        failure: ApiError | None = None
        try:
            records.append(self._record(topic, partition_id, election))
        except ApiError as error:
            failure = error
        return ElectLeadersResponsePartitionResult(partition_id=partition_id, **error_fields(failure))

    def _record(self, topic: str, partition_id: int, election: ElectionType) -> VersionedRecord:
        topic_id = self._state.topic_ids.get(topic)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
        at = TopicIdPartition(topic_id, partition_id)
        partition = self._state.partitions.get(at)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{partition_id}")
        preferred = election is ElectionType.PREFERRED
        if partition.has_preferred_leader if preferred else partition.has_leader:
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        change = self._state.change(at, partition)
        change.election = Election.PREFERRED if preferred else Election.UNCLEAN
        record = change.build()
        if record is not None:
            return record
        if preferred:
            raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
