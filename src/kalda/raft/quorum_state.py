"""The election state of a replica, and `quorum-state`, the file that keeps it.

What a replica has promised must survive a crash: the epoch, its vote in that epoch, the leader of that epoch. Two votes
in one epoch could elect two leaders, so the file is written and synced before the promise is sent.

The file is one JSON object of schema QuorumStateData, with `data_version` last: version 0 in a static quorum (it has
the voters), 1 in a dynamic one (it has the directory id of the candidate that got the vote).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from kalda.base.ids import ZERO_UUID, uuid_from_text, uuid_to_text
from kalda.raft.voters import ReplicaKey

FILE_NAME = "quorum-state"
MAX_FILE_BYTES = 1 << 20


class ElectionState(NamedTuple):
    epoch: int = 0
    leader_id: int | None = None
    """The leader of `epoch`; None where none is known."""
    voted: ReplicaKey | None = None
    """The candidate that got this replica's vote in `epoch`; None for no vote."""


def encode_quorum_state(state: ElectionState, voter_ids: tuple[int, ...], kraft_version: int) -> bytes:
    """The file's bytes, byte for byte as Kafka writes them."""
    leader = -1 if state.leader_id is None else state.leader_id
    voted = state.voted or ReplicaKey(-1)
    if kraft_version >= 1:
        fields: dict[str, object] = {
            "leaderId": leader,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "votedDirectoryId": uuid_to_text(voted.directory_id),
            "data_version": 1,
        }
    else:
        fields = {
            "clusterId": "",
            "leaderId": leader,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voter_ids],
            "data_version": 0,
        }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_quorum_state(data: bytes) -> ElectionState:
    """Raises `ValueError` where it is not such a file: a replica that has lost its vote must not start."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{FILE_NAME} of {len(data)} bytes is too large")
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise ValueError(f"{FILE_NAME} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{FILE_NAME} holds no object")
    version = fields.get("data_version")
    if version not in (0, 1):
        raise ValueError(f"{FILE_NAME} has data_version {version!r}; 0 and 1 are supported")
    leader, epoch, voted = (_integer(fields, name) for name in ("leaderId", "leaderEpoch", "votedId"))
    directory = ZERO_UUID
    if version == 1 and fields.get("votedDirectoryId") is not None:
        directory = uuid_from_text(str(fields["votedDirectoryId"]))
    return ElectionState(
        max(epoch, 0), None if leader < 0 else leader, None if voted < 0 else ReplicaKey(voted, directory)
    )


def _integer(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 31:
        raise ValueError(f"{FILE_NAME} has {name} {value!r}")
    return value
