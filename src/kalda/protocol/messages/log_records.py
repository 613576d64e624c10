"""Records inside logs, and files beside them.

Control records, producer snapshots, entries of the index of aborted transactions.
"""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import (
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    UInt16,
    UInt32,
    field,
)


class ControlRecordTypeSchema(Message, versions="0"):
    type: Int16 = 0


class EndTxnMarker(Message, versions="0"):
    coordinator_epoch: Int32 = 0


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    kraft_version: Int16 = 0


class LeaderChangeMessageVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field("1+", default=ZERO_UUID)


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[LeaderChangeMessageVoter] = []
    granting_voters: list[LeaderChangeMessageVoter] = []


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


class VotersRecordEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class VotersRecordKRaftVersionFeature(Struct):
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class VotersRecordVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    endpoints: list[VotersRecordEndpoint] = []
    kraft_version_feature: VotersRecordKRaftVersionFeature = VotersRecordKRaftVersionFeature()


class VotersRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    voters: list[VotersRecordVoter] = []


# Files beside a log: the producer snapshot, an entry of the index of aborted transactions.


class QuorumStateDataVoter(Struct):
    voter_id: Int32 = 0


class QuorumStateData(Message, versions="0-1", flexible="0+"):
    cluster_id: String = field("0", default="")
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    voted_id: Int32 = -1
    voted_directory_id: Uuid = field("1+", default=ZERO_UUID)
    applied_offset: Int64 = field("0", default=0)
    current_voters: list[QuorumStateDataVoter] | None = field("0", default=[])


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
