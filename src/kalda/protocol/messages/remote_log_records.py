"""Records of `__remote_log_metadata` (KIP-405)."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Bool, Bytes, Int8, Int32, Int64, RecordBody, String, Struct, field


class RemoteLogSegmentMetadataRecordTopicIdPartitionEntry(Struct):
    name: String = ""
    id: Uuid = ZERO_UUID
    partition: Int32 = 0


class RemoteLogSegmentMetadataRecordRemoteLogSegmentIdEntry(Struct):
    topic_id_partition: RemoteLogSegmentMetadataRecordTopicIdPartitionEntry = (
        RemoteLogSegmentMetadataRecordTopicIdPartitionEntry()
    )
    id: Uuid = ZERO_UUID


class RemoteLogSegmentMetadataRecordSegmentLeaderEpochEntry(Struct):
    leader_epoch: Int32 = 0
    offset: Int64 = 0


class RemoteLogSegmentMetadataRecord(RecordBody, id=0, versions="0", flexible="0+"):
    remote_log_segment_id: RemoteLogSegmentMetadataRecordRemoteLogSegmentIdEntry = (
        RemoteLogSegmentMetadataRecordRemoteLogSegmentIdEntry()
    )
    start_offset: Int64 = 0
    end_offset: Int64 = 0
    broker_id: Int32 = 0
    max_timestamp_ms: Int64 = 0
    event_timestamp_ms: Int64 = 0
    segment_leader_epochs: list[RemoteLogSegmentMetadataRecordSegmentLeaderEpochEntry] = []
    segment_size_in_bytes: Int32 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0
    txn_index_empty: Bool = field("0+", default=False, tag=0)


class RemoteLogSegmentMetadataUpdateRecordTopicIdPartitionEntry(Struct):
    name: String = ""
    id: Uuid = ZERO_UUID
    partition: Int32 = 0


class RemoteLogSegmentMetadataUpdateRecordRemoteLogSegmentIdEntry(Struct):
    topic_id_partition: RemoteLogSegmentMetadataUpdateRecordTopicIdPartitionEntry = (
        RemoteLogSegmentMetadataUpdateRecordTopicIdPartitionEntry()
    )
    id: Uuid = ZERO_UUID


class RemoteLogSegmentMetadataUpdateRecord(RecordBody, id=1, versions="0", flexible="0+"):
    remote_log_segment_id: RemoteLogSegmentMetadataUpdateRecordRemoteLogSegmentIdEntry = (
        RemoteLogSegmentMetadataUpdateRecordRemoteLogSegmentIdEntry()
    )
    broker_id: Int32 = 0
    event_timestamp_ms: Int64 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0


class RemotePartitionDeleteMetadataRecordTopicIdPartitionEntry(Struct):
    name: String = ""
    id: Uuid = ZERO_UUID
    partition: Int32 = 0


class RemotePartitionDeleteMetadataRecord(RecordBody, id=2, versions="0", flexible="0+"):
    topic_id_partition: RemotePartitionDeleteMetadataRecordTopicIdPartitionEntry = (
        RemotePartitionDeleteMetadataRecordTopicIdPartitionEntry()
    )
    broker_id: Int32 = 0
    event_timestamp_ms: Int64 = 0
    remote_partition_delete_state: Int8 = 0


class RemoteLogSegmentMetadataSnapshotRecordSegmentLeaderEpochEntry(Struct):
    leader_epoch: Int32 = 0
    offset: Int64 = 0


class RemoteLogSegmentMetadataSnapshotRecord(RecordBody, id=3, versions="0", flexible="0+"):
    segment_id: Uuid = ZERO_UUID
    start_offset: Int64 = 0
    end_offset: Int64 = 0
    broker_id: Int32 = 0
    max_timestamp_ms: Int64 = 0
    event_timestamp_ms: Int64 = 0
    segment_leader_epochs: list[RemoteLogSegmentMetadataSnapshotRecordSegmentLeaderEpochEntry] = []
    segment_size_in_bytes: Int32 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0
    txn_index_empty: Bool = field("0+", default=False, tag=0)
