"""A coordinator's partitions on a broker: what is appended to them, and loading them where disks fail.

The coordinator is a fake one over a made-up internal topic: the shell and the table treat all kinds alike.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_world import CountingShard, FakeLog, counter_batch

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.broker.auto_topics import TopicPlan
from kalda.broker.coordinator_shell import CoordinatorShell, InternalTopicLog
from kalda.broker.coordinators import Coordinators
from kalda.coordinator.internal_topics import GROUPS, InternalTopic
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.protocol.messages.groups import CoordinatorType
from kalda.records.batch import read_header
from kalda.records.builder import read_records
from kalda.records.compression import Compression
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
        self.failed_reads: list[OSError] = []
        """What the log was told of reads that have failed."""

    def cold_read(self, offset: int) -> Any:
        if self.refuses:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        failure, data, end = self.failure, self.data, self.log_end_offset

        class Read:
            def __init__(self) -> None:
                self.failure = failure

            def __call__(self, *_: object) -> FetchInfo:
                if failure is not None:
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
                return FetchInfo(offset, end if data else offset, data)

        return Read()

    def take_over(self, read: Any) -> None:
        if read.failure is not None:
            self.failed_reads.append(read.failure)


class Broker:
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


def shell_over(broker: Any) -> tuple[CoordinatorShell, CoordinatorRuntime[CountingShard]]:
    runtime = counters()
    return CoordinatorShell(COUNTERS.name, runtime, broker, broker, broker, broker), runtime


def served(runtime: CoordinatorRuntime[CountingShard]) -> str:
    """What a request for any key gets: the counter, or an error."""
    try:
        return str(runtime.shard_for("key").total)
    except ApiError as error:
        return error.code.name


@pytest.mark.parametrize("how", ["refused", "failed", "cut off"])
def test_a_load_that_fails_is_tried_again_until_it_succeeds(how: str) -> None:
    broker = Broker()
    shell, runtime = shell_over(broker)
    log = DiskLog(counter_batch(0, 3, 4), 2)
    if how == "refused":
        log.refuses = True
    elif how == "failed":
        log.failure = OSError(5, "no disk")
    else:
        log.data = log.data[:-1]
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    assert served(runtime) == "NOT_COORDINATOR"
    assert len(log.failed_reads) == (how == "failed"), "the log learns that its disk has failed"
    broker.pass_time(1_000)
    assert served(runtime) == "NOT_COORDINATOR"
    log.refuses, log.failure, log.data = False, None, counter_batch(0, 3, 4)
    broker.pass_time(1_999)
    assert served(runtime) == "NOT_COORDINATOR", "the second attempt was to wait for twice as long"
    broker.pass_time(1)
    assert served(runtime) == "7"


def test_a_load_is_not_tried_again_when_another_broker_leads() -> None:
    broker = Broker()
    shell, runtime = shell_over(broker)
    log = DiskLog(b"", 2)
    log.refuses = True
    partition = broker.lead(COUNTERS.name, 0, log)
    shell.on_elected(partition)
    shell.on_resigned(0)
    log.refuses = False
    broker.pass_time(3_600_000)
    assert served(runtime) == "NOT_COORDINATOR"
    assert partition.on_high_watermark is None


def test_a_log_that_ends_before_its_end_is_loaded() -> None:
    """Compaction may have left nothing between the last batch and the end."""
    broker = Broker()
    shell, runtime = shell_over(broker)
    shell.on_elected(broker.lead(COUNTERS.name, 0, DiskLog(b"", 5)))
    assert served(runtime) == "0"


def test_a_batch_that_is_longer_than_its_segment_fails_the_load() -> None:
    broker = Broker()
    shell, runtime = shell_over(broker)
    log = DiskLog(b"", 5)
    log.cold_read = lambda offset: SimpleNamespace(failure=None)  # type: ignore[method-assign, assignment]
    cut_off = FetchInfo(0, 0, b"", first_entry_incomplete=True)
    jobs: Any = SimpleNamespace(run=lambda job, finish: finish(cut_off, None))
    shell._jobs = jobs
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    assert served(runtime) == "NOT_COORDINATOR"


@pytest.mark.parametrize("codec", Compression)
def test_records_are_stored_in_the_codec_of_their_topic(codec: Compression) -> None:
    appended: list[bytearray] = []

    def append(batch: bytearray, *_: object) -> Any:
        appended.append(batch)
        return SimpleNamespace(last_offset=7)

    replicas: Any = SimpleNamespace(get=lambda topic, partition: SimpleNamespace(append=append))
    log = InternalTopicLog("__consumer_offsets", replicas, codec)
    assert log.append(3, [(b"key", b"value" * 50), (b"gone", None)], 1_000) == 8
    (batch,) = appended
    assert read_header(batch).compression == codec
    assert [(record.key, record.value) for record in read_records(batch)] == [(b"key", b"value" * 50), (b"gone", None)]


# -- the table


def table(broker: Any) -> tuple[Coordinators, CoordinatorRuntime[CountingShard], CoordinatorRuntime[CountingShard]]:
    """Two coordinators of different topics."""
    properties = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "9@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "transaction.state.log.num.partitions": "7",
    }
    config = ServerConfig(properties)
    cache: Any = SimpleNamespace(topic=lambda name: None)
    coordinators = Coordinators(config, cache, broker, broker, broker, broker)
    groups, other = counters(GROUPS.name), counters()
    coordinators.add(GROUPS, groups)
    coordinators.add(COUNTERS, other)
    return coordinators, groups, other


def test_elections_reach_the_coordinator_of_their_topic_only() -> None:
    broker = Broker()
    coordinators, groups, other = table(broker)
    coordinators.on_elected(broker.lead("orders", 0, DiskLog(counter_batch(0, 9), 1)))
    coordinators.on_elected(broker.lead(COUNTERS.name, 0, DiskLog(counter_batch(0, 3, 4), 2)))
    assert (served(groups), served(other)) == ("NOT_COORDINATOR", "7")
    coordinators.on_elected(broker.lead(GROUPS.name, 0, DiskLog(counter_batch(0, 5), 1)))
    assert (served(groups), served(other)) == ("5", "7")
    coordinators.on_resigned(TopicPartition(GROUPS.name, 0))
    coordinators.on_resigned(TopicPartition("orders", 0))
    assert (served(groups), served(other)) == ("NOT_COORDINATOR", "7")


def test_deleted_topics_reach_every_coordinator() -> None:
    broker = Broker()
    coordinators, groups, other = table(broker)
    for topic in (GROUPS.name, COUNTERS.name):
        coordinators.on_elected(broker.lead(topic, 0, DiskLog(counter_batch(0, 1), 1)))
    coordinators.on_topics_deleted({"orders": Uuid(bytes(16))})
    assert [runtime.shard_for("key").deleted for runtime in (groups, other)] == [["orders"], ["orders"]]


def test_coordinators_are_found_and_their_topics_made_by_their_rows() -> None:
    coordinators, _, _ = table(Broker())
    assert [coordinators.topic_of(key_type) for key_type in CoordinatorType] == [GROUPS.name, COUNTERS.name, None]
    groups = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
    assert coordinators.plan(GROUPS.name) == TopicPlan(50, 3, groups)
    assert coordinators.plan(COUNTERS.name) == TopicPlan(
        7, 3, {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    )
    assert coordinators.plan("__share_group_state") is None
