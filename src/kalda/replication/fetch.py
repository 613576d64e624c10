"""One fetch request: what is read for its session, until it is satisfied, and how that is answered.

`PartitionReads` reads, and waits for more. Here is what a fetch adds: which partitions are read at all, as an
incremental session leaves out those that have not changed; which checks precede; replicas that a consumer should read
from instead (KIP-392); followers, whose fetch offset is also their log end offset, their divergence from this log
(KIP-595) and their throttle; and the response.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.disk import FileSlice
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending, Timer
from kalda.protocol.messages.partitions import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestFetchPartition,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponsePartitionData,
)
from kalda.protocol.notation import Response, maker
from kalda.replication.counters import NO_FETCH_FAILURES, DelayedOperation
from kalda.replication.fetch_session import CaughtUp, FetchContext, FetchEntry
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaThrottle
from kalda.replication.waiters import Waiter
from kalda.storage.log.reads import SLICED_BYTES
from kalda.storage.log.snapshot_jobs import SnapshotJob, aborted_nowait
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager

# Reading partitions for one request, until it is satisfied.
#
# Partitions are read in order until the request's bytes are used up. The first record batch is sent whole, whatever
# the limits, so that a consumer behind a large batch makes progress (KIP-74). With fewer than `min_bytes` the request
# waits: each append to a watched partition adds the bytes that became readable, and the request is answered when they
# are enough, when a partition's state changes, or when `max_wait_ms` is over.
#
# What is not in the page cache is read by a job, all such partitions of one request together.
#
# Records that come as slices of files take no memory, however many a peer asks for and does not read. What comes as
# bytes is bounded for each request: partitions behind that are answered without records, and their fetcher asks
# again.
#
# A request of more than `READ_AT_ONCE` partitions reads them in steps, and other requests are handled between two
# steps.
#
# Which partitions are read, which checks precede, and what the answer says is the work of the class that derives from
# `PartitionReads`: `fetch.Fetch` answers fetch sessions.
#
# A driver. A follower's fetch may advance high watermarks, and what waits for those may append while others are read.
#
# Not obvious:
#
# - `PartitionReads.advanced` is set after reading in steps too. A fetch with `min_bytes` may then wait up to
#   `max_wait_ms` for bytes that were appended between two steps to a partition it had read.
# - An answer to a Fetch has at most 2 MB of records in memory, all else is slices of files; a fetch that is cut for
#   that is answered at once, whatever its `min_bytes`.

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


READ_COMMITTED = 1
_NO_BYTES = b""
Fetched: TypeAlias = FetchResponse | Pending[FetchResponse]
_response = maker(FetchResponse, "session_id")
_topic_response = maker(FetchableTopicResponse, "topic", "topic_id")
_partition_response = maker(FetchResponsePartitionData, "partition_index", "records", "aborted_transactions")


class Fetch(PartitionReads[FetchEntry, FetchResponsePartitionData, FetchResponse]):
    """One fetch request, from its first read to its answer."""

    __slots__ = (
        "_add_leader_endpoints",
        "_context",
        "_follower_epoch",
        "_follower_id",
        "_names_leaders",
        "_prefer",
        "_rack_id",
        "_refused",
        "_throttle",
        "from_followers",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        request: FetchRequest,
        context: FetchContext,
        add_leader_endpoints: Callable[[FetchResponse], None] | None = None,
        *,
        from_followers: bool = False,
        prefer: Callable[[Partition, int, str], int] | None = None,
        refused: frozenset[str] | None = None,
    ) -> None:
        """`add_leader_endpoints` adds the addresses of new leaders to a response that names some (KIP-951); None where
        the request's version has no field for them. `from_followers`: a consumer may read from a replica that does not
        lead. `prefer(partition, offset, rack)` is the replica that it should read from (KIP-392). `refused`: topics
        that the fetcher may not read; None for none."""
        state = request.replica_state
        follower_id = state.replica_id if state.replica_id >= 0 else request.replica_id
        super().__init__(
            manager,
            context.entries,
            min_bytes=request.min_bytes,
            max_bytes=min(request.max_bytes, manager.fetch_max_bytes),
            max_wait_ms=request.max_wait_ms,
            read_committed=request.isolation_level == READ_COMMITTED,
            to_log_end=follower_id >= 0,
        )
        self._add_leader_endpoints = add_leader_endpoints
        self._refused = refused
        self._names_leaders = False
        """Whether a partition's answer names a new leader."""
        self._context = context
        self._follower_id = follower_id
        """Negative for a consumer."""
        self._follower_epoch = state.replica_epoch
        self.from_followers = from_followers and follower_id < 0
        self._rack_id = request.rack_id
        self._prefer = prefer if self.from_followers and request.rack_id else None
        throttle = manager.throttle if follower_id >= 0 else None
        self._throttle = throttle if throttle is not None and throttle.is_enabled else None
        """The quota of throttled replicas; None for a consumer, and where no replica is throttled."""

    def _note_follower(self, partition: Partition, asked: FetchRequestFetchPartition) -> None:
        high_watermark = partition.log.high_watermark
        partition.on_follower_fetch(
            self._follower_id,
            self._follower_epoch,
            asked.fetch_offset,
            asked.log_start_offset,
            epoch_known=asked.current_leader_epoch >= 0,
        )
        if partition.log.high_watermark != high_watermark:
            self.advanced = True

    def _read(self, entries: Sequence[FetchEntry], is_first: bool) -> bool:
        """True where a partition failed, or its log diverges."""
        remaining = self._remaining
        settled = False
        find = self.manager.partitions.get if self._refused is None else self._find_allowed
        follower_id = self._follower_id
        note_follower = is_first and follower_id >= 0
        skips_idle_follower = follower_id >= 0 and self._context.incremental
        skips_idle_consumer = follower_id < 0 and self._context.incremental and self._prefer is None
        note_ms = self.manager.now_ms() if skips_idle_follower and note_follower else None
        throttle = self._throttle
        if throttle is not None and not throttle.is_exceeded(self.manager.now_ms()):
            throttle = None
        for entry in entries:
            asked = entry.asked
            partition = find((entry.topic, entry.index))
            if skips_idle_follower and entry.caught_up is not None and partition is not None:
                if self._is_idle_follower(entry, partition, note_ms):
                    self.answers.append(None)
                    continue
                entry.caught_up = None
            elif skips_idle_consumer and partition is not None and self._is_idle_consumer(entry, partition):
                self.answers.append(None)
                continue
            answer = _partition_response(entry.index, _NO_BYTES, None)
            self.answers.append(answer)
            try:
                if partition is None:
                    raise ApiError(self._missing(entry))
                partition.topic_counters.fetch_requests.value += 1
                if entry.topic_id != partition.topic_id and entry.topic_id != _ZERO:
                    raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
                # Unlike in other requests, any negative epoch means that none is named.
                epoch = asked.current_leader_epoch if asked.current_leader_epoch >= 0 else -1
                if self.from_followers:
                    partition.check_epoch(epoch)
                else:
                    partition.check_leader(epoch)
                if note_follower:
                    partition.follower(follower_id, asked.current_leader_epoch >= 0)  # before anything is read for it
                offset, last_epoch = asked.fetch_offset, asked.last_fetched_epoch
                if (self._prefer is not None and self._redirect(partition, answer, offset)) or (
                    last_epoch >= 0 and _diverges(partition, answer, last_epoch, offset)
                ):
                    settled = True
                    continue
                allowed = asked.partition_max_bytes if asked.partition_max_bytes < remaining else remaining
                if allowed < 0:
                    remaining = max(0, remaining)
                    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{allowed} is no number of bytes")
                if throttle is not None and self._must_wait(throttle, partition):
                    allowed = 0
                if self._copied_bytes >= self._max_copied:
                    allowed, settled = 0, True
                info = self._read_one(partition, offset, allowed)
                if note_follower:
                    self._note_follower(partition, asked)
                if not isinstance(info, FetchInfo):
                    self._read_later(len(self.answers) - 1, partition, info, allowed)
                    remaining -= allowed
                else:
                    remaining = remaining - info.size_bytes if info.size_bytes < remaining else 0
                    self._fill(answer, partition, info, len(self.answers) - 1)
                    if follower_id >= 0 and not info.size_bytes and partition not in self.held_back:
                        entry.caught_up = CaughtUp(partition, asked, partition.leader_epoch)
            except ApiError as error:
                self._fail(answer, error.code, partition)
                settled = True
        self._remaining = remaining
        return settled

    def _is_idle_follower(self, entry: FetchEntry, partition: Partition, note_ms: int | None) -> bool:
        """Whether a follower still has the whole log, and its session has been sent all of the partition's state."""
        caught_up, log = entry.caught_up, partition.log
        return (
            caught_up is not None
            and caught_up.partition is partition
            and caught_up.asked is entry.asked
            and entry.high_watermark == log.high_watermark
            and entry.log_start_offset == log.log_start_offset
            and partition.is_idle_follower(
                self._follower_id, self._follower_epoch, caught_up.asked.fetch_offset, caught_up.leader_epoch, note_ms
            )
        )

    def _is_idle_consumer(self, entry: FetchEntry, partition: Partition) -> bool:
        """Whether a consumer has read a partition to its end, and its session has been sent all of the partition's
        state. Most partitions of a large session are unchanged when one advances."""
        asked, log = entry.asked, partition.log
        epoch = asked.current_leader_epoch
        return (
            entry.high_watermark == log.high_watermark
            and entry.log_start_offset == log.log_start_offset
            and partition.readable_end(self.read_committed) <= asked.fetch_offset <= log.log_end_offset
            and partition.is_leader
            and (epoch < 0 or epoch == partition.leader_epoch)
            and asked.last_fetched_epoch < 0
            and asked.partition_max_bytes >= 0
            and (entry.topic_id == partition.topic_id or entry.topic_id == _ZERO)
            and not log.offline
        )

    def _find_allowed(self, key: tuple[str, int]) -> Partition | None:
        assert self._refused is not None
        return None if key[0] in self._refused else self.manager.partitions.get(key)

    def _missing(self, entry: FetchEntry) -> ErrorCode:
        if self._refused is not None and entry.topic in self._refused:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if self._context.by_id and not entry.topic:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self.manager.missing_code(entry.topic, entry.topic_id, entry.index)

    def _redirect(self, partition: Partition, answer: FetchResponsePartitionData, offset: int) -> bool:
        """Whether the consumer should read from another replica: the answer names it, and has no records."""
        assert self._prefer is not None
        preferred = self._prefer(partition, offset, self._rack_id) if partition.is_leader else -1
        if preferred < 0:
            return False
        answer.preferred_read_replica = preferred
        self._fill(answer, partition, FetchInfo.EMPTY, len(self.answers) - 1)
        return True

    def _must_wait(self, throttle: ReplicaThrottle, partition: Partition) -> bool:
        """Whether the follower gets no records of a partition now. A follower in sync never waits."""
        if self._follower_id in partition.isr or not throttle.is_throttled(*partition.topic_partition):
            return False
        self.held_back.add(partition)
        return True

    def _record_throttled(self, throttle: ReplicaThrottle) -> None:
        """Count the bytes of throttled replicas that are sent."""
        size = sum(
            len(answer.records)
            for entry, answer in zip(self._context.entries, self.answers, strict=True)
            if answer is not None and answer.records and throttle.is_throttled(entry.topic, entry.index)
        )
        if size:
            throttle.record(size, self.manager.now_ms())

    def _fill(self, answer: FetchResponsePartitionData, partition: Partition, info: FetchInfo, index: int) -> None:
        log = partition.log
        answer.high_watermark = log.high_watermark
        answer.last_stable_offset = log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.aborted_transactions = [] if self.read_committed else None
        if info.size_bytes:
            self._count(partition, info.size_bytes)
            self._take(answer, partition, info, index)

    def _count(self, partition: Partition, size_bytes: int) -> None:
        """Bytes of records are sent; negative where they are not, after all."""
        if self._follower_id < 0:
            partition.topic_counters.bytes_out.value += size_bytes
        else:
            self.manager.counters.replication_bytes_out.value += size_bytes
            if self._follower_id in partition.adding_replicas:
                self.manager.counters.reassignment_bytes_out.value += size_bytes

    def _uncount(self, partition: Partition, size_bytes: int) -> None:
        self._count(partition, -size_bytes)

    def _name_aborted(self, answer: FetchResponsePartitionData, aborted: list[AbortedTxn]) -> None:
        answer.aborted_transactions = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted
        ]

    def _fail(self, answer: FetchResponsePartitionData, code: ErrorCode, partition: Partition | None) -> None:
        if partition is None:
            self.manager.counters.fetch_requests.value += 1
        elif code not in NO_FETCH_FAILURES:
            partition.topic_counters.failed_fetch_requests.value += 1
        answer.error_code = code
        answer.records = _NO_BYTES
        answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
        answer.aborted_transactions = [] if partition is None else None
        if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            return
        if partition is not None and self._add_leader_endpoints is not None:
            self._names_leaders = True
            answer.current_leader = FetchResponseLeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )

    # -- answering

    def response(self) -> FetchResponse:
        """What has been read, by topic; to an incremental request only what has changed."""
        if self._throttle is not None:
            self._record_throttled(self._throttle)
        context = self._context
        response = _response(context.session_id)
        session = context.session
        topic: FetchableTopicResponse | None = None
        last: FetchEntry | None = None
        for entry, answer in zip(context.entries, self.answers, strict=True):
            if answer is None:
                continue
            if session is not None:
                changed = entry.update(answer)
                if context.incremental and not changed:
                    continue
                if answer.records:
                    session.move_to_end(entry)
            if topic is None or last is None or last.topic != entry.topic or last.topic_id != entry.topic_id:
                topic = _topic_response(entry.topic, entry.topic_id)
                response.responses.append(topic)
                last = entry
            topic.partitions.append(answer)
        if self._names_leaders and self._add_leader_endpoints is not None:
            self._add_leader_endpoints(response)
        return response


_ZERO = bytes(16)


def _diverges(partition: Partition, answer: FetchResponsePartitionData, epoch: int, offset: int) -> bool:
    """Whether the fetcher's log diverges from this one; if so, the answer holds the epoch and end offset from which it
    computes where to truncate (KIP-595)."""
    known_epoch, end_offset = partition.log.end_offset_for_epoch(epoch)
    if end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if known_epoch < epoch or end_offset < offset:
        answer.diverging_epoch = FetchResponseEpochEndOffset(epoch=known_epoch, end_offset=end_offset)
        log = partition.log
        answer.high_watermark, answer.log_start_offset = log.high_watermark, log.log_start_offset
        answer.last_stable_offset = log.last_stable_offset
        answer.aborted_transactions = None
        return True
    return False
