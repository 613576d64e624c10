"""The thread of a log opens no file: neither before the first append, nor before a read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import ColdRead, TimeSearch, aborted_nowait, open_logs
from kalda.storage.values import FetchInfo, TimestampOffset

NOW = 1_700_000_000_000


class WatchedDisk(SimDisk):
    """Open files may be read and written; while `owner` is set, the log's own thread runs, and must not open any."""

    owner = False

    def open(self, path: str, **how: Any) -> Any:
        assert not self.owner, f"{path} is opened"
        return super().open(path, **how)

    def read_file(self, path: str, max_bytes: int = 1 << 26) -> bytes:
        assert not self.owner, f"{path} is read"
        return super().read_file(path, max_bytes)

    def stat(self, path: str) -> Any:
        assert not self.owner, f"{path} is looked up"
        return super().stat(path)


class HeldJobs:
    """One job, of which the test runs the two halves."""

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self._job, self._finish = job, finish

    def work(self) -> None:
        """On another thread."""
        self._job()

    def end(self) -> None:
        """On the logs' own thread."""
        self._finish(None, None)


@pytest.fixture
def disk() -> WatchedDisk:
    disk = WatchedDisk(random.Random(1))
    disk.make_dirs("/d")
    return disk


def open_log(disk: SimDisk) -> Log:
    config = LogConfig(segment_bytes=60_000, index_interval_bytes=4_096)
    return Log.open(Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True))


def append(log: Log, size: int = 5_000) -> None:
    log.append_as_leader(build_batch([(NOW, b"k", bytes(size), ())]), 0, NOW)


def found_on_disk(disk: SimDisk, batches: int) -> Log:
    """A log that another process has written."""
    log = open_log(disk)
    for _ in range(batches):
        append(log)
    log.close()
    return open_log(disk)


def read(disk: WatchedDisk, log: Log, offset: int) -> int:
    """How many cold reads it takes until a read at `offset` is hot."""
    jobs = 0
    disk.owner = True
    while isinstance(found := log.read_nowait(offset, 20_000, log.log_end_offset), ColdRead):
        jobs += 1
        disk.owner = False
        found.run()
        disk.owner = True
        assert found.finish()
        assert isinstance(found.result, FetchInfo)
    disk.owner = False
    assert found.first_offset == offset
    assert found.next_offset > offset
    return jobs


def test_a_new_log_is_not_cold(disk: WatchedDisk) -> None:
    assert not open_log(disk).cold


def test_the_first_appends_open_nothing(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 5)
    assert log.cold
    jobs = HeldJobs()
    open_logs(jobs, [log])
    disk.owner = False
    jobs.work()
    disk.owner = True
    jobs.end()
    assert not log.cold
    for _ in range(3):  # so many that an index gets entries
        append(log)
    disk.owner = False
    assert log.read(0, 1 << 20, 8).next_offset == 8
    log.close()
    assert open_log(disk).log_end_offset == 8


def test_batches_appended_while_the_files_are_opened_stay(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 5)
    jobs = HeldJobs()
    open_logs(jobs, [log])
    jobs.work()
    for _ in range(3):
        append(log)
    jobs.end()
    append(log)
    log.close()
    log = open_log(disk)
    assert [log.read(offset, 1 << 20, 9).next_offset for offset in range(9)] == [9] * 9
    positions = [position for _, position in log.segments.active.offset_index.entries()]
    assert positions == sorted(set(positions))
    assert len(positions) == 7


def test_a_log_that_was_moved_away_meanwhile_is_not_opened(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 5)
    jobs = HeldJobs()
    open_logs(jobs, [log])
    log.rename_dir("/d/t-0.x-delete")
    other = open_log(disk)  # another one takes its name
    append(other)
    jobs.work()
    jobs.end()
    append(log)
    assert (log.log_end_offset, other.log_end_offset) == (6, 1)
    assert other.read(0, 1 << 20, 1).next_offset == 1
    assert log.read(5, 1 << 20, 6).next_offset == 6


def test_the_append_opens_what_the_job_did_not_find(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 5)
    jobs = HeldJobs()
    open_logs(jobs, [log])
    log.rename_dir("/d/u-0")
    jobs.work()
    jobs.end()
    assert disk.stat("/d/t-0") is None
    append(log)
    assert log.log_end_offset == 6


def test_files_are_opened_once_and_by_cold_reads(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 60)
    assert len(log.segments) > 5
    assert [read(disk, log, 3) for _ in range(3)] == [1, 0, 0]
    assert [read(disk, log, 58) for _ in range(3)] == [1, 0, 0]
    for _ in range(2):
        for segment in list(log.segments)[:-1]:
            assert read(disk, log, segment.base_offset + 1) <= 1, "only a few stay open"


def test_files_that_cannot_be_kept_open_are_opened_by_the_next_read_too(disk: WatchedDisk) -> None:
    """As when the process has no descriptor left."""
    log = found_on_disk(disk, 60)
    reader = log.read_later(3, 20_000, 60, True)
    reader.run()
    disk.fail("/d", operations=frozenset({"read"}))
    assert reader.finish()
    assert isinstance(reader.result, FetchInfo)
    disk.mend("/d")
    assert not log.offline
    assert read(disk, log, 3) == 1


def test_files_opened_for_an_append_that_cannot_be_kept_are_opened_again(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 3)
    jobs = HeldJobs()
    open_logs(jobs, [log])
    jobs.work()
    disk.fail("/d", operations=frozenset({"read"}))
    jobs.end()
    disk.mend("/d")
    append(log)
    assert log.log_end_offset == 4


def test_searches_by_time_open_on_a_thread(disk: WatchedDisk) -> None:
    log = open_log(disk)
    for number in range(60):
        log.append_as_leader(build_batch([(NOW + 10 * number, b"k", bytes(5_000), ())]), 0, NOW)
    log.close()
    log = open_log(disk)
    assert len(log.segments) > 5
    for wanted in (3, 30, 59, 3):
        disk.owner = True
        search = TimeSearch(log, NOW + 10 * wanted - 5)
        disk.owner = False
        search.run()
        disk.owner = True
        assert search.finish()
        found = search.result
        assert isinstance(found, TimestampOffset)
        assert (found.offset, found.timestamp) == (wanted, NOW + 10 * wanted)
        disk.owner = False
    assert all(segment.known_timestamp is not None for segment in log.segments), "what was found is kept"
    disk.owner = True
    latest, beyond = TimeSearch(log, None), TimeSearch(log, NOW + 10_000)
    disk.owner = False
    found = latest.complete()
    assert found is not None
    assert found.offset == 59
    assert beyond.complete() is None


def test_a_search_in_files_that_are_renamed_meanwhile_is_begun_again(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 60)
    search = TimeSearch(log, NOW)
    log.rename_dir("/d/u-0")
    search.run()
    assert not search.finish(), "its files had other names"
    assert not log.offline
    assert disk.stat("/d/t-0") is None
    found = search.complete()
    assert found is not None
    assert found.offset == 0


def test_a_search_of_a_log_that_is_cut_meanwhile_finds_what_the_log_has_then(disk: WatchedDisk) -> None:
    log = open_log(disk)
    for number in range(9):
        log.append_as_leader(build_batch([(NOW + 10 * number, b"k", bytes(5_000), ())]), 0, NOW)
    search = TimeSearch(log, NOW + 70)
    truncate_to(log, 3)
    assert search.complete() is None
    assert not log.offline


def test_a_disk_that_fails_under_a_search_is_reported(disk: WatchedDisk) -> None:
    log = found_on_disk(disk, 60)
    search = TimeSearch(log, NOW)
    disk.fail("/d/t-0", operations=frozenset({"read"}))
    search.run()
    assert not log.offline, "only `finish` takes the log offline"
    with pytest.raises(ApiError) as failed:
        search.complete()
    assert (failed.value.code, log.offline) == (ErrorCode.KAFKA_STORAGE_ERROR, True)


def test_a_disk_that_fails_before_the_files_of_another_log_are_opened(disk: WatchedDisk) -> None:
    """The job opens those of the others; the log has reported its failure, and its append raises it."""
    logs = [
        Log.open(
            Unopened(disk, f"/d/t-{at}", LogConfig(), topic_partition=TopicPartition("t", at), now_ms=NOW, clean=True)
        )
        for at in range(2)
    ]
    for log in logs:
        append(log)
        log.cold = True
    disk.fail("/d/t-0", operations=frozenset({"read"}))
    jobs = HeldJobs()
    open_logs(jobs, logs)
    jobs.work()
    jobs.end()
    assert [log.offline for log in logs] == [True, False]
    assert [log.cold for log in logs] == [False, False]
    append(logs[1])


def test_a_disk_that_fails_before_a_search_or_a_read_begins_is_reported(disk: WatchedDisk) -> None:
    for start in (
        lambda log: TimeSearch(log, NOW),
        lambda log: TimeSearch(log, None),
        lambda log: aborted_nowait(log, 0, log.log_end_offset),
        lambda log: log.read_later(0, 100, log.log_end_offset),
    ):
        log = Log.open(
            Unopened(disk, "/d/t-0", LogConfig(), topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True)
        )
        append(log)
        index = log.segments.active.txn_index
        index.open()
        index._rows = None
        disk.fail("/d/t-0", operations=frozenset({"read"}))
        with pytest.raises(ApiError) as failed:
            start(log)
        assert (failed.value.code, log.offline) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
        disk.mend("/d/t-0")
