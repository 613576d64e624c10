"""Small values of the quorum: replicas, ends of logs, addresses."""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.ids import ZERO_UUID, Uuid, uuid_to_text


class ReplicaKey(NamedTuple):
    """A replica: a node and the directory that holds its log. After the loss of its disk a node is another replica, and
    not the voter that it was (KIP-853). `ZERO_UUID`: the directory is unknown, as in every static voter set."""

    id: int
    directory_id: Uuid = ZERO_UUID

    def __str__(self) -> str:
        return f"{self.id}" if self.directory_id == ZERO_UUID else f"{self.id}@{uuid_to_text(self.directory_id)}"


class OffsetAndEpoch(NamedTuple):
    """The end of a log (exclusive) and the epoch of its last record; also the id of a snapshot, which holds everything
    before `offset`. Logs compare by epoch first."""

    offset: int
    epoch: int

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Whether a log that ends here has every committed record of a log that ends at `other`."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


BOOTSTRAP_SNAPSHOT = OffsetAndEpoch(0, 0)

MAX_EPOCH = (1 << 31) - 1
"""The last epoch that messages and `quorum-state` can hold: no election follows it."""
MAX_OFFSET = 1 << 62
"""The highest offset at which a fetched snapshot may end: the log that continues it has room for as many records."""


class VoterEndpoint(NamedTuple):
    """A named listener of a node."""

    name: str
    host: str
    port: int


class Destination(NamedTuple):
    """The receiver of a call. `node_id` is negative for a bootstrap server, whose id is unknown."""

    node_id: int
    host: str
    port: int
