"""Files beside a log: the producer snapshot, an entry of the index of aborted transactions."""

from __future__ import annotations

from kalda.protocol.notation import Int16, Int32, Int64, Message, Struct, UInt32


class ProducerEntry(Struct):
    producer_id: Int64 = 0
    epoch: Int16 = 0
    last_sequence: Int32 = 0
    last_offset: Int64 = 0
    offset_delta: Int32 = 0
    timestamp: Int64 = 0
    coordinator_epoch: Int32 = 0
    current_txn_first_offset: Int64 = 0


class ProducerSnapshot(Message, versions="1"):
    crc: UInt32 = 0
    producer_entries: list[ProducerEntry] = []


class AbortedTxn(Message, versions="0"):
    producer_id: Int64 = 0
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    last_stable_offset: Int64 = 0
