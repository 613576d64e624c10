"""What does not change about a replica of the metadata log while its node runs."""

from __future__ import annotations

from typing import NamedTuple

from kalda.raft.values import ReplicaKey, VoterEndpoint


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
