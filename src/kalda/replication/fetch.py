"""One fetch request: what is read for its session, and how that is answered.

`PartitionReads` reads, and waits for more. Here is what a fetch adds: which partitions are read at all, as an
incremental session leaves out those that have not changed; which checks precede; replicas that a consumer should read
from instead (KIP-392); followers, whose fetch offset is also their log end offset, their divergence from this log
(KIP-595) and their throttle; and the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
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
from kalda.protocol.notation import maker
from kalda.replication.counters import NO_FETCH_FAILURES
from kalda.replication.fetch_session import CaughtUp, FetchContext, FetchEntry
from kalda.replication.partition import Partition
from kalda.replication.partition_reads import PartitionReads
from kalda.replication.throttle import ReplicaThrottle
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager

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
