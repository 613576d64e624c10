"""One ShareFetch: what a member's session names is read, waited for, acquired, and answered.

`PartitionReads` reads, and waits for more. Here is what share groups add: where each read begins is what no member has;
what was read is acquired only when the answer is made, since others may have acquired it meanwhile; a wait ends as well
when records come back or a share partition has been initialized. Of several members that wait, one gets what there is:
the others find nothing, and go on waiting.

Records are copied: their batch headers say what is acquired, and only the batches that are acquired are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.share_states import AcquireMode
from kalda.protocol.messages.share import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponsePartitionData,
)
from kalda.protocol.notation import Buffer
from kalda.records.batch import BatchHeader, iter_batches
from kalda.records.builder import with_range
from kalda.replication.partition import Partition
from kalda.replication.partition_reads import PartitionReads
from kalda.replication.share.share_partition import Phase, SharePartition
from kalda.replication.waiters import Waiter
from kalda.storage.log.snapshot_jobs import SnapshotJob
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager
    from kalda.replication.share.share_partitions import SharePartitions


class ShareEntry:
    """One partition of a share fetch."""

    __slots__ = ("index", "read_offset", "share", "topic")

    def __init__(self, topic: str, index: int, share: SharePartition) -> None:
        self.topic = topic
        self.index = index
        self.share = share
        self.read_offset = 0
        """Where the latest read began."""

    @property
    def fetch_offset(self) -> int:
        """Where the next read begins."""
        return self.share.in_flight.next_fetch_offset


class FetchLimits(NamedTuple):
    """How much a member is to get at once."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode


class ShareFetch(PartitionReads[ShareEntry, ShareFetchResponsePartitionData, ShareFetchResponse]):
    """From the first read to the answer."""

    __slots__ = ("_aborted", "_deadline_ms", "_limits", "_member_id", "_shares", "_waiter")

    def __init__(
        self,
        manager: ReplicaManager,
        shares: SharePartitions,
        entries: Sequence[ShareEntry],
        member_id: str,
        limits: FetchLimits,
        *,
        read_committed: bool,
    ) -> None:
        max_bytes = max(0, min(limits.max_bytes, manager.fetch_max_bytes))
        super().__init__(
            manager,
            entries,
            min_bytes=min(limits.min_bytes, max_bytes),
            max_bytes=max_bytes,
            max_wait_ms=limits.max_wait_ms,
            read_committed=read_committed,
            to_log_end=False,
        )
        self._shares = shares
        self._member_id = member_id
        self._limits = limits
        self._deadline_ms = shares.now_ms() + limits.max_wait_ms
        self._aborted: dict[int, list[AbortedTxn]] = {}
        """Aborted transactions of what was read, by the identity of the answer."""
        self._waiter: Waiter | None = None

    # -- reading

    def _read(self, entries: Sequence[ShareEntry], is_first: bool) -> bool:
        """True where a partition failed."""
        settled = False
        shares_of_bytes = max(1, sum(entry.share.can_acquire for entry in self.entries))
        allowed = max(1, self._max_bytes // shares_of_bytes)
        for entry in entries:
            answer = ShareFetchResponsePartitionData(partition_index=entry.index)
            self.answers.append(answer)
            partition = self.manager.find(entry.topic, entry.index)
            try:
                self._check(entry, partition)
                assert partition is not None, "it was checked"
                share = entry.share
                if partition.log.log_start_offset > share.in_flight.start and share.phase is Phase.ACTIVE:
                    share.move_start(partition.log.log_start_offset)
                if not share.can_acquire or entry.fetch_offset > partition.log.log_end_offset:
                    continue
                entry.read_offset = entry.fetch_offset
                partition.topic_counters.fetch_requests.value += 1
                if self._copied_bytes >= self._max_copied:
                    settled = True
                    continue
                size = min(allowed, self._remaining, max(share.read_bytes, self._min_bytes))
                info = self._read_one(partition, entry.read_offset, size)
                if isinstance(info, FetchInfo):
                    if not info.size_bytes and entry.read_offset < self.end_of(partition):
                        share.read_bytes = min(2 * share.read_bytes, self._max_bytes)  # a batch is larger
                    self._remaining = max(0, self._remaining - info.size_bytes)
                    self._fill(answer, partition, info, len(self.answers) - 1)
                else:
                    self._remaining -= size
                    self._read_later(len(self.answers) - 1, partition, info, size)
            except ApiError as error:
                self._fail(answer, error.code, partition)
                settled = True
        return settled

    def _check(self, entry: ShareEntry, partition: Partition | None) -> None:
        """Raise where the partition cannot be fetched from here any more."""
        share = entry.share
        if share.failure is not None:
            raise share.failure
        if partition is None:
            raise ApiError(self.manager.missing_code(entry.topic, share.key.topic_id, entry.index))
        partition.check_leader(-1)
        if partition.leader_epoch != share.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _read_one(self, partition: Partition, offset: int, max_bytes: int) -> FetchInfo | SnapshotJob[FetchInfo]:
        """A copy, never a slice of a file: its headers are read."""
        return partition.read(offset, max_bytes, self.end_of(partition), self._read_bytes == 0)

    def _fill(self, answer: ShareFetchResponsePartitionData, partition: Partition, info: FetchInfo, index: int) -> None:
        if info.size_bytes:
            self._take(answer, partition, info, index)

    def _name_aborted(self, answer: ShareFetchResponsePartitionData, aborted: list[AbortedTxn]) -> None:
        self._aborted[id(answer)] = aborted

    def _fail(self, answer: ShareFetchResponsePartitionData, code: ErrorCode, partition: Partition | None) -> None:
        answer.error_code = int(code)
        answer.records = b""
        if partition is not None and code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            answer.current_leader = ShareFetchResponseLeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )

    def _uncount(self, partition: Partition, size_bytes: int) -> None:
        """Bytes count when they are acquired."""

    # -- waiting

    def read_again(
        self,
    ) -> ShareFetchResponse | Pending[ShareFetchResponse] | Steps[ShareFetchResponse | Pending[ShareFetchResponse]]:
        """Answer with what there is; where others have got it, wait for the rest of the time."""
        self._unwatch()
        left_ms = self._deadline_ms - self._shares.now_ms()
        if left_ms > 0 and not any(self._has_news(entry) for entry in self.entries):
            return self._wait(left_ms)
        self._aborted.clear()
        return super().read_again()

    def _has_news(self, entry: ShareEntry) -> bool:
        """Whether a read of the partition may find something, or fails."""
        try:
            partition = self.manager.find(entry.topic, entry.index)
            self._check(entry, partition)
        except ApiError:
            return True
        assert partition is not None, "it was checked"
        return entry.share.can_acquire and entry.fetch_offset < self.end_of(partition)

    def _wait(self, max_wait_ms: int) -> Pending[ShareFetchResponse]:
        pending = super()._wait(max_wait_ms)
        pending.on_abandoned = self._abandon
        return pending

    def _watch(self, waiter: Waiter) -> None:
        self._waiter = waiter
        for entry in self.entries:
            entry.share.waiters[waiter] = None

    def _unwatch(self) -> None:
        if self._waiter is not None:
            for entry in self.entries:
                entry.share.waiters.pop(self._waiter, None)
            self._waiter = None

    def _abandon(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
        self._unwatch()

    # -- answering

    def response(self) -> ShareFetchResponse:
        """Acquire what was read, as far as it is still to be had, and answer with it; by topic."""
        self._unwatch()
        left = self._limits.max_records
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        response = ShareFetchResponse()
        for entry, answer in zip(self.entries, self.answers, strict=True):
            assert answer is not None, "no partition is left out"
            if answer.records:
                left -= self._acquire(entry, answer, left)
            key = entry.share.key.topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = ShareFetchableTopicResponse(topic_id=key)
                response.responses.append(topic)
            topic.partitions.append(answer)
        return response

    def _acquire(self, entry: ShareEntry, answer: ShareFetchResponsePartitionData, max_records: int) -> int:
        """Acquire the records of an answer, and leave what is not acquired out of it; how many they are."""
        read = answer.records or b""
        records: Buffer = b"".join(read) if isinstance(read, list) else read
        headers = [(at, with_range(header, records, at)) for at, header in iter_batches(records)]
        if headers:
            offsets = headers[-1][1].last_offset - headers[0][1].base_offset + 1
            entry.share.note_read(len(records), offsets, self._limits.max_records)
        aborted = self._aborted.get(id(answer), ())
        acquired = entry.share.acquire(
            self._member_id,
            [(header.base_offset, header.last_offset) for _, header in headers],
            entry.read_offset,
            max_records,
            self._limits.batch_size,
            self._limits.mode,
            [(header.base_offset, header.last_offset) for _, header in headers if _is_aborted(header, aborted)],
        )
        if entry.share.can_acquire and entry.fetch_offset < entry.share.in_flight.end:
            entry.share.wake_one()  # more has come back than this member takes
        if not acquired:
            answer.records = b""
            return 0
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        sent = [(at, header) for at, header in headers if header.last_offset >= first and header.base_offset <= last]
        begin, (at, header) = sent[0][0], sent[-1]
        answer.records = records[begin : at + header.size_bytes]
        answer.acquired_records = [
            AcquiredRecords(
                first_offset=each.first_offset, last_offset=each.last_offset, delivery_count=each.delivery_count
            )
            for each in acquired
        ]
        partition = self.manager.find(entry.topic, entry.index)
        if partition is not None:
            partition.topic_counters.bytes_out.value += len(answer.records)
        return sum(each.last_offset - each.first_offset + 1 for each in acquired)


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTxn]) -> bool:
    """Whether a batch is of a transaction that was aborted. Its marker is not."""
    return (
        header.is_transactional
        and not header.is_control
        and any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        )
    )
