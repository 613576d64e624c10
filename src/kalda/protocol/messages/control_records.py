"""Bodies of control records: leader changes, snapshot ends, KRaft version and voters, transaction markers."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Int16, Int32, Int64, Message, String, Struct, UInt16, field


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
