"""All fetchers of a broker: which partition is fetched from which leader.

There are `num.replica.fetchers` for each leader, and a partition always belongs to the same one. `started` is called
with each new fetcher, to carry out its requests. A store.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from kalda.base.ids import TopicPartition
from kalda.replication.partition import NO_LEADER, Partition
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher
from kalda.replication.throttle import ReplicaThrottle

Started = Callable[[ReplicaFetcher], None]


class ReplicaFetchers:
    """Invariant: a partition is fetched by one fetcher at most, and only while it follows."""

    def __init__(
        self,
        config: FetcherConfig,
        broker_epoch: Callable[[], int],
        started: Started,
        throttle: ReplicaThrottle | None = None,
    ) -> None:
        """`started` is called with a new fetcher, before it has a partition. All fetchers share `throttle`."""
        self._throttle = throttle
        self._config = config
        self._broker_epoch = broker_epoch
        self._started = started
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        """By leader and number; they are kept when they have no partition left."""
        self._fetched_by: dict[TopicPartition, tuple[ReplicaFetcher, Partition]] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch from the partition's leader; without effect where that is so already, in this leader epoch."""
        if partition.leader_id == NO_LEADER:
            self.stop(partition)
            return
        fetcher = self._fetcher(partition)
        known = self._fetched_by.get(partition.topic_partition)
        if known == (fetcher, partition) and fetcher.epoch_of(partition) == partition.leader_epoch:
            return
        self.stop(partition)
        self._fetched_by[partition.topic_partition] = fetcher, partition
        fetcher.add(partition)

    def resize(self, fetchers_a_leader: int) -> None:
        """`num.replica.fetchers` has changed: partitions move to the fetchers that they belong to now."""
        if fetchers_a_leader != self._config.fetchers_a_leader:
            self._config = replace(self._config, fetchers_a_leader=fetchers_a_leader)
            for _, partition in list(self._fetched_by.values()):
                self.follow(partition)

    def stop(self, partition: Partition) -> None:
        """Fetch it no longer."""
        known = self._fetched_by.pop(partition.topic_partition, None)
        if known is not None:
            known[0].remove(known[1])

    @property
    def max_lag(self) -> int:
        """Of the partition that is furthest behind its leader's high watermark, in offsets."""
        return max([fetcher.max_lag for fetcher in self._fetchers.values()], default=0)

    @property
    def failed(self) -> int:
        """How many partitions cannot be followed."""
        return sum(fetcher.failed for fetcher in self._fetchers.values())

    def lags(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Each partition that is followed: Kafka's name of its fetcher, and its lag."""
        for (leader_id, shard), fetcher in list(self._fetchers.items()):
            for topic_partition, lag in fetcher.lags():
                yield f"ReplicaFetcherThread-{shard}-{leader_id}", topic_partition, lag

    def _fetcher(self, partition: Partition) -> ReplicaFetcher:
        topic, index = partition.topic_partition
        shard = (zlib.crc32(topic.encode()) + index) % self._config.fetchers_a_leader
        fetcher = self._fetchers.get((partition.leader_id, shard))
        if fetcher is None:
            fetcher = ReplicaFetcher(partition.leader_id, self._config, self._broker_epoch, self._throttle)
            self._fetchers[partition.leader_id, shard] = fetcher
            self._started(fetcher)
        return fetcher
