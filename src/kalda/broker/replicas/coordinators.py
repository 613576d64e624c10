"""This broker's coordinators, by the internal topic that each keeps its state in.

One table for coordinators of every kind: the publisher calls it with elected partitions, FindCoordinator finds the
topic of a key type in it, and a missing internal topic is created by its row. A coordinator that was not added is not
served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kalda.base.background import Background, Priority, Steps
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Clock, Jobs, Pending, Timer, Timers
from kalda.base.sensors import SensorName, Sensors
from kalda.broker.channels.auto_topics import TopicPlan
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import Module
from kalda.coordinator.internal_topics import InternalTopic, coordinator_partition
from kalda.coordinator.partition import Load, TransactionalProducer
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.coordinator.timers import RETRY_MS
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.replication.markers import append_marker
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.log.snapshot_jobs import run_snapshots
from kalda.storage.values import AppendOrigin, FetchInfo, TransactionEnd

# What a coordinator of any kind needs of its broker: a log, a timer, and the partitions that the broker leads.
#
# Records are appended to the internal topic like any producer's, and answers go out when the partition's high
# watermark passes them. A partition that this broker is elected to lead is read by jobs, a slice at a time, and
# replayed in the background of the loop.
#
# A coordinator, its log and this shell call one another synchronously, so each may be called back before its own call
# returns: an append may move the high watermark, which is reported to the runtime inside that append. The runtime is
# made for that (see `kalda.base.scheduling`). The shell keeps to the same rule: it changes its own fields before it
# calls out, and reads them again afterwards.

log = logging.getLogger("kalda.coordinator")

_LOAD_SLICE_BYTES = 128 * 1024
"""Of a partition that is loaded, so much is in memory: some 1,000 records."""
_ALL = -1
_TIMER_FAILED = "a timer of the coordinator of %s failed; it fires again in %d ms"


class InternalTopicLog:
    """The `CoordinatorLog` over this broker's replicas of one internal topic."""

    def __init__(self, topic: str, replicas: ReplicaManager, compression: Compression) -> None:
        """`compression` is the codec of the batches that are appended."""
        self._topic = topic
        self._replicas = replicas
        self._compression = compression

    def append(
        self,
        partition: int,
        records: list[tuple[bytes, bytes | None]],
        now_ms: int,
        producer: TransactionalProducer | None = None,
    ) -> int:
        """One batch, as the partition's leader."""
        rows = [(now_ms, key, value, ()) for key, value in records]
        replica = self._replicas.get(self._topic, partition)
        if producer is None:
            batch = build_batch(rows, compression=self._compression)
            return replica.append(batch, _ALL, now_ms, AppendOrigin.COORDINATOR).last_offset + 1
        batch = build_batch(
            rows,
            compression=self._compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_transactional=True,
        )
        return (
            replica.append(
                batch, _ALL, now_ms, AppendOrigin.COORDINATOR, verification=producer.verification
            ).last_offset
            + 1
        )

    def append_marker(self, partition: int, end: TransactionEnd, now_ms: int) -> int:
        """The control batch that ends a transaction, as the partition's leader."""
        return append_marker(self._replicas.get(self._topic, partition), end, now_ms).last_offset + 1


class CoordinatorShell:
    """Drives one coordinator, of any kind."""

    def __init__(
        self,
        topic: str,
        runtime: CoordinatorRuntime[Any],
        replicas: ReplicaManager,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        self._topic = topic
        self._runtime = runtime
        self._replicas = replicas
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._timer: Timer | None = None
        """For the runtime's next deadline, None while it has none."""
        self._timer_at_ms = 0
        """When `_timer` fires, by the monotonic clock."""
        self._closed = False
        runtime.timers.run = self._run

    # -- time

    def arm(self) -> None:
        """Set the timer for the runtime's next deadline, where that is earlier than the timer. To be called after every
        request to the coordinator."""
        deadline = self._runtime.next_deadline_ms()
        if self._closed or deadline is None or (self._timer is not None and self._timer_at_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline
        self._timer = self._timers.call_later_ms(max(0, deadline - self._clock.mono_ms()), self._poll)

    def _poll(self) -> None:
        self._timer = None
        try:
            self._runtime.poll(self._clock.mono_ms())
        except Exception:
            log.exception(_TIMER_FAILED, self._topic, RETRY_MS)
        self._start_loads()

    def _run(self, steps: Steps[None]) -> None:
        """What a timer does in steps. None is taken after `close`."""

        def until_closed() -> Steps[None]:
            while not self._closed:
                try:
                    next(steps)
                except StopIteration:
                    return
                yield

        def ended(_: None, error: ApiError | None) -> None:
            if error is not None:
                log.error(_TIMER_FAILED, self._topic, RETRY_MS, exc_info=error.__cause__ or error)
            self.arm()

        self._background.run(until_closed(), Priority.MAINTENANCE).then(ended)

    def close(self) -> None:
        """Set no timer and read no log from now on: the logs are about to be closed. Requests are still answered."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- transactions

    def end_transaction(self, partition: int, end: TransactionEnd) -> Pending[None]:
        """Append the marker of a transaction that wrote to the partition, and apply it."""
        ended = self._runtime.end_transaction(partition, end, self._clock.mono_ms())
        self.arm()
        return ended

    # -- partitions

    def on_elected(self, partition: Partition) -> None:
        """Load the partition, then serve its keys."""
        runtime, index = self._runtime, partition.topic_partition.partition
        partition.on_high_watermark = lambda offset: runtime.on_high_watermark(index, offset)
        runtime.on_elected(index, partition.leader_epoch, self._clock.mono_ms())
        self._start_loads()

    def on_resigned(self, index: int) -> None:
        """Another broker coordinates these keys now."""
        partition = self._replicas.find(self._topic, index)
        if partition is not None:
            partition.on_high_watermark = None
        self._runtime.on_resigned(index)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """What the coordinator keeps of deleted topics is deleted with them."""
        self._runtime.on_topics_deleted(topics)
        self.arm()

    # -- loading

    def _start_loads(self) -> None:
        """Read the partitions whose load begins, or begins anew."""
        for load in () if self._closed else self._runtime.take_loads():
            partition = self._replicas.find(self._topic, load.partition)
            if partition is None:
                load.fail("this broker has no replica of it", self._clock.mono_ms())
            elif partition.log.log_end_offset == partition.log.log_start_offset:
                load.finish(partition.log.high_watermark, self._clock.mono_ms())
            else:
                self._read(load, partition, partition.log.log_start_offset)
        self.arm()

    def _read(self, load: Load[Any], partition: Partition, offset: int) -> None:
        """Read the slice at `offset`, then the next one, until the log's end or the load's."""
        log_, end = partition.log, partition.log.log_end_offset
        try:
            read = log_.read_later(offset, _LOAD_SLICE_BYTES, end, True)
        except ApiError as error:
            load.fail(str(error), self._clock.mono_ms())
            self.arm()
            return

        def take(results: list[FetchInfo | ApiError]) -> Pending[None]:
            return self._background.run(self._take_slice(load, partition, results[0], end), Priority.MAINTENANCE)

        run_snapshots(self._jobs, [read]).and_then(take).then(self._on_slice_taken)

    def _on_slice_taken(self, _: None, error: ApiError | None) -> None:
        if error is not None:
            log.error("a load of %s stopped", self._topic, exc_info=error.__cause__ or error)
        self.arm()

    def _take_slice(self, load: Load[Any], partition: Partition, info: FetchInfo | ApiError, end: int) -> Steps[None]:
        if load.has_ended or self._closed:
            return
        now_ms, high_watermark = self._clock.mono_ms(), partition.log.high_watermark
        if isinstance(info, ApiError):
            load.fail(str(info), now_ms)
        elif info.first_entry_incomplete:
            load.fail(f"the batch at offset {info.first_offset} is longer than its segment", now_ms)
        elif not info.size_bytes and partition.log.segments.active.size:
            # The active segment is not compacted: it has batches up to the end, which a damaged one hides.
            load.fail(f"no record from offset {info.first_offset} on can be read, and the log ends at {end}", now_ms)
        elif not info.size_bytes:  # compaction has left nothing between here and the end
            load.finish(high_watermark, now_ms)
        elif (yield from load.replay(info.records, high_watermark, now_ms)) and not self._closed:
            if info.next_offset < end:
                self._read(load, partition, info.next_offset)
            else:
                load.finish(partition.log.high_watermark, self._clock.mono_ms())


def coordinator_lookup(config: ServerConfig, cache: MetadataCache, topic_name: str) -> Callable[[str], int | None]:
    """Finds the broker that coordinates a key, by the topic of its coordinators; None where there is none that could
    be sent a request."""
    listener = config.inter_broker_listener_name

    def coordinator_of(key: str) -> int | None:
        topic = cache.topic(topic_name)
        if topic is None or not topic.partitions:
            return None
        partition = topic.partitions.get(coordinator_partition(key, len(topic.partitions)))
        broker = None if partition is None else cache.image.cluster.brokers.get(partition.leader)
        return None if broker is None or broker.fenced or listener not in broker.listeners else broker.id

    return coordinator_of


def add_load_times(sensors: Sensors, group: str, runtime: CoordinatorRuntime[Any]) -> None:
    """Report for how long partitions of a coordinator's topic are loaded."""
    names = SensorName(group, "partition-load-time-avg"), SensorName(group, "partition-load-time-max")
    sensors.add_source(lambda: zip(names, (runtime.load_time_avg, runtime.load_time_max), strict=True))


class Coordinators(Module):
    """The table, and the shells that drive the coordinators in it. Modules of each kind of coordinator add theirs."""

    def __init__(
        self,
        config: ServerConfig,
        cache: MetadataCache,
        replicas: ReplicaManager,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        self._config = config
        self._cache = cache
        self._replicas = replicas
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._topics: dict[str, InternalTopic] = {}
        self._shells: dict[str, CoordinatorShell] = {}
        """By topic, as `_topics`; of the coordinators that were made."""
        self._makers: dict[str, Callable[[], object]] = {}
        """By topic: makes its coordinator, which is added then."""

    def log(self, topic: InternalTopic) -> InternalTopicLog:
        """What the coordinator of `topic` appends with."""
        key = topic.compression_key
        codec = Compression.NONE if key is None else Compression(self._config[key])
        return InternalTopicLog(topic.name, self._replicas, codec)

    def partition_count(self, topic: InternalTopic) -> int:
        """How many partitions the topic has, 0 while it does not exist."""
        found = self._cache.topic(topic.name)
        return 0 if found is None else len(found.partitions)

    def add(self, topic: InternalTopic, runtime: CoordinatorRuntime[Any]) -> CoordinatorShell:
        """Serve the coordinator of `topic`; before the first metadata update."""
        assert topic.name not in self._shells, f"{topic.name} has a coordinator"
        shell = CoordinatorShell(
            topic.name, runtime, self._replicas, self._clock, self._timers, self._jobs, self._background
        )
        self._topics[topic.name] = topic
        self._shells[topic.name] = shell
        return shell

    def add_late(self, topic: InternalTopic, make: Callable[[], object]) -> None:
        """Serve the coordinator of `topic` once `make()` has added it, which is called when this broker leads a
        partition of the topic for the first time, unless it was made before."""
        self._topics[topic.name] = topic
        self._makers[topic.name] = make

    def _shell(self, topic: str) -> CoordinatorShell | None:
        """None where the topic is not a coordinator's."""
        if topic not in self._shells and topic in self._makers:
            self._makers[topic]()
        return self._shells.get(topic)

    def topic_of(self, key_type: int) -> str | None:
        """The topic that coordinates keys of that type (FindCoordinator); None where no coordinator here does."""
        return next((topic.name for topic in self._topics.values() if topic.key_type == key_type), None)

    def plan(self, name: str) -> TopicPlan | None:
        """How the topic of that name is made; None where it is not a coordinator's."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        config = self._config
        return TopicPlan(
            config[topic.partitions_key], config[topic.replication_factor_key], topic.configs(config.values)
        )

    def end_transaction(self, topic: str, partition: int, end: TransactionEnd) -> Pending[None] | None:
        """Append the marker of a transaction that wrote to a coordinator's log, and apply it; None where the topic is
        not a coordinator's."""
        shell = self._shell(topic)
        return None if shell is None else shell.end_transaction(partition, end)

    # -- what the publisher reports

    def on_elected(self, partition: Partition) -> None:
        """This broker leads the partition from now on, in a new epoch."""
        shell = self._shell(partition.topic_partition.topic)
        if shell is not None:
            shell.on_elected(partition)

    def on_resigned(self, topic_partition: TopicPartition) -> None:
        """This broker follows the partition, or has no replica of it any more."""
        shell = self._shells.get(topic_partition.topic)
        if shell is not None:
            shell.on_resigned(topic_partition.partition)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics were deleted, by name and id."""
        for shell in self._shells.values():
            shell.on_topics_deleted(topics)

    def close(self) -> None:
        """Stop the timers of all coordinators."""
        for shell in self._shells.values():
            shell.close()
