"""One ShareFetch: what a member's session names is read, waited for, acquired, and answered.

`PartitionReads` reads, and waits for more. Here is what share groups add: where each read begins is what no member has;
what was read is acquired only when the answer is made, since others may have acquired it meanwhile; a wait ends as well
when records come back or a share partition has been initialized. Of several members that wait, one gets what there is:
the others find nothing, and go on waiting.

Records are copied: their batch headers say what is acquired, and only the batches that are acquired are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import MAX_MEMBER_ID, AcquireMode
from kalda.protocol.messages.share import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponsePartitionData,
)
from kalda.protocol.naming import MAX_ELEMENTS_SENT
from kalda.protocol.notation import Buffer
from kalda.records.batch import BatchHeader, iter_batches
from kalda.records.builder import with_range
from kalda.replication.fetch import PartitionReads
from kalda.replication.partition import Partition
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


# Share sessions: which partitions a member fetches from this broker, as it has named them one after another.
#
# A session belongs to a member of a group, and ends with the connection that made it. Its epoch counts the requests:
# one that comes again, or out of order, is refused, so that no acknowledgement counts twice. Epoch 0 begins a session
# in place of a former one, -1 ends it. The number of sessions is bounded; a member without one fetches nothing.

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = (1 << 31) - 1
_MOST_PARTITIONS = 2 * MAX_ELEMENTS_SENT
"""As many as one request may name, and a share group consumes."""


class TopicIdPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: Uuid
    number: int


class ShareSession:
    """One member's."""

    __slots__ = ("connection_id", "epoch", "group_id", "is_new", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection_id: int) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection_id = connection_id
        self.epoch = INITIAL_EPOCH
        """That of the latest request."""
        self.partitions: dict[TopicIdPartition, None] = {}
        """What the member fetches, in the order in which it was named."""

    def rotated(self) -> list[TopicIdPartition]:
        """The partitions, with another one first in each request: none is always last where the first ones have
        enough for every answer."""
        partitions = list(self.partitions)
        if not partitions:
            return partitions
        at = self.epoch % len(partitions)
        return partitions[at:] + partitions[:at]


class ShareSessions:
    """Those of one broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_member: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, dict[tuple[str, str], None]] = {}
        self.partition_count = 0
        """Partitions in all sessions."""
        self.evictions = 0
        """Sessions that ended with their connection."""

    def __len__(self) -> int:
        return len(self._by_member)

    def begin(self, group_id: str, member_id: str, connection_id: int) -> ShareSession:
        """A new session, in place of the member's former one. Raises SHARE_SESSION_LIMIT_REACHED; the former one has
        ended all the same."""
        self.end(group_id, member_id)
        if len(self._by_member) >= self._most:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"This broker has {self._most} share sessions, the most that group.share.max.share.sessions allows.",
            )
        session = self._by_member[group_id, member_id] = ShareSession(group_id, member_id, connection_id)
        self._by_connection.setdefault(connection_id, {})[group_id, member_id] = None
        return session

    def get(self, group_id: str, member_id: str) -> ShareSession:
        """Raises SHARE_SESSION_NOT_FOUND."""
        session = self._by_member.get((group_id, member_id))
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"The member {member_id} has no share session here.")
        return session

    def advance(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session, one request later. Raises SHARE_SESSION_NOT_FOUND, and INVALID_SHARE_SESSION_EPOCH where
        `epoch` does not follow that of the latest request."""
        session = self.get(group_id, member_id)
        if epoch != session.epoch % _LAST_EPOCH + 1:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"The share session epoch {epoch} does not follow {session.epoch}.",
            )
        session.epoch = epoch
        return session

    def update(
        self, session: ShareSession, added: Collection[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        """Fetch these partitions too, and those no more. Raises INVALID_REQUEST where that would be more than a
        session may have."""
        before = len(session.partitions)
        if before + len(added) > _MOST_PARTITIONS < len(session.partitions.keys() | added):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"A share session has {_MOST_PARTITIONS} partitions at most.")
        for partition in forgotten:
            session.partitions.pop(partition, None)
        session.partitions.update(dict.fromkeys(added))
        self.partition_count += len(session.partitions) - before

    def end(self, group_id: str, member_id: str) -> ShareSession | None:
        """The session has ended; None where there was none."""
        session = self._by_member.pop((group_id, member_id), None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            of_connection = self._by_connection.get(session.connection_id, {})
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                self._by_connection.pop(session.connection_id, None)
        return session

    def on_disconnect(self, connection_id: int) -> list[ShareSession]:
        """A connection was closed: its sessions, which have ended."""
        ended = [self.end(*key) for key in list(self._by_connection.get(connection_id, ()))]
        self.evictions += len(ended)
        return [session for session in ended if session is not None]


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Group and member of a request. Raises INVALID_REQUEST where either is missing."""
    if group_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MAX_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return group_id, member_id
