"""Flushes of a partition, when records are truncated or the disk fails."""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch
from kalda.replication.partition import Partition
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import begin_truncation, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log


class Later:
    """Jobs that run when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((job, finish))

    def step(self) -> None:
        job, finish = self.waiting.popleft()
        finish(job(), None)


def test_truncated_records_are_not_flushed() -> None:
    disk, jobs = SimDisk(random.Random(1)), Later()
    disk.make_dirs("/d")
    where, topic_id = TopicPartition("t", 0), Uuid(bytes(15) + b"\x09")
    config = LogConfig.from_dict({"flush.messages": "1"})
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=where, topic_id=topic_id, now_ms=1, clean=True))
    partition = Partition(where, topic_id, 1, log, jobs)
    partition.become_leader(0, 0, (1,), (1,))
    for _ in range(3):
        partition.append(build_batch([(1, None, b"x", ())]), -1, 1)
    partition.become_follower(2, 1, 1, (1, 2), (2,))
    truncate_to(log, 1)
    while jobs.waiting:
        jobs.step()
        assert len(jobs.waiting) <= 1
        assert disk.syncs < 50, "each flush leads to another"
    assert partition.may_fetch


def test_a_disk_that_fails_before_the_next_flush_leaves_no_request_waiting() -> None:
    disk, jobs = SimDisk(random.Random(1)), Later()
    disk.make_dirs("/d")
    where, topic_id = TopicPartition("t", 0), Uuid(bytes(15) + b"\x09")
    config = LogConfig.from_dict({"flush.messages": "1"})
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=where, topic_id=topic_id, now_ms=1, clean=True))
    partition = Partition(where, topic_id, 1, log, jobs)
    partition.become_leader(0, 0, (1,), (1,))
    partition.append(build_batch([(1, None, b"x", ())]), -1, 1)
    partition.append(build_batch([(1, None, b"y", ())]), -1, 1)
    work, finish = jobs.waiting.popleft()
    work()
    for segment in log.segments:
        segment.close()
    disk.fail("/d", errno.ENOSPC)
    finish(None, None)
    assert not jobs.waiting
    assert log.high_watermark < 2


def test_records_in_place_of_flushed_ones_are_flushed_by_the_leader_that_waits_for_them() -> None:
    """`flush.messages` was raised since, so no append begins a flush."""
    disk, jobs = SimDisk(random.Random(1)), Later()
    disk.make_dirs("/d")
    where, topic_id = TopicPartition("t", 0), Uuid(bytes(15) + b"\x09")
    config = LogConfig.from_dict({"flush.messages": "1"})
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=where, topic_id=topic_id, now_ms=1, clean=True))
    partition = Partition(where, topic_id, 1, log, jobs)
    partition.become_leader(0, 0, (1,), (1,))
    for _ in range(3):
        partition.append(build_batch([(1, None, b"x", ())]), -1, 1)
    while jobs.waiting:
        jobs.step()
    assert log.high_watermark == log.recovery_point == 3
    log.update_config(LogConfig())
    partition.become_follower(2, 1, 1, (1, 2), (1, 2))
    truncate_to(log, 1)
    partition.append_as_follower(build_batch([(1, None, b"y", ())], base_offset=1, leader_epoch=1), 1, 1, 0)
    partition.become_leader(2, 2, (1,), (1,))
    while jobs.waiting:
        jobs.step()
    assert log.high_watermark == 2


@pytest.mark.parametrize("steps", [0, 1])
def test_an_epoch_begins_where_the_truncation_that_was_under_way_ends(steps: int) -> None:
    """Its followers find by that offset what they must not keep."""
    disk, jobs = SimDisk(random.Random(1)), Later()
    disk.make_dirs("/d")
    where, topic_id = TopicPartition("t", 0), Uuid(bytes(15) + b"\x09")
    log = Log.open(
        Unopened(disk, "/d/t-0", LogConfig(), topic_partition=where, topic_id=topic_id, now_ms=1, clean=True)
    )
    partition = Partition(where, topic_id, 1, log, jobs)
    partition.become_leader(0, 0, (1, 2), (1,))
    for _ in range(5):
        partition.append(build_batch([(1, None, b"x", ())]), -1, 1)
    partition.become_follower(2, 1, 1, (1, 2), (1, 2))
    truncation = begin_truncation(log, 3)
    assert truncation is not None
    for _ in range(steps):
        truncation.advance()
    partition.become_leader(2, 2, (1, 2), (1,))
    partition.append(build_batch([(1, None, b"y", ())]), -1, 1)
    assert log.leader_epochs.entries == [(0, 0), (2, 3)]
    assert (partition.in_sync.epoch_start, log.log_end_offset) == (3, 4)
