"""What the group coordinator needs of its broker: a log, a timer, and news of its partitions.

The coordinator's records are appended to `__consumer_offsets` like any producer's, and its answers go out when the
partition's high watermark passes them. A partition that this broker comes to lead is loaded by jobs, a slice at a
time, while everything else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kalda.base.clock import Clock
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.coordinator.group_coordinator import GroupCoordinator
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.reading import start_reads
from kalda.storage.values import AppendOrigin, FetchInfo

log = logging.getLogger("kalda.groups")

_LOAD_SLICE_BYTES = 1024 * 1024
_ALL = -1


class GroupLog:
    """The `CoordinatorLog` over this broker's replicas of `__consumer_offsets`."""

    def __init__(self, replicas: ReplicaManager, compression: Compression = Compression.NONE) -> None:
        """`compression` is what `offsets.topic.compression.codec` names."""
        self._replicas = replicas
        self._compression = compression

    def append(self, partition: int, records: list[tuple[bytes, bytes | None]], now_ms: int) -> int:
        """One batch, as the partition's leader."""
        rows = [(now_ms, key, value, ()) for key, value in records]
        batch = build_batch(rows, compression=self._compression)
        info = self._replicas.get(OFFSETS_TOPIC, partition).append(batch, _ALL, now_ms, AppendOrigin.COORDINATOR)
        return info.last_offset + 1


class GroupCoordinatorShell:
    """Drives one coordinator."""

    def __init__(
        self, coordinator: GroupCoordinator, replicas: ReplicaManager, clock: Clock, timers: Timers, jobs: Jobs
    ) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    # -- time

    def arm(self) -> None:
        """Set the timer for the coordinator's next deadline, where that is nearer than what is set."""
        deadline = self._coordinator.next_deadline_ms()
        if deadline is None or (self._timer is not None and self._timer_at_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline
        self._timer = self._timers.call_later_ms(max(0, deadline - self._clock.mono_ms()), self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._coordinator.poll(self._clock.mono_ms())
        self.arm()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # -- partitions

    def on_elected(self, partition: Partition) -> None:
        """Load the partition, then serve its groups."""
        index, epoch = partition.topic_partition.partition, partition.leader_epoch
        self._coordinator.begin_load(index, epoch, self._clock.mono_ms())
        partition.on_high_watermark = lambda offset: self._coordinator.on_high_watermark(index, offset)
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._loaded(partition)
        else:
            self._load(partition, epoch, partition.log.log_start_offset)

    def _load(self, partition: Partition, epoch: int, offset: int) -> None:
        log_, end = partition.log, partition.log.log_end_offset
        try:
            read = log_.read_later(offset, _LOAD_SLICE_BYTES, end, True)
        except ApiError as error:
            self._give_up(partition, error)
            return

        def finish(results: list[FetchInfo | ApiError]) -> None:
            (info,) = results
            if partition.leader_epoch != epoch or not partition.is_leader:
                return
            index = partition.topic_partition.partition
            if isinstance(info, ApiError):
                self._give_up(partition, info)
                return
            if info.size_bytes:
                self._coordinator.load(index, info.records, log_.high_watermark, self._clock.mono_ms())
            if info.size_bytes and info.next_offset < end:
                self._load(partition, epoch, info.next_offset)
            else:
                self._loaded(partition)

        start_reads(self._jobs, [read], finish)

    def _give_up(self, partition: Partition, error: ApiError) -> None:
        """Its groups find no coordinator here, until the partition is led anew."""
        log.error("%s cannot be loaded: %s", partition.topic_partition, error)
        self._coordinator.on_resigned(partition.topic_partition.partition)

    def _loaded(self, partition: Partition) -> None:
        index = partition.topic_partition.partition
        self._coordinator.finish_load(index, partition.log.high_watermark, self._clock.mono_ms())
        log.debug("%s is loaded", partition.topic_partition)
        self.arm()

    def on_resigned(self, index: int) -> None:
        """Somebody else coordinates these groups now."""
        partition = self._replicas.find(OFFSETS_TOPIC, index)
        if partition is not None:
            partition.on_high_watermark = None
        self._coordinator.on_resigned(index)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Offsets of deleted topics go with them."""
        self._coordinator.on_topics_deleted(topics, topics)
        self.arm()
