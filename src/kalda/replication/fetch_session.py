"""Incremental fetch sessions (KIP-227): a fetcher names its partitions once, then only those that changed.

A session holds the partitions that its fetcher reads, and what was answered last for each. An incremental request
changes that list and is read in its order; the response leaves out partitions that have not changed. A partition whose
records are sent moves to the end of the order, so that full responses do not starve the others.

librdkafka fetches without sessions (id 0, epoch -1); Java clients and followers use them.

A fetcher may name as many partitions as fit into a request, whether they exist or not. So the cache is bounded by bytes
as well as by slots. A session for which there is no room is not made: its fetcher is answered without one.

Invariants: a session's epoch is the one that its next request must carry; the cache never holds more sessions than
it has slots, nor more than `max_bytes`, by the cost of each partition. A store.

Not obvious:

- A Fetch that is answered empty by a quota is taken back from its session.
- A fetch session keeps "may read everything" by version of the authorizer, principal and host. Whoever adds
  partitions to a session resets it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.naming import MAX_PARTITIONS_FETCHED, turn_of, within_one_request

if TYPE_CHECKING:
    from kalda.replication.partition import Partition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1
_EVICTION_AFTER_MS = 120_000
_POSTPONED_WAIT_MS = 10
"""For how long a request may wait for records while there are partitions that are not named yet."""
DEFAULT_BYTES = 256 * 1024 * 1024
_PARTITION_BYTES = 300
"""The memory of one partition of a session, besides its topic's name."""
_CONSUMER_SHARE = 8
"""A consumer's session may have one part in so many of all bytes."""

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

    @property
    def fetch_offset(self) -> int:
        return self.asked.fetch_offset

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

    __slots__ = (
        "created_ms",
        "entries",
        "epoch",
        "id",
        "is_follower",
        "last_used_ms",
        "reader",
        "size_bytes",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, is_follower: bool, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        """That the next request must carry."""
        self.is_follower = is_follower
        self.uses_topic_ids = uses_topic_ids
        self.entries: dict[PartitionKey, FetchEntry] = {}
        """In the order in which they are read."""
        self.size_bytes = 0
        """The cost of `entries`."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.reader: tuple[int, str, str] | None = None
        """Who was allowed to read all of `entries`: the version of the authorizer, principal and host. None where that
        is to be decided."""

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

    def __init__(self, slots: int, random_int: Callable[[int, int], int], max_bytes: int = DEFAULT_BYTES) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`, `max_bytes` `kalda.fetch.session.cache.bytes`;
        `random_int(low, high)` draws session ids."""
        self._slots = slots
        self._max_bytes = max_bytes
        self._random_int = random_int
        self._sessions: dict[int, FetchSession] = {}
        self.size_bytes = 0
        """The cost of all sessions."""
        self.evictions = 0
        """Sessions so far that were removed to make room for others."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions. Visits every session."""
        return sum(len(session.entries) for session in self._sessions.values())

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.size_bytes -= session.size_bytes

    def _evict(self, session: FetchSession) -> None:
        self._remove(session)
        self.evictions += 1

    def _resize(self, session: FetchSession, added_bytes: int) -> None:
        session.size_bytes += added_bytes
        self.size_bytes += added_bytes

    def context(
        self,
        request: FetchRequest,
        uses_topic_ids: bool,
        topic_name: Callable[[Uuid], str | None],
        now_ms: int,
    ) -> FetchContext:
        """The context of a request. Raises `ApiError` for a session that is unknown or at another epoch."""
        if request.session_epoch == FINAL_EPOCH or request.session_epoch == INITIAL_EPOCH:
            if (former := self._sessions.get(request.session_id)) is not None:
                self._remove(former)
            entries = _entries(request, uses_topic_ids, topic_name)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(list(entries.values()), None, False, uses_topic_ids)
            session = self._create(request, entries, uses_topic_ids, now_ms)
            return FetchContext(list(entries.values()), session, False, uses_topic_ids)
        return self._incremental(request, uses_topic_ids, topic_name, now_ms)

    def retract(self, request: FetchRequest, response: FetchResponse) -> int:
        """The response is not sent, because its client is throttled: the next one has to contain all that it contains.
        Returns the session of the answer that is sent in its place: 0 for a full request, whose session ends, since
        its fetcher has not got the session's partitions."""
        session = self._sessions.get(response.session_id)
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None and response.session_id:
                self._remove(session)
            return 0
        if session is not None:
            for topic in response.responses:
                for answer in topic.partitions:
                    key = (topic.topic_id if session.uses_topic_ids else topic.topic, answer.partition_index)
                    entry = session.entries.get(key)
                    if entry is not None:
                        entry.high_watermark = entry.log_start_offset = -1
        return response.session_id

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
        session.last_used_ms = now_ms
        added: dict[PartitionKey, FetchEntry] | None = None
        for topic in request.topics:
            name = (topic_name(topic.topic_id) or "") if uses_topic_ids else topic.topic
            for asked in topic.partitions:
                key: PartitionKey = (topic.topic_id if uses_topic_ids else name, asked.partition)
                known = session.entries.get(key)
                if known is not None:
                    known.asked = asked
                else:
                    added = added or {}
                    added[key] = FetchEntry(sys.intern(name), topic.topic_id, asked)
        if added is not None:
            self._add(session, added, now_ms)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                key = (forgotten.topic_id if uses_topic_ids else forgotten.topic, index)
                if session.entries.pop(key, None) is not None:
                    self._resize(session, -_cost(key))
        if not session.entries:
            self._remove(session)
            return FetchContext([], None, False, uses_topic_ids)
        for entry in session.entries.values():
            if not entry.topic:
                entry.topic = topic_name(entry.topic_id) or ""
                session.reader = None
        session.advance()
        return FetchContext(list(session.entries.values()), session, True, uses_topic_ids)

    def _add(self, session: FetchSession, added: dict[PartitionKey, FetchEntry], now_ms: int) -> None:
        added_bytes = sum(map(_cost, added))
        if not self._make_room_for_bytes(session.is_follower, added_bytes, now_ms, session):
            # The fetcher begins anew, with a full request: it is answered without a session, if there is no room then.
            self._remove(session)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._resize(session, added_bytes)
        session.entries.update(added)
        session.reader = None

    def _create(
        self, request: FetchRequest, entries: dict[PartitionKey, FetchEntry], uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        is_follower = request.replica_id >= 0 or request.replica_state.replica_id >= 0
        size_bytes = sum(map(_cost, entries))
        if not self._make_room_for_bytes(is_follower, size_bytes, now_ms, None):
            return None
        if not self._make_room(is_follower, len(entries), now_ms):
            return None
        session_id = self._random_int(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random_int(1, _MAX_EPOCH)
        session = FetchSession(session_id, is_follower, uses_topic_ids, now_ms)
        session.entries = entries
        self._sessions[session_id] = session
        self._resize(session, size_bytes)
        return session

    def _make_room_for_bytes(
        self, is_follower: bool, added_bytes: int, now_ms: int, session: FetchSession | None
    ) -> bool:
        """Evict sessions that are unused for long, and for a follower consumers' large ones, until so much fits; it is
        for that session, or for a new one. False where it does not fit."""
        size_bytes = added_bytes + (0 if session is None else session.size_bytes)
        if size_bytes > (self._max_bytes if is_follower else self._max_bytes // _CONSUMER_SHARE):
            return False
        if self.size_bytes + added_bytes <= self._max_bytes:
            return True
        others = [each for each in self._sessions.values() if each is not session]
        evictable = [each for each in others if now_ms - each.last_used_ms > _EVICTION_AFTER_MS]
        if is_follower:
            used = (each for each in others if now_ms - each.last_used_ms <= _EVICTION_AFTER_MS)
            consumers = [each for each in used if not each.is_follower]
            evictable += sorted(consumers, key=lambda each: -each.size_bytes)
        if self.size_bytes + added_bytes - sum(each.size_bytes for each in evictable) > self._max_bytes:
            return False
        for each in evictable:
            if self.size_bytes + added_bytes <= self._max_bytes:
                break
            self._evict(each)
        return True

    def _make_room(self, is_follower: bool, size: int, now_ms: int) -> bool:
        """Evict a session that is unused for long, or else one with lower priority than a new one of `size` partitions:
        followers' sessions have priority, then large ones. False where there is none."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        stalest = min(self._sessions.values(), key=lambda session: session.last_used_ms)
        if now_ms - stalest.last_used_ms > _EVICTION_AFTER_MS:
            self._evict(stalest)
            return True
        least = min(self._sessions.values(), key=lambda session: (session.is_follower, len(session.entries)))
        evictable = now_ms - least.created_ms > _EVICTION_AFTER_MS and len(least.entries) < size
        if (is_follower and not least.is_follower) or (least.is_follower == is_follower and evictable):
            self._evict(least)
            return True
        return False


def _cost(key: PartitionKey) -> int:
    return _PARTITION_BYTES + len(key[0])


def _entries(
    request: FetchRequest, uses_topic_ids: bool, topic_name: Callable[[Uuid], str | None]
) -> dict[PartitionKey, FetchEntry]:
    """A request's partitions, in its order. A partition that is named twice is read once, as it was named last."""
    entries: dict[PartitionKey, FetchEntry] = {}
    for topic in request.topics:
        if uses_topic_ids:
            name, topic_id = topic_name(topic.topic_id) or "", topic.topic_id
        else:
            # Sessions share the names of topics: otherwise each would hold copies of its own.
            name, topic_id = sys.intern(topic.topic), ZERO_UUID
        key = topic_id if uses_topic_ids else name
        for asked in topic.partitions:
            entries[key, asked.partition] = FetchEntry(name, topic_id, asked)
    return entries


Key = tuple[Uuid, int]
"""Topic id and partition."""


class FetchSessionHandler:
    """The fetcher's end of a session with one leader: names every partition once, then only those that have changed.

    A session begins with a full request of epoch 0; the leader answers with the session's id, or with 0 where it has no
    room, and then the next request is full again. Each further request carries the next epoch. After any error the next
    request is full: it closes the old session and begins another. Requests and responses alternate. A machine.

    A request names `MAX_PARTITIONS_FETCHED` partitions at most. Of more, the others follow with the next requests.
    """

    __slots__ = ("_begin", "_epoch", "_id", "_in_session")

    def __init__(self) -> None:
        self._id = 0
        """0: there is no session."""
        self._epoch = 0
        """Of the next request; 0: a full one."""
        self._in_session: Mapping[Key, FetchRequestFetchPartition] = {}
        """The partitions that the leader's session holds after the last request."""
        self._begin = 0
        """The place, among those wanted, of the first partition of the next full request that cannot name all."""

    def fill(
        self, request: FetchRequest, wanted: Mapping[Key, FetchRequestFetchPartition]
    ) -> Mapping[Key, FetchRequestFetchPartition]:
        """Fill `request` so that the leader's session holds exactly the partitions that are wanted, or those of them
        that can be named by now; these are returned."""
        found = None
        if self._epoch != 0:
            found = within_one_request(wanted, self._in_session, _differs, MAX_PARTITIONS_FETCHED)
        if found is None:
            self._epoch = 0
            found = turn_of(wanted, self._begin, MAX_PARTITIONS_FETCHED)
            self._begin += MAX_PARTITIONS_FETCHED
        if len(found) < len(wanted):
            request.max_wait_ms = min(request.max_wait_ms, _POSTPONED_WAIT_MS)
        wanted = found
        request.session_id, request.session_epoch = self._id, self._epoch
        if self._epoch == 0:
            request.topics = _by_topic(wanted.items())
        else:
            in_session = self._in_session
            request.topics = _by_topic(
                (key, each)
                for key, each in wanted.items()
                if (before := in_session.get(key)) is not each and _differs(before, each)
            )
            forgotten: dict[Uuid, list[int]] = {}
            for key in in_session:
                if key not in wanted:
                    forgotten.setdefault(key[0], []).append(key[1])
            request.forgotten_topics_data = [
                FetchRequestForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ]
        self._in_session = wanted
        return wanted

    def on_response(self, response: FetchResponse) -> bool:
        """Whether the response can be used: it belongs to this session."""
        if response.error_code != ErrorCode.NONE:
            # A session that the leader does not have need not be closed; any other is, by the next, full request.
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            self._epoch = 0
            return False
        if self._epoch == 0:
            self._id = response.session_id
            self._epoch = 1 if self._id else 0
        elif response.session_id != self._id:
            self.restart()
            return response.session_id == 0
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def restart(self) -> None:
        """Begin another session: what the leader's one holds is unknown, or has to be sent again."""
        self._epoch = 0


def _differs(in_session: FetchRequestFetchPartition | None, now: FetchRequestFetchPartition) -> bool:
    return (
        in_session is None
        or in_session.fetch_offset != now.fetch_offset
        or in_session.current_leader_epoch != now.current_leader_epoch
        or in_session.last_fetched_epoch != now.last_fetched_epoch
        or in_session.log_start_offset != now.log_start_offset
        or in_session.partition_max_bytes != now.partition_max_bytes
    )


def _by_topic(
    partitions: Iterable[tuple[Key, FetchRequestFetchPartition]],
) -> list[FetchRequestFetchTopic]:
    topics: dict[Uuid, FetchRequestFetchTopic] = {}
    for (topic_id, _), asked in partitions:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchRequestFetchTopic(topic_id=topic_id)
        topic.partitions.append(asked)
    return list(topics.values())
