"""Batches that wait to be sent, in a queue for each partition.

    append(...)              a record goes to the last batch of its partition, or to a new one
    ready(...)               the nodes that lead partitions with batches to send, and the queues of each
    drain(...)               the next batches for one node, in turn over its queues
    reenqueue, split         a batch that was sent has to be sent again
    expired(now)             batches that have waited for `delivery_timeout_ms`

A batch that is compressed takes as many records as are estimated to fill `batch_size` when they are compressed. It
begins with that much memory, and gets more where its records need it and the pool has it; else it is full.

A batch may be sent when it is full, when it has waited for `linger_ms` (or, sent before, for its backoff), while
a `send` waits for memory, or while the producer flushes, closes, or ends a transaction.

Most records do not come here: `TopicState.appender` puts them into open batches, without a lock. `append` is for the
first record of a batch. It runs on the caller's thread and all else on the I/O thread; `lock` keeps them apart.

Invariants: a queue's batches have records and are in the order of these, and only the last may be open; `queued` has
the queues that are not empty; a batch is in `incomplete` from before it is queued until it is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.configs.producer import ProducerConfig
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.errors import Backoff, Random
from kalda.clientcore.connections.metadata import ClusterMetadata, Leader
from kalda.clientcore.producing.idempotence import Numbering
from kalda.clientcore.producing.outbound_record import Prepared
from kalda.clientcore.producing.producer_batch import BufferPool, ProducerBatch
from kalda.clientcore.producing.producer_errors import ProducerClosed
from kalda.protocol.naming import MAX_PARTITIONS_NAMED
from kalda.records.appending import HEADER_SIZE, Ticket, TopicAppender
from kalda.records.compression import Compression

# The partition of records without a key: the adaptive uniform sticky partitioner (KIP-794), one for each topic.
#
# Records go to one partition, the sticky one, until about `batch_size` bytes have gone there, so that they fill
# batches. Then the next one is chosen: with equal chances, or where the lengths of the partitions' queues differ,
# with chances in inverse proportion to them, so that slow brokers get fewer records. With racks (KIP-1123),
# partitions whose leaders are in the client's rack are preferred while one of them takes batches.
#
# The protocol of an append, under the accumulator's lock:
#
#     peek(...)                    the sticky partition, chosen where there is none
#     is_changed(info)             whether another append has switched meanwhile: begin anew
#     update(info, bytes, ...)     bytes have been appended; may switch
#
# A switch is made after `batch_size` bytes only where the queue's batches are all full, so that no part-filled batch
# is left behind; after twice as many, in any case.


class Sticky:
    """A sticky partition. Another `Sticky` of the same partition is another stretch of records."""

    __slots__ = ("partition", "produced_bytes")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.produced_bytes = 0


class Candidates(NamedTuple):
    """The topic's partitions, as metadata has them."""

    partitions: int
    with_leader: Sequence[int]
    in_rack: Sequence[int] = ()
    """Those whose leaders are in the client's rack; empty where racks do not matter."""


class LoadStats(NamedTuple):
    """Partitions, and the cumulative weights by which one of them is drawn."""

    partitions: tuple[int, ...]
    cumulative: tuple[int, ...]

    def draw(self, random: Random) -> int:
        """A partition, by weight."""
        return self.partitions[bisect_right(self.cumulative, int(random() * self.cumulative[-1]))]


class StickyPartitioner:
    """The partitioner of one topic."""

    def __init__(self, batch_size: int, random: Random, adaptive: bool = True) -> None:
        self._batch_size = batch_size
        self._random = random
        self._adaptive = adaptive
        self._sticky: Sticky | None = None
        self._stats: LoadStats | None = None
        self._rack_stats: LoadStats | None = None
        self._rack_is_out = False
        """No partition of the client's rack takes batches, but others do."""
        self.before_choice: Callable[[], None] = _nothing
        """Calls `update_load`: the chances are by the queues as they are at the choice."""
        self.switches = 0
        """How often a partition was chosen."""

    def peek(self, candidates: Candidates) -> Sticky:
        """The sticky partition. One that the topic does not have any more, as it was made again with fewer, would hold
        the next records until their time is over."""
        if self._sticky is None or self._sticky.partition >= candidates.partitions:
            self._sticky = Sticky(self.next_partition(candidates))
        return self._sticky

    def is_changed(self, sticky: Sticky) -> bool:
        """Whether `sticky` is the sticky partition no longer."""
        return self._sticky is not sticky

    def update(self, sticky: Sticky, appended_bytes: int, candidates: Candidates, may_switch: bool) -> None:
        """Count bytes, and switch where it is time. `may_switch`: all batches of the partition's queue are full."""
        if self._sticky is not sticky:
            return
        sticky.produced_bytes += appended_bytes
        if sticky.produced_bytes >= (self._batch_size if may_switch else 2 * self._batch_size):
            self._sticky = Sticky(self.next_partition(candidates))

    def bytes_until_switch(self, sticky: Sticky) -> int:
        """How many bytes may be appended before a switch is due in any case."""
        return 2 * self._batch_size - sticky.produced_bytes

    def next_partition(self, candidates: Candidates) -> int:
        """Choose a partition."""
        self.switches += 1
        self.before_choice()
        in_rack = () if self._rack_is_out else candidates.in_rack
        if in_rack and self._rack_stats is not None:
            return self._rack_stats.draw(self._random)
        if self._stats is not None and not in_rack:
            return self._stats.draw(self._random)
        among = in_rack or candidates.with_leader
        if among:
            return among[int(self._random() * len(among))]
        return int(self._random() * candidates.partitions)

    def update_load(
        self, queue_sizes: Sequence[tuple[int, int]] | None, partitions: int, in_rack: Sequence[int] = ()
    ) -> None:
        """The lengths of the queues of available partitions: (partition, batches). None where they say nothing yet:
        some partition has never had a batch. `partitions` is how many there are, available or not."""
        self._stats = self._rack_stats = None
        self._rack_is_out = False
        if not self._adaptive or queue_sizes is None:
            return
        self._stats = _load_stats(queue_sizes, partitions)
        if in_rack:
            local = [(partition, size) for partition, size in queue_sizes if partition in in_rack]
            self._rack_stats = _load_stats(local, len(in_rack))
            self._rack_is_out = bool(queue_sizes) and not local


def _load_stats(queue_sizes: Sequence[tuple[int, int]], partitions: int) -> LoadStats | None:
    """Each partition's weight is the longest queue + 1 - its own. None where all chances are equal."""
    if not queue_sizes or partitions < 2:
        return None
    sizes = [size for _, size in queue_sizes]
    if min(sizes) == max(sizes) and len(sizes) == partitions:
        return None
    above = max(sizes) + 1
    weights = accumulate(above - size for size in sizes)
    return LoadStats(tuple(partition for partition, _ in queue_sizes), tuple(weights))


def _nothing() -> None:
    return None


_NO_RACK: tuple[int, ...] = ()
_FIRST_BYTES = 1_024
"""The memory of a batch that grows with its records, or what its first record needs."""
_MOST_AT_ONCE = 3
"""How many attempts a batch makes at once because its partition has another leader."""
_ESTIMATION_FACTOR = 1.05
_RATIO_STEP_UP, _RATIO_STEP_DOWN = 0.05, 0.005


class PartitionQueue:
    """One partition's batches."""

    __slots__ = ("batches", "created", "is_muted", "topic", "topic_partition")

    def __init__(self, topic: TopicState, topic_partition: TopicPartition) -> None:
        self.topic = topic
        self.topic_partition = topic_partition
        self.batches: deque[ProducerBatch] = deque()
        self.is_muted = False
        """A batch is in flight, and none may be sent beside it."""
        self.created = 0
        """Batches so far: the `order` of the last one."""


class TopicState:
    """One topic's queues, and how its records find them."""

    def __init__(self, name: str, appender: TopicAppender, partitioner: StickyPartitioner) -> None:
        self.name = name
        self.appender = appender
        self.partitioner = partitioner
        self.queues: dict[int, PartitionQueue] = {}
        self.sticky: Sticky | None = None
        """The sticky partition whose batch is `appender.sticky`."""
        self.sticky_batch: ProducerBatch | None = None
        self.counted_bytes = 0
        """How much of `sticky_batch` has been reported to the partitioner."""
        self.compression_ratio = 1.0
        """Compressed bytes to uncompressed ones, estimated a little too high."""
        self.observed_ratio = 1.0
        """That of the last batch: the estimate comes down to it in small steps."""


class Ready(NamedTuple):
    """What `ready` has found."""

    nodes: dict[int, list[tuple[PartitionQueue, Leader]]]
    """Nodes to send to, in order, and the queues of each: those with a batch to send now, and those with one that may
    go with it."""
    next_check_ms: int | None
    """When a node that is not among them may be ready; None: nothing waits."""
    topics_without_leader: set[str]
    is_any_expired: bool
    """Whether `expired` would return a batch."""


class Accumulator:
    """The batches of one producer that are not done."""

    def __init__(
        self,
        config: ProducerConfig,
        retry: Backoff,
        pool: BufferPool,
        metadata: ClusterMetadata,
        ticket_type: type[Ticket],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._config = config
        self._retry = retry
        self._compression = Compression[config.compression_type.upper()]
        self.pool = pool
        self.lock = lock
        self.topics: dict[str, TopicState] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        """All batches that are not done, in the order of their creation."""
        self.is_closed = False
        self.flushes = 0
        """Calls of `flush` that are waiting."""
        self.numbering: Numbering | None = None
        """Sequence numbers, where the producer is idempotent."""
        self.io: Any = None
        """Each batch gets it, for the threads that wait for the batch."""
        self._largest = max(min(config.max_request_size, pool.total_bytes), HEADER_SIZE + 1)
        """The most bytes of a batch, uncompressed."""
        size = min(config.batch_size, self._largest)
        self._first_bytes = min(size, _FIRST_BYTES) if config.grows_batches else size
        """The memory of a new batch, where its first record needs no more."""
        is_compressed = self._compression is not Compression.NONE
        self._plain_limit = 0 if is_compressed else size
        """Where batches are not compressed, their limit."""
        self._metadata = metadata
        self._ticket_type = ticket_type
        self.queued: dict[TopicPartition, PartitionQueue] = {}
        """The queues that are not empty."""
        self._candidates: dict[str, tuple[int, Candidates]] = {}
        """With the version of the metadata from which they were computed."""
        self._drain_after: dict[int, TopicPartition] = {}
        """The partition of each node from which a batch was drained last: the next drain begins behind it."""
        self._node_times: dict[int, tuple[int, int]] = {}
        """When each node last had batches to send, and when it last took some."""

    # -- topics

    def topic(self, name: str) -> TopicState:
        """The state of a topic whose partitions are in the metadata."""
        state = self.topics.get(name)
        if state is None:
            with self.lock:
                state = self.topics.get(name)
                if state is None:
                    config = self._config
                    count = len(self._metadata.partitions_of(name))
                    appender = TopicAppender(self._ticket_type, count, config.ignore_keys)
                    partitioner = StickyPartitioner(config.batch_size, self._retry.random, config.adaptive_partitioning)
                    state = TopicState(name, appender, partitioner)
                    if config.adaptive_partitioning:
                        partitioner.before_choice = partial(self._update_load, state)
                    self.topics[name] = state
        return state

    def on_metadata(self) -> None:
        """The metadata has changed: topics may have more partitions, or fewer where they were made again. Open batches
        of those that are not there are closed, so that the next records go to others."""
        for name in self._metadata.take_answered():
            count = len(self._metadata.partitions_of(name))
            with self.lock:  # a state that is being made now has the former count
                state = self.topics.get(name)
                if state is not None and count and count != len(state.appender.open):
                    kept = state.appender.open[:count]
                    state.appender.open = kept + [None] * (count - len(kept))
                    if state.sticky is not None and state.sticky.partition >= count:
                        state.appender.sticky = None

    def candidates(self, topic: str) -> Candidates:
        """What the partitioner may choose from; computed once for each state of the metadata."""
        version, known = self._candidates.get(topic, (-1, None))
        if known is None or version != self._metadata.version:
            version = self._metadata.version
            known = self._find_candidates(topic)
            self._candidates[topic] = version, known
        return known

    def _find_candidates(self, topic: str) -> Candidates:
        partitions = self._metadata.partitions_of(topic)
        brokers = self._metadata.brokers
        led = [each.partition for each in partitions if each.leader in brokers]
        rack = self._config.client_rack if self._config.rack_aware else ""
        local = [each for each in led if brokers[partitions[each].leader].rack == rack] if rack else _NO_RACK
        return Candidates(len(partitions), led, local)

    # -- appending, on the caller's thread

    def buffer_size(self, batch_bytes: int) -> int:
        """The memory of a new batch that has at most that size with its first record."""
        return batch_bytes if batch_bytes > self._first_bytes else self._first_bytes

    def _next_limit(self, topic: TopicState) -> int:
        """Up to which size the next batch that is compressed takes records: it is estimated to have `batch_size` bytes
        then."""
        # Here, and not where batches are compressed: many may be queued before the first one is.
        topic.compression_ratio = max(topic.compression_ratio - _RATIO_STEP_DOWN, topic.observed_ratio)
        room = (self._config.batch_size - HEADER_SIZE) / self._estimated_ratio(topic)
        return max(HEADER_SIZE + 1, min(HEADER_SIZE + int(room), self._largest))

    def _estimated_ratio(self, topic: TopicState) -> float:
        """What a byte of records is estimated to take in a batch that is sent."""
        if self._compression is Compression.NONE:
            return 1.0
        return topic.compression_ratio * _ESTIMATION_FACTOR

    def append(
        self,
        topic: TopicState,
        partition: int | None,
        timestamp_ms: int,
        record: Prepared,
        ticket: Ticket,
        now_ms: int,
        buffer: bytearray | None,
    ) -> bool:
        """Append a record. Without a partition the sticky one is used. False: a new batch needs a buffer, which the
        pool has not at this moment. Raises where no record is taken.

        A signal handler may raise between any two steps (Ctrl-C). So a batch has its first record before it is queued,
        and a buffer that no queued batch has goes back to the pool.
        """
        key, value, tail, size = record
        made: ProducerBatch | None = None
        with self.lock:
            try:
                sticky: Sticky | None = None
                if partition is None:
                    sticky, queue = self._sticky_queue(topic)
                else:
                    queue = topic.queues.get(partition) or self._queue(topic, partition)
                self._admit(queue)
                last = queue.batches[-1] if queue.batches else None
                ticket.batch, ticket.timestamp = last, timestamp_ms
                if last is None or not (
                    last.put(timestamp_ms, key, value, tail, ticket)
                    or (self._grow(last, size) and last.put(timestamp_ms, key, value, tail, ticket))
                ):
                    if last is not None:
                        last.is_open = False
                    if buffer is None:
                        buffer = self.pool.take(self.buffer_size(size))
                        if buffer is None:
                            return False
                    place, limit = queue.topic_partition, self._plain_limit or self._next_limit(topic)
                    made = last = ProducerBatch(place, buffer, limit, now_ms)
                    last.io = self.io
                    ticket.batch = last
                    put = last.put(timestamp_ms, key, value, tail, ticket)
                    assert put, "the first record of a batch fits"
                    self._enqueue(queue, last)
                    if place.partition < len(topic.appender.open):
                        topic.appender.open[place.partition] = last
                if sticky is not None and last.is_open:
                    self._set_sticky(topic, sticky, last)
                return True
            finally:
                if buffer is not None and (made is None or not made.order):
                    self.pool.give_back(buffer)

    def _admit(self, queue: PartitionQueue) -> None:
        """Raises where no record is taken now."""
        if self.is_closed:
            raise ProducerClosed("the producer is closed: no record can be sent")
        if self.numbering is not None:
            self.numbering.admit(queue.topic_partition)

    def _grow(self, batch: ProducerBatch, size_bytes: int) -> bool:
        """Give a batch that compresses well, or that began with little, more memory, where the pool has that at this
        moment. `size_bytes`: that of a batch with the next record alone."""
        needed = batch.position - HEADER_SIZE + size_bytes
        if not batch.is_open or needed > batch.most_bytes:
            return False
        former, buffer = batch.data, self.pool.take(min(batch.most_bytes, max(needed, 2 * len(batch.data))))
        if buffer is None:
            return False
        try:
            batch.move_to(buffer)
        finally:
            self.pool.give_back(former if batch.data is buffer else buffer)
        return True

    def _queue(self, topic: TopicState, partition: int) -> PartitionQueue:
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = PartitionQueue(topic, TopicPartition(topic.name, partition))
        return queue

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Queue a new batch, whose memory is the accumulator's as soon as it has an `order`: where a signal handler
        raises then, it is queued, or its memory is free."""
        try:
            queue.created += 1
            batch.order = (queue.created,)
            self.incomplete[batch] = None
            self.queued[queue.topic_partition] = queue
            queue.batches.append(batch)
        except BaseException:
            if batch.order and batch not in queue.batches:
                if not queue.batches:
                    self.queued.pop(queue.topic_partition, None)
                self._release(batch)
            raise

    def append_sealed(self, batch: ProducerBatch, topic: TopicState, partition: int) -> None:
        """Queue a batch that is complete, behind those of the partition. Where this raises, its memory is the caller's
        unless it has an `order`."""
        with self.lock:
            queue = self._queue(topic, partition)
            self._admit(queue)
            if queue.batches:
                queue.batches[-1].is_open = False
            batch.is_open = False
            self._enqueue(queue, batch)

    # -- the sticky partition

    def _sticky_queue(self, topic: TopicState) -> tuple[Sticky, PartitionQueue]:
        """The sticky partition after a switch that may be due."""
        candidates = self.candidates(topic.name)
        self._count_sticky(topic, candidates)
        while True:
            sticky = topic.partitioner.peek(candidates)
            queue = self._queue(topic, sticky.partition)
            # A switch was held back while the queue had a part-filled batch.
            if not queue.batches or queue.batches[-1].is_full:
                topic.partitioner.update(sticky, 0, candidates, True)
            if not topic.partitioner.is_changed(sticky):
                return sticky, queue

    def _count_sticky(self, topic: TopicState, candidates: Candidates) -> None:
        """Report what has been appended to the sticky batch since the last time."""
        batch, sticky = topic.sticky_batch, topic.sticky
        if batch is not None and sticky is not None:
            appended = (batch.position - topic.counted_bytes) * self._estimated_ratio(topic)
            topic.counted_bytes = batch.position
            topic.partitioner.update(sticky, int(appended), candidates, batch.is_full)

    def _set_sticky(self, topic: TopicState, sticky: Sticky, batch: ProducerBatch) -> None:
        if topic.sticky_batch is not batch or topic.sticky is not sticky:
            topic.sticky, topic.sticky_batch = sticky, batch
            topic.counted_bytes = HEADER_SIZE if batch.count == 1 else batch.position
        if not topic.partitioner.is_changed(sticky):
            left = topic.partitioner.bytes_until_switch(sticky) / self._estimated_ratio(topic)
            batch.switch_at = topic.counted_bytes + int(left)
            topic.appender.sticky = batch

    def _update_load(self, topic: TopicState) -> None:
        """Give the partitioner the lengths of the queues, as they are now. With the lock."""
        candidates = self.candidates(topic.name)
        sizes: list[tuple[int, int]] | None = None
        if len(topic.queues) >= candidates.partitions:
            sizes = [
                (index, len(topic.queues[index].batches))
                for index in candidates.with_leader
                if index in topic.queues and self._is_available(topic.name, index)
            ]
        topic.partitioner.update_load(sizes, candidates.partitions, candidates.in_rack)

    def _is_available(self, topic: str, partition: int) -> bool:
        """Whether the partition's leader takes batches: KIP-794's availability timeout."""
        timeout_ms = self._config.availability_timeout_ms
        leader = self._metadata.leader_of(topic, partition)
        if timeout_ms <= 0 or leader is None:
            return True
        ready_ms, drained_ms = self._node_times.get(leader.node_id, (0, 0))
        return ready_ms - drained_ms <= timeout_ms

    # -- sending, on the I/O thread

    def on_node_checked(self, node_id: int, now_ms: int, can_send: bool) -> None:
        """The node has batches to send; whether it takes them now."""
        drained_ms = now_ms if can_send else self._node_times.get(node_id, (now_ms, now_ms))[1]
        self._node_times[node_id] = now_ms, drained_ms

    def ready(self, now_ms: int) -> Ready:
        """The nodes that lead partitions with batches to send now."""
        nodes: dict[int, list[tuple[PartitionQueue, Leader]]] = {}
        led: dict[int, list[tuple[PartitionQueue, Leader]]] = {}
        next_check_ms: int | None = None
        without_leader: set[str] = set()
        is_any_expired = False
        linger_ms, timeout_ms = self._config.linger_ms, self._config.delivery_timeout_ms
        with self.lock:
            is_forced = linger_ms == 0 or self._is_forced()
            for partition, queue in self.queued.items():
                first = queue.batches[0]
                if now_ms - first.created_ms >= timeout_ms:
                    is_any_expired = True
                leader = self._metadata.leader_of(*partition)
                if leader is None:
                    without_leader.add(partition.topic)
                    continue
                if queue.is_muted:
                    continue
                if first.attempts > 0:
                    if leader.epoch > first.leader_epoch >= 0:
                        first.leader_changed = True
                    due_ms = first.last_attempt_ms + self._backoff_ms(first)
                elif is_forced or len(queue.batches) > 1 or first.is_full:
                    due_ms = now_ms
                else:
                    due_ms = first.last_attempt_ms + linger_ms
                if due_ms > now_ms:
                    next_check_ms = due_ms if next_check_ms is None else min(due_ms, next_check_ms)
                    if first.attempts > 0:
                        continue
                node_id = leader.node_id
                queues = led.get(node_id)
                if queues is None:
                    queues = led[node_id] = []
                queues.append((queue, leader))
                if due_ms <= now_ms:
                    nodes[node_id] = queues
        return new_tuple(Ready, (nodes, next_check_ms, without_leader, is_any_expired))

    def _is_forced(self) -> bool:
        """Whether batches are sent before they are full, or have lingered."""
        return (
            self.pool.waiting > 0
            or self.is_closed
            or self.flushes > 0
            or (self.numbering is not None and self.numbering.is_completing)
        )

    def _backoff_ms(self, batch: ProducerBatch) -> int:
        """The pause before the batch is sent again. Where its partition has another leader now, the first attempts make
        none; brokers that name each other for ever get the later ones behind a backoff."""
        if batch.attempts == 0 or (batch.leader_changed and batch.attempts <= _MOST_AT_ONCE):
            return 0
        if batch.backoff_ms < 0:
            batch.backoff_ms = self._retry.pause_ms(batch.attempts)
        return batch.backoff_ms

    def drain(self, node_id: int, led: list[tuple[PartitionQueue, Leader]], now_ms: int) -> list[ProducerBatch]:
        """At most one batch of each of the node's queues, as `ready` has found them, in turn, up to `max_request_size`
        in all; sealed. Not more than one request may name."""
        batches: list[ProducerBatch] = []
        size_bytes = 0
        config, numbering, is_alone = self._config, self.numbering, len(led) == 1
        with self.lock:
            for queue, leader in led if is_alone else self._in_turn(node_id, led):
                first = queue.batches[0]
                bytes_more = 0 if is_alone else self._estimated_bytes(first, queue.topic)
                if batches and (
                    size_bytes + bytes_more > config.max_request_size or len(batches) == MAX_PARTITIONS_NAMED
                ):
                    break
                if numbering is not None and not numbering.number(first):
                    continue
                self._take(queue)
                first.leader_epoch = leader.epoch
                first.leader_changed = False
                first.drained_ms = now_ms
                batches.append(first)
                size_bytes += bytes_more
                self._drain_after[node_id] = queue.topic_partition
        for batch in batches:
            is_sealed_again = batch.sealed is not None
            batch.seal(self._compression, config.compression_level)
            if not (is_sealed_again or self._plain_limit):
                self._learn_ratio(batch)
        return batches

    def _in_turn(self, node_id: int, led: list[tuple[PartitionQueue, Leader]]) -> list[tuple[PartitionQueue, Leader]]:
        """The node's queues, beginning behind the one that was drained last."""
        led.sort(key=lambda each: each[0].topic_partition)
        last = self._drain_after.get(node_id)
        if last is None:
            return led
        start = next((at for at, (queue, _) in enumerate(led) if queue.topic_partition > last), 0)
        return led[start:] + led[:start]

    def _estimated_bytes(self, batch: ProducerBatch, topic: TopicState) -> int:
        if batch.sealed is not None:
            return len(batch.sealed)
        return HEADER_SIZE + int((batch.position - HEADER_SIZE) * self._estimated_ratio(topic))

    def _take(self, queue: PartitionQueue) -> None:
        """Remove the first batch, and close it."""
        batch, place = queue.batches.popleft(), queue.topic_partition
        batch.is_open = False
        if not queue.batches:
            del self.queued[place]
        appender = queue.topic.appender
        if place.partition < len(appender.open) and appender.open[place.partition] is batch:
            appender.open[place.partition] = None
        if appender.sticky is batch:
            appender.sticky = None

    def _learn_ratio(self, batch: ProducerBatch) -> None:
        # Of a few bytes compression makes more of them: that says nothing of a batch that is full.
        observed = min(1.0, batch.compression_ratio)
        topic = self.topics[batch.topic_partition.topic]
        topic.observed_ratio = observed
        if observed > topic.compression_ratio:
            topic.compression_ratio = min(1.0, max(topic.compression_ratio + _RATIO_STEP_UP, observed))

    # -- again

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """The batch has to be sent again: after its backoff, and in its place among the partition's batches."""
        batch.attempts += 1
        batch.backoff_ms = -1
        batch.last_attempt_ms = now_ms
        batch.in_retry = True
        with self.lock:
            self._insert(batch)

    def _insert(self, batch: ProducerBatch) -> None:
        topic = self.topics[batch.topic_partition.topic]
        queue = self._queue(topic, batch.topic_partition.partition)
        at = 0
        while at < len(queue.batches) and queue.batches[at].order < batch.order:
            at += 1
        queue.batches.insert(at, batch)
        self.queued[queue.topic_partition] = queue

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """The batch is too large for its broker: queue its records in batches of at most `batch_size`."""
        config = self._config
        topic = self.topics[batch.topic_partition.topic]
        topic.compression_ratio = max(1.0, batch.compression_ratio)
        target = min(config.batch_size, max(HEADER_SIZE + 1, (batch.position + 1) // 2))
        parts = batch.split(target, self._compression)
        with self.lock:
            for part in parts:
                part.in_retry = True
                self._insert(part)
                self.incomplete[part] = None
        return parts

    # -- the end of a batch

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Batches in queues that have waited too long; they are removed."""
        found: list[ProducerBatch] = []
        with self.lock:
            for queue in list(self.queued.values()):
                while queue.batches and now_ms - queue.batches[0].created_ms >= self._config.delivery_timeout_ms:
                    found.append(queue.batches[0])
                    self._take(queue)
        return found

    def next_expiry_ms(self) -> int | None:
        """When the first batch in a queue expires."""
        if not self.queued:
            return None
        with self.lock:
            oldest_ms = min((queue.batches[0].created_ms for queue in self.queued.values()), default=None)
        return None if oldest_ms is None else oldest_ms + self._config.delivery_timeout_ms

    def release(self, batch: ProducerBatch) -> None:
        """The batch is done. Its memory is free, unless a request still has it: then it is when that has ended."""
        with self.lock:
            self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        self.incomplete.pop(batch, None)
        if batch.buffer is not None and not batch.is_in_flight:
            buffer, batch.buffer = batch.buffer, None
            batch.data = bytearray()
            batch.sealed = None
            self.pool.give_back(buffer)

    def take_all(self) -> list[ProducerBatch]:
        """Remove all batches from the queues."""
        found: list[ProducerBatch] = []
        with self.lock:
            for queue in list(self.queued.values()):
                while queue.batches:
                    found.append(queue.batches[0])
                    self._take(queue)
        return found

    def close(self) -> None:
        """Take no more records."""
        self.is_closed = True
        self.close_open()

    def close_open(self) -> None:
        """Close the open batches: the next record of each partition comes through `append`."""
        with self.lock:
            for topic in self.topics.values():
                topic.appender.sticky = None
                topic.appender.open = [None] * len(topic.appender.open)
            for queue in self.queued.values():
                queue.batches[-1].is_open = False

    def mute(self, partition: TopicPartition, is_muted: bool) -> None:
        """Whether a batch of the partition is in flight, beside which none may be sent."""
        self._queue(self.topics[partition.topic], partition.partition).is_muted = is_muted
