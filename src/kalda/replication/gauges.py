"""Gauges of a broker's replicas, under Kafka's metric names: computed from the replicas at the moment when they are
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from kalda.base.ids import TopicPartition
from kalda.base.sensors import Measurable, SensorName, Sensors, Tags, gauged
from kalda.replication.counters import REPLICA_MANAGER, DelayedOperation
from kalda.replication.partition import Partition, PartitionWaiter

PURGATORY = "kafka.server:type=DelayedOperationPurgatory"
_PARTITION = "kafka.cluster:type=Partition"


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

    def watching() -> list[PartitionWaiter]:
        return [
            waiter
            for partition in replicas
            for waiters in (partition.waiters, partition.end_waiters)
            for waiter in waiters
            if waiter.operation is operation
        ]

    sensors.gauge(PURGATORY, "PurgatorySize", tags, lambda: len(watching()))
    sensors.gauge(PURGATORY, "NumDelayedOperations", tags, lambda: len(set(watching())))
