"""Records of `__transaction_state`."""

from __future__ import annotations

from kalda.protocol.notation import Int8, Int16, Int32, Int64, RecordBody, String, Struct, field


class TransactionLogKey(RecordBody, id=0, versions="0"):
    transactional_id: String = ""


class PartitionsSchema(Struct):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(RecordBody, id=0, versions="0-1", flexible="1+"):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    previous_producer_id: Int64 = field("1+", default=-1, tag=0)
    next_producer_id: Int64 = field("1+", default=-1, tag=1)
    client_transaction_version: Int16 = field("1+", default=0, tag=2)
    next_producer_epoch: Int16 = field("1+", default=-1, tag=3)
