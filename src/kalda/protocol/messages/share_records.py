"""Records of `__share_group_state`."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Int8, Int16, Int32, Int64, RecordBody, String, Struct, field


class ShareSnapshotKey(RecordBody, id=0, versions="0"):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareSnapshotValueStateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareSnapshotValue(RecordBody, id=0, versions="0", flexible="0+"):
    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[ShareSnapshotValueStateBatch] = []
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)


class ShareUpdateKey(RecordBody, id=1, versions="0"):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareUpdateValueStateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareUpdateValue(RecordBody, id=1, versions="0", flexible="0+"):
    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[ShareUpdateValueStateBatch] = []
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)
