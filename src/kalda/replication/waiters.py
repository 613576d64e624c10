"""Requests that wait until partitions advance, or their time is up: Kafka's purgatory.

A waiter is in the lists of the partitions that it watches. A partition notifies its waiters when its high watermark or
its log end advances, and completes them when its leader, its epoch or its disk changes; nothing polls. Each waiter has
one timer. It leaves all lists when it is done, so that a list holds waiting requests only. A driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from kalda.base.scheduling import Timer, Timers
from kalda.replication.counters import DelayedOperation
from kalda.replication.partition import Partition


class Waiter(ABC):
    """One waiting request. `on_moved` is called whenever a watched partition advances; `answer` is called once, unless
    the waiter is stopped before."""

    __slots__ = ("_partitions", "_timer", "done", "operation")

    def __init__(self, operation: DelayedOperation) -> None:
        self.operation = operation
        self.done = False
        """Answered, to be answered without a further event, or stopped."""
        self._partitions: list[Partition] = []
        self._timer: Timer | None = None

    @abstractmethod
    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        """A watched partition has advanced; `appended_bytes` became readable. Calls `complete` when that is enough."""

    @abstractmethod
    def answer(self) -> None:
        """Answer the request."""

    def wait(self, partitions: list[Partition], timers: Timers, timeout_ms: int, *, at_end: bool = False) -> None:
        """Watch the partitions' high watermarks, or with `at_end` their log ends, for `timeout_ms` at most."""
        assert self._timer is None, "a waiter waits once"
        self._partitions = partitions
        for partition in partitions:
            (partition.end_waiters if at_end else partition.waiters)[self] = None
        self._timer = timers.call_later_ms(timeout_ms, self.expire)

    def complete(self) -> None:
        """Stop watching, and answer; nothing where that is done already."""
        if not self.done:
            self.finish()

    def finish(self) -> None:
        """Stop watching, and answer."""
        self.stop()
        self.answer()

    def expire(self) -> None:
        """The time is up: answer."""
        self.complete()

    def stop(self) -> None:
        """Stop watching without an answer."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.pop(self, None)
            partition.end_waiters.pop(self, None)


class OffsetWaiter(Waiter):
    """Waits until a condition on each of several partitions holds: an acks=all produce, a DeleteRecords."""

    __slots__ = ("_is_satisfied", "_on_complete", "_waiting_for")

    def __init__(
        self,
        operation: DelayedOperation,
        waiting_for: dict[Partition, int],
        is_satisfied: Callable[[Partition, int], bool],
        on_complete: Callable[[], None],
    ) -> None:
        super().__init__(operation)
        self._waiting_for = waiting_for
        """Offsets of partitions whose condition does not hold yet."""
        self._is_satisfied = is_satisfied
        self._on_complete = on_complete

    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        offset = self._waiting_for.get(partition)
        if offset is not None and self._is_satisfied(partition, offset):
            del self._waiting_for[partition]
            if not self._waiting_for:
                self.complete()

    def answer(self) -> None:
        self._on_complete()

    @property
    def unsatisfied(self) -> dict[Partition, int]:
        """Partitions whose condition does not hold yet; after a timeout, those that failed."""
        return self._waiting_for
