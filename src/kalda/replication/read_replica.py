"""Which replica a consumer should read from (KIP-392).

The leader answers a consumer that names its rack with a replica in that rack, from which the consumer fetches from then
on. A replica qualifies while its broker is not fenced and its log has the fetch offset. The consumer reads up to that
follower's high watermark, so only committed records. Pure functions over a partition.
"""

from __future__ import annotations

from collections.abc import Callable

from kalda.replication.partition import Partition

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""`replica.selector.class`."""

NONE_PREFERRED = -1


class RackAwareSelector:
    """Prefers the follower in the consumer's rack whose log ends last; the leader, where that is in the rack, or no
    follower is."""

    def __init__(self, broker_id: int, rack_of: Callable[[int], str | None]) -> None:
        """`rack_of(broker)` is None for one that is fenced, unknown or has no rack."""
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
