"""Share groups of KIP-932: members, records and persisted state.

Heartbeat, describe (76, 77), ShareFetch (78), ShareAcknowledge (79), offsets (90 to 92); the state that a share
coordinator keeps (83 to 87).
"""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Bool, Int8, Int16, Int32, Int64, Records, Request, Response, String, Struct, field


class ShareGroupHeartbeatRequest(Request, key=76, versions="1", flexible="1+"):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class ShareGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions] = []


class ShareGroupHeartbeatResponse(Response, key=76, versions="1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ShareGroupHeartbeatResponseAssignment | None = None


class ShareGroupDescribeRequest(Request, key=77, versions="1", flexible="1+"):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class ShareGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class ShareGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions] = []


class ShareGroupDescribeResponseMember(Struct):
    member_id: String = ""
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    assignment: ShareGroupDescribeResponseAssignment = ShareGroupDescribeResponseAssignment()


class ShareGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[ShareGroupDescribeResponseMember] = []
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(Response, key=77, versions="1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    groups: list[ShareGroupDescribeResponseDescribedGroup] = []


class ShareFetchRequestAcknowledgementBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class ShareFetchRequestFetchPartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[ShareFetchRequestAcknowledgementBatch] = []


class ShareFetchRequestFetchTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareFetchRequestFetchPartition] = []


class ShareFetchRequestForgottenTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareFetchRequest(Request, key=78, versions="1-2", flexible="1+"):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2147483647
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = field("2+", default=0, ignorable=True)
    is_renew_ack: Bool = field("2+", default=False)
    topics: list[ShareFetchRequestFetchTopic] = []
    forgotten_topics_data: list[ShareFetchRequestForgottenTopic] = []


class ShareFetchResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class AcquiredRecords(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class ShareFetchResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: ShareFetchResponseLeaderIdAndEpoch = ShareFetchResponseLeaderIdAndEpoch()
    records: Records = b""
    acquired_records: list[AcquiredRecords] = []


class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareFetchResponsePartitionData] = []


class ShareFetchResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareFetchResponse(Response, key=78, versions="1-2", flexible="1+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[ShareFetchResponseNodeEndpoint] = []


class ShareAcknowledgeRequestAcknowledgementBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class AcknowledgePartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[ShareAcknowledgeRequestAcknowledgementBatch] = []


class AcknowledgeTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(Request, key=79, versions="1-2", flexible="1+"):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Bool = field("2+", default=False)
    topics: list[AcknowledgeTopic] = []


class ShareAcknowledgeResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class ShareAcknowledgeResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: ShareAcknowledgeResponseLeaderIdAndEpoch = ShareAcknowledgeResponseLeaderIdAndEpoch()


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareAcknowledgeResponsePartitionData] = []


class ShareAcknowledgeResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareAcknowledgeResponse(Response, key=79, versions="1-2", flexible="1+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = field("2+", default=0, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[ShareAcknowledgeResponseNodeEndpoint] = []


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""
    partitions: list[Int32] = []


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = []


class DescribeShareGroupOffsetsRequest(Request, key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = []


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Int64 = field("1+", default=-1, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = []


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(Response, key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = []


class AlterShareGroupOffsetsRequest(Request, key=91, versions="0", flexible="0+"):
    group_id: String = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = []


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = []


class AlterShareGroupOffsetsResponse(Response, key=91, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = []


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(Request, key=92, versions="0", flexible="0+"):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(Response, key=92, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []


# A share group's persisted state (83 to 87).


class InitializeShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[InitializeShareGroupStateRequestPartitionData] = []


class InitializeShareGroupStateRequest(Request, key=83, versions="0", flexible="0+"):
    group_id: String = ""
    topics: list[InitializeStateData] = []


class InitializeShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[InitializeShareGroupStateResponsePartitionResult] = []


class InitializeShareGroupStateResponse(Response, key=83, versions="0", flexible="0+"):
    results: list[InitializeStateResult] = []


class ReadShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadShareGroupStateRequestPartitionData] = []


class ReadShareGroupStateRequest(Request, key=84, versions="0", flexible="0+"):
    group_id: String = ""
    topics: list[ReadStateData] = []


class ReadShareGroupStateResponseStateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ReadShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[ReadShareGroupStateResponseStateBatch] = []


class ReadStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadShareGroupStateResponsePartitionResult] = []


class ReadShareGroupStateResponse(Response, key=84, versions="0", flexible="0+"):
    results: list[ReadStateResult] = []


class WriteShareGroupStateRequestStateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class WriteShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)
    state_batches: list[WriteShareGroupStateRequestStateBatch] = []


class WriteStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[WriteShareGroupStateRequestPartitionData] = []


class WriteShareGroupStateRequest(Request, key=85, versions="0-1", flexible="0+"):
    group_id: String = ""
    topics: list[WriteStateData] = []


class WriteShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class WriteStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[WriteShareGroupStateResponsePartitionResult] = []


class WriteShareGroupStateResponse(Response, key=85, versions="0-1", flexible="0+"):
    results: list[WriteStateResult] = []


class DeleteShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = 0


class DeleteStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[DeleteShareGroupStateRequestPartitionData] = []


class DeleteShareGroupStateRequest(Request, key=86, versions="0", flexible="0+"):
    group_id: String = ""
    topics: list[DeleteStateData] = []


class DeleteShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[DeleteShareGroupStateResponsePartitionResult] = []


class DeleteShareGroupStateResponse(Response, key=86, versions="0", flexible="0+"):
    results: list[DeleteStateResult] = []


class ReadShareGroupStateSummaryRequestPartitionData(Struct):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateSummaryData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadShareGroupStateSummaryRequestPartitionData] = []


class ReadShareGroupStateSummaryRequest(Request, key=87, versions="0-1", flexible="0+"):
    group_id: String = ""
    topics: list[ReadStateSummaryData] = []


class ReadShareGroupStateSummaryResponsePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadShareGroupStateSummaryResponsePartitionResult] = []


class ReadShareGroupStateSummaryResponse(Response, key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = []
