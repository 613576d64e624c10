"""KRaft.

Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), DescribeQuorum (55), FetchSnapshot (59), voters (80 to 82).
"""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Bool, Int16, Int32, Int64, Records, Request, Response, String, Struct, UInt16, field


class VoteRequestPartitionData(Struct):
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field("1+", default=ZERO_UUID, ignorable=True)
    voter_directory_id: Uuid = field("1+", default=ZERO_UUID, ignorable=True)
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0
    pre_vote: Bool = field("2+", default=False)


class VoteRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[VoteRequestPartitionData] = []


class VoteRequest(Request, key=52, versions="0-2", flexible="0+"):
    cluster_id: String | None = None
    voter_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = []


class VoteResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    vote_granted: Bool = False


class VoteResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[VoteResponsePartitionData] = []


class VoteResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: UInt16 = 0


class VoteResponse(Response, key=52, versions="0-2", flexible="0+"):
    error_code: Int16 = 0
    topics: list[VoteResponseTopicData] = []
    node_endpoints: list[VoteResponseNodeEndpoint] = field("1+", default=[], tag=0)


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = 0
    voter_directory_id: Uuid = field("1+", default=ZERO_UUID, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[BeginQuorumEpochRequestPartitionData] = []


class BeginQuorumEpochRequestLeaderEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class BeginQuorumEpochRequest(Request, key=53, versions="0-1", flexible="1+"):
    cluster_id: String | None = None
    voter_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = []
    leader_endpoints: list[BeginQuorumEpochRequestLeaderEndpoint] = field("1+", default=[], ignorable=True)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[BeginQuorumEpochResponsePartitionData] = []


class BeginQuorumEpochResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: UInt16 = 0


class BeginQuorumEpochResponse(Response, key=53, versions="0-1", flexible="1+"):
    error_code: Int16 = 0
    topics: list[BeginQuorumEpochResponseTopicData] = []
    node_endpoints: list[BeginQuorumEpochResponseNodeEndpoint] = field("1+", default=[], tag=0)


class ReplicaInfo(Struct):
    candidate_id: Int32 = 0
    candidate_directory_id: Uuid = ZERO_UUID


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_candidates: list[ReplicaInfo] = field("1+", default=[], ignorable=True)
    preferred_successors: list[Int32] = field("0", default=[], ignorable=True)


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[EndQuorumEpochRequestPartitionData] = []


class EndQuorumEpochRequestLeaderEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class EndQuorumEpochRequest(Request, key=54, versions="0-1", flexible="1+"):
    cluster_id: String | None = None
    topics: list[EndQuorumEpochRequestTopicData] = []
    leader_endpoints: list[EndQuorumEpochRequestLeaderEndpoint] = field("1+", default=[], ignorable=True)


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[EndQuorumEpochResponsePartitionData] = []


class EndQuorumEpochResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: UInt16 = 0


class EndQuorumEpochResponse(Response, key=54, versions="0-1", flexible="1+"):
    error_code: Int16 = 0
    topics: list[EndQuorumEpochResponseTopicData] = []
    node_endpoints: list[EndQuorumEpochResponseNodeEndpoint] = field("1+", default=[], tag=0)


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: Int32 = 0


class DescribeQuorumRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[DescribeQuorumRequestPartitionData] = []


class DescribeQuorumRequest(Request, key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = []


class DescribeQuorumResponseReplicaState(Struct):
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field("2+", default=ZERO_UUID)
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Int64 = field("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: Int64 = field("1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("2+", default="", ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[DescribeQuorumResponseReplicaState] = []
    observers: list[DescribeQuorumResponseReplicaState] = []


class DescribeQuorumResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[DescribeQuorumResponsePartitionData] = []


class DescribeQuorumResponseListener(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class Node(Struct):
    node_id: Int32 = 0
    listeners: list[DescribeQuorumResponseListener] = []


class DescribeQuorumResponse(Response, key=55, versions="0-2", flexible="0+"):
    error_code: Int16 = 0
    error_message: String | None = field("2+", default="", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = []
    nodes: list[Node] = field("2+", default=[])


class FetchSnapshotRequestSnapshotId(Struct):
    end_offset: Int64 = 0
    epoch: Int32 = 0


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0
    snapshot_id: FetchSnapshotRequestSnapshotId = FetchSnapshotRequestSnapshotId()
    position: Int64 = 0
    replica_directory_id: Uuid = field("1+", default=ZERO_UUID, tag=0, ignorable=True)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: String = ""
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = []


class FetchSnapshotRequest(Request, key=59, versions="0-1", flexible="0+"):
    replica_id: Int32 = -1
    max_bytes: Int32 = 2147483647
    topics: list[FetchSnapshotRequestTopicSnapshot] = []
    cluster_id: String | None = field("0+", default=None, tag=0)


class FetchSnapshotResponseSnapshotId(Struct):
    end_offset: Int64 = 0
    epoch: Int32 = 0


class FetchSnapshotResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: FetchSnapshotResponseSnapshotId = FetchSnapshotResponseSnapshotId()
    size: Int64 = 0
    position: Int64 = 0
    unaligned_records: Records = b""
    current_leader: FetchSnapshotResponseLeaderIdAndEpoch = field(
        "0+", default=FetchSnapshotResponseLeaderIdAndEpoch(), tag=0
    )


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: String = ""
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = []


class FetchSnapshotResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: UInt16 = 0


class FetchSnapshotResponse(Response, key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[FetchSnapshotResponseTopicSnapshot] = []
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = field("1+", default=[], tag=0)


class AddRaftVoterRequestListener(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class AddRaftVoterRequest(Request, key=80, versions="0-1", flexible="0+"):
    cluster_id: String | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[AddRaftVoterRequestListener] = []
    ack_when_committed: Bool = field("1+", default=True)


class AddRaftVoterResponse(Response, key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class RemoveRaftVoterRequest(Request, key=81, versions="0", flexible="0+"):
    cluster_id: String | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


class RemoveRaftVoterResponse(Response, key=81, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class UpdateRaftVoterRequestListener(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class UpdateRaftVoterRequestKRaftVersionFeature(Struct):
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class UpdateRaftVoterRequest(Request, key=82, versions="0", flexible="0+"):
    cluster_id: String | None = ""
    current_leader_epoch: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[UpdateRaftVoterRequestListener] = []
    kraft_version_feature: UpdateRaftVoterRequestKRaftVersionFeature = UpdateRaftVoterRequestKRaftVersionFeature()


class CurrentLeader(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: String = ""
    port: Int32 = 0


class UpdateRaftVoterResponse(Response, key=82, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: CurrentLeader = field("0+", default=CurrentLeader(), tag=0)
