"""Small values of the quorum: who a replica is, where a log ends, where a node listens."""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.ids import ZERO_UUID, Uuid, uuid_to_text


class ReplicaKey(NamedTuple):
    """A replica: a node and the directory that holds its log. A node that lost its disk is not the voter that it was
    (KIP-853). `ZERO_UUID`: the directory is not known, as in every static voter set."""

    id: int
    directory_id: Uuid = ZERO_UUID

    def __str__(self) -> str:
        return f"{self.id}" if self.directory_id == ZERO_UUID else f"{self.id}@{uuid_to_text(self.directory_id)}"


class OffsetAndEpoch(NamedTuple):
    """The end of a log (exclusive) and the epoch of its last record; also the id of a snapshot, which holds all
    before `offset`. Logs compare by epoch first."""

    offset: int
    epoch: int

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Whether a log that ends here holds whatever one that ends at `other` may have committed."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


BOOTSTRAP_SNAPSHOT = OffsetAndEpoch(0, 0)


class Endpoint(NamedTuple):
    """A named listener of a node."""

    name: str
    host: str
    port: int


class Destination(NamedTuple):
    """Whom a request goes to. `node_id` is negative for a bootstrap server, whose id is not known."""

    node_id: int
    host: str
    port: int
