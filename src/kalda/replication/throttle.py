"""The interface of a quota for replicas (KIP-73), which the floor `quota` implements.

Whoever reads or fetches replicas asks once for each pass whether the rate is exceeded, and leaves out the throttled
replicas that are not in sync: the ISR does not shrink by a throttle, and a replica that is about to join it is fetched
at the rate that the quota allows. Bytes of all throttled replicas are recorded, whether they are in sync or not.
"""

from __future__ import annotations

from typing import Final, Protocol

RETRY_MS: Final = 100
"""After so long a follower checks again whether it may fetch a throttled replica."""


class ReplicaThrottle(Protocol):
    """The quota of a leader, or of a follower."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is a throttled replica and a rate."""
        ...

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether this replica is throttled while the rate is exceeded."""
        ...

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas have to wait."""
        ...

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes of throttled replicas."""
        ...
