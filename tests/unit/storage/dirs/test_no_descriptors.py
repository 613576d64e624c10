"""A process without a free descriptor: calls that need one fail, and no disk counts as failed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.deletion import delete_segments, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import collect_aborted
from kalda.storage.values import AppendOrigin

TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000

LOWERED = """
import resource, sys, os
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition, Uuid
from kalda.broker.process.disk import RealDisk
from kalda.records.builder import build_batch
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
failed = []
os.mkdir(sys.argv[1] + "/d")
logs = LogManager(
    {sys.argv[1] + "/d": RealDisk(8)},
    lambda _: LogConfig(),
    unique=lambda: "f" * 32,
    now_ms=lambda: 1,
    on_dir_failed=lambda directory, error: failed.append(error),
)
for job in logs.load_jobs():
    job.complete()
outcomes = []
for number in range(80):
    try:
        log = logs.get_or_create_log(TopicPartition("t", number), Uuid(bytes(15) + b"x"), LogConfig(), None)
        log.append_as_leader(build_batch([(1, None, b"x", ())]), 0, 1)
        outcomes.append("appended")
    except ApiError as error:
        outcomes.append(error.code.name)
assert outcomes[:30] == ["appended"] * 30, outcomes
assert set(outcomes[60:]) == {"KAFKA_STORAGE_ERROR"}, outcomes
logs.maintenance.checkpoint_soon()
for job in logs.maintenance.poll(10**9):
    job.complete()
assert not failed, failed
assert all(directory.online for directory in logs.dirs)
for log in list(logs)[:10]:
    log.close(clean=False)
log = list(logs)[-1]
log.append_as_leader(build_batch([(1, None, b"x", ())]), 0, 1)
print("checkpoint", os.path.getsize(sys.argv[1] + "/d/recovery-point-offset-checkpoint") > 10)
"""


def test_a_process_at_its_limit_refuses_requests_and_keeps_its_directories(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOWERED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checkpoint", "True"]
    assert "Raise the limit of open files" in done.stderr


RELEASING = (
    LOWERED.split("outcomes = []")[0]
    + """
disk = next(iter(logs.dirs)).disk
disk.when_many_are_open(lambda: logs.open_files.release())
for _ in range(3):
    for number in range(200):
        log = logs.get_or_create_log(TopicPartition("t", number), Uuid(bytes(15) + b"x"), LogConfig(), None)
        log.append_as_leader(build_batch([(1, None, b"x", ())]), 0, 1)
assert not failed, failed
assert {log.log_end_offset for log in logs} == {3}
assert {log.read(0, 1000, 3, True).next_offset for log in logs} == {3}
print("open", sum(log.segments.active.is_open for log in logs) < 64)
"""
)


def test_more_partitions_than_descriptors_are_in_use(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELEASING, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["open", "True"]


def test_the_files_of_logs_that_rest_are_closed_first() -> None:
    node = Node()
    new = [TopicPartition("u", number) for number in range(5)]
    logs = [node.log, *(node.logs.get_or_create_log(each, TOPIC_ID, node.config, None) for each in new)]
    for log in logs:
        log.append_as_leader(build_batch([(NOW, None, b"x", ())]), 0, NOW)
    assert node.logs.open_files.release() == 3, "all have been in use: half of them"
    still_open = [log for log in logs if log.segments.active.is_open]
    still_open[0].append_as_leader(build_batch([(NOW, None, b"x", ())]), 0, NOW)
    assert node.logs.open_files.release() == 2
    assert [log for log in logs if log.segments.active.is_open] == still_open[:1]


class Node:
    def __init__(self, config: LogConfig | None = None) -> None:
        self.disk = SimDisk(random.Random(1))
        self.disk.make_dirs("/d")
        self.config = config or LogConfig()
        self.failed: list[OSError] = []
        self.start()

    def start(self) -> None:
        self.logs = LogManager(
            {"/d": self.disk},
            lambda _: self.config,
            config=LogManagerConfig(verify_transactions=False),
            unique=lambda: "f" * 32,
            now_ms=lambda: NOW,
            on_dir_failed=lambda _, error: self.failed.append(error),
        )
        for job in self.logs.load_jobs():
            job.complete()
        self.log = self.logs.get_or_create_log(TopicPartition("t", 0), TOPIC_ID, self.config, None)

    def restart(self) -> None:
        self.disk.let_go()
        self.start()

    @contextmanager
    def no_descriptor(self, left: int = 0) -> Iterator[None]:
        self.disk.handles_left = left
        with pytest.raises(ApiError) as found:
            yield
        self.disk.handles_left = None
        assert found.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not self.log.offline
        assert not self.failed

    def append(self, count: int = 1, size: int = 10, **fields: int) -> int:
        rows = [(NOW, None, bytes(size), ()) for _ in range(count)]
        info = self.log.append_as_leader(build_batch(rows, **fields), 0, NOW)
        self.log.update_high_watermark(self.log.log_end_offset)
        return info.first_offset


@pytest.mark.parametrize("left", range(6))
def test_a_roll_that_fails_leaves_a_log_that_goes_on_in_its_old_segment(left: int) -> None:
    """Recovery would otherwise cut it where an empty segment begins."""
    node = Node(LogConfig(segment_bytes=300))
    node.append(size=100)
    node.log.flush(0)
    try:
        with node.no_descriptor(left):
            node.append(size=200)
    except pytest.fail.Exception:
        assert left >= 3, "so many descriptors are enough"
        return
    assert node.append(size=10) == 1
    assert len(node.log.segments) == 1
    node.restart()
    assert node.log.log_end_offset == 2
    assert node.append(size=200) == 2


@pytest.mark.parametrize("left", range(4))
def test_an_append_that_fails_is_not_in_a_log_that_was_just_found(left: int) -> None:
    """Its files are opened by the first append: the batches, then both indexes."""
    node = Node(LogConfig(index_interval_bytes=0))
    node.append(size=50)
    node.append(size=50)
    node.restart()
    node.log.segments.active.bytes_since_index = 1
    try:
        with node.no_descriptor(left):
            node.append()
    except pytest.fail.Exception:
        assert left >= 2, "so many descriptors are enough"
        return
    assert node.append() == 2
    assert node.append() == 3
    found = node.log.read(0, 10_000, 10)
    assert found.next_offset == 4
    node.restart()
    assert node.log.log_end_offset == 4


def test_a_transaction_is_not_aborted_where_the_abort_cannot_be_noted() -> None:
    node = Node()
    node.append(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = transaction_marker_batch(
        producer_id=1, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=NOW
    )
    with node.no_descriptor():
        node.log.append_as_leader(marker, 0, NOW, origin=AppendOrigin.COORDINATOR)
    assert node.log.log_end_offset == 1
    assert node.log.last_stable_offset == 0
    node.log.append_as_leader(marker, 0, NOW, origin=AppendOrigin.COORDINATOR)
    assert [txn.last_offset for txn in collect_aborted(node.log.segments, 0, 2)] == [1]


def test_a_read_that_cannot_open_a_file_fails_alone() -> None:
    node = Node(LogConfig(segment_bytes=100))
    for _ in range(8):
        node.append(size=30)
    with node.no_descriptor():
        node.log.read(0, 1000, 8)
    assert node.log.read(0, 1000, 8).next_offset == 1


def test_a_flush_that_cannot_open_files_is_done_by_the_next_one() -> None:
    node = Node()
    node.append()
    node.log.segments.active.close()
    with node.no_descriptor():
        node.log.flush_job()
    node.log.flush()
    assert node.log.recovery_point == 1


def test_a_stop_that_cannot_open_files_leaves_no_marker_of_a_clean_one() -> None:
    node = Node()
    node.append()
    node.log.segments.active.close()
    node.disk.handles_left = 0
    node.logs.close()
    node.disk.handles_left = None
    assert ".kafka_cleanshutdown" not in node.disk.names("/d")
    node.failed.clear()
    node.restart()
    assert node.log.log_end_offset == 1


def test_files_that_cannot_be_removed_are_removed_later() -> None:
    node = Node()
    tried: list[int] = []

    def remove(disk: object) -> None:
        tried.append(1)
        if len(tried) == 1:
            node.disk.handles_left = 0
            node.disk.open("/d/x", create=True)

    node.logs.maintenance.remove_later(node.logs.dirs[0], NOW, remove)
    for due_ms in (NOW, NOW + 59_999, NOW + 60_000):
        for job in node.logs.maintenance.poll(due_ms):
            job.complete()
        node.disk.handles_left = None
    assert len(tried) == 2
    assert not node.failed


def log_of_segments(count: int) -> Log:
    """A log of so many segments, of one batch each."""
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    config = LogConfig(segment_bytes=500)
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True))
    for _ in range(count):
        log.append_as_leader(build_batch([(NOW, None, bytes(300), ())]), 0, NOW)
    return log


def test_old_segments_that_were_read_do_not_stay_open_when_others_are_deleted() -> None:
    """Consumers that read their way through a log, with a segment deleted now and then."""
    log = log_of_segments(60)
    log.update_high_watermark(60)
    most = 0
    for offset in range(10, 50):
        log.read(offset, 1_000, 60, True)
        if offset % 4 == 0:
            delete_segments(log, [log.segments.first])
        most = max(most, sum(segment.is_open for segment in log.segments))
    assert most <= 6
    log.reads.release()
    assert [segment for segment in log.segments if segment.is_open] == [log.segments.active]


def test_a_segment_that_was_read_and_is_active_again_stays_open() -> None:
    log = log_of_segments(12)
    log.read(6, 1_000, 12, True)
    truncate_to(log, 7)
    for offset in range(6):
        log.read(offset, 1_000, 7, True)
    assert log.segments.active.is_open
    log.append_as_leader(build_batch([(NOW, None, bytes(300), ())]), 0, NOW)
    assert log.read(6, 1_000, 8, True).size_bytes


@pytest.mark.parametrize("rolls", [False, True])
def test_what_a_refused_append_has_written_is_no_part_of_the_log(rolls: bool) -> None:
    """The batches are in the file before the index is opened. After a clean stop, lengths are taken from the files."""
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    config = LogConfig(index_interval_bytes=10)

    def open_log() -> Log:
        return Log.open(
            Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True)
        )

    def fetched(offset: int, value: bytes) -> bytes:
        return bytes(build_batch([(NOW, None, value, ())], base_offset=offset, leader_epoch=0))

    log = open_log()
    log.append_as_follower(fetched(0, b"0") + fetched(1, b"1"), 0)
    log.close()
    log = open_log()
    log.read(0, 1_000, 2, True)
    disk.handles_left = 0
    with pytest.raises(ApiError):
        log.append_as_follower(fetched(2, b"2") + fetched(3, b"refused") + fetched(4, b"refused"), 0)
    disk.handles_left = None
    log.append_as_follower(fetched(2, b"2"), 0)
    if rolls:
        log.roll(NOW)
        log.append_as_follower(fetched(3, b"3"), 0)
    log.close()
    log = open_log()
    assert log.log_end_offset == (4 if rolls else 3)
    found = [bytes(log.read(offset, 10, 9, True).records) for offset in range(log.log_end_offset)]
    assert found == [fetched(offset, b"%d" % offset) for offset in range(log.log_end_offset)]
