"""All replicas of a broker, as the metadata assigns them.

The metadata assigns partitions and leaders to brokers; `apply` opens, leads or follows accordingly. Handlers find
partitions here by name. A replica whose log directory is offline has no `Partition`; requests for it are answered with
KAFKA_STORAGE_ERROR. A driver.

Not obvious:

- A producer's batches are taken in the order in which they were sent even where the first one was refused: one that
  is behind a refused batch gets the same error until that has come again, or 10 s are over. What appends for a client
  asks `RefusedBatches.check` first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeVar

from kalda.base.background import Background
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import MAX_LENGTH, ZERO_UUID, TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Pending, Timers
from kalda.base.sensors import Sensors
from kalda.records.batch import HEADER_SIZE, MAX_INT32
from kalda.replication.counters import ReplicaCounters
from kalda.replication.followers import ReplicationPeers
from kalda.replication.gauges import make_gauges
from kalda.replication.partition import NO_LEADER, Partition
from kalda.storage.log.log import Log
from kalda.storage.log.reads import RecentAppends
from kalda.storage.log.snapshot_jobs import SnapshotJob, run_snapshots

# The interface of a quota for replicas (KIP-73), which the floor `quota` implements.
#
# Whoever reads or fetches replicas asks once for each pass whether the rate is exceeded, and leaves out the throttled
# replicas that are not in sync: the ISR does not shrink by a throttle, and a replica that is about to join it is
# fetched at the rate that the quota allows. Bytes of all throttled replicas are recorded, whether they are in sync or
# not.

RETRY_MS: Final = 100
"""After so long a follower checks again whether it may fetch a throttled replica."""


class ReplicaThrottle(Protocol):
    """The quota of a leader, or of a follower."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is a throttled replica and a rate."""
        ...

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether this replica is throttled while the rate is exceeded."""
        ...

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas have to wait."""
        ...

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes of throttled replicas."""
        ...


T = TypeVar("T")

MAX_MS = 10_000
"""For so long the batches behind a refused one are refused. A client that has given it up takes a new epoch, or gets
OUT_OF_ORDER_SEQUENCE_NUMBER after this time, as from Kafka."""
MAX_NOTES = 1_000
"""Producers with a refused batch in a partition; the oldest notes are dropped first."""
RETRIED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)
"""Refusals before a look at the log, after which clients send the same batch again."""

_producer = Struct(">qhi").unpack_from
_PRODUCER_AT = 43
"""Producer id, epoch and base sequence of a batch."""
_MAGIC_AT = 16
_Key = tuple[str | Uuid, int, int]


class _Note(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    noted_ms: int


class RefusedBatches:
    """Per partition and idempotent producer, the first batch that was refused and has not come again.

    A producer has up to five requests in flight. Where the first one is refused, as this broker does not lead the
    partition yet or too few replicas are in sync, and the next ones come after that has changed, they have a gap before
    them. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then takes a new producer epoch and sends again what it
    has no answer to, though the former leader may have written it: records twice. To a partition that has no records of
    the producer yet Kafka appends them, whatever their sequence, and refuses the first one when it comes again.

    So what follows a refused batch is refused with the same error until that batch has come again, for at most
    `MAX_MS`: as if the broker had begun to lead a moment later, which is an answer that every client must be ready for.

    `notes` is empty nearly always, and the produce path checks that it is before anything else. So notes whose time is
    over are dropped by the next batch that comes, of whatever producer.
    """

    def __init__(self) -> None:
        self.notes: OrderedDict[_Key, _Note] = OrderedDict()
        """By the topic's name, or its id where the name was not known yet; partition; producer id. The oldest ones come
        first."""

    def note(self, topic: str | Uuid, index: int, records: object, error: ApiError, now_ms: int) -> None:
        """Records were refused. Nothing where no later batch depends on them."""
        if error.code not in RETRIED or not isinstance(records, memoryview | bytearray) or not _is_batch(records):
            return
        producer_id, epoch, sequence = _producer(records, _PRODUCER_AT)
        if producer_id < 0 or sequence < 0 or len(topic) > MAX_LENGTH:
            return
        self._drop_old(now_ms)
        key = topic, index, producer_id
        found = self.notes.get(key)
        if found is not None and (epoch < found.epoch or (epoch == found.epoch and _follows(sequence, found.sequence))):
            return
        self.notes[key] = _Note(epoch, sequence, error.code, now_ms)
        self.notes.move_to_end(key)
        if len(self.notes) > MAX_NOTES:
            self.notes.popitem(last=False)

    def check(self, partition: Partition, records: memoryview | bytearray, now_ms: int) -> None:
        """Raise where the records follow a refused batch that has not come again."""
        self._drop_old(now_ms)
        if not _is_batch(records):
            return
        producer_id, epoch, sequence = _producer(records, _PRODUCER_AT)
        if producer_id < 0:
            return
        topic, index = partition.topic_partition
        for key in ((topic, index, producer_id), (partition.topic_id, index, producer_id)):
            found = self.notes.get(key)
            if found is None:
                continue
            if _has_come(partition, producer_id, found):
                del self.notes[key]
            elif epoch == found.epoch and _follows(sequence, found.sequence):
                raise ApiError(found.code, "an earlier batch of this producer was refused, and has not come again")

    def _drop_old(self, now_ms: int) -> None:
        notes = self.notes
        while notes:
            key, oldest = next(iter(notes.items()))
            if 0 <= now_ms - oldest.noted_ms < MAX_MS:
                return
            del notes[key]  # also where the clock was set back


def _is_batch(records: memoryview | bytearray) -> bool:
    return len(records) >= HEADER_SIZE and records[_MAGIC_AT] == 2


def _follows(sequence: int, earlier: int) -> bool:
    """Whether a sequence is behind another one; they begin again with 0 after the largest."""
    return 0 < (sequence - earlier) & MAX_INT32 <= MAX_INT32 // 2


def _has_come(partition: Partition, producer_id: int, note: _Note) -> bool:
    """Whether the log has the batch, or needs it no more as the producer has a newer epoch."""
    state = partition.log.producer_states.get(producer_id)
    if state is None or state.epoch < note.epoch:
        return False
    return state.epoch > note.epoch or (bool(state.batches) and not _follows(note.sequence, state.last_sequence))


class Assignment(Protocol):
    """The metadata of one partition (`kalda.metadata.topics.PartitionRegistration`)."""

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
    """What copies partitions from their leaders (`kalda.replication.replica_fetcher.ReplicaFetchers`)."""

    def follow(self, partition: Partition) -> None: ...
    def stop(self, partition: Partition) -> None: ...


class ReplicaManager:
    """The broker's partitions. Invariant: a replica is in `partitions` or offline, not both."""

    def __init__(
        self,
        broker_id: int,
        timers: Timers,
        jobs: Jobs,
        background: Background,
        fetch_max_bytes: int,
        topic_exists: Callable[[str, Uuid, int], bool],
        cluster: ReplicationPeers | None = None,
        following: Following | None = None,
        sensors: Sensors | None = None,
    ) -> None:
        """`topic_exists(name, id, partition)`: whether the metadata has that partition, by name or, where that is
        empty, by id. Without a `cluster` no partition has followers; without `following` followers copy nothing.
        `sensors` are the node's; without them counts are kept, but not exported."""
        self.broker_id = broker_id
        self.timers = timers
        self.jobs = jobs
        self.background = background
        self.fetch_max_bytes = fetch_max_bytes
        self._recent = RecentAppends()
        self.refused = RefusedBatches()
        self.following = following
        self.throttle: ReplicaThrottle | None = None
        """The rate at which throttled replicas are sent to followers; None: there is none."""
        self._topic_exists = topic_exists
        self._cluster = cluster
        self.partitions: dict[tuple[str, int], Partition] = {}
        """Live replicas by topic and partition. The data path reads it without a call; only this class changes it."""
        self._offline: set[tuple[str, int]] = set()
        """Replicas in log directories that are offline."""
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

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker has a replica of the partition that it cannot serve."""
        return topic_partition in self._offline

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, where this broker holds a replica of it that is not offline."""
        return self.partitions.get((topic, index))

    def now_ms(self) -> int:
        """The clock by which followers are in sync or not."""
        return 0 if self._cluster is None else self._cluster.now_ms()

    def read_later(self, reads: Sequence[SnapshotJob[T]]) -> Pending[list[T | ApiError]]:
        """Run the reads of one request that would block, by one job; as `run_snapshots`. The one place where requests
        for records wait for a device."""
        return run_snapshots(self.jobs, reads)

    def get(self, topic: str, index: int) -> Partition:
        """The partition. Raises `ApiError` with `missing_code` where it is not here."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise ApiError(self.missing_code(topic, None, index))
        return partition

    def missing_code(self, topic: str, topic_id: Uuid | None, index: int) -> ErrorCode:
        """Why a partition is not here: it is unknown, on other brokers only, or in a directory that is offline."""
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
        """Lead or follow as the metadata says. Where there is no replica yet, `log()` opens or creates its log; the
        replica is offline where that raises KAFKA_STORAGE_ERROR."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            try:
                partition = Partition(
                    topic_partition,
                    topic_id,
                    self.broker_id,
                    log(),
                    self.jobs,
                    self._cluster,
                    self.counters,
                    self._recent,
                )
            except ApiError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                self._offline.add(topic_partition)
                return
            self.partitions[topic_partition] = partition
            self._offline.discard(topic_partition)
        assert topic_partition not in self._offline, f"{topic_partition} is served, and in an offline directory"
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
        """Propose ISRs without members that do not keep pace; to be called twice in every `replica.lag.time.max.ms`."""
        for partition in self:
            partition.shrink_isr()

    def _stop_following(self, partition: Partition) -> None:
        if self.following is not None:
            self.following.stop(partition)

    def remove(self, topic_partition: TopicPartition) -> Partition | None:
        """Remove a replica that the metadata no longer assigns to this broker. Its log is the caller's to delete."""
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
        """A log directory has failed: requests for its replicas are answered with KAFKA_STORAGE_ERROR from now on."""
        removed: list[Partition] = []
        for topic_partition in topic_partitions:
            partition = self.partitions.pop(topic_partition, None)
            self._offline.add(topic_partition)
            if partition is not None:
                removed.append(partition)
        for partition in removed:
            self._retire(partition)
        return removed


# Which replica a consumer should read from (KIP-392).
#
# The leader answers a consumer that names its rack with a replica in that rack, from which the consumer fetches from
# then on. A replica qualifies while its broker is not fenced and its log has the fetch offset. The consumer reads up
# to that follower's high watermark, so only committed records. Pure functions over a partition.

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""`replica.selector.class`."""

NONE_PREFERRED = -1


class RackAwareSelector:
    """Prefers the follower in the consumer's rack whose log ends last; the leader, where that is in the rack, or no
    follower is."""

    def __init__(self, broker_id: int, rack_of: Callable[[int], str | None]) -> None:
        """`rack_of(broker)` is None for one that is fenced, unknown or has no rack."""
        self._broker_id = broker_id
        self._rack_of = rack_of

    def select(self, partition: Partition, offset: int, rack: str) -> int:
        """A follower's id, or -1 to read from the leader."""
        if self._rack_of(self._broker_id) == rack:
            return NONE_PREFERRED
        found = [
            (follower.log_end_offset, follower.last_caught_up_ms or 0, -follower.broker_id)
            for follower in partition.in_sync.followers.values()
            if follower.log_start_offset <= offset <= follower.log_end_offset
            and self._rack_of(follower.broker_id) == rack
        ]
        return -max(found)[2] if found else NONE_PREFERRED
