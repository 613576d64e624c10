"""Several directories of logs: starts, stops, deletion, failures, periodic work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, uuid_from_text
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import read_offsets, write_meta_properties
from kalda.storage.config import DAY_MS, LogConfig, LogManagerConfig
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.job import Job
from kalda.storage.log.deletion import truncate_fully_and_start_at, truncate_to
from kalda.storage.log.log import Log

IDS = (uuid_from_text("MNPHyT7ST3aczZRbLi0kuQ"), uuid_from_text("mVVpxU3pQaCoy1YXQTK1ow"))
TOPIC_ID = Uuid(bytes(15) + b"\x09")
UNASSIGNED = Uuid(bytes(16))


class Node:
    """A node's directories over several starts, on one clock."""

    def __init__(self, config: LogConfig | None = None, seed: int = 1) -> None:
        self.now_ms = 1_000_000
        self.disk = SimDisk(random.Random(seed), now_ms=lambda: self.now_ms)
        self.config = config or LogConfig(segment_bytes=400, retention_ms=-1)
        self.failed: list[str] = []
        self.numbers = itertools.count()
        for index, directory_id in enumerate(IDS):
            self.disk.make_dirs(f"/d{index}")
            values = {"version": "1", "directory.id": ["MNPHyT7ST3aczZRbLi0kuQ", "mVVpxU3pQaCoy1YXQTK1ow"][index]}
            write_meta_properties(self.disk, f"/d{index}/meta.properties", values, 0)
            assert directory_id == IDS[index]
        self.disk.sync_dir("/")
        self.logs = self.start()

    def start(self, opened: int | None = None) -> LogManager:
        """Start, and open all logs, or only the first jobs' ones."""
        self.logs = LogManager(
            {"/d0": self.disk, "/d1": self.disk},
            lambda topic: self.config,
            unique=lambda: f"{next(self.numbers):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=self.on_dir_failed,
        )
        for job in self.logs.load_jobs()[:opened]:
            job.complete()
        return self.logs

    def on_dir_failed(self, directory: LogDir, error: OSError) -> None:
        self.failed.append(directory.path)

    def log(self, partition: int, directory_id: Uuid | None = None) -> Log:
        return self.logs.get_or_create_log(TopicPartition("t", partition), TOPIC_ID, self.config, directory_id)

    def checkpoint(self) -> None:
        """Write every kind of checkpoint."""
        intervals = LogManagerConfig()
        self.poll(max(intervals.recovery_point_interval_ms, intervals.log_start_interval_ms))

    def poll(self, after_ms: int = 0) -> int:
        self.now_ms += after_ms
        jobs = self.logs.maintenance.poll(self.now_ms)
        for job in jobs:
            job.complete()
        return len(jobs)


@pytest.fixture
def node() -> Node:
    return Node()


def append(log: Log, count: int = 1, size: int = 60) -> None:
    for _ in range(count):
        log.append_as_leader(build_batch([(1_000_000, b"k", bytes(size), ())]), 0, 1_000_000)
    log.update_high_watermark(log.log_end_offset)


def code_of(action: object) -> ErrorCode:
    assert callable(action)
    with pytest.raises(ApiError) as found:
        action()
    return found.value.code


def test_new_logs_go_to_the_directory_named_or_to_the_one_with_the_fewest(node: Node) -> None:
    homes = [node.log(partition).directory for partition in range(4)]
    assert homes == ["/d0/t-0", "/d1/t-1", "/d0/t-2", "/d1/t-3"]
    assert node.log(4, IDS[1]).directory == "/d1/t-4"
    assert node.log(5, UNASSIGNED).directory == "/d0/t-5"
    assert code_of(lambda: node.log(6, Uuid(bytes(8) + b"12345678"))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.log(4, IDS[1]) is node.log(4)


def test_new_logs_avoid_cordoned_directories_while_there_are_others(node: Node) -> None:
    left, right = node.logs.dirs
    left.cordoned = True
    assert [node.log(partition).directory for partition in range(2)] == ["/d1/t-0", "/d1/t-1"]
    assert node.log(2, IDS[0]).directory == "/d0/t-2"
    right.cordoned = True
    assert node.log(3).directory == "/d0/t-3"


def test_after_a_clean_stop_nothing_is_recovered(node: Node) -> None:
    append(node.log(0), 9)
    append(node.log(1), 2)
    node.log(0).advance_log_start_offset(2)
    node.logs.close(broker_epoch=42)
    for directory in ("/d0", "/d1"):
        assert node.disk.read_file(f"{directory}/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert node.disk.read_file("/d0/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
    node.disk.crash()
    logs = node.start()
    assert logs.dirs.previous_broker_epoch == 42
    assert ".kafka_cleanshutdown" not in node.disk.list_dir("/d0")
    log = logs.get(TopicPartition("t", 0))
    assert log is not None
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point) == (2, 9, 9, 9)
    assert log.topic_id == TOPIC_ID


def test_a_crash_is_recovered_from_the_recovery_points(node: Node) -> None:
    append(node.log(0), 3)
    node.log(0).flush()
    append(node.log(0), 3)
    node.poll()
    node.poll(60_000)
    assert read_offsets(node.disk, "/d0/recovery-point-offset-checkpoint") == {TopicPartition("t", 0): 3}
    node.disk.crash()
    logs = node.start()
    assert logs.dirs.previous_broker_epoch == -1
    log = logs.get(TopicPartition("t", 0))
    assert log is not None
    assert 3 <= log.log_end_offset <= 6


def test_producers_expire_by_their_own_check(node: Node) -> None:
    """Its first run does not wait for `log.initial.task.delay.ms`."""
    config = LogManagerConfig(initial_delay_ms=10**9, producer_check_interval_ms=1_000, producer_expiration_ms=1)
    node.logs.maintenance.config = config
    log = node.log(0)
    batch = build_batch([(1_000_000, b"k", b"", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, 0, 1_000_000)
    node.logs.maintenance.start(node.now_ms)
    node.poll(999)
    assert log.producer_states.get(7) is not None
    node.poll(1)
    assert log.producer_states.get(7) is None


def test_segments_are_flushed_after_a_roll(node: Node) -> None:
    log = node.log(0)
    assert node.poll() == 1  # the new log's id
    append(log, 4)
    assert len(log.segments) == 2
    assert log.recovery_point == 0
    assert node.poll() == 1
    assert log.recovery_point == log.segments.active.base_offset == 3


def _roll(node: Node, log: Log) -> None:
    log.roll(node.now_ms)


def _roll_and_go_on(node: Node, log: Log) -> None:
    log.roll(node.now_ms)
    append(log)
    log.flush()
    node.checkpoint()


def _roll_and_poll(node: Node, log: Log) -> None:
    log.roll(node.now_ms)
    node.checkpoint()


def _close(node: Node, log: Log) -> None:
    node.logs.close()


def _close_and_be_killed_and_roll(node: Node, log: Log) -> None:
    node.logs.close()
    node.start()
    node.disk.let_go()
    found = node.start().get(log.topic_partition)
    assert found is not None
    found.roll(node.now_ms)


@pytest.mark.parametrize("end", [_roll, _roll_and_go_on, _roll_and_poll, _close, _close_and_be_killed_and_roll])
def test_the_age_of_a_segment_survives_a_loss_of_power(end: Callable[[Node, Log], None]) -> None:
    """The last entry of the time index is made when the segment ends: here after its batches were synced. Zeros in
    its place would have retention delete the segment."""
    for seed in range(30):
        node = Node(seed=seed)
        log = node.log(0)
        append(log, 2)
        log.flush()
        node.checkpoint()
        end(node, log)
        node.disk.crash()
        found = node.start().get(TopicPartition("t", 0))
        assert found is not None
        assert found.log_end_offset >= 2
        assert found.segments.first.max_timestamp == (1_000_000, 0)


def test_the_age_of_a_segment_survives_a_truncation_and_a_loss_of_power() -> None:
    """The segment that is cut was complete and synced, and gets a new last entry."""
    for seed in range(30):
        node = Node(LogConfig(retention_ms=-1), seed=seed)
        log = node.log(0)
        for timestamp in range(1, 5):
            log.append_as_leader(build_batch([(timestamp, b"k", b"v", ())]), 0, timestamp)
        log.roll(node.now_ms)
        append(log)
        log.flush()
        node.checkpoint()
        truncate_to(log, 2)
        log.roll(node.now_ms)
        node.disk.crash()
        found = node.start().get(TopicPartition("t", 0))
        assert found is not None
        assert found.log_end_offset == 2
        assert found.segments.first.max_timestamp == (2, 1)


def test_a_deleted_log_is_dropped_at_once_and_its_files_later(node: Node) -> None:
    append(node.log(0))
    node.logs.delete_log(TopicPartition("t", 0))
    assert node.logs.get(TopicPartition("t", 0)) is None
    doomed = f"t-0.{0:032x}-delete"
    assert doomed in node.disk.list_dir("/d0")
    assert append(fresh := node.log(0)) is None
    assert fresh.log_end_offset == 1
    node.poll(59_999)
    assert doomed in node.disk.list_dir("/d0")
    node.poll(1)
    assert doomed not in node.disk.list_dir("/d0")


def test_a_deletion_is_finished_after_a_restart(node: Node) -> None:
    append(node.log(0))
    node.logs.delete_log(TopicPartition("t", 0))
    node.logs.close()
    logs = node.start()
    assert len(logs) == 0
    node.poll()
    assert not any(name.endswith("-delete") for name in node.disk.list_dir("/d0"))


def test_a_log_inherits_nothing_from_a_former_one_of_its_name(node: Node) -> None:
    """Neither a recovery point, nor a high watermark, nor a log start offset, when the power fails."""
    append(log := node.log(0), 9)
    log.advance_log_start_offset(7)
    log.flush()
    node.checkpoint()
    node.disk.sync_dir("/d0")
    node.logs.delete_log(TopicPartition("t", 0))
    half_done = node.logs.maintenance.poll(node.now_ms + 1_000)
    append(node.log(0), 3)
    node.disk.let_go()
    node.start()
    assert half_done, "a job that was to say it was never finished"
    found = node.log(0)
    assert (found.log_start_offset, found.log_end_offset, found.high_watermark) == (0, 3, 0)


def test_checkpoints_after_deletions_are_written_once_a_second(node: Node) -> None:
    """Each holds all logs of a directory: written for each of thousands of deletions, they would hold up the loop."""
    for number in range(4):
        append(node.log(number), 1)
    node.checkpoint()
    written = []
    for number in range(4):
        node.logs.delete_log(TopicPartition("t", number))
        jobs = node.logs.maintenance.poll(node.now_ms + 300 * number)
        written.append([job for job in jobs if "recovery-point" in job.description])
    assert not any(written)
    assert [job for job in node.logs.maintenance.poll(node.now_ms + 1_000) if "recovery-point" in job.description]


def test_a_clock_that_is_set_back_does_not_suspend_retention_and_checkpoints() -> None:
    """In Apache Kafka these go by a clock that is never set."""
    node = Node(LogConfig(segment_bytes=400, retention_bytes=1_000, retention_ms=-1))
    node.poll(10 * DAY_MS)
    for log in (node.log(0), node.log(1)):
        append(log, 20)
    node.logs.delete_log(TopicPartition("t", 1))
    node.poll()
    sizes = [node.log(0).size_bytes]
    assert sizes[0] > 1_400
    node.now_ms -= DAY_MS
    for _ in range(40):
        node.poll(10_000)
    sizes.append(node.log(0).size_bytes)
    points = read_offsets(node.disk, "/d0/replication-offset-checkpoint")
    assert sizes[1] <= 1_400
    assert points == {TopicPartition("t", 0): 20}
    assert not any(name.endswith("-delete") for name in node.disk.names("/d1"))


def test_of_two_logs_the_one_with_the_topic_id_of_the_metadata_is_served(node: Node) -> None:
    """A topic was deleted, and made again, while one of the directories was offline."""
    append(node.log(0, IDS[0]), 9)
    node.logs.close()
    node.disk.fail("/d0")
    node.start()
    node.logs.delete_log(TopicPartition("t", 0))
    again = Uuid(bytes(15) + b"\x0a")
    append(node.logs.get_or_create_log(TopicPartition("t", 0), again, node.config, UNASSIGNED), 2)
    node.logs.close()
    node.disk.mend("/d0")
    node.start().futures.settle(lambda tp, topic_id: UNASSIGNED if topic_id == again else None)
    found = node.logs.get(TopicPartition("t", 0))
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/d1/t-0", 2)
    assert any(name.endswith("-stray") for name in node.disk.list_dir("/d0"))


def test_of_two_logs_that_the_metadata_does_not_place_the_longer_one_is_served(node: Node) -> None:
    for directory_id, count in ((IDS[0], 9), (IDS[1], 2)):
        append(node.log(0, directory_id), count)
        node.logs.close()
        node.disk.fail("/d0")
        node.start()
    node.disk.mend("/d0")
    node.logs.close()
    node.start().futures.settle(lambda tp, topic_id: UNASSIGNED)
    found = node.logs.get(TopicPartition("t", 0))
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/d0/t-0", 9)
    assert any(name.endswith("-stray") for name in node.disk.list_dir("/d1"))


@pytest.mark.parametrize("operations", [frozenset({"name"}), frozenset({"name", "write", "sync"})])
def test_a_disk_that_fails_at_a_deletion_takes_its_directory_offline_and_no_more(
    node: Node, operations: frozenset[str]
) -> None:
    append(node.log(0, IDS[0]))
    append(node.log(1, IDS[1]))
    node.disk.fail("/d0", operations=operations)
    node.logs.delete_log(TopicPartition("t", 0))
    assert node.failed == ["/d0"]
    node.logs.set_aside(TopicPartition("t", 1), "is a stray")
    assert any(name.endswith("-stray") for name in node.disk.list_dir("/d1"))


def test_futures_of_a_directory_that_fails_while_they_are_settled_are_left_alone(node: Node) -> None:
    for partition in (0, 1):
        append(node.log(partition, IDS[1]))
        node.logs.futures.create(TopicPartition("t", partition), node.logs.dirs[0])
    node.disk.let_go()
    node.start()
    node.disk.fail("/d0", operations=frozenset({"name"}))
    node.logs.futures.settle(lambda tp, topic_id: None)
    assert node.failed == ["/d0"]
    assert not len(node.logs.futures)
    assert len(node.logs) == 2


def test_a_disk_that_fails_a_reader_on_a_thread_takes_its_directory_offline(node: Node) -> None:
    append(log := node.log(0, IDS[0]))
    read = log.read_later(0, 1_000, 1, True)
    node.disk.fail("/d0", operations=frozenset({"read"}))
    read.run()
    assert node.failed == [], "only `finish` takes a directory offline"
    assert read.finish()
    failed = read.result
    assert isinstance(failed, ApiError)
    assert failed.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.failed == ["/d0"]


def test_a_stray_log_is_set_aside(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    append(node.log(0))
    node.logs.set_aside(TopicPartition("t", 0), "is a stray")
    assert f"t-0.{0:032x}-stray" in node.disk.list_dir("/d0")
    assert "t-0 is a stray: it is set aside" in caplog.text
    node.logs.close()
    assert len(node.start()) == 0


class KilledError(Exception):
    """The process ends here."""


def killed_making(node: Node, at: str) -> Log:
    """The log of t-0 that a start finds after the process was killed before the first operation on a file of it that is
    called `at`."""

    def before(path: str, operation: str) -> None:
        if path.endswith(at):
            raise KilledError

    node.disk.before = before
    with pytest.raises(KilledError):
        node.log(0, IDS[0])
    node.disk.before = lambda path, operation: None
    node.disk.let_go()
    found = node.start().get(TopicPartition("t", 0))
    assert found is not None
    assert (found.topic_id, found.log_end_offset) == (None, 0)
    return found


@pytest.mark.parametrize("at", [".log", "partition.metadata.tmp", "partition.metadata"])
def test_a_log_that_was_never_complete_is_deleted(node: Node, at: str) -> None:
    """It cannot be adopted: the topic of its name may be another one now."""
    killed_making(node, at)
    node.logs.set_aside(TopicPartition("t", 0), "has no topic id")
    assert node.log(0, IDS[0]).topic_id == TOPIC_ID
    node.poll(node.config.file_delete_delay_ms)
    assert [name for name in node.disk.list_dir("/d0") if name.startswith("t-0")] == ["t-0"]


@pytest.mark.parametrize("name", ["notes", "00000000000000000000.log.corrupt", "00000000000000000000.log"])
def test_a_log_without_topic_id_is_kept_where_it_may_hold_anything(node: Node, name: str) -> None:
    killed_making(node, "partition.metadata")
    node.disk.open(f"/d0/t-0/{name}", create=True).write(0, build_batch([(1_000_000, None, b"v", ())]))
    node.disk.let_go()
    node.start().set_aside(TopicPartition("t", 0), "has no topic id")
    assert any(name.endswith("-stray") for name in node.disk.list_dir("/d0"))


def test_a_failed_directory_leaves_the_others(node: Node) -> None:
    append(node.log(0))
    append(node.log(1))
    log, other = node.log(0), node.log(1)
    node.disk.fail("/d0")
    assert code_of(lambda: append(log)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.failed == ["/d0"]
    assert code_of(lambda: node.log(0)) is ErrorCode.KAFKA_STORAGE_ERROR
    append(other)
    assert node.log(7).directory == "/d1/t-7"
    assert [found.online for found in node.logs.dirs.describe_job().complete()] == [False, True]
    node.poll(600_000)
    node.logs.close()
    node.disk.mend("/d0")
    assert node.start().dirs.previous_broker_epoch == -1  # one directory was not stopped cleanly
    assert len(node.logs) == 3


def test_a_directory_that_fails_at_the_start(node: Node) -> None:
    append(node.log(0))
    append(node.log(1))
    node.logs.close()
    node.disk.fail("/d0/t-0")
    logs = node.start()
    assert node.failed == ["/d0"]
    assert [str(log.topic_partition) for log in logs] == ["t-1"]


def test_a_log_that_its_disk_left_without_a_segment_is_not_checkpointed(node: Node) -> None:
    append(node.log(0), 3)
    node.disk.fail("/d0", operations=frozenset({"name"}))
    assert code_of(lambda: truncate_fully_and_start_at(node.log(0), 50)) is ErrorCode.KAFKA_STORAGE_ERROR
    for _ in range(3):
        node.poll(after_ms=60_000)
    assert [directory.online for directory in node.logs.dirs] == [False, True]


def test_a_job_that_fails_takes_its_directory_offline(node: Node) -> None:
    append(node.log(0), 4)
    jobs = node.logs.maintenance.poll(node.now_ms)
    node.disk.fail("/d0", operations=frozenset({"sync"}))
    for job in jobs:
        job.run()
        job.finish()
    assert node.failed == ["/d0"]


def test_a_directory_of_another_process_is_refused(node: Node) -> None:
    with pytest.raises(BlockingIOError):
        node.start()


def test_retention_walks_over_all_logs(node: Node) -> None:
    node.config = LogConfig(segment_bytes=200, retention_ms=1000)
    for partition in range(100):
        append(node.log(partition), 3)
    node.poll(30_000)
    assert sum(log.size_bytes == 0 for log in node.logs) < 10, "the files of few logs are renamed in one call"
    polls = 1
    while node.logs.maintenance.next_deadline_ms(node.now_ms) <= node.now_ms:
        node.poll()
        polls += 1
    assert all(log.size_bytes == 0 for log in node.logs)
    assert polls < 30


def test_many_segments_of_a_log_are_deleted_in_several_calls(node: Node) -> None:
    node.config = LogConfig(segment_bytes=200, retention_ms=1000)
    log = node.log(0)
    append(log, 120)
    left = [node.poll(30_000) and len(log.segments)]
    while node.logs.maintenance.next_deadline_ms(node.now_ms) <= node.now_ms:
        node.poll()
        left.append(len(log.segments))
    assert left[:3] == [70, 20, 1]


def test_a_cut_below_the_recovery_point_is_checkpointed_first(node: Node) -> None:
    log = node.log(0)
    append(log, 5)
    log.flush()
    node.poll(30_000)
    checkpoint = "/d0/recovery-point-offset-checkpoint"
    assert len(log.segments) == 2
    assert read_offsets(node.disk, checkpoint)[TopicPartition("t", 0)] == 4
    truncate_to(log, 2)
    assert read_offsets(node.disk, checkpoint)[TopicPartition("t", 0)] == 1  # it ends at 2


def test_the_checkpoint_is_lowered_for_a_log_that_is_found_shorter() -> None:
    """The power failed just after it was emptied."""
    for seed in range(30):
        node = Node(seed=seed)
        append(node.log(0), 9)
        node.log(0).flush()
        node.checkpoint()
        node.disk.sync_dir("/d0")
        node.disk.let_go()
        for name in node.disk.list_dir("/d0/t-0"):
            node.disk.remove(f"/d0/t-0/{name}")
        node.disk.sync_dir("/d0/t-0")
        node.start()
        append(node.log(0), 9)
        node.disk.crash()
        found = node.start().get(TopicPartition("t", 0))
        assert found is not None
        bases: list[int] = []
        while (at := len(bases)) < found.log_end_offset:
            piece = found.read(at, 1 << 20, found.log_end_offset, True).records
            assert piece, f"{at} is missing"
            for position, header in iter_batches(piece):
                check_crc(piece, position, header)
                bases.append(header.base_offset)
        assert bases == list(range(found.log_end_offset))


def test_a_cut_below_the_log_start_is_checkpointed_first(node: Node) -> None:
    """The leader's log ends below this log's start: records that are appended then must not count as deleted after a
    crash."""
    log = node.log(0)
    append(log, 9)
    log.flush()
    log.advance_log_start_offset(8)
    node.checkpoint()
    node.disk.sync_dir("/d0")
    truncate_to(log, 4)
    append(log, 2)
    log.flush()
    node.disk.crash()
    found = node.start().get(TopicPartition("t", 0))
    assert found is not None
    assert (found.log_start_offset, found.log_end_offset) == (4, 6)


@pytest.mark.parametrize("late", [False, True])
def test_a_swapped_log_has_the_recovery_point_of_the_one_before(late: bool) -> None:
    """Until its new name is synced too, a loss of power may bring back the other one."""
    for seed in range(40):
        node = Node(seed=seed)
        log = node.log(0, IDS[0])
        append(log, 2)
        node.poll()
        log.flush()
        append(log)
        future = node.logs.futures.create(log.topic_partition, node.logs.dirs[1])
        future.append_as_follower(log.read(0, 1 << 20, 3, True).records, 0)
        future.flush(2)
        job = future.flush_job()
        job.run()
        if not late:
            job.finish()
        new = node.logs.futures.swap(log.topic_partition)
        if late:
            job.finish()
        synced = new.recovery_point
        node.disk.crash()
        node.start().futures.settle(lambda topic_partition, topic_id: IDS[1])
        found = node.logs.get(log.topic_partition)
        assert found is not None
        assert found.log_end_offset >= synced == 2


def test_a_damaged_checkpoint_means_recovery(node: Node) -> None:
    append(node.log(0), 5)
    node.logs.close()
    file = node.disk.open("/d0/recovery-point-offset-checkpoint")
    file.truncate(5)
    logs = node.start()
    log = logs.get(TopicPartition("t", 0))
    assert log is not None
    assert log.log_end_offset == 5


def test_a_start_that_was_broken_off_writes_no_marker_over_unopened_logs(node: Node) -> None:
    for partition in range(4):
        append(node.log(partition), 6)
        node.log(partition).advance_log_start_offset(5)
    node.checkpoint()
    node.disk.let_go()
    node.start(opened=1)
    assert sum(each.unopened_count for each in node.logs.dirs) == 3
    node.logs.close()
    assert node.disk.stat("/d1/.kafka_cleanshutdown") is None
    node.start()
    assert not node.logs.dirs[1].had_clean_shutdown
    assert [node.log(partition).log_start_offset for partition in range(4)] == [5, 5, 5, 5]


def test_a_directory_without_logs_is_marked(node: Node) -> None:
    node.logs.close()
    assert node.disk.stat("/d0/.kafka_cleanshutdown") is not None


def test_new_logs_have_their_ids_synced_by_jobs_and_not_by_appends(node: Node) -> None:
    logs = [node.log(partition) for partition in range(70)]
    node.disk.fail("/d0", operations=frozenset({"sync"}))
    node.disk.fail("/d1", operations=frozenset({"sync"}))
    for log in logs:
        append(log)
    assert not node.failed
    node.disk.mend("/d0")
    node.disk.mend("/d1")
    while node.poll():
        pass
    node.disk.crash()
    node.start()
    assert [node.logs.get(log.topic_partition).topic_id for log in logs] == [TOPIC_ID] * 70  # type: ignore[union-attr]


def test_a_flush_covers_the_topic_id(node: Node) -> None:
    log = node.log(0)
    append(log)
    log.flush()
    node.disk.crash()
    again = node.start().get(TopicPartition("t", 0))
    assert again is not None
    assert again.topic_id == TOPIC_ID
    assert again.log_end_offset == 1


def test_a_log_without_appends_syncs_nothing_at_the_stop(node: Node) -> None:
    for partition in range(3):
        node.log(partition).assign_leader_epoch(4, 0)
    node.poll()
    synced: list[str] = []
    sync_dir = node.disk.sync_dir
    node.disk.sync_dir = lambda path: (synced.append(path), sync_dir(path))[1]  # type: ignore[method-assign,assignment]
    for job in node.logs.close_jobs():
        job.complete()
    assert synced == []


def test_files_that_a_failed_flush_did_not_sync_are_synced_by_the_next(node: Node) -> None:
    log = node.log(0)
    append(log, 30)
    assert log.snapshots.unsynced
    log.leader_epochs.write()
    waiting = list(log.snapshots.unsynced)
    node.disk.fail("/d0", operations=frozenset({"sync"}))
    job = log.flush_job()
    with pytest.raises(OSError, match=r"I/O|EIO|error"):
        job.run()
    assert log.snapshots.unsynced == waiting
    assert log.leader_epochs.unsynced
    node.disk.mend("/d0")
    log.flush()
    assert not log.snapshots.unsynced
    assert not log.leader_epochs.unsynced


def test_jobs_together_are_all_finished() -> None:
    done: list[int] = []

    def broken() -> None:
        raise OSError(5, "broken")

    jobs = [Job("a", broken, done.append), Job("b", lambda: 2, done.append)]
    together = Job.together("both", jobs)
    together.run()
    with pytest.raises(OSError, match="broken"):
        together.finish()
    assert done == [2]
