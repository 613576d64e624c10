"""Which replica a consumer should read from (KIP-392).

The leader tells a consumer that names its rack of a replica there, and the consumer asks that one from then on; a
replica qualifies while its broker lives and its log has the offset that is wanted. What it may read there ends at the
follower's high watermark, so it sees nothing that is not committed.
"""

from __future__ import annotations

from collections.abc import Callable

from kalda.replication.partition import Partition

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""`replica.selector.class`."""

NONE_PREFERRED = -1


class RackAwareSelector:
    """Prefers the most caught up replica in the consumer's rack; the leader, where it is there or nobody is."""

    def __init__(self, broker_id: int, rack_of: Callable[[int], str | None]) -> None:
        """`rack_of(broker)` is None for one that does not live, or has no rack."""
        self._broker_id = broker_id
        self._rack_of = rack_of

    def select(self, partition: Partition, offset: int, rack: str) -> int:
        """A follower's id, or -1 to read from the leader."""
        if self._rack_of(self._broker_id) == rack:
            return NONE_PREFERRED
        found = [
            (follower.log_end_offset, follower.last_caught_up_ms or 0, -follower.broker_id)
            for follower in partition.in_sync.followers.values()
            if follower.log_start_offset <= offset <= follower.log_end_offset
            and self._rack_of(follower.broker_id) == rack
        ]
        return -max(found)[2] if found else NONE_PREFERRED
