"""Writes the records that share groups give up to their dead letter topics (KIP-1191).

A dead letter has the headers that Apache Kafka gives it, and with `errors.deadletterqueue.copy.record.enable` the key
and the value of the record too. It goes to the partition with the number of the record's, modulo the number of
partitions of the dead letter topic, with `acks=all`.

The write is safe: a record is archived only when its dead letter has been acknowledged by the in-sync replicas of the
topic. What fails is tried again, with growing pauses, as long as the share partition is led here, and the next leader
goes on with it. So a topic that is missing, refused or without leaders holds up the start offset of the group, and at
last its deliveries (`share.partition.max.record.locks`), until that is mended or the group names no dead letter topic
any more; its records are archived without one then. Apache Kafka gives up after some attempts, and archives the record
although its dead letter is lost.

The letters for one partition are written one batch after another; those that have come meanwhile share the next batch.
Where a record cannot be read any more, or its copy is too large for the topic, its letter has headers alone. An
exception in the letters of one group holds up those of no other, and they are tried again.

A group names its topic in `errors.deadletterqueue.topic.name`. Any client may cause a record to be given up, so the
administrators of the topic and of the cluster have a say: an existing topic must have
`errors.deadletterqueue.group.enable=true`, the name must begin with `errors.deadletterqueue.topic.name.prefix`, and a
missing topic is created only with `errors.deadletterqueue.auto.create.topics.enable=true`. All are read anew for each
write, so that a change counts at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kalda.base.configs.topic import TOPIC
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, uuid_to_text
from kalda.base.scheduling import Clock, Pending, Timers
from kalda.base.sensors import Sensors
from kalda.base.share_states import SharePartitionKey
from kalda.broker.channels.auto_topics import TopicPlan
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.topics import TopicImage
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kalda.records.batch import HEADER_SIZE
from kalda.records.builder import Headers, NewRecord, build_batch
from kalda.replication.share.dead_letters import DeadRecords, SourceRecords, Sources
from kalda.replication.share.share_partition import ShareSettings

_ENABLED: Final = "errors.deadletterqueue.group.enable"
_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
_CREATES: Final = "errors.deadletterqueue.auto.create.topics.enable"
PLAN: Final = TopicPlan(-1, -1, {_ENABLED: "true", "message.timestamp.type": "CreateTime"})
"""How a missing topic is created: with the numbers of partitions and replicas that new topics of the cluster have."""


class Target(NamedTuple):
    """Where the dead letters of a group go."""

    topic: str
    topic_id: Uuid
    partitions: int
    max_message_bytes: int
    copies_records: bool
    """Whether they have the keys and values of the records."""


class Missing(NamedTuple):
    """There is no such topic yet, and it may be created."""

    topic: str


class Refusal(NamedTuple):
    """Nothing can be written; `reason` has the group, the topic and the key that says so."""

    reason: str


class DeadLetterTopics:
    """The rules, as the configs are now."""

    def __init__(
        self, settings_of: Callable[[str], ShareSettings], cache: MetadataCache, values: Mapping[str, Any]
    ) -> None:
        """`settings_of(group)`: its configs. `values` are those of the broker, by key."""
        self._settings_of = settings_of
        self._cache = cache
        self._values = values

    def update(self, values: Mapping[str, Any]) -> None:
        """The broker's values have changed."""
        self._values = values

    def find(self, group_id: str) -> Target | Missing | Refusal | None:
        """Where the dead letters of a group go; None where it has no topic for these."""
        settings = self._settings_of(group_id)
        name = settings.dead_letter_topic
        if not name:
            return None
        topic = self._cache.topic(name)
        reason = self._refusal(name, topic)
        if reason is not None:
            return Refusal(f"share group {group_id}, dead letter topic {name}: {reason}")
        if topic is None:
            return Missing(name)
        text = self._cache.image.configs.of_topic(name).get("max.message.bytes")
        limit = self._values["message.max.bytes"] if text is None else TOPIC["max.message.bytes"].parse(text)
        assert isinstance(limit, int)
        return Target(name, topic.id, len(topic.partitions), limit, settings.copies_dead_letters)

    def _refusal(self, name: str, topic: TopicImage | None) -> str | None:
        """Apache Kafka's rules, in its order."""
        prefix: str = self._values[_PREFIX]
        if name.startswith("__"):
            return "a name with __ at its beginning is one of an internal topic"
        if topic is not None and self._cache.image.configs.of_topic(name).get(_ENABLED) != "true":
            return f"the topic does not set {_ENABLED}=true"
        if prefix and not name.startswith(prefix):
            return f"the name does not begin with {prefix}, which {_PREFIX} demands"
        if topic is None and not self._values[_CREATES]:
            return f"the topic does not exist, and {_CREATES} is false: create it with {_ENABLED}=true"
        return None


log = logging.getLogger("kalda.share")

_METRICS: Final = "kafka.server:type=ShareGroupMetrics"
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 30_000
_WARNING_INTERVAL_MS = 30_000
_MAX_LETTERS = 200
"""In one batch: more would hold the event loop for too long."""
_ACKS_ALL = -1
_OVERHEAD_BYTES = 40
"""At most, of a record beside its key, value and headers, and of a header beside its name and value."""


class _Letters:
    """The dead letters of one range of records, from `next_offset` on."""

    __slots__ = ("attempts", "is_wanted", "key", "last_sent", "next_offset", "outcome", "records", "sources")

    def __init__(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> None:
        self.key = key
        self.records = records
        self.is_wanted = is_wanted
        self.outcome: Pending[None] = Pending()
        self.next_offset = records.first_offset
        """Those before it are written."""
        self.last_sent = records.first_offset - 1
        """The last one in the batch that is under way."""
        self.sources: Sources | None = None
        """What was read for the next ones; None where that is still to be done."""
        self.attempts = 0


class _Destination(NamedTuple):
    """A partition of a dead letter topic."""

    topic: str
    topic_id: Uuid
    partition: int


class _Batch:
    """What is written next to one partition."""

    __slots__ = ("destination", "letters", "rows", "size_bytes")

    def __init__(self, destination: _Destination) -> None:
        self.destination = destination
        self.letters: list[_Letters] = []
        self.rows: list[NewRecord] = []
        self.size_bytes = HEADER_SIZE
        """At most."""

    @property
    def groups(self) -> set[str]:
        return {letters.key.group_id for letters in self.letters}


class DeadLetterWriter:
    """The `DeadLetterQueue` of this broker's share partitions."""

    def __init__(
        self,
        topics: DeadLetterTopics,
        topic_name: Callable[[Uuid], str | None],
        read: Callable[[str, int, int, int], Pending[Sources]],
        leader_of: Callable[[str, int], int | None],
        send: Callable[[int, ProduceRequest], Pending[Any]],
        create_topic: Callable[[str], None],
        timers: Timers,
        clock: Clock,
        sensors: Sensors,
        timeout_ms: int,
    ) -> None:
        """`topic_name(id)` is None where there is no such topic. `read(topic, partition, first, last)` reads records
        to be copied. `leader_of(topic, partition)` is negative or None where no broker leads it. `send(broker,
        request)` may be to this very broker. `create_topic(name)` starts the creation of a dead letter topic.
        `timeout_ms`: how long a leader waits for the in-sync replicas."""
        self._topics = topics
        self._topic_name = topic_name
        self._read = read
        self._leader_of = leader_of
        self._send = send
        self._create_topic = create_topic
        self._timers = timers
        self._clock = clock
        self._sensors = sensors
        self._timeout_ms = timeout_ms
        self._queues: dict[_Destination, deque[_Letters]] = {}
        """What waits for each partition while a batch is under way to it; none where no batch is."""
        self._warned_ms: dict[str, int] = {}
        """When the log has got the latest failure of a group."""
        self._closed = False

    def close(self) -> None:
        """Write nothing more."""
        self._closed = True

    def write(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> Pending[None]:
        """See `DeadLetterQueue`."""
        letters = _Letters(key, records, is_wanted)
        self._begin(letters)
        return letters.outcome

    def _begin(self, letters: _Letters) -> None:
        """Bring what is not written yet on its way."""
        try:
            self._proceed(letters)
        except Exception as error:
            self._on_fault(letters, error)

    def _on_fault(self, letters: _Letters, error: Exception) -> None:
        log.error("%s: a fault in its dead letters", letters.key.coordinator_key, exc_info=error)
        self._retry(letters, None)

    def _proceed(self, letters: _Letters) -> None:
        if self._closed or not letters.is_wanted():
            letters.outcome.fail(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        group_id = letters.key.group_id
        target = self._topics.find(group_id)
        if target is None:
            self._warn(group_id, "it has no dead letter topic any more: records are archived without dead letters")
            letters.outcome.complete(None)
        elif isinstance(target, Refusal):
            self._retry(letters, target.reason)
        elif isinstance(target, Missing):
            self._create_topic(target.topic)
            self._retry(letters, None)
        else:
            self._enqueue(letters, target)

    def _read_sources(self, letters: _Letters, proceed: Callable[[], None]) -> None:
        """Read what is copied of the next letters; `proceed` is called in a later turn. Only letters that are written
        next are read: those that wait take no memory for copies."""
        last = letters.records.last_offset
        topic = self._topic_name(letters.key.topic_id)

        def on_read(found: Sources | None, error: ApiError | None) -> None:
            if found is None:
                log.warning("%s: dead letters without copies: %s", letters.key.coordinator_key, error)
                found = Sources({}, last)
            letters.sources = found
            self._timers.call_soon(proceed)

        if topic is None:
            on_read(None, ApiError(ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            self._read(topic, letters.key.partition, letters.next_offset, last).then(on_read)

    def _enqueue(self, letters: _Letters, target: Target) -> None:
        destination = _Destination(target.topic, target.topic_id, letters.key.partition % target.partitions)
        queue = self._queues.get(destination)
        if queue is not None:
            queue.append(letters)
            return
        self._queues[destination] = deque([letters])
        # what is given up in this turn shares the batch
        self._timers.call_soon(lambda: self._fill(_Batch(destination)))

    def _fill(self, batch: _Batch) -> None:
        """Put into a batch what waits for its partition and has room, and send it."""
        queue = self._queues[batch.destination]
        while queue and len(batch.rows) < _MAX_LETTERS:
            letters = queue.popleft()
            try:
                target = self._topics.find(letters.key.group_id)
                if not isinstance(target, Target) or target.topic_id != batch.destination.topic_id:
                    self._begin(letters)  # the configs have changed
                    continue
                if target.copies_records and letters.sources is None:
                    self._read_sources(letters, partial(self._fill, batch))
                    queue.appendleft(letters)
                    return
                has_room = self._add(letters, batch, target)
            except Exception as error:
                self._on_fault(letters, error)
                continue
            if not has_room:
                queue.appendleft(letters)
                break
            batch.letters.append(letters)
        if not batch.letters:
            assert not queue, "an empty batch has room for one letter"
            del self._queues[batch.destination]
            return
        for group_id in batch.groups:
            self._count("DeadLetterQueueTotalProduceRequestsPerSec", group_id, 1)
        self._produce(batch.destination, batch.rows).then(partial(self._on_produced, batch))

    def _add(self, letters: _Letters, batch: _Batch, target: Target) -> bool:
        """Add as many letters to a batch as it has room for; whether that is any. An empty batch has room for one."""
        sources = letters.sources
        last = letters.records.last_offset if sources is None else sources.last_offset
        records = {} if sources is None else sources.records
        name = self._topic_name(letters.key.topic_id) or uuid_to_text(letters.key.topic_id)
        letters.last_sent = letters.next_offset - 1
        for offset in range(letters.next_offset, last + 1):
            row, row_bytes = self._row(letters, name, offset, records, target.max_message_bytes - HEADER_SIZE)
            is_full = batch.size_bytes + row_bytes > target.max_message_bytes or len(batch.rows) >= _MAX_LETTERS
            if batch.rows and is_full:
                break
            batch.rows.append(row)
            batch.size_bytes += row_bytes
            letters.last_sent = offset
        return letters.last_sent >= letters.next_offset

    def _row(
        self, letters: _Letters, topic: str, offset: int, sources: SourceRecords, max_bytes: int
    ) -> tuple[NewRecord, int]:
        """The letter of one record, and the most bytes that it takes. The copy is left out where it is too large."""
        records = letters.records
        fields = {
            "__dlq.errors.topic": topic,
            "__dlq.errors.partition": str(letters.key.partition),
            "__dlq.errors.offset": str(offset),
            "__dlq.errors.group": letters.key.group_id,
            "__dlq.errors.delivery.count": str(records.delivery_count),
            "__dlq.errors.message": records.cause.value,
        }
        headers: Headers = [(name, text.encode()) for name, text in fields.items()]
        size = _OVERHEAD_BYTES + sum(_OVERHEAD_BYTES + len(name) + len(text or b"") for name, text in headers)
        key, value = sources.get(offset, (None, None))
        copied = len(key or b"") + len(value or b"")
        if size + copied > max_bytes:
            key = value = None
            copied = 0
        return (self._clock.wall_ms(), key, value, headers), size + copied

    def _produce(self, destination: _Destination, rows: list[NewRecord]) -> Pending[int]:
        """Write a batch; settles with the offset of its first record. Fails with the code of the partition."""
        produced: Pending[int] = Pending()
        leader = self._leader_of(destination.topic, destination.partition)
        if leader is None or leader < 0:
            produced.fail(ApiError(ErrorCode.LEADER_NOT_AVAILABLE))
            return produced
        data = PartitionProduceData(index=destination.partition, records=build_batch(rows))
        topic = TopicProduceData(name=destination.topic, topic_id=destination.topic_id, partition_data=[data])
        request = ProduceRequest(acks=_ACKS_ALL, timeout_ms=self._timeout_ms, topic_data=[topic])

        def on_answer(response: ProduceResponse) -> int:
            results = [each for answer in response.responses for each in answer.partition_responses]
            if len(results) != 1:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the leader answered nothing")
            if results[0].error_code:
                raise ApiError(ErrorCode(results[0].error_code), results[0].error_message or "")
            return results[0].base_offset

        return self._send(leader, request).and_then(on_answer)

    def _on_produced(self, batch: _Batch, base_offset: int | None, error: ApiError | None) -> None:
        destination = batch.destination
        if error is not None:
            for group_id in batch.groups:
                self._count("DeadLetterQueueFailedProduceRequestsPerSec", group_id, 1)
        for letters in batch.letters:
            if error is not None:
                self._retry(letters, f"{destination.topic}-{destination.partition}: {error}")
            else:
                self._on_written(letters)
        if self._queues[destination]:
            self._timers.call_soon(lambda: self._fill(_Batch(destination)))
        else:
            del self._queues[destination]

    def _on_written(self, letters: _Letters) -> None:
        """A batch with letters of a range is acknowledged: there may be more of them."""
        self._count("DeadLetterQueueRecordCount", letters.key.group_id, letters.last_sent - letters.next_offset + 1)
        letters.attempts = 0
        letters.next_offset = letters.last_sent + 1
        if letters.next_offset > letters.records.last_offset:
            self._timers.call_soon(lambda: letters.outcome.complete(None))  # a fault in what follows is its own
            return
        if letters.sources is not None and letters.next_offset > letters.sources.last_offset:
            letters.sources = None
        self._begin(letters)

    def _retry(self, letters: _Letters, failure: str | None) -> None:
        letters.sources = None
        pause_ms = min(_FIRST_PAUSE_MS << min(letters.attempts, 16), _LONGEST_PAUSE_MS)
        letters.attempts += 1
        if failure is not None:
            self._warn(letters.key.group_id, f"dead letters are not written yet, and tried again: {failure}")
        self._timers.call_later_ms(pause_ms, partial(self._begin, letters))

    def _warn(self, group_id: str, message: str) -> None:
        """One line a group and interval."""
        now_ms = self._clock.mono_ms()
        if now_ms - self._warned_ms.get(group_id, -_WARNING_INTERVAL_MS) >= _WARNING_INTERVAL_MS:
            self._warned_ms = {group: ms for group, ms in self._warned_ms.items() if now_ms - ms < _WARNING_INTERVAL_MS}
            self._warned_ms[group_id] = now_ms
            log.warning("share group %s: %s", group_id, message)

    def _count(self, name: str, group_id: str, by: int) -> None:
        self._sensors.counter(_METRICS, name, (("group", group_id),)).value += by
