"""Reading partitions for one request, until it is satisfied.

Partitions are read in order until the request's bytes are used up. The first record batch is sent whole, whatever the
limits, so that a consumer behind a large batch makes progress (KIP-74). With fewer than `min_bytes` the request waits:
each append to a watched partition adds the bytes that became readable, and the request is answered when they are
enough, when a partition's state changes, or when `max_wait_ms` is over.

What is not in the page cache is read by a job, all such partitions of one request together.

Records that come as slices of files take no memory, however many a peer asks for and does not read. What comes as bytes
is bounded for each request: partitions behind that are answered without records, and their fetcher asks again.

A request of more than `READ_AT_ONCE` partitions reads them in steps, and other requests are handled between two steps.

Which partitions are read, which checks precede, and what the answer says is the work of the class that derives from
`PartitionReads`: `fetch.Fetch` answers fetch sessions.

A driver. A follower's fetch may advance high watermarks, and what waits for those may append while others are read.

Not obvious:

- `PartitionReads.advanced` is set after reading in steps too. A fetch with `min_bytes` may then wait up to
  `max_wait_ms` for bytes that were appended between two steps to a partition it had read.
- An answer to a Fetch has at most 2 MB of records in memory, all else is slices of files; a fetch that is cut for
  that is answered at once, whatever its `min_bytes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.disk import FileSlice
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending, Timer
from kalda.protocol.notation import Response
from kalda.replication.counters import DelayedOperation
from kalda.replication.partition import Partition
from kalda.replication.waiters import Waiter
from kalda.storage.log.reads import SLICED_BYTES
from kalda.storage.log.snapshot_jobs import SnapshotJob, aborted_nowait
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager

READ_AT_ONCE = 2_000
"""Partitions of a request that are read as it arrives: about ten milliseconds. More of them are read in steps."""
_COPIED_BYTES = 2 << 20
"""Bytes of records in memory that are enough for a consumer's answer."""
_COPIED_FOR_FOLLOWER = 10 << 20
"""The same for a follower, which gets copies alone: the default of `replica.fetch.response.max.bytes`."""


class Entry(Protocol):
    """One partition of a request."""

    topic: str
    index: int

    @property
    def fetch_offset(self) -> int: ...


class Answer(Protocol):
    """The answer for one partition."""

    records: Any


E = TypeVar("E", bound=Entry)
A = TypeVar("A", bound=Answer)
R = TypeVar("R", bound=Response)


class PartitionReads(ABC, Generic[E, A, R]):
    """The reads of one request, from the first one to its answer."""

    __slots__ = (
        "_cold",
        "_cold_aborted",
        "_copied_bytes",
        "_max_bytes",
        "_max_copied",
        "_max_wait_ms",
        "_min_bytes",
        "_read_bytes",
        "_remaining",
        "_to_log_end",
        "advanced",
        "answers",
        "entries",
        "held_back",
        "manager",
        "read_committed",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        entries: Sequence[E],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        read_committed: bool,
        to_log_end: bool,
    ) -> None:
        """`to_log_end`: for a follower, which reads what is not committed, and gets copies: it may read records that
        this broker truncates under a new leader."""
        self.manager = manager
        self.entries = entries
        self.read_committed = read_committed
        self.answers: list[A | None] = []
        """For each entry; None where the answer leaves the partition out."""
        self.advanced = False
        """Whether a high watermark advanced by these reads, or other requests were handled between their steps: either
        may have appended to any partition."""
        self.held_back: set[Partition] = set()
        """Partitions of which no records are sent now, and no wait waits."""
        self._min_bytes = min_bytes
        self._remaining = self._max_bytes = max_bytes
        """`_remaining`: bytes that the partitions which are not read yet may have."""
        self._max_wait_ms = max_wait_ms
        self._to_log_end = to_log_end
        self._read_bytes = 0
        self._copied_bytes = 0
        """Those of them that are in memory, or will be when a job has read them."""
        self._max_copied = _COPIED_FOR_FOLLOWER if to_log_end else _COPIED_BYTES
        self._cold: list[tuple[int, Partition, SnapshotJob[FetchInfo]]] = []
        """Partitions that a job reads: index of the answer, partition, the read."""
        self._cold_aborted: list[tuple[int, Partition, SnapshotJob[list[AbortedTxn]]]] = []
        """Partitions whose records were read, and of whose aborted transactions a job reads the index; likewise."""

    # -- what a request of its own kind says

    @abstractmethod
    def _read(self, entries: Sequence[E], is_first: bool) -> bool:
        """Read partitions: add one answer for each. True where the request must not wait. `is_first`: not after a wait.
        Takes what it reads off `_remaining`."""

    @abstractmethod
    def _fill(self, answer: A, partition: Partition, info: FetchInfo, index: int) -> None:
        """Put what was read into the answer at `index`, by `_take` where there are records. Raises `ApiError`."""

    @abstractmethod
    def _name_aborted(self, answer: A, aborted: list[AbortedTxn]) -> None:
        """Put the aborted transactions of its records into an answer."""

    @abstractmethod
    def _fail(self, answer: A, code: ErrorCode, partition: Partition | None) -> None:
        """Let the answer have this error, and no records."""

    @abstractmethod
    def _uncount(self, partition: Partition, size_bytes: int) -> None:
        """Records that were read are not sent, but read again later: undo what `_fill` has counted."""

    @abstractmethod
    def response(self) -> R:
        """The answer, of what has been read."""

    # -- until there is enough

    def run(self, settled: bool | None = None) -> R | Pending[R] | Steps[R | Pending[R]]:
        """The answer now, or later. `settled`: what `_read` has returned, where all partitions are read already."""
        if settled is None:
            entries = self.entries
            if len(entries) > READ_AT_ONCE:
                return self._run_in_steps()
            settled = self._read(entries, True)
        if self._cold or self._cold_aborted:
            return self._read_cold()
        if settled or self._read_bytes >= self._min_bytes or self._max_wait_ms <= 0 or not self.entries:
            return self.response()
        if self._read_bytes:
            self._uncount_bytes()
        if self.advanced and self._has_more():
            return self.read_again()
        return self._wait(self._max_wait_ms)

    def _wait(self, max_wait_ms: int) -> Pending[R]:
        """Read again when there is enough, or at the end of this time."""
        partitions = [
            partition
            for entry in self.entries
            if (partition := self.manager.find(entry.topic, entry.index)) is not None
            and partition not in self.held_back
        ]
        pending: Pending[R] = Pending()
        missing = self._min_bytes - self._read_bytes
        waiter = (
            StableReadWaiter(self, pending, missing, partitions)
            if self.read_committed and not self._to_log_end
            else ReadWaiter(self, pending, missing)
        )
        pending.on_abandoned = waiter.stop
        self.answers = []  # all partitions are read again
        waiter.wait(partitions, self.manager.timers, max_wait_ms, at_end=self._to_log_end)
        self._watch(waiter)
        return pending

    def _watch(self, waiter: Waiter) -> None:
        """A wait has begun: `waiter` is to be completed by whatever else than its partitions may end it."""

    def _run_in_steps(self) -> Steps[R | Pending[R]]:
        yield
        settled = yield from self._read_in_steps(True)
        self.advanced = True
        answer = self.run(settled)
        return answer if isinstance(answer, Response | Pending) else (yield from answer)

    def read_again(self) -> R | Pending[R] | Steps[R | Pending[R]]:
        """Read again after the wait, and answer with whatever there is."""
        self.answers, self._cold, self._cold_aborted = [], [], []
        self._read_bytes = self._copied_bytes = 0
        self._remaining = self._max_bytes
        self.held_back.clear()
        entries = self.entries
        if len(entries) > READ_AT_ONCE:
            return self._read_again_in_steps()
        self._read(entries, False)
        return self._read_cold() if self._cold or self._cold_aborted else self.response()

    def _read_again_in_steps(self) -> Steps[R | Pending[R]]:
        yield
        yield from self._read_in_steps(False)
        return self._read_cold() if self._cold or self._cold_aborted else self.response()

    def _read_in_steps(self, is_first: bool) -> Steps[bool]:
        """As `_read` of all partitions."""
        settled = False
        entries = self.entries
        for start in range(0, len(entries), ITEMS_A_STEP):
            settled |= self._read(entries[start : start + ITEMS_A_STEP], is_first)
            yield
        return settled

    def _has_more(self) -> bool:
        """Whether records have been appended, since this fetch read, to a partition of which it read none."""
        for entry, answer in zip(self.entries, self.answers, strict=True):
            if answer is None or not answer.records:
                partition = self.manager.find(entry.topic, entry.index)
                if partition in self.held_back:
                    continue
                if partition is not None and self.end_of(partition) > entry.fetch_offset:
                    return True
        return False

    def end_of(self, partition: Partition) -> int:
        """Up to where is read."""
        return partition.log.log_end_offset if self._to_log_end else partition.readable_end(self.read_committed)

    def _uncount_bytes(self) -> None:
        for entry, answer in zip(self.entries, self.answers, strict=True):
            if answer is not None and answer.records:
                partition = self.manager.find(entry.topic, entry.index)
                if partition is not None:  # else its directory has failed since; its counters were removed
                    self._uncount(partition, len(answer.records))

    # -- one partition

    def _read_one(self, partition: Partition, offset: int, max_bytes: int) -> FetchInfo | SnapshotJob[FetchInfo]:
        end_offset = self.end_of(partition)
        if max_bytes <= 0 and (self._read_bytes or partition in self.held_back):
            partition.check_range(offset)
            return FetchInfo.EMPTY
        # A follower gets a copy: it may read records that this broker truncates under a new leader.
        slices = self.manager.jobs if not self._to_log_end else None
        return partition.read(offset, max_bytes, end_offset, self._read_bytes == 0, slices)

    def _take(self, answer: A, partition: Partition, info: FetchInfo, index: int) -> None:
        """Put records into the answer at `index`. The aborted transactions may follow by `_cold_aborted`."""
        records: Any = info.records
        answer.records = records
        self._read_bytes += info.size_bytes
        if type(records) is not FileSlice:
            self._copied_bytes += info.size_bytes
        if self.read_committed:
            aborted = aborted_nowait(partition.log, info.first_offset, info.next_offset)
            if isinstance(aborted, SnapshotJob):
                self._cold_aborted.append((index, partition, aborted))
            elif aborted:
                self._name_aborted(answer, aborted)

    def _read_later(self, index: int, partition: Partition, read: SnapshotJob[FetchInfo], allowed_bytes: int) -> None:
        """Let a job read at most so many bytes for the answer at `index`."""
        self._cold.append((index, partition, read))
        self._copied_bytes += min(allowed_bytes, SLICED_BYTES)

    # -- cold reads

    def _read_cold(self) -> Pending[R]:
        """Read in a job what is not in the page cache, then answer without waiting for more."""

        def fill(results: list[FetchInfo | ApiError]) -> Pending[list[list[AbortedTxn] | ApiError]]:
            for (index, partition, _), result in zip(self._cold, results, strict=True):
                answer = self.answers[index]
                assert answer is not None, "a partition that is left out is not read"
                try:
                    if isinstance(result, ApiError):
                        raise result
                    self._fill(answer, partition, result, index)
                except ApiError as error:
                    self._fail(answer, error.code, partition)
            return self.manager.read_later([read for _, _, read in self._cold_aborted])

        def fill_aborted(results: list[list[AbortedTxn] | ApiError]) -> R:
            for (index, partition, _), result in zip(self._cold_aborted, results, strict=True):
                answer = self.answers[index]
                assert answer is not None, "a partition that is left out is not read"
                if isinstance(result, ApiError):
                    self._fail(answer, result.code, partition)
                else:
                    self._name_aborted(answer, result)
            return self.response()

        return self.manager.read_later([read for _, _, read in self._cold]).and_then(fill).and_then(fill_aborted)

    def count_expiration(self) -> None:
        """The time of the fetch is up before there were `min_bytes`."""
        counters = self.manager.counters
        (counters.consumer_expirations if not self._to_log_end else counters.follower_expirations).value += 1


class ReadWaiter(Waiter, Generic[R]):
    """Reads that wait for `min_bytes`."""

    __slots__ = ("_finishing", "_missing_bytes", "_pending", "_reads")

    def __init__(self, reads: PartitionReads[Any, Any, R], pending: Pending[R], missing_bytes: int) -> None:
        super().__init__(DelayedOperation.FETCH)
        self._reads = reads
        self._pending = pending
        self._missing_bytes = missing_bytes
        self._finishing: Timer | None = None
        """Set when the wait is over."""

    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        self._missing_bytes -= appended_bytes
        if self._missing_bytes <= 0:
            self.complete()

    def complete(self) -> None:
        if not self.done:
            self.done = True
            self._finishing = self._reads.manager.background.call(self.finish)

    def stop(self) -> None:
        if self._finishing is not None:
            self._finishing.cancel()
        super().stop()

    def expire(self) -> None:
        if not self.done:
            self._reads.count_expiration()
            self.complete()

    def answer(self) -> None:
        try:
            answer = self._reads.read_again()
        except Exception as error:  # it must not harm what completed the wait, nor the reads behind these
            self._pending.fail(as_api_error(error))
            return
        if isinstance(answer, Response):
            self._pending.complete(answer)
        else:
            later = answer if isinstance(answer, Pending) else self._reads.manager.background.run(answer)
            later.then(self._pending.settle)


class StableReadWaiter(ReadWaiter[R]):
    """One of a read_committed consumer. Records become readable for it when the last stable offset advances, which the
    high watermark may do many times before: what a long transaction appends does not answer its fetch."""

    __slots__ = ("_held", "_stable")

    def __init__(
        self, reads: PartitionReads[Any, Any, R], pending: Pending[R], missing_bytes: int, partitions: list[Partition]
    ) -> None:
        super().__init__(reads, pending, missing_bytes)
        self._stable = {partition: partition.log.last_stable_offset for partition in partitions}
        """The last stable offsets when they were seen last."""
        self._held = dict.fromkeys(
            (each for each, stable in self._stable.items() if stable < each.log.high_watermark), missing_bytes
        )
        """Bytes between the last stable offset and the high watermark. Those from before the wait are not counted one
        by one: they are taken to be enough for an answer."""

    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        stable, held = partition.log.last_stable_offset, self._held
        if stable <= self._stable[partition]:
            held[partition] = held.get(partition, 0) + appended_bytes
            return
        self._stable[partition] = stable
        super().on_moved(partition, appended_bytes + held.pop(partition, 0))
