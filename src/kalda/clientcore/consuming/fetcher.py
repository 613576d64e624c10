"""Fetches records ahead of the application, and hands them out in the order of the log.

    run()                     send a Fetch to each broker that has none in flight and partitions with room
    take_records(limit)       the next records, decoded; positions move
    take_chunks(rows)         the next whole batches, for columns; positions move

Each partition is fetched until `partition_max_bytes` of it are buffered, all of them together until `max_bytes` are. A
broker whose partitions are not all below their bound is sent no Fetch: a partition that is left out would otherwise
wait until the others' Fetch, which may wait for records, has returned.

The first redirect of a partition (a new leader, another replica) is followed at once, and so is the first Fetch session
that ends early. Those that follow without anything between them are followed behind a backoff that doubles each time.

A chunk is what one response has of one partition. It is dropped where the partition was sought, reset or revoked since
(`seeks` differs). Control batches, aborted batches (`isolation.level=read_committed`) and records before the position
are passed over. A failure of a partition that the application has to see is raised by the next call that takes records,
after the records before it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.metadata import Broker
from kalda.clientcore.connections.requests import FETCH_BASE, Requests
from kalda.clientcore.consuming.consumer_errors import OffsetOutOfRange, UndecodableRecord
from kalda.clientcore.consuming.consumer_metrics import ConsumerMetrics, Fetched
from kalda.clientcore.consuming.subscription import PartitionState, Reset, Subscription
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.naming import MAX_PARTITIONS_FETCHED, turn_of, within_one_request
from kalda.records.batch import TIMESTAMP_TYPE_BIT, BatchHeader, Buffer, check_crc, iter_batches
from kalda.records.builder import in_current_format, read_records, records_section, with_range
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression
from kalda.records.consuming import Record, Section, SectionReader
from kalda.records.control import ControlType, read_control_type

if TYPE_CHECKING:
    from kalda.records.consuming import Read

# Incremental fetch sessions (KIP-227): a request names only the partitions that have changed since the last one.
#
# The first request of a session names all partitions (id 0, epoch 0). The response has the session's id, or 0 where
# the broker keeps none. Every further request has the next epoch, the partitions that were added or changed, and
# those that were removed. After an error of the session, or a lost request, a new session begins; the old one is
# closed by naming its id with epoch 0. Of very many partitions a request names some; the others follow with the next
# requests.

FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)


class Wanted(NamedTuple):
    """A partition in a session: what the next request names of it. `seeks` is its state's, and is not sent."""

    topic_id: Uuid
    offset: int
    leader_epoch: int
    max_bytes: int
    seeks: int


class SessionRequest(NamedTuple):
    """The fields of a Fetch request that the session decides."""

    session_id: int
    epoch: int
    topics: list[FetchRequestFetchTopic]
    forgotten: list[FetchRequestForgottenTopic]
    has_all: bool
    """Whether no partition is left for the next request."""


class FetchSession:
    """The session with one broker. At most one request is in flight."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        """Of the next request; 0: it begins a session."""
        self.by_name = False
        """Requests name topics by name: the broker, or some topic, has no topic ids."""
        self.partitions: dict[TopicPartition, Wanted] = {}
        """What the broker has, once the request in flight has arrived."""
        self._names: dict[Uuid, str] = {}
        self._begin = 0
        """The place, among those wanted, of the first partition of the next full request that cannot name all."""

    def build(self, wanted: Mapping[TopicPartition, Wanted], *, by_name: bool) -> SessionRequest:
        """The next request, after which the broker has all of `wanted` that can be named by now, and nothing else."""
        if by_name != self.by_name:
            self.restart()
            self.by_name = by_name
        some = None
        if self.epoch != 0:
            some = within_one_request(wanted, self.partitions, _differs, MAX_PARTITIONS_FETCHED)
        if some is None:
            self.restart()
            some = turn_of(wanted, self._begin, MAX_PARTITIONS_FETCHED)
            self._begin += MAX_PARTITIONS_FETCHED
        has_all, wanted = len(some) == len(wanted), some
        is_full = self.epoch == 0
        before = {} if is_full else self.partitions
        topics: dict[tuple[str, Uuid], FetchRequestFetchTopic] = {}
        forgotten: dict[tuple[str, Uuid], FetchRequestForgottenTopic] = {}
        for partition, entry in wanted.items():
            known = before.get(partition)
            if known is not None and known.topic_id != entry.topic_id:
                _forget(forgotten, partition, known.topic_id)
                known = None
            if known is not None and not _differs(known, entry):
                continue
            topic = topics.get((partition.topic, entry.topic_id))
            if topic is None:
                topic = topics[partition.topic, entry.topic_id] = FetchRequestFetchTopic(
                    topic=partition.topic, topic_id=entry.topic_id
                )
            topic.partitions.append(
                FetchRequestFetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.offset,
                    partition_max_bytes=entry.max_bytes,
                )
            )
        for partition, known in before.items():
            if partition not in wanted:
                _forget(forgotten, partition, known.topic_id)
        self.partitions = dict(wanted)
        self._names = {entry.topic_id: partition.topic for partition, entry in wanted.items()}
        return SessionRequest(self.session_id, self.epoch, list(topics.values()), list(forgotten.values()), has_all)

    def name_of(self, topic: str, topic_id: Uuid) -> str | None:
        """The name of a topic in a response; None where the session does not have it."""
        return topic if topic_id == ZERO_UUID else self._names.get(topic_id)

    def on_response(self, response: FetchResponse) -> bool:
        """Take over the session's id and epoch. False where the request has failed as a whole."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.restart()
            return False
        if response.session_id == 0:
            self.session_id = 0
            self.epoch = 0
        elif self.epoch == 0 or response.session_id != self.session_id:
            self.session_id = response.session_id
            self.epoch = 1
        else:
            self.epoch = self.epoch + 1 if self.epoch < _MAX_EPOCH else 1
        return True

    def restart(self) -> None:
        """The request was lost, or refused: the next one names all partitions, and closes this session."""
        self.epoch = 0
        self.partitions = {}


def _differs(one: Wanted, other: Wanted) -> bool:
    return one[:4] != other[:4]


def _forget(
    forgotten: dict[tuple[str, Uuid], FetchRequestForgottenTopic], partition: TopicPartition, topic_id: Uuid
) -> None:
    topic = forgotten.get((partition.topic, topic_id))
    if topic is None:
        topic = forgotten[partition.topic, topic_id] = FetchRequestForgottenTopic(
            topic=partition.topic, topic_id=topic_id
        )
    topic.partitions.append(partition.partition)


# Which batches of one fetch a read_committed consumer may see.
#
# The response to a read_committed fetch has whole batches up to the last stable offset, and a list of the aborted
# transactions among them: producer id and first offset. The batches of this producer from the first offset up to its
# next ABORT marker were aborted; batches after the marker belong to its next transaction.


def aborted_batches(records: Buffer, aborted: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Base offsets of the batches in `records` that belong to `aborted` transactions (producer id, first offset)."""
    pending = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting_producer_ids: set[int] = set()
    dropped: list[int] = []
    for pos, header in iter_batches(records):
        while pending and pending[-1][1] <= header.last_offset:
            aborting_producer_ids.add(pending.pop()[0])
        if not header.is_transactional or header.producer_id not in aborting_producer_ids:
            continue
        if not header.is_control:
            dropped.append(header.base_offset)
        elif any(read_control_type(record.key) is ControlType.ABORT for record in read_records(records, pos, header)):
            aborting_producer_ids.discard(header.producer_id)
    return frozenset(dropped)


log = logging.getLogger(__name__)
_MAX_FETCH_BY_NAME = 12
_POSTPONED_WAIT_MS = 10
"""For how long a request may wait for records while there are partitions that are not named yet."""
_REDIRECTS_FORGOTTEN_MS = 10_000
"""Redirects with more time between them are not in a row: Fetches without records need not name a partition."""
_MANY_REDIRECTS = 10
"""In a row: so many are worth a line in the log."""
_MOVED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)
"""Errors of a partition after which its metadata is fetched again."""


class FetchConfig(NamedTuple):
    """Of the consumer's config; sizes in bytes, times in ms."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    read_committed: bool = False
    check_crcs: bool = True
    rack: str = ""
    request_timeout_ms: int = 30_000
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    reset: Reset | None = None
    """`auto.offset.reset`; None: `none`."""
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


class Chunk:
    """What a response has of one partition: whole batches from `fetch_offset` on."""

    __slots__ = (
        "batches", "data", "dropped", "fetched", "next_offset", "reader", "seeks", "size", "state",
    )  # fmt: skip

    def __init__(
        self, state: PartitionState, data: memoryview, batches: deque[tuple[int, BatchHeader]], fetched: Fetched
    ) -> None:
        self.state = state
        self.fetched = fetched
        self.seeks = state.seeks
        self.data = data
        self.batches = batches
        """Positions and headers of the batches that were not taken."""
        self.next_offset = batches[-1][1].next_offset if batches else -1
        self.size = 0
        self.dropped: frozenset[int] = frozenset()
        """Base offsets of aborted batches."""
        self.reader: SectionReader | None = None
        """Of the first of `batches`, where some of its records were taken."""

    @property
    def is_stale(self) -> bool:
        return self.seeks != self.state.seeks


class Taken(NamedTuple):
    """Whole batches of a partition, for columns: those in `buffer` that `keep` keeps, from `start` to below `end`."""

    topic: str
    partition: int
    buffer: memoryview
    start: int
    end: int | None
    keep: Callable[[BatchHeader], bool] | None


class Fetcher:
    """One consumer's fetches and buffers."""

    def __init__(
        self,
        config: FetchConfig,
        subscription: Subscription,
        requests: Requests,
        metrics: ConsumerMetrics,
        read_key: Read | None = None,
        read_value: Read | None = None,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._requests = requests
        self._metrics = metrics
        self._readers = read_key, read_value
        self._sessions: dict[int, FetchSession] = {}
        """By node id."""
        self._in_flight: set[int] = set()
        """Nodes with a Fetch in flight."""
        self._retry_at_ms: dict[int, int] = {}
        """When a node that has failed may be sent a Fetch again."""
        self._ended_sessions: dict[int, int] = {}
        """By node id, how many Fetches in a row the node has refused because of their session."""
        self._chunks: deque[Chunk] = deque()
        """In the order of arrival."""
        self.buffered_bytes = 0
        """Of all chunks, stale ones included until they are met."""
        self._failures: deque[tuple[PartitionState, int, Exception]] = deque()
        """(partition, its `seeks`, error) to raise."""
        self.has_room = True
        """A chunk was used up since `run`: a Fetch may be sent that could not be sent before."""

    # -- sending

    def run(self) -> None:
        """Send what can be sent."""
        self.has_room = False
        self._drop_stale()
        if self.buffered_bytes >= self._config.max_bytes:
            return
        now_ms = self._requests.now_ms
        by_node: dict[int, dict[TopicPartition, Wanted]] = {}
        full: set[int] = set()
        for partition, state in self._subscription.partitions.items():
            if not state.is_fetchable or state.retry_at_ms > now_ms or state.redirect_at_ms > now_ms:
                continue
            if state.until is not None and state.fetch_offset >= state.until:
                continue
            leader = self._requests.metadata.leader_of(partition.topic, partition.partition)
            if leader is None:
                self._requests.metadata.request_leader(partition.topic)
                continue
            node_id = leader.node_id
            if state.replica >= 0:
                if now_ms < state.replica_until_ms and state.replica in self._requests.metadata.brokers:
                    node_id = state.replica
                else:
                    state.replica = -1
            if state.buffered_bytes >= self._config.partition_max_bytes:
                full.add(node_id)
                continue
            by_node.setdefault(node_id, {})[partition] = Wanted(
                leader.topic_id, state.fetch_offset, leader.epoch, self._config.partition_max_bytes, state.seeks
            )
        for node_id, wanted in by_node.items():
            if node_id in self._in_flight or node_id in full or self._retry_at_ms.get(node_id, 0) > now_ms:
                continue
            if self._requests.is_ready(FETCH_BASE + node_id):
                self._send(node_id, wanted)

    def deadline_ms(self) -> int | None:
        """When `run` may have something to send that it does not have now."""
        times = list(self._retry_at_ms.values())
        for state in self._subscription.partitions.values():
            times += (state.retry_at_ms, state.redirect_at_ms)
        return self._requests.earliest(times)

    def _send(self, node_id: int, wanted: dict[TopicPartition, Wanted]) -> None:
        config = self._config
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = FetchSession()
        versions = self._requests.connections.versions_of(FETCH_BASE + node_id) or {}
        by_name = versions.get(FetchRequest.API_KEY, (0, 0))[1] <= _MAX_FETCH_BY_NAME or any(
            entry.topic_id == ZERO_UUID for entry in wanted.values()
        )
        built = session.build(wanted, by_name=by_name)
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms if built.has_all else min(config.max_wait_ms, _POSTPONED_WAIT_MS),
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            isolation_level=int(config.read_committed),
            session_id=built.session_id,
            session_epoch=built.epoch,
            topics=built.topics,
            forgotten_topics_data=built.forgotten,
            rack_id=config.rack,
        )
        self._in_flight.add(node_id)
        sent_at_ms = self._requests.now_ms
        self._requests.send(
            FETCH_BASE + node_id,
            request,
            lambda answer, error: self._on_response(node_id, session, sent_at_ms, answer, error),
            max_version=_MAX_FETCH_BY_NAME if by_name else None,
            timeout_ms=config.request_timeout_ms,
        )

    def close(self) -> None:
        """End the sessions, so that the brokers keep nothing for them. Responses are ignored."""
        for node_id, session in self._sessions.items():
            node_id += FETCH_BASE
            connected = self._requests.connections.is_connected(node_id)
            if session.session_id and connected and self._requests.is_ready(node_id):
                request = FetchRequest(session_id=session.session_id, session_epoch=FINAL_EPOCH, max_bytes=1)
                self._requests.send(node_id, request, lambda _answer, _error: None)
        self._sessions.clear()
        self._chunks.clear()

    # -- receiving

    def _on_response(
        self,
        node_id: int,
        session: FetchSession,
        sent_at_ms: int,
        answer: FetchResponse | None,
        error: ApiError | None,
    ) -> None:
        self._in_flight.discard(node_id)
        now_ms = self._requests.now_ms
        if self._sessions.get(node_id) is not session:
            return
        if answer is None:
            session.restart()
            self._retry_at_ms[node_id] = self._requests.retry_at_ms()
            self._requests.metadata.request_update()
            if error is not None and not error.code.retriable:
                self._fail_all(session, error)
            return
        self._retry_at_ms.pop(node_id, None)
        self._metrics.node(FETCH_BASE + node_id).latency.append(now_ms - sent_at_ms)
        self._metrics.throttle.append(answer.throttle_time_ms)
        sent = session.partitions
        if not session.on_response(answer):
            code = ErrorCode(answer.error_code)
            if code in SESSION_ERRORS:
                ended = self._ended_sessions[node_id] = self._ended_sessions.get(node_id, 0) + 1
                self._retry_at_ms[node_id] = self._requests.retry_at_ms(ended - 1)
            else:
                self._retry_at_ms[node_id] = self._requests.retry_at_ms()
                if not code.retriable:
                    self._fail_all(session, refused(answer.error_code, "the fetch"))
            if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                self._requests.metadata.request_update()
            return
        self._ended_sessions.pop(node_id, None)
        brokers = [Broker(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
        fetched = Fetched()
        for topic in answer.responses:
            name = session.name_of(topic.topic, topic.topic_id)
            if name is None:
                continue
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                entry = sent.get(partition)
                state = self._subscription.partitions.get(partition)
                if entry is None or state is None or state.seeks != entry.seeks or not state.is_fetchable:
                    continue
                if data.error_code:
                    self._on_error(node_id, state, entry, data, brokers)
                else:
                    self._on_data(state, entry, data, fetched)

    def _fail_all(self, session: FetchSession, error: ApiError) -> None:
        for state in self._subscription.partitions.values():
            if state.is_fetchable:
                self._failures.append((state, state.seeks, error))
                return

    def _on_error(
        self,
        node_id: int,
        state: PartitionState,
        entry: Wanted,
        data: FetchResponsePartitionData,
        brokers: list[Broker],
    ) -> None:
        code = ErrorCode(data.error_code)
        state.retry_at_ms = self._requests.retry_at_ms()
        was_replica, state.replica = state.replica == node_id, -1
        metadata = self._requests.metadata
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if was_replica:
                self._redirect(state)  # the follower may be behind: the leader decides
            elif self._config.reset is not None:
                log.info("%s has no offset %d: the position is reset", state.partition, entry.offset)
                state.request_reset(self._config.reset)
            else:
                self._failures.append((state, state.seeks, OffsetOutOfRange({state.partition: entry.offset})))
        elif code in _MOVED:
            leader = data.current_leader
            topic, index = state.partition
            if metadata.update_leader(topic, index, leader.leader_id, leader.leader_epoch, brokers):
                self._redirect(state)
            else:
                metadata.request_update()
        elif code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            log.warning("the fetch of %s has failed with %s: it is repeated", state.partition, code.name)
            if code is ErrorCode.CORRUPT_MESSAGE:
                error = refused(data.error_code, f"partition {state.partition} at offset {entry.offset}")
                self._failures.append((state, state.seeks, error))
        else:
            self._failures.append((state, state.seeks, refused(data.error_code, f"partition {state.partition}")))

    def _redirect(self, state: PartitionState) -> None:
        """The partition's next Fetch goes to another node: at once, or behind a backoff where it was redirected before
        without a Fetch in between that was answered."""
        now_ms = self._requests.now_ms
        if now_ms - state.redirect_at_ms > max(_REDIRECTS_FORGOTTEN_MS, 2 * self._config.retry_backoff_max_ms):
            state.redirects = 0
        state.redirects += 1
        state.retry_at_ms = 0
        state.redirect_at_ms = self._requests.retry_at_ms(state.redirects - 1)
        if state.redirects % _MANY_REDIRECTS == 0:
            log.warning(
                "%s: %d Fetches in a row were redirected to another node: the next one is sent in %d ms",
                state.partition, state.redirects, state.redirect_at_ms - now_ms,
            )  # fmt: skip

    def _on_data(
        self, state: PartitionState, entry: Wanted, data: FetchResponsePartitionData, fetched: Fetched
    ) -> None:
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.replica = data.preferred_read_replica
            state.replica_until_ms = self._requests.now_ms + self._config.metadata_max_age_ms
            if not data.records:
                self._redirect(state)
        else:
            state.redirects = 0
        records = memoryview(data.records) if isinstance(data.records, bytes | bytearray | memoryview) else None
        if not records or state.fetch_offset != entry.offset:
            return
        try:
            found = list(iter_batches(records))
            if not _ascends(found):
                raise CorruptRecord(f"the batches from offset {entry.offset} on are not in order")
            if self._config.check_crcs:
                for pos, header in found:
                    check_crc(records, pos, header)
            # Not before the checks: a damaged batch may look as if it ended earlier.
            batches = deque((pos, header) for pos, header in found if header.last_offset >= entry.offset)
            for at, (pos, header) in enumerate(batches):
                if header.is_legacy:
                    with suppress(CorruptRecord):  # which is raised once it is the first to be returned
                        batches[at] = pos, with_range(header, records, pos, self._config.max_decompressed_bytes)
            chunk = Chunk(state, records, batches, fetched)
            if data.aborted_transactions and self._config.read_committed:
                aborted = ((each.producer_id, each.first_offset) for each in data.aborted_transactions)
                chunk.dropped = aborted_batches(records, aborted)
        except CorruptRecord as error:
            failure = UndecodableRecord(state.partition, entry.offset, error)
            self._failures.append((state, state.seeks, failure))
            state.retry_at_ms = self._requests.retry_at_ms()
            return
        if not batches:
            if len(records) >= self._config.partition_max_bytes:
                cut_off = CorruptRecord(f"no whole batch in {len(records)} bytes")
                self._failures.append((state, state.seeks, UndecodableRecord(state.partition, entry.offset, cut_off)))
                state.retry_at_ms = self._requests.retry_at_ms()
            return
        chunk.size = len(records)
        state.fetch_offset = chunk.next_offset
        state.fetch_epoch = batches[-1][1].partition_leader_epoch
        state.buffered_bytes += chunk.size
        self.buffered_bytes += chunk.size
        fetched.chunks += 1
        self._chunks.append(chunk)

    # -- handing out

    @property
    def has_records(self) -> bool:
        """Whether a call that takes records returns or raises something; control batches count until they are met."""
        return bool(self._failures) or any(not c.is_stale and c.state.can_return for c in self._chunks)

    def take_records(self, limit: int) -> list[Record]:
        """Up to `limit` records in the order of the log; none where none is buffered. Raises what has failed."""
        out: list[Record] = []
        while len(out) < limit:
            chunk = self._next_chunk()
            if chunk is None:
                break
            try:
                self._take_from(chunk, out, limit)
            except Exception as failure:
                self._on_undecodable(chunk, failure)
                break
        if not out:
            self._raise_failure()
        return out

    def take_chunks(self, rows: int) -> list[Taken]:
        """Whole batches with up to `rows` records, or with a part of the first batch where that has more."""
        taken: list[Taken] = []
        left = rows
        while left > 0:
            chunk = self._next_chunk()
            if chunk is None:
                break
            found = self._take_batches(chunk, left)
            if found is not None:
                taken.append(found[0])
                left -= found[1]
        if not taken:
            self._raise_failure()
        return taken

    def _take_batches(self, chunk: Chunk, left: int) -> tuple[Taken, int] | None:
        state = chunk.state
        start = state.offset
        chunk.reader = None
        first_pos, end_pos, rows, end = chunk.batches[0][0], 0, 0, None
        while chunk.batches and rows < left:
            pos, header = chunk.batches[0]
            is_kept = not header.is_control and header.base_offset not in chunk.dropped
            count = max(0, header.next_offset - max(header.base_offset, start)) if is_kept else 0
            end_pos = pos + header.size_bytes
            if rows + count > left and is_kept:
                if rows:
                    end_pos = pos
                    break
                end = max(header.base_offset, start) + left  # a part of one batch, which is decoded again for the rest
                self._advance(state, end, header)
                rows = left
                break
            rows += count
            self._pop_batch(chunk, header)
        buffer = chunk.data[first_pos:end_pos]
        self._count(chunk, len(buffer), rows)
        self._release_if_empty(chunk)
        if not rows:
            return None
        dropped = chunk.dropped
        keep = (lambda header: header.base_offset not in dropped) if dropped else None
        return Taken(state.partition.topic, state.partition.partition, buffer, start, end, keep), rows

    def _next_chunk(self) -> Chunk | None:
        """The first chunk whose records may be returned. Stale chunks before it are dropped."""
        chunks = self._chunks
        for index, chunk in enumerate(chunks):
            if chunk.is_stale:
                self._drop_stale()
                return self._next_chunk()
            if chunk.state.can_return:
                if index:
                    del chunks[index]
                    chunks.appendleft(chunk)
                return chunk
        return None

    def _take_from(self, chunk: Chunk, out: list[Record], limit: int) -> None:
        state = chunk.state
        size_bytes, count = 0, len(out)
        try:
            while chunk.batches and len(out) < limit:
                pos, header = chunk.batches[0]
                if header.is_control or header.base_offset in chunk.dropped or header.next_offset <= state.offset:
                    self._pop_batch(chunk, header)
                    continue
                reader = chunk.reader
                if reader is None:
                    most = self._config.max_decompressed_bytes
                    reader = chunk.reader = section_reader(
                        state.partition, chunk.data, pos, header, self._readers, most
                    )
                before = reader.bytes_read
                try:
                    reader.take(out, limit - len(out), state.offset)
                finally:
                    self._advance(state, reader.next_offset, header)
                    size_bytes += reader.bytes_read - before
                if reader.is_done:
                    self._pop_batch(chunk, header)
        finally:
            self._count(chunk, size_bytes, len(out) - count)
        self._release_if_empty(chunk)

    def _count(self, chunk: Chunk, size_bytes: int, records: int) -> None:
        """Records of a chunk are returned."""
        if records:
            chunk.fetched.take(chunk.state.partition.topic, size_bytes, records)
            self._metrics.on_returned(chunk.state.partition, size_bytes, records, self._requests.now_ms)

    def _end(self, chunk: Chunk) -> None:
        """Nothing of a chunk is buffered any more."""
        self.buffered_bytes -= chunk.size
        chunk.fetched.chunks -= 1
        if not chunk.fetched.chunks:
            self._metrics.on_fetched(chunk.fetched, self._requests.now_ms)

    @staticmethod
    def _advance(state: PartitionState, offset: int, header: BatchHeader) -> None:
        """Some of a batch's records are returned. The position is in the batch now, and so is the record before it."""
        state.offset = max(state.offset, offset)
        if state.offset > header.base_offset:
            state.epoch = header.partition_leader_epoch

    def _pop_batch(self, chunk: Chunk, header: BatchHeader) -> None:
        chunk.batches.popleft()
        chunk.reader = None
        state = chunk.state
        if header.next_offset > state.offset:
            state.offset = header.next_offset
        state.epoch = header.partition_leader_epoch

    def _release_if_empty(self, chunk: Chunk) -> None:
        if not chunk.batches and self._chunks and self._chunks[0] is chunk:
            self._chunks.popleft()
            self.has_room = True
            self._end(chunk)
            chunk.state.buffered_bytes = max(0, chunk.state.buffered_bytes - chunk.size)

    def _drop_stale(self) -> None:
        if not any(chunk.is_stale for chunk in self._chunks):
            return
        kept: deque[Chunk] = deque()
        for chunk in self._chunks:
            if chunk.is_stale:
                self._end(chunk)
            else:
                kept.append(chunk)
        self._chunks = kept

    def _on_undecodable(self, chunk: Chunk, error: Exception) -> None:
        """Raise it next, and again until the application seeks past the record."""
        state = chunk.state
        failure = UndecodableRecord(state.partition, state.offset, error)
        failure.__cause__ = error
        self._failures.append((state, state.seeks, failure))

    def _raise_failure(self) -> None:
        while self._failures:
            state, seeks, error = self._failures.popleft()
            is_current = self._subscription.partitions.get(state.partition) is state
            if is_current and state.seeks == seeks:
                raise error


def section_reader(
    partition: TopicPartition,
    whole: Buffer,
    pos: int,
    header: BatchHeader,
    readers: tuple[Read | None, Read | None],
    max_decompressed_bytes: int,
) -> SectionReader:
    """Makes the records of the batch at `pos`; `readers` make keys and values. Raises `CorruptRecord`."""
    timestamp_type = header.timestamp_type
    if header.is_legacy:
        header, whole = in_current_format(header, whole, pos, max_decompressed_bytes)
        pos = 0
    data, start, end = records_section(whole, pos, header, max_decompressed_bytes)
    view = memoryview(data)[start:end]
    owned = bytes(view) if header.compression is Compression.NONE else view
    epoch = header.partition_leader_epoch
    section = Section(partition.topic, partition.partition, timestamp_type, epoch if epoch >= 0 else None, owned)
    stamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    return SectionReader(
        section,
        header.records_count,
        header.base_offset,
        header.next_offset,
        header.base_timestamp,
        stamp,
        *readers,
    )


def _ascends(batches: list[tuple[int, BatchHeader]]) -> bool:
    """Whether each batch begins after the one before it, and ends where it begins or later."""
    following = -1
    for _, header in batches:
        if header.base_offset < following or header.last_offset_delta < 0:
            return False
        following = header.next_offset
    return True
