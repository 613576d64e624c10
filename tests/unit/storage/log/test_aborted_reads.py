"""Aborted transactions of a cold log are read by a job, with the result that the log's own thread would read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import delete_segments
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import AbortedRead, aborted_nowait, collect_aborted, run_snapshots
from kalda.storage.log.txn_index import AbortedTxn, TxnIndex
from kalda.storage.values import AppendOrigin

NOW_MS = 1_700_000_000_000
PRODUCERS = 6


class Jobs:
    """Each job runs at once, after whatever the test does before it."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before
        self.count = 0

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self.count += 1
        self._before()
        finish(job(), None)


def opened(disk: SimDisk) -> Log:
    config = LogConfig.from_dict({"internal.segment.bytes": "600"})
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW_MS, clean=True))
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.fixture
def disk() -> SimDisk:
    """With a log of which each producer has aborted a transaction; the first one spans the others."""
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    log = opened(disk)

    def produce(producer: int, sequence: int) -> None:
        rows: list[Any] = [(NOW_MS, b"k", bytes(400), ())]
        batch = build_batch(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        log.append_as_leader(batch, 0, NOW_MS)

    def abort(producer: int) -> None:
        batch = transaction_marker_batch(
            producer_id=producer, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        log.append_as_leader(batch, 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)

    produce(0, 0)
    for producer in range(1, PRODUCERS):
        produce(producer, 0)
        abort(producer)
    abort(0)
    assert len(log.segments) > 4
    log.close()
    return disk


def by_job(log: Log, first: int, upto: int, jobs: Jobs) -> list[AbortedTxn] | ApiError:
    read = aborted_nowait(log, first, upto)
    assert isinstance(read, AbortedRead)
    done = run_snapshots(jobs, [read])
    assert done.value is not None
    (result,) = done.value
    return result


def test_a_job_finds_what_the_logs_own_thread_would(disk: SimDisk) -> None:
    end = opened(disk).log_end_offset
    for first in range(end):
        for upto in range(first + 1, end + 1):
            assert by_job(opened(disk), first, upto, Jobs()) == collect_aborted(opened(disk).segments, first, upto)
    assert [txn.producer_id for txn in collect_aborted(opened(disk).segments, 0, end)] == list(range(PRODUCERS))


def test_a_log_that_was_opened_holds_no_entries(disk: SimDisk) -> None:
    """A log may have aborted very many transactions."""
    log = opened(disk)
    indexes = [segment.txn_index for segment in log.segments if segment.txn_index.exists]
    assert indexes
    assert not any(index.is_open for index in indexes)
    collect_aborted(log.segments, 0, log.log_end_offset)
    assert all(index.is_open for index in indexes)
    for segment in log.segments:
        segment.close()
    assert not any(index.is_open for index in indexes)


def test_the_next_read_in_that_segment_needs_no_job(disk: SimDisk) -> None:
    log = opened(disk)
    end = log.log_end_offset
    found = by_job(log, end - 3, end, Jobs())
    disk.cold = True
    assert aborted_nowait(log, end - 3, end) == found
    assert not isinstance(aborted_nowait(log, end - 2, end), AbortedRead)


def test_an_index_in_a_cold_page_cache_is_read_by_a_job(disk: SimDisk) -> None:
    log = opened(disk)
    for segment in log.segments:
        if segment.txn_index.exists:
            segment.txn_index.open()
    disk.cold = True
    found = by_job(log, 0, 2, Jobs())
    disk.cold = False
    assert found == collect_aborted(opened(disk).segments, 0, 2)


def test_a_segment_that_is_renamed_meanwhile_is_read_again(disk: SimDisk) -> None:
    log = opened(disk)
    names = ["/d/u-0"]
    jobs = Jobs(lambda: log.rename_dir(names.pop()) if names else None)
    assert by_job(log, 0, 3, jobs) == collect_aborted(log.segments, 0, 3)
    assert jobs.count == 2


def test_segments_that_are_deleted_meanwhile(disk: SimDisk) -> None:
    """Those that the log still has are read."""
    log = opened(disk)
    once = [lambda: delete_segments(log, list(log.segments)[:2])]
    found = by_job(log, 0, log.log_end_offset, Jobs(lambda: once.pop()() if once else None))
    assert found == collect_aborted(log.segments, 0, log.log_end_offset)


def test_files_that_change_all_the_time_are_an_error(disk: SimDisk) -> None:
    log = opened(disk)
    names = ["/d/u-0", "/d/t-0"] * 10
    jobs = Jobs(lambda: log.rename_dir(names.pop(0)))
    result = by_job(log, 0, 3, jobs)
    assert isinstance(result, ApiError)
    assert result.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert jobs.count == 5
    assert not log.offline


def test_a_job_that_was_not_run_is_an_error_of_each_read(disk: SimDisk) -> None:
    class Broken(Jobs):
        def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
            finish(None, RuntimeError("no thread"))

    result = by_job(opened(disk), 0, 3, Broken())
    assert isinstance(result, ApiError)
    assert "no thread" in str(result)


def test_entries_that_were_appended_meanwhile_are_not_lost() -> None:
    """What a snapshot has read is not taken where the index has changed since."""
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/d")
    index = TxnIndex(disk, "/d/i", exists=False)
    first, second = AbortedTxn(1, 0, 1, 0), AbortedTxn(2, 2, 3, 2)
    index.append(first)
    index.close()
    twin = index.snapshot()
    assert twin.entries() == [first]
    index.append(second)
    index.adopt(twin)
    assert index.entries() == [first, second]
