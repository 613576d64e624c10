"""A follower's fetching from one leader, as a machine: what to ask next, what to make of the answer.

    next_request(now)           what to send, or None: nothing to ask before `deadline_ms`, or a call of `wake`
    cold_logs(response)         logs to be opened before that is taken
    on_response(response, now)  the answer to it
    on_failure(error, now)      that there is none

One request is under way at a time. Each fetch names the epoch of the last record that the follower has (KIP-595): where
the leader's log says otherwise, the answer tells where the two part, and the follower cuts its log back to there and
asks again, until they agree. Its own high watermark says nothing about that: a record above it may be committed, one
below it never diverges.

A follower whose log ends where the leader's log has no records asks for the leader's ends (ListOffsets), and cuts back
to the leader's end, or empties its log and begins at the leader's start.

A partition in trouble waits, longer each time, while the others go on. A fenced one waits for the metadata to tell its
new epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetSpec,
)
from kalda.replication.fetch_session_handler import FetchSessionHandler, Key
from kalda.replication.partition import Partition
from kalda.storage.log import Log, UnexpectedAppendOffset

log = logging.getLogger("kalda.fetcher")

FIRST_BACKOFF_MS = 20
_SYNC_WAIT_MS = 10
"""So long may a fetch wait at the leader while a partition that it leaves out is being synced. That one is asked for
with the next fetch; were this one to wait until the leader has something of the others, writers of that one would get
an answer every `replica.fetch.wait.max.ms`."""


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """Broker settings; comments name the keys."""

    broker_id: int
    cluster_id: str
    backoff_ms: int = 1_000  # replica.fetch.backoff.ms: the longest pause; the first ones are shorter
    wait_max_ms: int = 500  # replica.fetch.wait.max.ms
    min_bytes: int = 1  # replica.fetch.min.bytes
    partition_max_bytes: int = 1_048_576  # replica.fetch.max.bytes
    response_max_bytes: int = 10_485_760  # replica.fetch.response.max.bytes
    fetchers_a_leader: int = 1  # num.replica.fetchers


class Followed:
    """One partition that is fetched."""

    __slots__ = ("asked", "backoff_ms", "is_fenced", "leader_epoch", "partition", "retry_at_ms", "spec_to_look_up")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.asked: FetchRequestFetchPartition | None = None
        """What the next fetch says, while that is still true."""
        self.spec_to_look_up: OffsetSpec | None = None
        """What is to be looked up, after OFFSET_OUT_OF_RANGE."""
        self.retry_at_ms = 0
        self.backoff_ms = 0
        self.is_fenced = False

    def pause(self, now_ms: int, longest_ms: int) -> None:
        """For about as long as its backoff, until a multiple of it: thousands of partitions that their leader has not
        made yet are asked for again together, and not each in a fetch of its own."""
        self.backoff_ms = _next_backoff(self.backoff_ms, longest_ms)
        grid_ms = max(1, self.backoff_ms)
        self.retry_at_ms = ((now_ms + grid_ms // 2) // grid_ms + 1) * grid_ms

    def is_ready(self, now_ms: int) -> bool:
        return not self.is_fenced and self.retry_at_ms <= now_ms and self.partition.may_fetch

    def fetch_data(self, max_bytes: int) -> FetchRequestFetchPartition:
        """The same object as long as nothing has changed, so that a session sees that at a glance."""
        end = self.partition.log
        asked = self.asked
        if asked is None or asked.fetch_offset != end.log_end_offset or asked.log_start_offset != end.log_start_offset:
            epoch = end.leader_epochs.latest
            asked = self.asked = FetchRequestFetchPartition(
                partition=self.partition.topic_partition.partition,
                current_leader_epoch=self.leader_epoch,
                fetch_offset=end.log_end_offset,
                last_fetched_epoch=-1 if epoch is None else epoch,
                log_start_offset=end.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        return asked


def _next_backoff(backoff_ms: int, longest_ms: int) -> int:
    return min(longest_ms, backoff_ms * 2 or FIRST_BACKOFF_MS)


class ReplicaFetcher:
    """Fetches from one leader."""

    def __init__(self, leader_id: int, config: FetcherConfig, broker_epoch: Callable[[], int]) -> None:
        self.leader_id = leader_id
        self.wake: Callable[[], None] = _nothing
        """Told when there may be something to ask earlier than was said."""
        self.on_added: Callable[[], None] = _nothing
        """Told of a partition that a request under way does not ask for."""
        self._config = config
        self._broker_epoch = broker_epoch
        self._followed: dict[Key, Followed] = {}
        self._cold: set[Key] = set()
        self._session = FetchSessionHandler()
        self._in_flight: dict[Key, FetchRequestFetchPartition] | None = None
        self._backoff_ms = 0
        self._retry_at_ms = 0

    def __len__(self) -> int:
        return len(self._followed)

    # -- what to fetch

    def add(self, partition: Partition) -> None:
        """Fetch a partition, or go on with it in a new epoch of its leader."""
        self._followed[_key(partition)] = Followed(partition)
        if partition.log.cold:
            self._cold.add(_key(partition))
        partition.on_flushed = lambda: self.wake()
        self.wake()
        if self._in_flight is not None:
            self.on_added()

    def remove(self, partition: Partition) -> None:
        """Fetch it no longer. What is under way for it will not be looked at."""
        self._cold.discard(_key(partition))
        if self._followed.pop(_key(partition), None) is not None:
            partition.on_flushed = None

    def epoch_of(self, partition: Partition) -> int | None:
        """The leader epoch in which the partition is fetched."""
        followed = self._followed.get(_key(partition))
        return None if followed is None or followed.partition is not partition else followed.leader_epoch

    # -- asking

    def next_request(self, now_ms: int) -> FetchRequest | ListOffsetsRequest | None:
        """What to send now."""
        if now_ms < self._retry_at_ms:
            return None
        for timestamp in (OffsetSpec.LATEST, OffsetSpec.EARLIEST):
            asking = [
                each for each in self._followed.values() if each.spec_to_look_up == timestamp and each.is_ready(now_ms)
            ]
            if asking:
                return self._list_offsets(asking, timestamp)
        max_bytes = self._config.partition_max_bytes
        wanted = {
            key: followed.fetch_data(max_bytes)
            for key, followed in self._followed.items()
            if followed.spec_to_look_up is None and followed.is_ready(now_ms)
        }
        if not wanted:
            return None
        config = self._config
        is_syncing = any(not each.is_fenced and not each.partition.may_fetch for each in self._followed.values())
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=config.broker_id, replica_epoch=self._broker_epoch()),
            cluster_id=config.cluster_id,
            max_wait_ms=min(config.wait_max_ms, _SYNC_WAIT_MS) if is_syncing else config.wait_max_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.fill(request, wanted)
        self._in_flight = wanted
        return request

    def _list_offsets(self, asking: list[Followed], timestamp: OffsetSpec) -> ListOffsetsRequest:
        topics: dict[str, ListOffsetsTopic] = {}
        for followed in asking:
            name, index = followed.partition.topic_partition
            topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
                )
            )
        return ListOffsetsRequest(replica_id=self._config.broker_id, topics=list(topics.values()))

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `next_request` may have something; None: not before a `wake`."""
        times = [
            each.retry_at_ms for each in self._followed.values() if not each.is_fenced and each.partition.may_fetch
        ]
        return max(now_ms, self._retry_at_ms, min(times)) if times else None

    # -- answers

    def cold_logs(self, response: FetchResponse | ListOffsetsResponse) -> list[Log]:
        """The logs that this answer brings their first records: they are to be opened before it is taken."""
        if not self._cold or isinstance(response, ListOffsetsResponse):
            return []
        found: list[Log] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                if data.records and key in self._cold:
                    self._cold.discard(key)
                    found.append(self._followed[key].partition.log)
        return found

    def on_failure(self, error: ApiError, now_ms: int) -> None:
        """No answer came."""
        if self._backoff_ms == 0:
            log.info("fetching from broker %d: %s", self.leader_id, error)
        self._in_flight = None
        self._session.restart()
        self._backoff_ms = _next_backoff(self._backoff_ms, self._config.backoff_ms)
        self._retry_at_ms = now_ms + self._backoff_ms

    def on_interrupted(self) -> None:
        """The request was given up, for a better one."""
        self._in_flight = None
        self._session.restart()

    def on_response(self, response: FetchResponse | ListOffsetsResponse, now_ms: int) -> None:
        """Take what came."""
        if isinstance(response, ListOffsetsResponse):
            self._on_offsets(response, now_ms)
            return
        in_flight, self._in_flight = self._in_flight, None
        assert in_flight is not None, "an answer to a fetch that was not sent"
        if not self._session.on_response(response):
            if response.error_code not in _SESSION_ERRORS:
                self.on_failure(ApiError(ErrorCode(response.error_code)), now_ms)
            return
        self._backoff_ms = 0
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed = self._followed.get(key)
                if followed is None or followed.asked is None or followed.asked is not in_flight.get(key):
                    # Not fetched any more, or in a later epoch. The session has said what it will not say again.
                    self._session.restart()
                    continue
                self._on_partition(followed, data, now_ms)

    def _on_partition(self, followed: Followed, data: FetchResponsePartitionData, now_ms: int) -> None:
        partition = followed.partition
        match data.error_code:
            case ErrorCode.NONE:
                if data.diverging_epoch.epoch >= 0:
                    self._truncate(followed, data.diverging_epoch.epoch, data.diverging_epoch.end_offset, now_ms)
                else:
                    self._append(followed, data, now_ms)
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                log.info("%s ends at %d, out of the range of its leader", partition, partition.log.log_end_offset)
                followed.spec_to_look_up = OffsetSpec.LATEST
            case ErrorCode.FENCED_LEADER_EPOCH:
                followed.is_fenced = True
            case code:
                log.debug("%s is not fetched: %s", partition, code)
                followed.pause(now_ms, self._config.backoff_ms)

    def _append(self, followed: Followed, data: FetchResponsePartitionData, now_ms: int) -> None:
        records = data.records or b""
        assert not isinstance(records, list), "records are decoded as one buffer"
        try:
            followed.partition.append_as_follower(
                records, followed.leader_epoch, data.high_watermark, data.log_start_offset
            )
            followed.backoff_ms = 0
        except (CorruptRecord, UnexpectedAppendOffset) as error:
            log.error("%s: what its leader sent cannot be appended: %s", followed.partition, error)
            followed.pause(now_ms, self._config.backoff_ms)
        except ApiError as error:
            self._stop_fetching(followed, error)

    def _stop_fetching(self, followed: Followed, error: ApiError) -> None:
        """Its disk failed; the directory is offline and whoever must know has been told."""
        log.error("%s is not fetched any more: %s", followed.partition, error)
        followed.is_fenced = True

    def _truncate(self, followed: Followed, epoch: int, end_offset: int, now_ms: int) -> None:
        """The leader's `epoch` ends at `end_offset`: keep no more of it, and nothing of later ones."""
        log_ = followed.partition.log
        known_epoch, known_end = log_.end_offset_for_epoch(epoch)
        target = min(end_offset, log_.log_end_offset) if known_end < 0 else min(known_end, log_.log_end_offset)
        if known_epoch == epoch:
            target = min(target, end_offset)
        # The high watermark and the log start that came with this count when the logs agree, but the session takes
        # them for told: another one will tell them again.
        self._session.restart()
        before = log_.log_end_offset, log_.leader_epochs.latest
        self._truncate_to(followed, target)
        if (log_.log_end_offset, log_.leader_epochs.latest) == before:
            # Nothing to give up, and yet the leader says so: it will not say otherwise at once.
            followed.pause(now_ms, self._config.backoff_ms)

    def _truncate_to(self, followed: Followed, offset: int) -> None:
        partition = followed.partition
        if offset < partition.log.log_end_offset:
            level = logging.WARNING if offset < partition.log.high_watermark else logging.INFO
            log.log(level, "%s is cut back from %d to %d", partition, partition.log.log_end_offset, offset)
        try:
            partition.log.truncate_to(offset)
        except ApiError as error:
            self._stop_fetching(followed, error)
        followed.asked = None

    # -- out of range

    def _on_offsets(self, response: ListOffsetsResponse, now_ms: int) -> None:
        found = {
            (topic.name, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
        }
        for key, followed in list(self._followed.items()):
            answer = found.get(followed.partition.topic_partition)
            if followed.spec_to_look_up is None or answer is None or key not in self._followed:
                continue  # a disk that failed on one of them has taken others away
            if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
                followed.is_fenced = True
            elif answer.error_code or answer.offset < 0:
                followed.pause(now_ms, self._config.backoff_ms)
            else:
                self._on_end(followed, answer.offset)

    def _on_end(self, followed: Followed, offset: int) -> None:
        """The leader's log ends, or begins, at `offset`."""
        partition = followed.partition
        if followed.spec_to_look_up == OffsetSpec.LATEST:
            followed.spec_to_look_up = None
            if offset < partition.log.log_end_offset:
                self._truncate_to(followed, offset)
            else:
                followed.spec_to_look_up = OffsetSpec.EARLIEST
            return
        followed.spec_to_look_up = None
        followed.asked = None
        if offset > partition.log.log_end_offset:
            log.info("%s begins anew at %d, where its leader's log begins", partition, offset)
            try:
                partition.log.truncate_fully_and_start_at(offset)
            except ApiError as error:
                self._stop_fetching(followed, error)


_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


def _key(partition: Partition) -> tuple[Uuid, int]:
    return partition.topic_id, partition.topic_partition.partition


def _nothing() -> None:
    return None
