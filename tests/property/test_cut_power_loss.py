"""The power fails before, during or after the jobs that truncate a log: what is left is a prefix of the log as it was
before the truncation, or after it, and the latest epoch is that of the last record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import (
    begin_anew_at,
    begin_truncation,
    start_truncations,
    truncate_fully_and_start_at,
    truncate_to,
)
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
TP = TopicPartition("t", 0)


def open_log(disk: SimDisk, recovery_point: int) -> Log:
    return Log.open(
        Unopened(
            disk,
            "/d/t-0",
            CONFIG,
            topic_partition=TP,
            now_ms=0,
            clean=not recovery_point,
            recovery_point=recovery_point,
        )
    )


def new_log(rng: random.Random) -> tuple[SimDisk, Log]:
    """An empty log in a directory that outlives a crash."""
    disk = SimDisk(rng)
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk, open_log(disk, 0)


def append(log: Log, rng: random.Random, epoch: int, count: int) -> None:
    for _ in range(count):
        value = rng.randbytes(rng.choice((10, 100, 300)))
        log.append_as_leader(build_batch([(0, None, value, ())]), epoch, 0)


def content(log: Log) -> bytes:
    found, offset = b"", log.log_start_offset
    while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
        found += bytes(info.records)
        offset = info.next_offset
    return found


def below(batches: bytes, offset: int) -> bytes:
    """Those that end below an offset."""
    return batches[: sum(header.size_bytes for _, header in iter_batches(batches) if header.last_offset < offset)]


class Halves:
    """Jobs whose halves run one by one."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        def first() -> None:
            job()
            self.waiting.append(lambda: finish(None, None))

        self.waiting.append(first)

    def step(self, count: int) -> None:
        while self.waiting and count:
            self.waiting.pop(0)()
            count -= 1


@pytest.mark.parametrize("is_emptied", [False, True])
@pytest.mark.parametrize("seed", range(120))
def test_a_log_that_is_truncated(seed: int, is_emptied: bool) -> None:
    """It may be appended to at any time: that completes the truncation first."""
    rng = random.Random(seed)
    disk, log = new_log(rng)
    append(log, rng, 0, rng.randrange(2, 12))
    append(log, rng, 1, rng.randrange(1, 12))
    log.flush(rng.randrange(1, log.log_end_offset + 1))
    old, end = content(log), log.log_end_offset
    target = rng.randrange(1, end)
    jobs, done = Halves(), list[bool]()
    truncation = begin_anew_at(log, target) if is_emptied else begin_truncation(log, target)
    assert truncation is not None
    start_truncations(jobs, [truncation], lambda: done.append(True))
    jobs.step(rng.randrange(8))
    new = b""
    if rng.random() < 0.3:
        append(log, rng, 2, rng.randrange(1, 6))
        jobs.step(rng.randrange(8))
    assert (log.truncation is None) >= bool(done)
    if log.truncation is None:
        new = content(log)
        kept = b"" if is_emptied else below(old, target)
        assert new.startswith(kept)
        assert log.leader_epochs.latest == 2 or new == kept
    recovery_point = log.recovery_point
    disk.crash()
    log = open_log(disk, max(1, recovery_point))
    left = content(log)
    if new or done:
        assert new.startswith(left)
        assert log.log_end_offset >= recovery_point
    else:
        assert old.startswith(left)
    headers = [header for _, header in iter_batches(left)]
    if headers:
        assert log.leader_epochs.latest == headers[-1].partition_leader_epoch
    append(log, rng, 5, 2)
    log.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_gets_records_of_an_earlier_epoch_in_place_of_others(seed: int) -> None:
    """A leader that had not truncated yet leads again: the log of the leader in between is truncated, and gets the
    first one's records, of an earlier epoch."""
    rng = random.Random(seed)
    disk, log = new_log(rng)
    append(log, rng, 0, 5)
    append(log, rng, 1, 3)
    log.flush()
    truncate_to(log, 5)
    for offset, epoch in ((5, 0), (6, 0), (7, 2)):
        log.append_as_follower(build_batch([(0, None, b"v", ())], base_offset=offset, leader_epoch=epoch), 2)
    disk.crash()
    log = open_log(disk, log.recovery_point)
    left = [header.partition_leader_epoch for _, header in iter_batches(content(log))]
    assert log.log_end_offset >= 5
    assert [log.leader_epochs.epoch_for_offset(offset) for offset in range(log.log_end_offset)] == left


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_is_emptied(seed: int) -> None:
    """Epochs of removed records must not come back: they would count as epochs from before the log's start."""
    rng = random.Random(seed)
    disk, log = new_log(rng)
    append(log, rng, 0, rng.randrange(1, 6))
    append(log, rng, 1, rng.randrange(1, 6))
    log.flush()
    truncate_fully_and_start_at(log, log.log_end_offset + 5)
    disk.crash()
    log = open_log(disk, 1)
    headers = [header for _, header in iter_batches(content(log))]
    assert log.leader_epochs.latest == (headers[-1].partition_leader_epoch if headers else None)
