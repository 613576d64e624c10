"""The data of partitions: Produce (0), Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23)."""

from __future__ import annotations

from enum import IntEnum

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Int8, Int16, Int32, Int64, Records, Request, Response, String, Struct, field


class PartitionProduceData(Struct):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Struct):
    name: String = field("3-12", default="", ignorable=True)
    topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Request, key=0, versions="3-13", flexible="9+"):
    transactional_id: String | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+", default=[], ignorable=True)
    error_message: String | None = field("8+", default=None, ignorable=True)
    current_leader: ProduceResponseLeaderIdAndEpoch = field("10+", default=ProduceResponseLeaderIdAndEpoch(), tag=0)


class TopicProduceResponse(Struct):
    name: String = field("3-12", default="", ignorable=True)
    topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = []


class ProduceResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Response, key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: list[ProduceResponseNodeEndpoint] = field("10+", default=[], tag=0)


# Reading partitions: Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23).


class FetchRequestFetchPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = field("9+", default=-1, ignorable=True)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = field("12+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field("17+", default=ZERO_UUID, tag=0, ignorable=True)
    high_watermark: Int64 = field("18+", default=9223372036854775807, tag=1, ignorable=True)


class FetchRequestFetchTopic(Struct):
    topic: String = field("4-12", default="", ignorable=True)
    topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchRequestFetchPartition] = []


class FetchRequestForgottenTopic(Struct):
    topic: String = field("7-12", default="", ignorable=True)
    topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[Int32] = []


class FetchRequestReplicaState(Struct):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchRequest(Request, key=1, versions="4-18", flexible="12+"):
    replica_id: Int32 = field("4-14", default=-1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2147483647
    isolation_level: Int8 = 0
    session_id: Int32 = field("7+", default=0, ignorable=True)
    session_epoch: Int32 = field("7+", default=-1, ignorable=True)
    topics: list[FetchRequestFetchTopic] = []
    forgotten_topics_data: list[FetchRequestForgottenTopic] = field("7+", default=[])
    rack_id: String = field("11+", default="", ignorable=True)
    cluster_id: String | None = field("12+", default=None, tag=0, ignorable=True)
    replica_state: FetchRequestReplicaState = field("15+", default=FetchRequestReplicaState(), tag=1)


class AbortedTransaction(Struct):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class FetchResponseEpochEndOffset(Struct):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class FetchResponseSnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class FetchResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Int32 = field("11+", default=-1)
    records: Records | None = None
    diverging_epoch: FetchResponseEpochEndOffset = field("12+", default=FetchResponseEpochEndOffset(), tag=0)
    current_leader: FetchResponseLeaderIdAndEpoch = field("12+", default=FetchResponseLeaderIdAndEpoch(), tag=1)
    snapshot_id: FetchResponseSnapshotId = field("12+", default=FetchResponseSnapshotId(), tag=2)


class FetchableTopicResponse(Struct):
    topic: String = field("4-12", default="", ignorable=True)
    topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchResponsePartitionData] = []


class FetchResponseNodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(Response, key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("7+", default=0, ignorable=True)
    session_id: Int32 = field("7+", default=0)
    responses: list[FetchableTopicResponse] = []
    node_endpoints: list[FetchResponseNodeEndpoint] = field("16+", default=[], tag=0)


class OffsetSpec(IntEnum):
    """Negative timestamps in ListOffsets, each of which stands for a certain offset of the partition."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class ListOffsetsPartition(Struct):
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field("4+", default=-1, ignorable=True)
    timestamp: Int64 = 0


class ListOffsetsTopic(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    replica_id: Int32 = 0
    isolation_level: Int8 = field("2+", default=0)
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Int32 = field("10+", default=0, ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Response, key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = []


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []


class OffsetForLeaderPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Struct):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Request, key=23, versions="2-4", flexible="4+"):
    replica_id: Int32 = field("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = []


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Struct):
    topic: String = ""
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset] = []


class OffsetForLeaderEpochResponse(Response, key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
