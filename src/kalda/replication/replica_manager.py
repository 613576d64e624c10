"""All replicas of a broker, kept in step with the metadata.

The metadata says which partitions this broker holds and who leads them; `apply` makes it so. Handlers find partitions
here by name. A partition whose log directory is offline is known but answers KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Timers
from kalda.base.sensors import Sensors
from kalda.replication.counters import ReplicaCounters, make_gauges
from kalda.replication.followers import ReplicationPeers
from kalda.replication.partition import NO_LEADER, Partition
from kalda.storage.log import Log


class Assignment(Protocol):
    """What the metadata says of one partition (`kalda.metadata.topics.PartitionRegistration`)."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def adding_replicas(self) -> tuple[int, ...]: ...


class Following(Protocol):
    """Who is told which partitions to copy (`kalda.replication.replica_fetchers.ReplicaFetchers`)."""

    def follow(self, partition: Partition) -> None: ...
    def stop(self, partition: Partition) -> None: ...


class ReplicaManager:
    """The broker's partitions."""

    def __init__(
        self,
        broker_id: int,
        timers: Timers,
        jobs: Jobs,
        fetch_max_bytes: int,
        topic_exists: Callable[[str, Uuid, int], bool],
        cluster: ReplicationPeers | None = None,
        sensors: Sensors | None = None,
    ) -> None:
        """`topic_exists(name, id, partition)` asks the metadata, by whichever of name and id is there. Without a
        `cluster` no partition has followers. `sensors` are the node's; counted into either way."""
        self.broker_id = broker_id
        self.timers = timers
        self.jobs = jobs
        self.fetch_max_bytes = fetch_max_bytes
        self.following: Following | None = None
        """Set by whoever runs fetchers, before the first `apply`."""
        self._topic_exists = topic_exists
        self._cluster = cluster
        self.partitions: dict[tuple[str, int], Partition] = {}
        """Live replicas by topic and partition. The data path reads it without a call; only this class changes it."""
        self._offline: set[tuple[str, int]] = set()
        sensors = Sensors() if sensors is None else sensors
        self.counters = ReplicaCounters(sensors)
        make_gauges(sensors, self)

    def __iter__(self) -> Iterator[Partition]:
        """Over a copy: what is done with one partition may remove others."""
        return iter(tuple(self.partitions.values()))

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def offline_count(self) -> int:
        """How many replicas are in log directories that are offline."""
        return len(self._offline)

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, where this broker holds a live replica of it."""
        return self.partitions.get((topic, index))

    def now_ms(self) -> int:
        """The time by which followers are in sync or not."""
        return 0 if self._cluster is None else self._cluster.now_ms()

    def get(self, topic: str, index: int) -> Partition:
        """The partition. Raises `ApiError` with the reason why it is not here."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise ApiError(self.missing_code(topic, None, index))
        return partition

    def missing_code(self, topic: str, topic_id: Uuid | None, index: int) -> ErrorCode:
        """Why a partition is not here: unknown, elsewhere, or on a disk that failed."""
        if (topic, index) in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not topic and topic_id is not None and topic_id != ZERO_UUID:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self._topic_exists(topic, topic_id or Uuid(b""), index):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def apply(
        self, topic_partition: TopicPartition, topic_id: Uuid, assignment: Assignment, log: Callable[[], Log]
    ) -> None:
        """Become what the metadata says. `log()` opens or creates the log where there is no replica yet; it raises
        `ApiError` where its directory is offline, and the replica is offline then."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            try:
                partition = Partition(
                    topic_partition, topic_id, self.broker_id, log(), self.jobs, self._cluster, self.counters
                )
            except ApiError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                self._offline.add(topic_partition)
                return
            self.partitions[topic_partition] = partition
            self._offline.discard(topic_partition)
        partition.adding_replicas = assignment.adding_replicas
        if assignment.leader == self.broker_id:
            self._stop_following(partition)
            partition.become_leader(
                assignment.leader_epoch, assignment.partition_epoch, assignment.replicas, assignment.isr
            )
        else:
            leader = assignment.leader if assignment.leader >= 0 else NO_LEADER
            partition.become_follower(
                leader, assignment.leader_epoch, assignment.partition_epoch, assignment.replicas, assignment.isr
            )
            if self.following is not None:
                self.following.follow(partition)

    def shrink_isrs(self) -> None:
        """Propose ISRs without those who do not keep pace; due every half of `replica.lag.time.max.ms`."""
        for partition in self:
            partition.shrink_isr()

    def _stop_following(self, partition: Partition) -> None:
        if self.following is not None:
            self.following.stop(partition)

    def remove(self, topic_partition: TopicPartition) -> Partition | None:
        """Forget a replica that the metadata no longer gives to this broker; its log is the caller's to delete."""
        self._offline.discard(topic_partition)
        partition = self.partitions.pop(topic_partition, None)
        if partition is not None:
            self._retire(partition)
        return partition

    def _retire(self, partition: Partition) -> None:
        partition.leader_id = NO_LEADER
        self._stop_following(partition)
        self.counters.remove_partition(partition.topic_partition.topic)
        partition.finish_waiters()

    def take_offline(self, topic_partitions: Iterable[TopicPartition]) -> list[Partition]:
        """A log directory failed: its replicas answer KAFKA_STORAGE_ERROR from now on."""
        removed: list[Partition] = []
        for topic_partition in topic_partitions:
            partition = self.partitions.pop(topic_partition, None)
            self._offline.add(topic_partition)
            if partition is not None:
                removed.append(partition)
        for partition in removed:
            self._retire(partition)
        return removed
