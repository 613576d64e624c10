"""The fetch path: read the requested partitions; where they have too little, wait for more.

Partitions are read in order until the request's bytes are used up. The first record batch is sent whole, whatever the
limits, so that a consumer behind a large batch makes progress (KIP-74). With fewer than `min_bytes` the request waits:
each append to a watched partition adds the bytes that became readable, and the request is answered when they are
enough, when a partition's state changes, or when `max_wait_ms` is over.

A follower reads up to the log end, and waits for appends. Its fetch offset is also its log end offset.

What is not in the page cache is read by a job, all such partitions of one request together.

Records that come as slices of files take no memory, however many a peer asks for and does not read. What comes as bytes
is bounded for each request: partitions behind that are answered without records, and their fetcher asks again.

A fetch of more than `READ_AT_ONCE` partitions reads them in steps, and other requests are handled between two of them.

A driver. A follower's fetch may advance high watermarks, and what waits for those may append while this fetch reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.file_slice import FileSlice
from kalda.base.pending import Pending
from kalda.base.scheduling import Timer
from kalda.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestFetchPartition,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponsePartitionData,
)
from kalda.protocol.notation import maker
from kalda.replication.counters import NO_FETCH_FAILURES, DelayedOperation
from kalda.replication.fetch_session import CaughtUp, FetchContext, FetchEntry
from kalda.replication.partition import Partition
from kalda.replication.throttle import ReplicaThrottle
from kalda.replication.waiters import Waiter
from kalda.storage.log.reads import SLICED_BYTES
from kalda.storage.log.snapshot_jobs import SnapshotJob, aborted_nowait, run_snapshots
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager

READ_COMMITTED = 1
READ_AT_ONCE = 2_000
"""Partitions of a fetch that are read as it arrives: about ten milliseconds. Larger ones are read in steps."""
_COPIED_BYTES = 2 << 20
"""Bytes of records in memory that are enough for a consumer's answer."""
_COPIED_FOR_FOLLOWER = 10 << 20
"""The same for a follower, which gets copies alone: the default of `replica.fetch.response.max.bytes`."""
_NO_BYTES = b""
Fetched: TypeAlias = FetchResponse | Pending[FetchResponse]
_response = maker(FetchResponse, "session_id")
_topic_response = maker(FetchableTopicResponse, "topic", "topic_id")
_partition_response = maker(FetchResponsePartitionData, "partition_index", "records", "aborted_transactions")


class Fetch:
    """One fetch request, from its first read to its answer."""

    __slots__ = (
        "_advanced",
        "_cold",
        "_cold_aborted",
        "_context",
        "_copied_bytes",
        "_follower_epoch",
        "_follower_id",
        "_max_copied",
        "_names_leaders",
        "_prefer",
        "_read_bytes",
        "_refused",
        "_remaining",
        "_request",
        "_tell_leaders",
        "_throttle",
        "_throttled",
        "answers",
        "from_followers",
        "manager",
        "max_bytes",
        "read_committed",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        request: FetchRequest,
        context: FetchContext,
        tell_leaders: Callable[[FetchResponse], None] | None = None,
        *,
        from_followers: bool = False,
        prefer: Callable[[Partition, int, str], int] | None = None,
        refused: frozenset[str] | None = None,
    ) -> None:
        """`tell_leaders` adds the addresses of new leaders to a response that names some (KIP-951); None where the
        request's version has no field for them. `from_followers`: a consumer may read from a replica that does not
        lead. `prefer(partition, offset, rack)` is the replica that it should read from (KIP-392). `refused`: topics
        that the fetcher may not read; None for none."""
        self._tell_leaders = tell_leaders
        self._refused = refused
        self._names_leaders = False
        """Whether a partition's answer names a new leader."""
        self.manager = manager
        self._request = request
        self._context = context
        state = request.replica_state
        self._follower_id = state.replica_id if state.replica_id >= 0 else request.replica_id
        """Negative for a consumer."""
        self._follower_epoch = state.replica_epoch
        self.from_followers = from_followers and self._follower_id < 0
        self._prefer = prefer if self.from_followers and request.rack_id else None
        self._remaining = self.max_bytes = min(request.max_bytes, manager.fetch_max_bytes)
        """`_remaining`: bytes that the partitions which are not read yet may have."""
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.answers: list[FetchResponsePartitionData | None] = []
        """For each entry of the context; None where an incremental response leaves the partition out, because nothing
        has changed since the session's last response."""
        self._advanced = False
        """Whether a high watermark advanced by this fetch, or other requests were handled between its steps: either may
        have appended to any partition."""
        self._read_bytes = 0
        self._copied_bytes = 0
        """Those of them that are in memory, or will be when a job has read them."""
        self._max_copied = _COPIED_BYTES if self._follower_id < 0 else _COPIED_FOR_FOLLOWER
        throttle = manager.throttle if self._follower_id >= 0 else None
        self._throttle = throttle if throttle is not None and throttle.is_enabled else None
        """The quota of throttled replicas; None for a consumer, and where no replica is throttled."""
        self._throttled: set[Partition] = set()
        """Partitions that are left out because the rate of throttled replicas is exceeded."""
        self._cold: list[tuple[int, Partition, SnapshotJob[FetchInfo]]] = []
        """Partitions that a job reads: index of the answer, partition, the read."""
        self._cold_aborted: list[tuple[int, Partition, SnapshotJob[list[AbortedTxn]]]] = []
        """Partitions whose records were read, and of whose aborted transactions a job reads the index; likewise."""

    def run(self, settled: bool | None = None) -> Fetched | Steps[Fetched]:
        """Fetched now, or later. `settled`: what `_read` has returned, where all partitions are read already."""
        if settled is None:
            entries = self._context.entries
            if len(entries) > READ_AT_ONCE:
                return self._run_in_steps()
            settled = self._read(entries, self._follower_id >= 0)
        request = self._request
        if self._cold or self._cold_aborted:
            return self._read_cold()
        if settled or self._read_bytes >= request.min_bytes or request.max_wait_ms <= 0 or not self._context.entries:
            return self.response()
        if self._read_bytes:
            self._uncount_bytes()
        if self._advanced and self._has_more():
            return self.read_again()
        partitions = [
            partition
            for entry in self._context.entries
            if (partition := self.manager.find(entry.topic, entry.index)) is not None
            and partition not in self._throttled
        ]
        pending: Pending[FetchResponse] = Pending()
        missing = request.min_bytes - self._read_bytes
        waiter = (
            StableFetchWaiter(self, pending, missing, partitions)
            if self.read_committed and self._follower_id < 0
            else FetchWaiter(self, pending, missing)
        )
        pending.on_abandoned = waiter.stop
        self.answers = []  # all partitions are read again
        waiter.wait(partitions, self.manager.timers, request.max_wait_ms, at_end=self._follower_id >= 0)
        return pending

    def _run_in_steps(self) -> Steps[Fetched]:
        yield
        settled = yield from self._read_in_steps(self._follower_id >= 0)
        self._advanced = True
        answer = self.run(settled)
        return answer if isinstance(answer, FetchResponse | Pending) else (yield from answer)

    def read_again(self) -> Fetched | Steps[Fetched]:
        """Read again after the wait, and answer with whatever there is."""
        self.answers, self._cold, self._cold_aborted = [], [], []
        self._read_bytes = self._copied_bytes = 0
        self._remaining = self.max_bytes
        self._throttled.clear()
        entries = self._context.entries
        if len(entries) > READ_AT_ONCE:
            return self._read_again_in_steps()
        self._read(entries, False)
        return self._read_cold() if self._cold or self._cold_aborted else self.response()

    def _read_again_in_steps(self) -> Steps[Fetched]:
        yield
        yield from self._read_in_steps(False)
        return self._read_cold() if self._cold or self._cold_aborted else self.response()

    def _read_in_steps(self, note_follower: bool) -> Steps[bool]:
        """As `_read` of all partitions."""
        settled = False
        entries = self._context.entries
        for start in range(0, len(entries), ITEMS_A_STEP):
            settled |= self._read(entries[start : start + ITEMS_A_STEP], note_follower)
            yield
        return settled

    def _has_more(self) -> bool:
        """Whether records have been appended, since this fetch read, to a partition of which it read none."""
        for entry, answer in zip(self._context.entries, self.answers, strict=True):
            if answer is None or not answer.records:
                partition = self.manager.find(entry.topic, entry.index)
                if partition in self._throttled:
                    continue
                if partition is not None and self._end_of(partition) > entry.asked.fetch_offset:
                    return True
        return False

    def _end_of(self, partition: Partition) -> int:
        """Up to where this fetcher may read."""
        return partition.log.log_end_offset if self._follower_id >= 0 else partition.readable_end(self.read_committed)

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
            self._advanced = True

    def _read(self, entries: Sequence[FetchEntry], note_follower: bool) -> bool:
        """Read partitions. True where the answer must not wait: a partition failed, or its log diverges."""
        remaining = self._remaining
        settled = False
        find = self.manager.partitions.get if self._refused is None else self._find_allowed
        follower_id = self._follower_id
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
                    self._cold.append((len(self.answers) - 1, partition, info))
                    remaining -= allowed
                    self._copied_bytes += min(allowed, SLICED_BYTES)
                else:
                    remaining = remaining - info.size_bytes if info.size_bytes < remaining else 0
                    self._fill(answer, partition, info, len(self.answers) - 1)
                    if follower_id >= 0 and not info.size_bytes and partition not in self._throttled:
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
        preferred = self._prefer(partition, offset, self._request.rack_id) if partition.is_leader else -1
        if preferred < 0:
            return False
        answer.preferred_read_replica = preferred
        self._fill(answer, partition, FetchInfo.EMPTY, len(self.answers) - 1)
        return True

    def _must_wait(self, throttle: ReplicaThrottle, partition: Partition) -> bool:
        """Whether the follower gets no records of a partition now. A follower in sync never waits."""
        if self._follower_id in partition.isr or not throttle.is_throttled(*partition.topic_partition):
            return False
        self._throttled.add(partition)
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

    def _read_one(self, partition: Partition, offset: int, max_bytes: int) -> FetchInfo | SnapshotJob[FetchInfo]:
        end_offset = self._end_of(partition)
        if max_bytes <= 0 and (self._read_bytes or partition in self._throttled):
            partition.check_range(offset)
            return FetchInfo.EMPTY
        # A follower gets a copy: it may read records that this broker truncates under a new leader.
        slices = self.manager.jobs if self._follower_id < 0 else None
        return partition.read(offset, max_bytes, end_offset, self._read_bytes == 0, slices)

    def _fill(self, answer: FetchResponsePartitionData, partition: Partition, info: FetchInfo, index: int) -> None:
        """`index` is that of the answer. The aborted transactions may follow by `_cold_aborted`."""
        log = partition.log
        answer.high_watermark = log.high_watermark
        answer.last_stable_offset = log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.aborted_transactions = None
        if info.size_bytes:
            answer.records = info.records
            self._read_bytes += info.size_bytes
            records: object = info.records
            if type(records) is not FileSlice:
                self._copied_bytes += info.size_bytes
            if self._follower_id < 0:
                partition.topic_counters.bytes_out.value += info.size_bytes
            else:
                self.manager.counters.replication_bytes_out.value += info.size_bytes
                if self._follower_id in partition.adding_replicas:
                    self.manager.counters.reassignment_bytes_out.value += info.size_bytes
        if self.read_committed:
            answer.aborted_transactions = []
            if info.size_bytes:
                aborted = aborted_nowait(log, info.first_offset, info.next_offset)
                if isinstance(aborted, SnapshotJob):
                    self._cold_aborted.append((index, partition, aborted))
                elif aborted:
                    answer.aborted_transactions = _named(aborted)

    def count_expiration(self) -> None:
        """The time of the fetch is up before there were `min_bytes`."""
        counters = self.manager.counters
        (counters.consumer_expirations if self._follower_id < 0 else counters.follower_expirations).value += 1

    def _uncount_bytes(self) -> None:
        """The records read so far are not sent, but read again later."""
        for entry, answer in zip(self._context.entries, self.answers, strict=True):
            if answer is not None and answer.records:
                partition = self.manager.find(entry.topic, entry.index)
                if partition is None:
                    continue  # its directory has failed since; its counters were removed
                counters = partition.topic_counters.bytes_out
                if self._follower_id >= 0:
                    counters = self.manager.counters.replication_bytes_out
                    if self._follower_id in partition.adding_replicas:
                        self.manager.counters.reassignment_bytes_out.value -= len(answer.records)
                counters.value -= len(answer.records)

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
        if partition is not None and self._tell_leaders is not None:
            self._names_leaders = True
            answer.current_leader = FetchResponseLeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )

    # -- cold reads

    def _read_cold(self) -> Pending[FetchResponse]:
        """Read in a job what is not in the page cache, then answer without waiting for more."""
        jobs = self.manager.jobs

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
            return run_snapshots(jobs, [read for _, _, read in self._cold_aborted])

        def fill_aborted(results: list[list[AbortedTxn] | ApiError]) -> FetchResponse:
            for (index, partition, _), result in zip(self._cold_aborted, results, strict=True):
                answer = self.answers[index]
                assert answer is not None, "a partition that is left out is not read"
                if isinstance(result, ApiError):
                    self._fail(answer, result.code, partition)
                else:
                    answer.aborted_transactions = _named(result)
            return self.response()

        return run_snapshots(jobs, [read for _, _, read in self._cold]).and_then(fill).and_then(fill_aborted)

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
        if self._names_leaders and self._tell_leaders is not None:
            self._tell_leaders(response)
        return response


class FetchWaiter(Waiter):
    """A fetch that waits for `min_bytes`."""

    __slots__ = ("_fetch", "_finishing", "_missing_bytes", "_pending")

    def __init__(self, fetch: Fetch, pending: Pending[FetchResponse], missing_bytes: int) -> None:
        super().__init__(DelayedOperation.FETCH)
        self._fetch = fetch
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
            self._finishing = self._fetch.manager.background.call(self.finish)

    def stop(self) -> None:
        if self._finishing is not None:
            self._finishing.cancel()
        super().stop()

    def expire(self) -> None:
        if not self.done:
            self._fetch.count_expiration()
            self.complete()

    def answer(self) -> None:
        try:
            answer = self._fetch.read_again()
        except Exception as error:  # it must not harm what completed the wait, nor the fetches behind this one
            self._pending.fail(as_api_error(error))
            return
        if isinstance(answer, FetchResponse):
            self._pending.complete(answer)
        else:
            later = answer if isinstance(answer, Pending) else self._fetch.manager.background.run(answer)
            later.then(self._pending.settle)


class StableFetchWaiter(FetchWaiter):
    """One of a read_committed consumer. Records become readable for it when the last stable offset advances, which the
    high watermark may do many times before: what a long transaction appends does not answer its fetch."""

    __slots__ = ("_held", "_stable")

    def __init__(
        self, fetch: Fetch, pending: Pending[FetchResponse], missing_bytes: int, partitions: list[Partition]
    ) -> None:
        super().__init__(fetch, pending, missing_bytes)
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


_ZERO = bytes(16)


def _named(aborted: list[AbortedTxn]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted]


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
