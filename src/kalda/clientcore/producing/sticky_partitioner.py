"""The partition of records without a key: the adaptive uniform sticky partitioner (KIP-794), one for each topic.

Records go to one partition, the sticky one, until about `batch_size` bytes have gone there, so that they fill batches.
Then the next one is chosen: with equal chances, or where the lengths of the partitions' queues differ, with chances in
inverse proportion to them, so that slow brokers get fewer records. With racks (KIP-1123), partitions whose leaders are
in the client's rack are preferred while one of them takes batches.

The protocol of an append, under the accumulator's lock:

    peek(...)                    the sticky partition, chosen where there is none
    is_changed(info)             whether another append has switched meanwhile: begin anew
    update(info, bytes, ...)     bytes have been appended; may switch

A switch is made after `batch_size` bytes only where the queue's batches are all full, so that no part-filled batch is
left behind; after twice as many, in any case.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from kalda.clientcore.connections.backoff import Random


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
