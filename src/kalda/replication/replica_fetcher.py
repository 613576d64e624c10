"""A follower's fetching from one leader, as a machine: the next request, and what follows from its response.

    next_request(now)           what to send, or None: nothing before `deadline_ms`, or a call of `wake`
    cold_logs(response)         logs to be opened before `on_response`
    on_response(response, now)  the response to the last request
    on_failure(error, now)      there is no response

One request is in flight at a time. Each fetch names the epoch of the last record in the follower's log (KIP-595). Where
the leader's log diverges, the response holds an epoch and its end offset in the leader's log; the follower truncates to
the common end and fetches again, until the logs agree. Threads wait for the device meanwhile, and the other partitions
are fetched. The follower's high watermark takes no part in that: a record
above it may be committed, one below it never diverges.

A follower whose fetch offset is outside the leader's log looks up the leader's offsets (ListOffsets). It truncates to
the leader's log end, or empties its log and begins at the leader's log start.

A partition that cannot be fetched pauses, longer each time, while the others go on. A fenced one waits until the
metadata has its new leader epoch.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.protocol.messages.partitions import (
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
from kalda.protocol.naming import MAX_PARTITIONS_NAMED
from kalda.replication.fetch_session import FetchSessionHandler, Key
from kalda.replication.partition import NO_LEADER, Partition
from kalda.replication.replica_manager import RETRY_MS, ReplicaThrottle
from kalda.storage.log.deletion import Truncation, begin_anew_at, begin_truncation
from kalda.storage.log.log import Log
from kalda.storage.values import UnexpectedAppendOffset

log = logging.getLogger("kalda.fetcher")

FIRST_BACKOFF_MS = 20
_SYNC_WAIT_MS = 10
"""How long a fetch may wait at the leader while a partition that it leaves out is being flushed. That partition is in
the next fetch; if this one waited for appends to the others, producers of that partition would get an answer once in
`replica.fetch.wait.max.ms`."""


class FetcherConfig(NamedTuple):
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
    """One partition that is fetched, in one leader epoch: another epoch has a new object."""

    __slots__ = (
        "asked",
        "backoff_ms",
        "has_failed",
        "is_fenced",
        "is_in_sync",
        "lag",
        "leader_epoch",
        "partition",
        "retry_at_ms",
        "spec_to_look_up",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        """Named in requests; that of the partition may be newer already."""
        self.asked: FetchRequestFetchPartition | None = None
        """The fields of the last fetch, used again while they are true. A response counts only for the object that was
        sent; None: the log has been truncated since."""
        self.spec_to_look_up: OffsetSpec | None = None
        """Which of the leader's offsets is to be looked up, after OFFSET_OUT_OF_RANGE; nothing is fetched meanwhile."""
        self.retry_at_ms = 0
        """No request before this time."""
        self.backoff_ms = 0
        """The last pause; 0 after a successful append."""
        self.is_in_sync = False
        """Whether the log reached the leader's high watermark with the last response: no throttle leaves it out."""
        self.lag = 0
        """How many offsets the log was behind the leader's high watermark with the last response."""
        self.has_failed = False
        """Whether what the leader sent could not be taken; until an append succeeds."""
        self.is_fenced = False
        """No request any more: the disk has failed."""

    def pause(self, now_ms: int, longest_ms: int) -> None:
        """Make no request for about the backoff, until a multiple of it: thousands of partitions that their leader has
        not created yet are fetched again together, and not each in a fetch of its own."""
        self.backoff_ms = _next_backoff(self.backoff_ms, longest_ms)
        grid_ms = max(1, self.backoff_ms)
        self.retry_at_ms = ((now_ms + grid_ms // 2) // grid_ms + 1) * grid_ms

    def fail(self, now_ms: int, longest_ms: int, why: str) -> None:
        """Give the partition up, for as long as a pause lasts. The first of several failures is logged."""
        if not self.has_failed:
            log.warning("%s is given up, and tried again later: %s", self.partition, why)
        self.has_failed = True
        self.pause(now_ms, longest_ms)

    def is_ready(self, now_ms: int) -> bool:
        return not self.is_fenced and self.retry_at_ms <= now_ms and self.may_fetch

    @property
    def may_fetch(self) -> bool:
        """False while the log is being flushed or truncated; `wake` is called afterwards."""
        return self.partition.may_fetch and self.partition.log.truncation is None

    def fetch_data(self, max_bytes: int) -> FetchRequestFetchPartition:
        """The partition's fields of a fetch: the same object while none has changed, so that a session compares no
        fields."""
        log_, asked = self.partition.log, self.asked
        if (
            asked is None
            or asked.fetch_offset != log_.log_end_offset
            or asked.log_start_offset != log_.log_start_offset
        ):
            epoch = log_.leader_epochs.latest
            asked = self.asked = FetchRequestFetchPartition(
                partition=self.partition.topic_partition.partition,
                current_leader_epoch=self.leader_epoch,
                fetch_offset=log_.log_end_offset,
                last_fetched_epoch=-1 if epoch is None else epoch,
                log_start_offset=log_.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        return asked


def _next_backoff(backoff_ms: int, longest_ms: int) -> int:
    return min(longest_ms, backoff_ms * 2 or FIRST_BACKOFF_MS)


class ReplicaFetcher:
    """Fetches from one leader. Invariant: a partition in `_cold` is in `_followed`."""

    def __init__(
        self,
        leader_id: int,
        config: FetcherConfig,
        broker_epoch: Callable[[], int],
        throttle: ReplicaThrottle | None = None,
    ) -> None:
        """`throttle` is the rate at which throttled replicas are fetched; None: there is none."""
        self.leader_id = leader_id
        self._throttle = throttle
        self.wake: Callable[[], None] = _nothing
        """Called when there may be a request before `deadline_ms`."""
        self.on_added: Callable[[], None] = _nothing
        """Called when a partition is added while a request without it is in flight."""
        self.start_truncations: Callable[[Sequence[Truncation], Callable[[], None]], None] = _truncate_now
        """Completes truncations, then calls its second argument."""
        self._truncations: list[Truncation] = []
        """Those that follow from the response that is being processed."""
        self._config = config
        self._broker_epoch = broker_epoch
        self._followed: dict[Key, Followed] = {}
        self._cold: set[Key] = set()
        """Partitions whose logs have to be opened before the first append."""
        self._session = FetchSessionHandler()
        self._in_flight: Mapping[Key, FetchRequestFetchPartition] | None = None
        """Partitions of the fetch that has been sent and not answered."""
        self._backoff_ms = 0
        """The last pause of the whole fetcher; 0 after a response."""
        self._retry_at_ms = 0
        """No request before this time."""

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def max_lag(self) -> int:
        """Of the partition that is furthest behind its leader's high watermark, in offsets. Visits each."""
        return max([each.lag for each in self._followed.values()], default=0)

    @property
    def failed(self) -> int:
        """How many partitions are given up until a retry, or for as long as their disk is offline."""
        return sum(each.has_failed for each in self._followed.values())

    def lags(self) -> Iterator[tuple[TopicPartition, int]]:
        """By how many offsets each partition is behind its leader's high watermark."""
        return ((each.partition.topic_partition, each.lag) for each in list(self._followed.values()))

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
        """Fetch it no longer. A response that is in flight is ignored for it."""
        self._cold.discard(_key(partition))
        if self._followed.pop(_key(partition), None) is not None:
            partition.on_flushed = None

    def epoch_of(self, partition: Partition) -> int | None:
        """The leader epoch in which the partition is fetched."""
        followed = self._followed.get(_key(partition))
        return None if followed is None or followed.partition is not partition else followed.leader_epoch

    # -- requests

    def next_request(self, now_ms: int) -> FetchRequest | ListOffsetsRequest | None:
        """The request to send now."""
        if now_ms < self._retry_at_ms:
            return None
        for timestamp in (OffsetSpec.LATEST, OffsetSpec.EARLIEST):
            followed = [
                each for each in self._followed.values() if each.spec_to_look_up == timestamp and each.is_ready(now_ms)
            ]
            if followed:
                return self._list_offsets(followed[:MAX_PARTITIONS_NAMED], timestamp)
        max_bytes = self._config.partition_max_bytes
        if self._throttle is not None and self._throttle.is_enabled:
            self._hold_back(self._throttle, now_ms)
        wanted = {
            key: followed.fetch_data(max_bytes)
            for key, followed in self._followed.items()
            if followed.spec_to_look_up is None and followed.is_ready(now_ms)
        }
        if not wanted:
            return None
        config = self._config
        is_syncing = any(not each.is_fenced and not each.may_fetch for each in self._followed.values())
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=config.broker_id, replica_epoch=self._broker_epoch()),
            cluster_id=config.cluster_id,
            max_wait_ms=min(config.wait_max_ms, _SYNC_WAIT_MS) if is_syncing else config.wait_max_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._in_flight = self._session.fill(request, wanted)
        return request

    def _hold_back(self, throttle: ReplicaThrottle, now_ms: int) -> None:
        """Leave throttled partitions that are not in sync out of the next requests, while the rate is exceeded."""
        if not throttle.is_exceeded(now_ms):
            return
        for followed in self._followed.values():
            if not followed.is_in_sync and throttle.is_throttled(*followed.partition.topic_partition):
                followed.retry_at_ms = max(followed.retry_at_ms, now_ms + RETRY_MS)

    def _list_offsets(self, partitions: list[Followed], timestamp: OffsetSpec) -> ListOffsetsRequest:
        topics: dict[str, ListOffsetsTopic] = {}
        for followed in partitions:
            name, index = followed.partition.topic_partition
            topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
                )
            )
        return ListOffsetsRequest(replica_id=self._config.broker_id, topics=list(topics.values()))

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `next_request` may return a request; None: not before a call of `wake`."""
        times = [each.retry_at_ms for each in self._followed.values() if not each.is_fenced and each.may_fetch]
        return max(now_ms, self._retry_at_ms, min(times)) if times else None

    # -- responses

    def cold_logs(self, response: FetchResponse | ListOffsetsResponse) -> list[Log]:
        """Logs to which this response has the first records: they must be opened before `on_response`."""
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
        """There is no response: pause."""
        if self._backoff_ms == 0:
            log.info("fetching from broker %d: %s", self.leader_id, error)
        self._in_flight = None
        self._session.restart()
        self._backoff_ms = _next_backoff(self._backoff_ms, self._config.backoff_ms)
        self._retry_at_ms = now_ms + self._backoff_ms

    def on_interrupted(self) -> None:
        """The request was cancelled, because another one has a partition more."""
        self._in_flight = None
        self._session.restart()

    def on_response(self, response: FetchResponse | ListOffsetsResponse, now_ms: int) -> None:
        """Append, truncate or pause, for each partition of the response."""
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
                    # Not fetched any more, or in a later epoch. The leader's session would not send this state again.
                    self._session.restart()
                    continue
                self._on_partition(followed, data, now_ms)
        self._truncate_all()

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
                followed.pause(now_ms, self._config.backoff_ms)  # the metadata has another epoch soon
            case code:
                log.debug("%s cannot be fetched: %s", partition, code)
                followed.pause(now_ms, self._config.backoff_ms)

    def _append(self, followed: Followed, data: FetchResponsePartitionData, now_ms: int) -> None:
        records = data.records or b""
        assert not isinstance(records, list), "records are decoded as one buffer"
        try:
            followed.partition.append_as_follower(
                records, followed.leader_epoch, data.high_watermark, data.log_start_offset
            )
            followed.backoff_ms, followed.has_failed = 0, False
            followed.lag = max(0, data.high_watermark - followed.partition.log.log_end_offset)
            followed.is_in_sync = not followed.lag
            throttle = self._throttle
            if throttle is not None and records and throttle.is_throttled(*followed.partition.topic_partition):
                throttle.record(len(records), now_ms)
        except (CorruptRecord, UnexpectedAppendOffset) as error:
            why = f"the leader's records cannot be appended: {error}"
            followed.fail(now_ms, self._config.backoff_ms, why)
        except ApiError as error:
            self._on_log_error(followed, error, now_ms)

    def _on_log_error(self, followed: Followed, error: ApiError, now_ms: int) -> None:
        """The log raised this. Where its disk has failed, the log has reported that, and its directory is offline.
        Otherwise a file could not be opened, which is tried again."""
        if followed.partition.log.offline:
            log.warning("%s is not fetched any more: %s", followed.partition, error)
            followed.has_failed = followed.is_fenced = True
        else:
            followed.fail(now_ms, self._config.backoff_ms, str(error))

    def _truncate(self, followed: Followed, epoch: int, end_offset: int, now_ms: int) -> None:
        """The leader's `epoch` ends at `end_offset`: truncate to the end that both logs have in common."""
        log_ = followed.partition.log
        known_epoch, known_end = log_.end_offset_for_epoch(epoch)
        target = min(end_offset, log_.log_end_offset) if known_end < 0 else min(known_end, log_.log_end_offset)
        if known_epoch == epoch:
            target = min(target, end_offset)
        # The offsets in this response are adopted when the logs agree. This session would not send them again, so
        # another one is begun.
        self._session.restart()
        before = len(self._truncations), log_.leader_epochs.latest
        self._truncate_to(followed, target, now_ms)
        if (len(self._truncations), log_.leader_epochs.latest) == before:
            # Nothing to truncate: the next response would be the same.
            followed.pause(now_ms, self._config.backoff_ms)

    def _truncate_to(self, followed: Followed, offset: int, now_ms: int) -> None:
        partition = followed.partition
        if offset < partition.log.log_end_offset:
            level = logging.WARNING if offset < partition.log.high_watermark else logging.INFO
            log.log(level, "%s is truncated from %d to %d", partition, partition.log.log_end_offset, offset)
        try:
            truncation = begin_truncation(partition.log, offset)
            if truncation is not None:
                self._truncations.append(truncation)
        except CorruptRecord as error:
            # The log is as it was. Its replica stays out of the ISR, or leaves it.
            followed.fail(now_ms, self._config.backoff_ms, f"its log cannot be truncated: {error}")
        except ApiError as error:
            self._on_log_error(followed, error, now_ms)
        followed.asked = None

    def _truncate_all(self) -> None:
        if self._truncations:
            truncations, self._truncations = self._truncations, []
            self.start_truncations(truncations, lambda: self.wake())

    # -- out of range

    def _on_offsets(self, response: ListOffsetsResponse, now_ms: int) -> None:
        found = {
            (topic.name, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
        }
        for key, followed in list(self._followed.items()):
            answer = found.get(followed.partition.topic_partition)
            if followed.spec_to_look_up is None or answer is None or key not in self._followed:
                continue  # a disk that failed under one of them has removed others
            if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
                followed.pause(now_ms, self._config.backoff_ms)  # the metadata has another epoch soon
            elif answer.error_code or answer.offset < 0:
                followed.pause(now_ms, self._config.backoff_ms)
            else:
                self._on_end(followed, answer.offset, now_ms)
        self._truncate_all()

    def _on_end(self, followed: Followed, offset: int, now_ms: int) -> None:
        """The leader's log ends, or begins, at `offset`, whichever has been looked up."""
        partition = followed.partition
        if followed.spec_to_look_up == OffsetSpec.LATEST:
            followed.spec_to_look_up = None
            if offset < partition.log.log_end_offset:
                self._truncate_to(followed, offset, now_ms)
            else:
                followed.spec_to_look_up = OffsetSpec.EARLIEST
            return
        followed.spec_to_look_up = None
        followed.asked = None
        if offset > partition.log.log_end_offset:
            log.info("%s is emptied and begins at %d, where its leader's log begins", partition, offset)
            try:
                self._truncations.append(begin_anew_at(partition.log, offset))
            except ApiError as error:
                self._on_log_error(followed, error, now_ms)
        else:
            followed.pause(now_ms, self._config.backoff_ms)  # nothing has changed: the answer may be the same


_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


def _key(partition: Partition) -> tuple[Uuid, int]:
    return partition.topic_id, partition.topic_partition.partition


def _truncate_now(truncations: Sequence[Truncation], done: Callable[[], None]) -> None:
    for truncation in truncations:
        try:
            truncation.complete()
        except ApiError as error:
            log.error("%s is not truncated: %s", truncation.log.topic_partition, error)
    done()


def _nothing() -> None:
    return None


Started = Callable[[ReplicaFetcher], None]


class ReplicaFetchers:
    """All fetchers of a broker: which partition is fetched from which leader.

    There are `num.replica.fetchers` for each leader, and a partition always belongs to the same one. `started` is
    called with each new fetcher, to carry out its requests. Invariant: a partition is fetched by one fetcher at most,
    and only while it follows. A store.
    """

    def __init__(
        self,
        config: FetcherConfig,
        broker_epoch: Callable[[], int],
        started: Started,
        throttle: ReplicaThrottle | None = None,
    ) -> None:
        """`started` is called with a new fetcher, before it has a partition. All fetchers share `throttle`."""
        self._throttle = throttle
        self._config = config
        self._broker_epoch = broker_epoch
        self._started = started
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        """By leader and number; they are kept when they have no partition left."""
        self._fetched_by: dict[TopicPartition, tuple[ReplicaFetcher, Partition]] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch from the partition's leader; without effect where that is so already, in this leader epoch."""
        if partition.leader_id == NO_LEADER:
            self.stop(partition)
            return
        fetcher = self._fetcher(partition)
        known = self._fetched_by.get(partition.topic_partition)
        if known == (fetcher, partition) and fetcher.epoch_of(partition) == partition.leader_epoch:
            return
        self.stop(partition)
        self._fetched_by[partition.topic_partition] = fetcher, partition
        fetcher.add(partition)

    def resize(self, fetchers_a_leader: int) -> None:
        """`num.replica.fetchers` has changed: partitions move to the fetchers that they belong to now."""
        if fetchers_a_leader != self._config.fetchers_a_leader:
            self._config = self._config._replace(fetchers_a_leader=fetchers_a_leader)
            for _, partition in list(self._fetched_by.values()):
                self.follow(partition)

    def stop(self, partition: Partition) -> None:
        """Fetch it no longer."""
        known = self._fetched_by.pop(partition.topic_partition, None)
        if known is not None:
            known[0].remove(known[1])

    @property
    def max_lag(self) -> int:
        """Of the partition that is furthest behind its leader's high watermark, in offsets."""
        return max([fetcher.max_lag for fetcher in self._fetchers.values()], default=0)

    @property
    def failed(self) -> int:
        """How many partitions cannot be followed."""
        return sum(fetcher.failed for fetcher in self._fetchers.values())

    def lags(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Each partition that is followed: Kafka's name of its fetcher, and its lag."""
        for (leader_id, shard), fetcher in list(self._fetchers.items()):
            for topic_partition, lag in fetcher.lags():
                yield f"ReplicaFetcherThread-{shard}-{leader_id}", topic_partition, lag

    def _fetcher(self, partition: Partition) -> ReplicaFetcher:
        topic, index = partition.topic_partition
        shard = (zlib.crc32(topic.encode()) + index) % self._config.fetchers_a_leader
        fetcher = self._fetchers.get((partition.leader_id, shard))
        if fetcher is None:
            fetcher = ReplicaFetcher(partition.leader_id, self._config, self._broker_epoch, self._throttle)
            self._fetchers[partition.leader_id, shard] = fetcher
            self._started(fetcher)
        return fetcher
