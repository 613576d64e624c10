"""What every coordinator runs on: one shard for each partition of its internal topic that this node leads.

The runtime loads a partition when this node becomes its leader, gives it up when another node does, finds the shard of
a key, runs timers, and bounds the time that a write waits. It has no clock and reads no log. Every call brings
`now_ms`; `poll` runs what has become due. Its driver takes the loads that are to be read (`take_loads`) and sets a
timer for the next deadline (`next_deadline_ms`) after each call that may have changed them.

States of a partition, and the error for requests in the meantime, as in Kafka's `CoordinatorRuntime`:

    on_elected ──▶ LOADING ──finish──▶ ACTIVE ──on_resigned──▶ (removed: NOT_COORDINATOR)
                    │   ▲ COORDINATOR_LOAD_IN_PROGRESS
               fail ▼   │ retry timer, 1 s to 60 s
                   FAILED: NOT_COORDINATOR

Where a record that was just appended cannot be applied, an ACTIVE partition becomes FAILED too: its log has what its
shard lacks.

A failed load is not LOAD_IN_PROGRESS: heartbeats are answered without an error during a load, so members would wait for
a partition that may never be loaded. Kafka leaves the partition in FAILED until its leader changes; here the load is
tried again, since a disk may recover while the leader stays the same.

Re-entrancy. A synchronous object that calls out may be called back before its call returns (see
`kalda.base.scheduling`). The runtime calls out where it appends to the log, and where it answers a `Pending`, whose
callbacks may bring the next request. So every method may be called inside such a call: state is changed before a call
out, no collection is iterated over one, and a high watermark that is reported inside an append is applied when the
write is complete (`CoordinatorPartition`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.stats import Avg, Max
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.coordinator.partition import CoordinatorPartition, Load, Shard, TransactionalProducer
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.statemachine.runtime import ReplayFault
from kalda.storage.values import TransactionEnd

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard[Any])
T = TypeVar("T")
_FIRST_RETRY_MS = 1_000
_LAST_RETRY_MS = 60_000
_MAX_DOUBLINGS = 6


class CoordinatorLog(Protocol):
    """The partitions of one internal topic that this node leads."""

    def append(
        self,
        partition: int,
        records: list[tuple[bytes, bytes | None]],
        now_ms: int,
        producer: TransactionalProducer | None = None,
    ) -> int:
        """Append one batch of (key, value) as the leader, transactional where it has a producer; the offset after the
        last. Raises `ApiError`. The partition's high watermark may move, and be reported, before this returns."""
        ...

    def append_marker(self, partition: int, end: TransactionEnd, now_ms: int) -> int:
        """Likewise, the control batch that ends a transaction."""
        ...


class _PartitionLog:
    """One partition of a `CoordinatorLog`, whose batches have the time of the runtime."""

    __slots__ = ("_index", "_log", "_wall_ms")

    def __init__(self, log: CoordinatorLog, index: int, wall_ms: Callable[[], int]) -> None:
        self._log = log
        self._index = index
        self._wall_ms = wall_ms

    def append(self, records: list[tuple[bytes, bytes | None]], producer: TransactionalProducer | None) -> int:
        if producer is None:
            return self._log.append(self._index, records, self._wall_ms())
        return self._log.append(self._index, records, self._wall_ms(), producer)

    def append_marker(self, end: TransactionEnd) -> int:
        return self._log.append_marker(self._index, end, self._wall_ms())


class LoadState(Enum):
    """How far the load of a led partition is."""

    LOADING = "loading"
    FAILED = "failed"
    ACTIVE = "active"


class _Led(Generic[S]):
    """A partition that this node leads, through all attempts to load it."""

    __slots__ = ("failures", "leader_epoch", "load", "load_began_ms", "partition", "retry", "shard", "state")

    def __init__(self, leader_epoch: int, retry: TimerTask) -> None:
        self.leader_epoch = leader_epoch
        self.state = LoadState.LOADING
        self.failures = 0
        """Loads that have failed since this node was elected."""
        self.load_began_ms = 0
        self.retry = retry
        """Armed while FAILED."""
        self.partition: CoordinatorPartition[Any]
        """That of the latest attempt, as are `shard` and `load`."""
        self.shard: S
        self.load: Load[Any]


class CoordinatorRuntime(Generic[S]):
    """One coordinator's partitions, timers and waiting writes."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[CoordinatorPartition[Any], CoordinatorRuntime[S]], S],
        log: CoordinatorLog,
        partition_count: Callable[[], int],
        write_timeout_ms: int,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`make_shard(partition, runtime)` makes an empty shard. `partition_count` is that of the topic, 0 while there
        is none. Timers go by the `now_ms` of each call; timestamps that are stored by `wall_ms`, or by `now_ms` too
        where it is None."""
        self.topic = topic
        self.timers = CoordinatorTimer()
        """Of the shards, and of loads to be tried again."""
        self._make_shard = make_shard
        self._log = log
        self._partition_count = partition_count
        self._write_timeout_ms = write_timeout_ms
        self._wall_ms = wall_ms
        self.load_time_avg = Avg()
        """Milliseconds from the start of a load to its success; this one and its largest."""
        self.load_time_max = Max()
        self._now_ms = 0
        self._led: dict[int, _Led[S]] = {}
        self._loaded = 0
        """Partitions whose loads have ended since the last line about them: one for all that are loaded together."""
        self._new_loads: list[Load[Any]] = []
        """Those that the driver has not taken yet."""
        self._waiting: deque[tuple[int, Pending[Any]]] = deque()
        """Writes that wait for their commit, with the time at which they fail; in the order of these times."""

    # -- partitions ----------------------------------------------------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int, now_ms: int) -> None:
        """This node leads the partition: `take_loads` has its load. The state of a former epoch is dropped."""
        self.advance(now_ms)
        self.on_resigned(partition)
        led: _Led[S] = _Led(leader_epoch, TimerTask(lambda _: self._begin_load(partition, led)))
        self._led[partition] = led
        self._begin_load(partition, led)

    def take_loads(self) -> list[Load[Any]]:
        """Loads whose partitions are to be read from the start of their log, each to be given out once."""
        loads, self._new_loads = self._new_loads, []
        return [load for load in loads if not load.has_ended]

    def on_resigned(self, partition: int) -> None:
        """This node no longer leads the partition: everything that waits is answered with NOT_COORDINATOR."""
        led = self._led.pop(partition, None)
        if led is None:
            return
        self.timers.disarm(led.retry)
        led.load.cancel()
        led.partition.close()

    def on_high_watermark(self, partition: int, offset: int) -> None:
        """The partition is committed up to `offset`, exclusively."""
        led = self._led.get(partition)
        if led is not None:
            led.partition.on_high_watermark(offset)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics of the cluster were deleted, by name and id. Shards that are being loaded are not called."""
        for shard in list(self.active_shards()):
            shard.on_topics_deleted(topics)

    def _begin_load(self, index: int, led: _Led[S]) -> None:
        """Nothing of a former attempt is used: it may have replayed a part of the log."""

        def make_shard(partition: CoordinatorPartition[Any]) -> S:
            led.shard = self._make_shard(partition, self)
            return led.shard

        led.state = LoadState.LOADING
        led.load_began_ms = self._now_ms
        led.partition = CoordinatorPartition(
            index,
            led.leader_epoch,
            _PartitionLog(self._log, index, self.wall_ms),
            make_shard,
            lambda fault: self._on_fault(led, fault),
        )
        led.load = Load(self.topic, led.partition, lambda _, failure, now_ms: self._end_load(led, failure, now_ms))
        self._new_loads.append(led.load)

    def _end_load(self, led: _Led[S], failure: str | None, now_ms: int) -> None:
        self.advance(now_ms)
        if failure is not None:
            self._give_up(led, f"load failed: {failure}")
            return
        led.state = LoadState.ACTIVE
        try:
            led.partition.activate()
        except Exception as error:
            self._give_up(led, "load failed at its end", error)
            return
        took_ms = now_ms - led.load_began_ms
        self.load_time_avg.record(took_ms, now_ms)
        self.load_time_max.record(took_ms, now_ms)
        log.debug("%s-%d: loaded in %d ms", self.topic, led.partition.index, took_ms)
        self._loaded += 1
        if not any(each.state is LoadState.LOADING for each in self._led.values()):
            log.info(
                "%s: %d partitions are loaded, of %d that this node leads", self.topic, self._loaded, len(self._led)
            )
            self._loaded = 0

    def _on_fault(self, led: _Led[S], fault: ReplayFault) -> None:
        """The log has records that the shard lacks: a new shard is loaded from the log."""
        self._give_up(led, "a record that was just appended cannot be applied, so the partition is loaded again", fault)

    def _give_up(self, led: _Led[S], why: str, error: Exception | None = None) -> None:
        """Serve the partition no more until it has been loaded again, after a pause."""
        delay_ms = min(_FIRST_RETRY_MS << min(led.failures, _MAX_DOUBLINGS), _LAST_RETRY_MS)
        led.failures += 1
        led.state = LoadState.FAILED
        self.timers.arm(led.retry, self._now_ms + delay_ms)
        log.error(
            "%s-%d: next attempt to load it in %d ms: %s",
            self.topic,
            led.partition.index,
            delay_ms,
            why,
            exc_info=error,
        )
        try:
            led.partition.close()
        except Exception:
            log.exception("%s-%d: the shard could not be closed", self.topic, led.partition.index)

    # -- shards --------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition that holds `key`. Raises NOT_COORDINATOR while the topic does not exist: as in Apache Kafka,
        no broker leads the partition then, and the client is to look for its coordinator again."""
        partitions = self._partition_count()
        if partitions <= 0:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return coordinator_partition(key, partitions)

    def shard_for(self, key: str) -> S:
        """The loaded shard of `key`. Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self._serving(self.partition_for(key)).shard

    def _serving(self, index: int) -> _Led[S]:
        led = self._led.get(index)
        if led is None or led.state is LoadState.FAILED:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if led.state is LoadState.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return led

    def end_transaction(self, partition: int, end: TransactionEnd, now_ms: int) -> Pending[None]:
        """Append the marker that ends a transaction in a partition of the topic, and apply it to the shard; settles
        when it is committed. Fails with NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, REQUEST_TIMED_OUT, and what the
        log raises."""
        self.advance(now_ms)
        try:
            led = self._serving(partition)
        except ApiError as error:
            refused: Pending[None] = Pending()
            refused.fail(error)
            return refused
        return self.in_time(led.partition.end_transaction(end))

    def active_shards(self) -> Iterator[S]:
        """Those that serve, in the order of their election."""
        return (led.shard for led in self._led.values() if led.state is LoadState.ACTIVE)

    def count(self, state: LoadState) -> int:
        """How many of the partitions that this node leads are in that state."""
        return sum(led.state is state for led in self._led.values())

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded, so that what all partitions hold cannot be listed."""
        return any(led.state is LoadState.LOADING for led in self._led.values())

    # -- time ----------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """A call has come at `now_ms`. Time does not go back."""
        self._now_ms = max(self._now_ms, now_ms)

    def now_ms(self) -> int:
        """The time of the latest call."""
        return self._now_ms

    def wall_ms(self) -> int:
        """The timestamp of what is written now."""
        return self._now_ms if self._wall_ms is None else self._wall_ms()

    def next_deadline_ms(self) -> int | None:
        """When `poll` is due; None while no timer is armed and no write waits. Any other call may make it earlier."""
        timer = self.timers.next_deadline_ms()
        if not self._waiting:
            return timer
        return self._waiting[0][0] if timer is None else min(timer, self._waiting[0][0])

    def poll(self, now_ms: int) -> int | None:
        """Fail the writes that have waited too long and run the timers that are due; returns `next_deadline_ms`."""
        self.advance(now_ms)
        while self._waiting and (self._waiting[0][0] <= self._now_ms or self._waiting[0][1].done):
            _, waiting = self._waiting.popleft()
            if not waiting.done:
                waiting.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        self.timers.fire(self._now_ms)
        return self.next_deadline_ms()

    def fire_due(self) -> None:
        """Run timers that were armed without delay, for a request that is to be answered before its call returns."""
        deadline_ms = self.timers.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._now_ms:
            self.timers.fire(self._now_ms)

    def in_time(self, pending: Pending[T]) -> Pending[T]:
        """`pending`, failing with REQUEST_TIMED_OUT after the write timeout; what was written stays written."""
        if pending.done:
            return pending
        bounded: Pending[T] = Pending()

        def settled(value: T | None, error: ApiError | None) -> None:
            if not bounded.done:
                bounded.settle(value, error)

        pending.then(settled)
        while self._waiting and self._waiting[0][1].done:
            self._waiting.popleft()
        self._waiting.append((self._now_ms + self._write_timeout_ms, bounded))
        return bounded
