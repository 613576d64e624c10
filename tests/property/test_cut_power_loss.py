"""The power fails before, during or after the job that truncates a log: what is left is a prefix of the log as it was
before the truncation, or after it, and the latest epoch is that of the last record."""

from __future__ import annotations

import random

import pytest

from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log import Log
from kalda.storage.truncating import cut_job, truncate_fully_and_start_at, truncate_to

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
TP = TopicPartition("t", 0)


def open_log(disk: SimDisk, recovery_point: int) -> Log:
    return Log.open(
        disk, "/d/t-0", CONFIG, topic_partition=TP, now_ms=0, clean=not recovery_point, recovery_point=recovery_point
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


@pytest.mark.parametrize("seed", range(60))
def test_a_log_that_is_truncated(seed: int) -> None:
    rng = random.Random(seed)
    disk, log = new_log(rng)
    append(log, rng, 0, rng.randrange(2, 12))
    append(log, rng, 1, rng.randrange(1, 12))
    log.flush(rng.randrange(1, log.log_end_offset + 1))
    old, end = content(log), log.log_end_offset
    target = rng.randrange(1, end)
    stage = rng.randrange(4)
    job = cut_job(log, target)
    assert log.log_end_offset == target
    recovery_point = log.recovery_point
    new = b""
    if stage:
        job.run()
    if stage > 1:
        job.finish()
        new = content(log)
        assert old.startswith(new)
    if stage > 2:
        append(log, rng, 2, rng.randrange(1, 6))
        new = content(log)
    disk.crash()
    log = open_log(disk, max(1, recovery_point))
    left = content(log)
    assert (not stage and old.startswith(left)) or new.startswith(left) or (stage == 1 and old.startswith(left))
    assert log.log_end_offset >= recovery_point
    headers = [header for _, header in iter_batches(left)]
    if stage:
        assert log.log_end_offset <= target or headers[target].partition_leader_epoch == 2
    if headers:
        assert log.leader_epochs.latest == headers[-1].partition_leader_epoch


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
