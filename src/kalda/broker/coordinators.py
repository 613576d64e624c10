"""This broker's coordinators, by the internal topic that each keeps its state in.

One table for coordinators of every kind: the publisher calls it with elected partitions, FindCoordinator finds the
topic of a key type in it, and a missing internal topic is created by its row. A coordinator that was not added is not
served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kalda.base.background import Background
from kalda.base.clock import Clock
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Jobs, Timers
from kalda.base.sensors import SensorName, Sensors
from kalda.broker.auto_topics import TopicPlan
from kalda.broker.coordinator_shell import CoordinatorShell, InternalTopicLog
from kalda.broker.metadata_cache import MetadataCache
from kalda.coordinator.internal_topics import InternalTopic
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.records.compression import Compression
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.values import TransactionEnd


def add_load_times(sensors: Sensors, group: str, runtime: CoordinatorRuntime[Any]) -> None:
    """Report for how long partitions of a coordinator's topic are loaded."""
    names = SensorName(group, "partition-load-time-avg"), SensorName(group, "partition-load-time-max")
    sensors.add_source(lambda: zip(names, (runtime.load_time_avg, runtime.load_time_max), strict=True))


class Coordinators:
    """The table, and the shells that drive the coordinators in it."""

    def __init__(
        self,
        config: ServerConfig,
        cache: MetadataCache,
        replicas: ReplicaManager,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        self._config = config
        self._cache = cache
        self._replicas = replicas
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._topics: dict[str, InternalTopic] = {}
        self._shells: dict[str, CoordinatorShell] = {}
        """By topic, as `_topics`."""

    def log(self, topic: InternalTopic) -> InternalTopicLog:
        """What the coordinator of `topic` appends with."""
        key = topic.compression_key
        codec = Compression.NONE if key is None else Compression(self._config[key])
        return InternalTopicLog(topic.name, self._replicas, codec)

    def partition_count(self, topic: InternalTopic) -> int:
        """How many partitions the topic has, 0 while it does not exist."""
        found = self._cache.topic(topic.name)
        return 0 if found is None else len(found.partitions)

    def add(self, topic: InternalTopic, runtime: CoordinatorRuntime[Any]) -> CoordinatorShell:
        """Serve the coordinator of `topic`; before the first metadata update."""
        assert topic.name not in self._topics, f"{topic.name} has a coordinator"
        shell = CoordinatorShell(
            topic.name, runtime, self._replicas, self._clock, self._timers, self._jobs, self._background
        )
        self._topics[topic.name] = topic
        self._shells[topic.name] = shell
        return shell

    def topic_of(self, key_type: int) -> str | None:
        """The topic that coordinates keys of that type (FindCoordinator); None where no coordinator here does."""
        return next((topic.name for topic in self._topics.values() if topic.key_type == key_type), None)

    def plan(self, name: str) -> TopicPlan | None:
        """How the topic of that name is made; None where it is not a coordinator's."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        config = self._config
        return TopicPlan(
            config[topic.partitions_key], config[topic.replication_factor_key], topic.configs(config.values)
        )

    def end_transaction(self, topic: str, partition: int, end: TransactionEnd) -> Pending[None] | None:
        """Append the marker of a transaction that wrote to a coordinator's log, and apply it; None where the topic is
        not a coordinator's."""
        shell = self._shells.get(topic)
        return None if shell is None else shell.end_transaction(partition, end)

    # -- what the publisher reports

    def on_elected(self, partition: Partition) -> None:
        """This broker leads the partition from now on, in a new epoch."""
        shell = self._shells.get(partition.topic_partition.topic)
        if shell is not None:
            shell.on_elected(partition)

    def on_resigned(self, topic_partition: TopicPartition) -> None:
        """This broker follows the partition, or has no replica of it any more."""
        shell = self._shells.get(topic_partition.topic)
        if shell is not None:
            shell.on_resigned(topic_partition.partition)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics were deleted, by name and id."""
        for shell in self._shells.values():
            shell.on_topics_deleted(topics)

    def close(self) -> None:
        """Stop the timers."""
        for shell in self._shells.values():
            shell.close()
