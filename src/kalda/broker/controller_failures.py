"""How the APIs of controllers alone report that the whole request failed: Vote (52) to AssignReplicasToDirs (73).

All of them have one error code on top. Those that brokers forward are in `handlers.forwarded`.
"""

from __future__ import annotations

from kalda.base.errors import ApiError
from kalda.broker.rows import message_of
from kalda.protocol.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kalda.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)


def vote_failed(request: VoteRequest, version: int, error: ApiError) -> VoteResponse:
    return VoteResponse(error_code=error.code)


def begin_quorum_epoch_failed(
    request: BeginQuorumEpochRequest, version: int, error: ApiError
) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error_code=error.code)


def end_quorum_epoch_failed(request: EndQuorumEpochRequest, version: int, error: ApiError) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error_code=error.code)


def fetch_snapshot_failed(request: FetchSnapshotRequest, version: int, error: ApiError) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(error_code=error.code)


def update_raft_voter_failed(request: UpdateRaftVoterRequest, version: int, error: ApiError) -> UpdateRaftVoterResponse:
    return UpdateRaftVoterResponse(error_code=error.code)


def broker_registration_failed(
    request: BrokerRegistrationRequest, version: int, error: ApiError
) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=error.code)


def broker_heartbeat_failed(request: BrokerHeartbeatRequest, version: int, error: ApiError) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=error.code)


def controller_registration_failed(
    request: ControllerRegistrationRequest, version: int, error: ApiError
) -> ControllerRegistrationResponse:
    return ControllerRegistrationResponse(error_code=error.code, error_message=message_of(error))


def alter_partition_failed(request: AlterPartitionRequest, version: int, error: ApiError) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=error.code)


def allocate_producer_ids_failed(
    request: AllocateProducerIdsRequest, version: int, error: ApiError
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=error.code)


def assign_replicas_to_dirs_failed(
    request: AssignReplicasToDirsRequest, version: int, error: ApiError
) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(error_code=error.code)
