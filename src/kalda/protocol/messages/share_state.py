"""A share group's persisted state (83 to 87)."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Int8, Int16, Int32, Int64, Request, Response, String, Struct, field


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
