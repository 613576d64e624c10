"""Counters of a broker's replicas, under Kafka's metric names (`kalda.base.sensors`).

A produce or a fetch counts once, for its topic; the broker's totals are sums over its topics. A topic has counters
while this broker holds a replica of it.

Two rules for requests: TotalFetchRequestsPerSec counts partitions that are read. Partitions of a session that have not
changed are not read, so they do not count; Kafka reads and counts them. Failed requests are the broker's failures, as
in Kafka: errors that send a client to another broker, or refuse an offset or a size, do not count. A store.
"""

from __future__ import annotations

from enum import Enum

from kalda.base.errors import ApiError, CrcMismatch, ErrorCode
from kalda.base.sensors import Counter, CounterSum, Sensors
from kalda.records.validation import Invalid, RecordsRefused

BROKER_TOPIC = "kafka.server:type=BrokerTopicMetrics"
REPLICA_MANAGER = "kafka.server:type=ReplicaManager"
FETCH_SESSIONS = "kafka.server:type=FetchSessionCache"
FETCHERS = "kafka.server:type=ReplicaFetcherManager"
PRODUCE_WAITS = "kafka.server:type=DelayedProduceMetrics"
FETCH_WAITS = "kafka.server:type=DelayedFetchMetrics"

_OF_TOPICS = {
    "bytes_in": "BytesInPerSec",
    "messages_in": "MessagesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "produce_requests": "TotalProduceRequestsPerSec",
    "failed_produce_requests": "FailedProduceRequestsPerSec",
    "bytes_rejected": "BytesRejectedPerSec",
    "fetch_requests": "TotalFetchRequestsPerSec",
    "failed_fetch_requests": "FailedFetchRequestsPerSec",
}
"""Names of the counters that each topic has, by their attributes here."""

NO_PRODUCE_FAILURES = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Error codes of a partition that do not count as failed produce requests."""

NO_FETCH_FAILURES = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    )
)
"""Error codes of a partition that do not count as failed fetch requests."""


class DelayedOperation(Enum):
    """What may wait, by Kafka's names in metrics."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    DELETE_RECORDS = "DeleteRecords"


class TopicCounters:
    """Counters of one topic on this broker, or their sums over all topics."""

    __slots__ = (*_OF_TOPICS, "partitions")

    bytes_in: Counter
    """Of batches as producers sent them, appended here."""
    messages_in: Counter
    bytes_out: Counter
    """Of records in answers to consumers."""
    produce_requests: Counter
    """Once for each partition of a request, as all of these."""
    failed_produce_requests: Counter
    bytes_rejected: Counter
    """Of batches that are too large."""
    fetch_requests: Counter
    """Partitions read; a fetch that waited reads them twice."""
    failed_fetch_requests: Counter

    def __init__(self, sensors: Sensors, topic: str) -> None:
        tags = (("topic", topic),)
        for attribute, name in _OF_TOPICS.items():
            setattr(self, attribute, sensors.counter(BROKER_TOPIC, name, tags))
        self.partitions = 0
        """How many partitions of the topic this broker holds."""


class ReplicaCounters:
    """All counters of one broker's replicas."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._topics: dict[str, TopicCounters] = {}
        self._sums: dict[str, CounterSum] = {
            attribute: sensors.counter_sum(BROKER_TOPIC, name) for attribute, name in _OF_TOPICS.items()
        }
        self.produce_requests = self._sums["produce_requests"]
        """Add to its `value` for partitions that are not on this broker."""
        self.fetch_requests = self._sums["fetch_requests"]
        """Likewise."""
        self.replication_bytes_in = sensors.counter(BROKER_TOPIC, "ReplicationBytesInPerSec")
        self.replication_bytes_out = sensors.counter(BROKER_TOPIC, "ReplicationBytesOutPerSec")
        self.reassignment_bytes_in = sensors.counter(BROKER_TOPIC, "ReassignmentBytesInPerSec")
        """Of `replication_bytes_in`, those for replicas that a reassignment adds; likewise out."""
        self.reassignment_bytes_out = sensors.counter(BROKER_TOPIC, "ReassignmentBytesOutPerSec")
        self.produce_expirations = sensors.counter(PRODUCE_WAITS, "ExpiresPerSec")
        """Partitions whose records were not committed in time."""
        consumer, follower = (
            sensors.counter(FETCH_WAITS, "ExpiresPerSec", (("fetcherType", kind),)) for kind in ("consumer", "follower")
        )
        self.consumer_expirations = consumer
        """Fetches that were answered because their time was up; likewise of followers."""
        self.follower_expirations = follower
        self._invalid = {invalid: sensors.counter(BROKER_TOPIC, invalid.value) for invalid in Invalid}
        self.isr_expands = sensors.counter(REPLICA_MANAGER, "IsrExpandsPerSec")
        self.isr_shrinks = sensors.counter(REPLICA_MANAGER, "IsrShrinksPerSec")
        self.failed_isr_updates = sensors.counter(REPLICA_MANAGER, "FailedIsrUpdatesPerSec")

    def add_partition(self, topic: str) -> TopicCounters:
        """This broker holds one more partition of the topic: the counters to count into."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicCounters(self._sensors, topic)
            for attribute, total in self._sums.items():
                total.add(getattr(counters, attribute))
        counters.partitions += 1
        return counters

    def on_refused(self, topic: TopicCounters, error: ApiError, size_bytes: int) -> None:
        """A batch of that size was refused."""
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            topic.bytes_rejected.value += size_bytes
        elif isinstance(error, CrcMismatch):
            self._invalid[Invalid.CRC].value += 1
        elif isinstance(error, RecordsRefused) and error.invalid is not None:
            invalid, count = error.invalid
            self._invalid[invalid].value += count

    def remove_partition(self, topic: str) -> None:
        """This broker holds one partition of the topic less. With the last one the topic's counters are removed; the
        broker's totals keep what they had counted."""
        counters = self._topics[topic]
        counters.partitions -= 1
        if not counters.partitions:
            del self._topics[topic]
            for attribute, total in self._sums.items():
                total.remove(getattr(counters, attribute))
            self._sensors.remove((("topic", topic),))
