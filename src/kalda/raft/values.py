"""Small values of the quorum: replicas, ends of logs, addresses, and what does not change while a node runs."""

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


class RaftConfig(NamedTuple):
    """Defaults are Kafka's `controller.quorum.*`."""

    local: ReplicaKey
    cluster_id: str | None
    """None where it is not checked."""
    listener: str = "CONTROLLER"
    """The controller listener by which replicas reach one another."""
    endpoints: tuple[VoterEndpoint, ...] = ()
    """The replica's own controller listeners, as it advertises them; none for an observer."""
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    """Where to find the leader while none is known; without them, at the voters' endpoints."""
    can_be_voter: bool = True
    """Whether the node has the controller role. Without it the replica stays an observer, and syncs nothing."""
    auto_join: bool = False
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    max_kraft_version: int = 1

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader leads without fetches from a majority of the voters."""
        return self.fetch_timeout_ms * 3 // 2
