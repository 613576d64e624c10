"""Counters and gauges of a broker's replicas, under Kafka's metric names (`kalda.base.sensors`).

A produce or a fetch counts once, for its topic; the broker's totals are sums over its topics. A topic has counters
while this broker holds a replica of it. Gauges are computed from the replicas at the moment when they are read.

Two rules for requests: TotalFetchRequestsPerSec counts partitions that are read. Partitions of a session that have not
changed are not read, so they do not count; Kafka reads and counts them. Failed requests are the broker's failures, as
in Kafka: errors that send a client to another broker, or refuse an offset or a size, do not count. A store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kalda.base.errors import ApiError, CrcMismatch, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.sensors import Counter, CounterSum, Measurable, SensorName, Sensors, Tags, gauged
from kalda.records.rules import Invalid, RecordsRefused
from kalda.replication.waiting import DelayedOperation, Waiter

if TYPE_CHECKING:
    from kalda.replication.partition import Partition

BROKER_TOPIC = "kafka.server:type=BrokerTopicMetrics"
REPLICA_MANAGER = "kafka.server:type=ReplicaManager"
FETCH_SESSIONS = "kafka.server:type=FetchSessionCache"
FETCHERS = "kafka.server:type=ReplicaFetcherManager"
PRODUCE_WAITS = "kafka.server:type=DelayedProduceMetrics"
FETCH_WAITS = "kafka.server:type=DelayedFetchMetrics"
_PARTITION = "kafka.cluster:type=Partition"
PURGATORY = "kafka.server:type=DelayedOperationPurgatory"

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


class Replicas(Protocol):
    """What the gauges are computed from (`kalda.replication.replica_manager.ReplicaManager`)."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Partition]: ...
    @property
    def offline_count(self) -> int: ...


def make_gauges(sensors: Sensors, replicas: Replicas) -> None:
    """Kafka's gauges over all replicas of a broker. Reading one visits every replica."""

    def gauge(name: str, read: Callable[[], float]) -> None:
        sensors.gauge(REPLICA_MANAGER, name, read=read)

    gauge("PartitionCount", lambda: len(replicas))
    gauge("OfflineReplicaCount", lambda: replicas.offline_count)
    gauge("LeaderCount", lambda: sum(each.is_leader for each in replicas))
    gauge("UnderReplicatedPartitions", lambda: sum(each.is_under_replicated for each in replicas))
    gauge("UnderMinIsrPartitionCount", lambda: sum(each.is_under_min_isr for each in replicas))
    gauge("AtMinIsrPartitionCount", lambda: sum(each.is_at_min_isr for each in replicas))
    gauge("ProducerIdCount", lambda: sum(len(each.log.producer_states) for each in replicas))
    for operation in DelayedOperation:
        _make_purgatory_gauges(sensors, replicas, operation)


def partition_sensors(replicas: Replicas, most: int) -> Iterator[tuple[SensorName, Measurable]]:
    """Kafka's gauges of each partition; nothing where there are more than `most`: they would hold the event loop. As in
    Kafka, all are 0 where this broker does not lead."""
    if len(replicas) > most:
        return
    for each in list(replicas):
        at, is_leader = each.topic_partition, each.is_leader
        tags = (("topic", at.topic), ("partition", str(at.partition)))
        for name, value in (
            ("InSyncReplicasCount", len(each.in_sync.isr) if is_leader else 0),
            ("ReplicasCount", len(each.replicas) if is_leader else 0),
            ("UnderReplicated", each.is_under_replicated),
            ("UnderMinIsr", each.is_under_min_isr),
            ("AtMinIsr", each.is_at_min_isr),
            ("LastStableOffsetLag", each.log.high_watermark - each.log.last_stable_offset if is_leader else 0),
        ):
            yield SensorName(_PARTITION, name, tags), gauged(value)


def lag_sensors(lags: Iterable[tuple[str, TopicPartition, int]]) -> Iterator[tuple[SensorName, Measurable]]:
    """Kafka's gauges of followers' lags: of fetcher, partition and lag."""
    for fetcher, at, lag in lags:
        tags = (("clientId", fetcher), ("topic", at.topic), ("partition", str(at.partition)))
        yield SensorName("kafka.server:type=FetcherLagMetrics", "ConsumerLag", tags), gauged(lag)


def _make_purgatory_gauges(sensors: Sensors, replicas: Replicas, operation: DelayedOperation) -> None:
    """`PurgatorySize`: a request counts once for each partition that it watches; `NumDelayedOperations`: once."""
    tags: Tags = (("delayedOperation", operation.value),)

    def watching() -> list[Waiter]:
        return [
            waiter
            for partition in replicas
            for waiters in (partition.waiters, partition.end_waiters)
            for waiter in waiters
            if waiter.operation is operation
        ]

    sensors.gauge(PURGATORY, "PurgatorySize", tags, lambda: len(watching()))
    sensors.gauge(PURGATORY, "NumDelayedOperations", tags, lambda: len(set(watching())))
