"""The `quorum-state` file."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Int32, Int64, Message, String, Struct, field


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
