"""Elections that somebody asks for: an operator (ElectLeaders, KIP-460), or the controller's own periodic tasks."""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size, error_fields
from kalda.controller.configs import ConfigControl
from kalda.controller.partition_change import Election
from kalda.controller.partition_index import TopicIdPartition
from kalda.controller.partitions import PartitionControl
from kalda.protocol.messages.topics import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ReplicaElectionResult,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

MAX_ELECTIONS_PER_RUN = 1_000


class ElectionControl:
    """Elects leaders one by one, each outcome by itself."""

    def __init__(self, state: PartitionControl, configs: ConfigControl) -> None:
        self._state = state
        self._configs = configs

    def elect(self, request: ElectLeadersRequest) -> Result[VersionedRecord, ElectLeadersResponse]:
        """Without partitions named, all of them, and then only those where something was to be done are answered."""
        if request.election_type not in ElectionType.__members__.values():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        election = ElectionType(request.election_type)
        records: list[VersionedRecord] = []
        results: list[ReplicaElectionResult] = []
        wanted = request.topic_partitions
        if wanted is None:
            for topic, topic_id in self._state.topic_ids.items():
                partitions = [partition_id for partition_id, _ in self._state.of_topic(topic_id)]
                answers = [self._elect(topic, partition_id, election, records) for partition_id in partitions]
                needed = [answer for answer in answers if answer.error_code != ErrorCode.ELECTION_NOT_NEEDED]
                results.append(ReplicaElectionResult(topic=topic, partition_result=needed))
        else:
            for one in wanted:
                answers = [self._elect(one.topic, partition_id, election, records) for partition_id in one.partitions]
                results.append(ReplicaElectionResult(topic=one.topic, partition_result=answers))
        check_batch_size(len(records))
        return Result(records, ElectLeadersResponse(replica_election_results=results))

    def balance(self) -> tuple[list[VersionedRecord], bool]:
        """Move leaderships to preferred replicas where that is possible; whether more remain for another run."""
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

    def elect_unclean(self) -> tuple[list[VersionedRecord], bool]:
        """Give leaderless partitions a leader where their topic takes data loss for it; whether more remain."""
        records: list[VersionedRecord] = []
        for at in self._state.index.leaderless:
            if len(records) >= MAX_ELECTIONS_PER_RUN:
                return records, True
            topic = self._state.topic_names[at.topic_id]
            if self._configs.unclean_election_enabled(topic):
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
