"""Logs, replicas, time and jobs of a broker, moved by hand, under coordinators that sum numbers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from coordinator_world import CountingShard, FakeLog

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.coordinator.internal_topics import InternalTopic
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.protocol.messages.groups import CoordinatorType
from kalda.storage.values import FetchInfo

COUNTERS = InternalTopic(
    "__counters",
    CoordinatorType.TRANSACTION,
    partitions_key="transaction.state.log.num.partitions",
    replication_factor_key="transaction.state.log.replication.factor",
    topic_configs={"cleanup.policy": "compact"},
    topic_config_keys={"min.insync.replicas": "transaction.state.log.min.isr"},
)


class DiskLog:
    """A partition's log of one slice, on a disk that fails as long as `failure` is set."""

    def __init__(self, data: bytes, end: int) -> None:
        self.log_start_offset, self.log_end_offset, self.high_watermark = 0, end, end
        self.data = data
        self.refuses = False
        """Whether a read is refused at once, because the log is offline."""
        self.failure: OSError | None = None
        self.is_cut_off = False
        """Whether the first batch is longer than its segment."""
        self.failed_reads: list[OSError] = []
        """Failures of reads that were reported to the log."""
        self.segments = SimpleNamespace(active=SimpleNamespace(size=0))

    def read_later(self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool) -> Any:
        if self.refuses:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return _Read(self, offset)


class _Read:
    """A read of the slice, which fails where the disk does."""

    def __init__(self, log: DiskLog, offset: int) -> None:
        self._log = log
        self._offset = offset

        self.has_records = False
        self.result: FetchInfo | ApiError = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    def run(self, found_before: bool) -> None:
        pass

    def finish(self) -> bool:
        log = self._log
        if log.failure is not None:
            log.failed_reads.append(log.failure)
            return True
        end = log.log_end_offset if log.data else self._offset
        self.result = FetchInfo(self._offset, end, log.data, first_entry_incomplete=log.is_cut_off)
        return True


class BrokerByHand:
    """Replicas, time and jobs of a broker, moved by hand."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], Any] = {}
        self.now = 0
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def lead(self, topic: str, index: int, log: DiskLog, epoch: int = 1) -> Any:
        partition = SimpleNamespace(
            topic_partition=TopicPartition(topic, index), leader_epoch=epoch, log=log, on_high_watermark=None
        )
        self.partitions[topic, index] = partition
        return partition

    def find(self, topic: str, index: int) -> Any:
        return self.partitions.get((topic, index))

    def mono_ms(self) -> int:
        return self.now

    def run(self, job: Any, finish: Any) -> None:
        try:
            finish(job(), None)
        except ApiError as error:
            finish(None, error)

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Any:
        entry = (self.now + delay_ms, callback)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: self.timers.remove(entry) if entry in self.timers else None)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        while due := [entry for entry in self.timers if entry[0] <= self.now]:
            self.timers.remove(due[0])
            due[0][1]()


def counters(topic: str = COUNTERS.name) -> CoordinatorRuntime[CountingShard]:
    return CoordinatorRuntime(topic, CountingShard, FakeLog(), lambda: 1, 5_000)


def served(runtime: CoordinatorRuntime[CountingShard]) -> str:
    """What a request for any key gets: the counter, or an error."""
    try:
        return str(runtime.shard_for("key").total)
    except ApiError as error:
        return error.code.name
