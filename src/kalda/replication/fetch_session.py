"""Incremental fetch sessions (KIP-227): a fetcher names its partitions once, then only those that changed.

A session holds the partitions that its fetcher reads, and what was answered last for each. An incremental request
changes that list and is read in its order; the response leaves out partitions that have not changed. A partition whose
records are sent moves to the end of the order, so that full responses do not starve the others.

librdkafka fetches without sessions (id 0, epoch -1); Java clients and followers use them.

Invariants: a session's epoch is the one that its next request must carry; the cache never holds more sessions than
it has slots. A store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchResponsePartitionData,
)

if TYPE_CHECKING:
    from kalda.replication.partition import Partition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1
_EVICTION_AFTER_MS = 120_000

PartitionKey = tuple[bytes | str, int]


class CaughtUp(NamedTuple):
    """The state in which a follower's fetch found the log end: while nothing of it changes, the next fetches of the
    session need not read the partition. A follower's session may have thousands, few of which advance."""

    partition: Partition
    asked: FetchRequestFetchPartition
    leader_epoch: int
    """Of the partition at that time."""


class FetchEntry:
    """One partition of one fetch. In a session it outlives the request, and holds what was answered last."""

    __slots__ = ("asked", "caught_up", "high_watermark", "index", "log_start_offset", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: Uuid, asked: FetchRequestFetchPartition) -> None:
        self.topic = topic
        """Empty while the metadata has no topic of that id."""
        self.topic_id = topic_id
        self.index = asked.partition
        self.asked = asked
        """The request's fields; an object of its own for each request that names the partition."""
        self.high_watermark = -1
        """As in the last response; -1: the next response must contain it."""
        self.log_start_offset = -1
        """Likewise."""
        self.caught_up: CaughtUp | None = None

    def update(self, answer: FetchResponsePartitionData) -> bool:
        """Note what is answered. True where an incremental response must contain this partition."""
        changed = bool(answer.records) or answer.error_code != 0 or answer.preferred_read_replica != -1
        if answer.high_watermark != self.high_watermark:
            self.high_watermark = answer.high_watermark
            changed = True
        if answer.log_start_offset != self.log_start_offset:
            self.log_start_offset = answer.log_start_offset
            changed = True
        if answer.diverging_epoch.end_offset != -1:
            # A follower ignores the offsets of an answer by which it truncates: the next one must contain them.
            self.high_watermark = self.log_start_offset = -1
            changed = True
        if answer.error_code != 0:
            # The end of an error is a change, whatever the offsets are.
            self.high_watermark = -1
        return changed


class FetchSession:
    """One fetcher's session."""

    __slots__ = ("created_ms", "entries", "epoch", "id", "is_follower", "last_used_ms", "uses_topic_ids")

    def __init__(self, session_id: int, is_follower: bool, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        """That the next request must carry."""
        self.is_follower = is_follower
        self.uses_topic_ids = uses_topic_ids
        self.entries: dict[PartitionKey, FetchEntry] = {}
        """In the order in which they are read."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms

    def advance(self) -> None:
        """Expect the next epoch; after the last one comes 1."""
        self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def move_to_end(self, entry: FetchEntry) -> None:
        """Read the other partitions first next time."""
        key: PartitionKey = (entry.topic_id if self.uses_topic_ids else entry.topic, entry.index)
        if key in self.entries:
            self.entries[key] = self.entries.pop(key)


class FetchContext:
    """What one request fetches, and how it is answered."""

    __slots__ = ("by_id", "entries", "incremental", "session")

    def __init__(self, entries: list[FetchEntry], session: FetchSession | None, incremental: bool, by_id: bool) -> None:
        self.by_id = by_id
        """Whether topics are named by their ids."""
        self.entries = entries
        self.session = session
        self.incremental = incremental
        """Whether the response leaves out partitions that have not changed."""

    @property
    def session_id(self) -> int:
        """0 where there is no session."""
        return self.session.id if self.session is not None else 0


class FetchSessionCache:
    """All sessions of a broker."""

    def __init__(self, slots: int, random_int: Callable[[int, int], int]) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`; `random_int(low, high)` draws session ids."""
        self._slots = slots
        self._random_int = random_int
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def context(
        self,
        request: FetchRequest,
        uses_topic_ids: bool,
        topic_name: Callable[[Uuid], str | None],
        now_ms: int,
    ) -> FetchContext:
        """The context of a request. Raises `ApiError` for a session that is unknown or at another epoch."""
        if request.session_epoch == FINAL_EPOCH or request.session_epoch == INITIAL_EPOCH:
            if request.session_id:
                self._sessions.pop(request.session_id, None)
            entries = _entries(request, uses_topic_ids, topic_name)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(entries, None, False, uses_topic_ids)
            session = self._create(request, entries, uses_topic_ids, now_ms)
            return FetchContext(entries, session, False, uses_topic_ids)
        return self._incremental(request, uses_topic_ids, topic_name, now_ms)

    def _incremental(
        self, request: FetchRequest, uses_topic_ids: bool, topic_name: Callable[[Uuid], str | None], now_ms: int
    ) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        for topic in request.topics:
            name = (topic_name(topic.topic_id) or "") if uses_topic_ids else topic.topic
            for asked in topic.partitions:
                key: PartitionKey = (topic.topic_id if uses_topic_ids else name, asked.partition)
                known = session.entries.get(key)
                if known is None:
                    session.entries[key] = FetchEntry(name, topic.topic_id, asked)
                else:
                    known.asked = asked
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.entries.pop((forgotten.topic_id if uses_topic_ids else forgotten.topic, index), None)
        session.last_used_ms = now_ms
        if not session.entries:
            del self._sessions[session.id]
            return FetchContext([], None, False, uses_topic_ids)
        for entry in session.entries.values():
            if not entry.topic:
                entry.topic = topic_name(entry.topic_id) or ""
        session.advance()
        return FetchContext(list(session.entries.values()), session, True, uses_topic_ids)

    def _create(
        self, request: FetchRequest, entries: list[FetchEntry], uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        is_follower = request.replica_id >= 0 or request.replica_state.replica_id >= 0
        if not self._make_room(is_follower, len(entries), now_ms):
            return None
        session_id = self._random_int(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random_int(1, _MAX_EPOCH)
        session = FetchSession(session_id, is_follower, uses_topic_ids, now_ms)
        for entry in entries:
            session.entries[entry.topic_id if uses_topic_ids else entry.topic, entry.index] = entry
        self._sessions[session_id] = session
        return session

    def _make_room(self, is_follower: bool, size: int, now_ms: int) -> bool:
        """Evict a session that is unused for long, or else one with lower priority than a new one of `size` partitions:
        followers' sessions have priority, then large ones. False where there is none."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        stalest = min(self._sessions.values(), key=lambda session: session.last_used_ms)
        if now_ms - stalest.last_used_ms > _EVICTION_AFTER_MS:
            del self._sessions[stalest.id]
            return True
        least = min(self._sessions.values(), key=lambda session: (session.is_follower, len(session.entries)))
        evictable = now_ms - least.created_ms > _EVICTION_AFTER_MS and len(least.entries) < size
        if (is_follower and not least.is_follower) or (least.is_follower == is_follower and evictable):
            del self._sessions[least.id]
            return True
        return False


def _entries(request: FetchRequest, uses_topic_ids: bool, topic_name: Callable[[Uuid], str | None]) -> list[FetchEntry]:
    """A request's partitions, in its order. A partition that is named twice is read once, as it was named last."""
    entries: dict[PartitionKey, FetchEntry] = {}
    for topic in request.topics:
        if uses_topic_ids:
            name, topic_id = topic_name(topic.topic_id) or "", topic.topic_id
        else:
            name, topic_id = topic.topic, ZERO_UUID
        key = topic_id if uses_topic_ids else name
        for asked in topic.partitions:
            entries[key, asked.partition] = FetchEntry(name, topic_id, asked)
    return list(entries.values())
