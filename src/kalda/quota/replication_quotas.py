"""Bytes a second of throttled replicas (KIP-73): what a leader sends, what a follower fetches.

A broker config sets the rate, a topic config names the replicas. Only bytes of throttled replicas count. While the rate
is exceeded, a leader leaves throttled partitions out of its answers and a follower out of its requests. A leader never
leaves out a replica that is in sync, so the ISR does not shrink by a throttle. A store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kalda.base.stats import MetricConfig, Quota, SimpleRate
from kalda.quota.client_quotas import UNLIMITED

ALL: Final = None
"""In place of partitions: every partition of the topic."""


class ReplicationQuota:
    """The quota of a leader, or of a follower (`kalda.replication.replica_manager.ReplicaThrottle`)."""

    __slots__ = ("_bound", "_config", "_throttled", "rate")

    def __init__(self, config: MetricConfig) -> None:
        self._config = config
        self._bound = UNLIMITED
        self._throttled: dict[str, frozenset[int] | None] = {}
        """Partitions by topic; ALL for every partition."""
        self.rate = SimpleRate(config)

    @property
    def is_enabled(self) -> bool:
        """Whether there is a throttled replica and a rate."""
        return bool(self._throttled) and self._bound < UNLIMITED

    def set_bound(self, bound: float) -> None:
        """Another rate; what was recorded stays."""
        self._bound = bound
        self.rate.config = self._config._replace(quota=Quota(bound))

    def set_throttled(self, topic: str, partitions: Collection[int] | None) -> None:
        """Throttle these replicas of a topic from now on, and no others of it; ALL for every one."""
        if partitions is ALL:
            self._throttled[topic] = ALL
        elif partitions:
            self._throttled[topic] = frozenset(partitions)
        else:
            self._throttled.pop(topic, None)

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether this replica is named by its topic's config."""
        if topic not in self._throttled:
            return False
        partitions = self._throttled[topic]
        return partitions is ALL or partition in partitions

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes of throttled replicas."""
        self.rate.record(size_bytes, now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas have to wait."""
        return not self.rate.is_within(self._bound, now_ms)


def throttled_partitions(text: str, broker_id: int) -> frozenset[int] | None:
    """The partitions of `leader.` or `follower.replication.throttled.replicas` whose replica on this broker is named:
    `partition:broker,...`, `*` for all, empty or `none` for none. An entry that is no such pair is left out."""
    text = text.strip()
    if text == "*":
        return ALL
    found = set()
    for pair in text.split(","):
        partition, _, broker = pair.strip().partition(":")
        if partition.isdecimal() and broker.isdecimal() and int(broker) == broker_id:
            found.add(int(partition))
    return frozenset(found)
