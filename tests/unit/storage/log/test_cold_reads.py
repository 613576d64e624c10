"""Reads by other threads give what the log's own thread would read, whatever happens to the files meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from compacted_node import clean_all

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.compaction.cleaner import CleanerConfig, LogCleaner
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.deletion import delete_segments, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import ColdRead, run_snapshots
from kalda.storage.values import FetchInfo

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000


class Jobs:
    """Each job runs at once, after whatever the test does before it."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before
        self.count = 0

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self.count += 1
        self._before()
        finish(job(), None)


def compacting() -> tuple[Log, Callable[[], object]]:
    """A log of small segments with one batch each, and a function that compacts it: the second to the fifth batch have
    the same key."""
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": "500", "min.cleanable.dirty.ratio": "0.01"}
    config = LogConfig.from_dict(settings)
    logs = LogManager({"/d": disk}, lambda _: config, unique=lambda: "0" * 32, now_ms=lambda: NOW_MS)
    for job in logs.load_jobs():
        job.complete()
    log = logs.get_or_create_log(TP, None, config, None)
    for key in (b"first", b"again", b"again", b"again", b"again", b"last"):
        log.append_as_leader(build_batch([(NOW_MS, key, b"x" * 400, ())]), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    log.flush()
    return log, lambda: clean_all(LogCleaner(logs, CleanerConfig(), lambda: bytes(16)), NOW_MS)


def read(log: Log, offset: int, jobs: Jobs, max_bytes: int = 1) -> FetchInfo | ApiError:
    done = run_snapshots(jobs, [log.read_later(offset, max_bytes, log.log_end_offset, True)])
    assert done.value is not None
    (result,) = done.value
    return result


def found(result: FetchInfo | ApiError) -> list[int]:
    assert isinstance(result, FetchInfo)
    return [header.last_offset for _, header in iter_batches(result.records)]


def test_segments_that_compaction_has_emptied_are_passed_over() -> None:
    log, compact = compacting()
    compact()
    assert [segment.base_offset for segment in log.segments if not segment.size] == [1, 2, 3, 6]
    offset, offsets = 0, []
    while offset < log.log_end_offset:
        result = read(log, offset, Jobs())
        offsets += found(result)
        assert isinstance(result, FetchInfo)
        assert result.size_bytes, f"nothing from {offset} on"
        offset = result.next_offset
    assert offsets == [0, 4, 5]


def close_files(log: Log) -> None:
    log.reads.forget()
    for segment in log.segments:
        segment.close()


def test_a_read_goes_on_in_the_segment_that_compaction_has_put_in_place() -> None:
    """A file that was renamed before it was opened must not read as empty: a coordinator that loads the log would miss
    the rest."""
    log, compact = compacting()
    close_files(log)
    once: list[Callable[[], object]] = [compact]
    jobs = Jobs(lambda: once.pop()() if once else None)
    assert found(read(log, 2, jobs)) == [4]
    assert jobs.count == 2


def test_a_read_of_what_was_deleted_is_out_of_range() -> None:
    log, _ = compacting()
    close_files(log)

    def delete() -> None:
        if len(log.segments) > 4:
            delete_segments(log, list(log.segments)[:3])
            log.advance_log_start_offset(3)

    result = read(log, 1, Jobs(delete))
    assert isinstance(result, ApiError)
    assert result.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.offline
    assert found(read(log, 3, Jobs())) == [3]


def test_files_that_are_open_are_read_though_they_are_deleted_meanwhile() -> None:
    log, _ = compacting()
    log.read(1, 1_000, 2)
    jobs = Jobs(lambda: delete_segments(log, list(log.segments)[:3]))
    assert found(read(log, 1, jobs)) == [1]
    assert jobs.count == 1


def test_a_read_whose_files_change_all_the_time_ends_with_an_error() -> None:
    log, _ = compacting()
    names = ["/d/u-0", "/d/t-0"] * 10

    def rename() -> None:
        close_files(log)
        log.rename_dir(names.pop())

    log.rename_dir("/d/u-0")
    jobs = Jobs(rename)
    close_files(log)
    result = read(log, 1, jobs)
    assert isinstance(result, ApiError)
    assert result.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert jobs.count == 5
    assert not log.offline


@pytest.mark.parametrize("sizes", [(1, 1), (0, 1)])
def test_one_batch_of_several_reads_may_be_larger_than_its_limit(sizes: tuple[int, int]) -> None:
    """It is the first batch that is found, whichever partition has it."""
    log, _ = compacting()
    offsets = [1 if size else log.log_end_offset for size in sizes]
    reads = [log.read_later(offset, 1, log.log_end_offset, True) for offset in offsets]
    results = run_snapshots(Jobs(), reads).value
    assert results is not None
    brought = [isinstance(result, FetchInfo) and result.size_bytes > 0 for result in results]
    assert brought == [size == 1 and 1 not in sizes[:at] for at, size in enumerate(sizes)]


def test_a_job_that_was_not_run_is_an_error_of_each_read() -> None:
    class Broken(Jobs):
        def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
            finish(None, RuntimeError("no thread"))

    log, _ = compacting()
    result = read(log, 1, Broken())
    assert isinstance(result, ApiError)
    assert "no thread" in str(result)


def test_batches_in_the_page_cache_are_read_at_once() -> None:
    log, _ = compacting()
    assert isinstance(log.read_nowait(5, 1_000, 6, True), FetchInfo)
    close_files(log)
    assert isinstance(log.read_nowait(0, 1_000, 6, True), ColdRead)


def test_a_read_while_the_log_is_cut_and_written_anew_gives_what_the_log_has_then() -> None:
    log = Log.open(
        Unopened(SimDisk(random.Random(3)), "/d/t-0", LogConfig(), topic_partition=TP, now_ms=NOW_MS, clean=True)
    )
    for size in (50, 400, 50):
        log.append_as_leader(build_batch([(NOW_MS, b"k", b"x" * size, ())]), 0, NOW_MS)

    def cut() -> None:
        if log.log_end_offset == 3:
            truncate_to(log, 1)
            log.append_as_leader(build_batch([(NOW_MS, b"k", b"x" * 20, ())]), 1, NOW_MS)
            log.segments.active.file().write(log.segments.active.size, b"\xff" * 300)  # as a write in progress

    jobs = Jobs(cut)
    assert found(read(log, 0, jobs, 10_000)) == [0, 1]
    assert jobs.count == 2
    assert not log.offline


def test_an_index_that_is_cut_under_a_read_is_no_failure_of_the_disk() -> None:
    config = LogConfig(index_interval_bytes=0)
    log = Log.open(Unopened(SimDisk(random.Random(3)), "/d/t-0", config, topic_partition=TP, now_ms=NOW_MS, clean=True))
    for _ in range(9):
        log.append_as_leader(build_batch([(NOW_MS, b"k", b"x" * 50, ())]), 0, NOW_MS)
    log.close()
    log = Log.open(Unopened(log.disk, "/d/t-0", config, topic_partition=TP, now_ms=NOW_MS, clean=True))
    jobs = Jobs(lambda: truncate_to(log, 2))
    assert found(read(log, 1, jobs, 10_000)) == [1]
    assert jobs.count == 2
    assert not log.offline
