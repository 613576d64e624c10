"""Large batches that a leader keeps in memory for its followers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kalda.base.disk import Buffer
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.replication.partition import Partition
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.reads import LEAST_BYTES, RecentAppends
from kalda.storage.values import FetchInfo

NOW = 1_700_000_000_000
MEGABYTE = 1 << 20


class NoJobs:
    """No flush is due."""

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        raise AssertionError


def batch(size: int = LEAST_BYTES, value: bytes = b"v") -> bytearray:
    return build_batch([(NOW, None, value * size, ())])


def open_log(name: str = "t") -> Log:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    return Log.open(
        Unopened(disk, f"/d/{name}-0", LogConfig(), topic_partition=TopicPartition(name, 0), now_ms=NOW, clean=True)
    )


def append(log: Log, *batches: bytearray) -> None:
    for each in batches:
        log.append_as_leader(each, 0, NOW)


def read(log: Log, offset: int, max_bytes: int = MEGABYTE, end_offset: int = MEGABYTE) -> Buffer:
    found = log.read_nowait(offset, max_bytes, end_offset, True)
    assert isinstance(found, FetchInfo)
    return found.records


def is_of(records: Buffer, memory: bytearray) -> bool:
    """Whether the records are in that memory, and not copied."""
    return isinstance(records, memoryview) and records.obj is memory


def base_offsets(records: Buffer) -> Sequence[int]:
    return [header.base_offset for _, header in iter_batches(records)]


@pytest.fixture
def log() -> Log:
    log = open_log()
    log.keep_recent(RecentAppends())
    return log


def test_the_bytes_that_were_appended_are_read(log: Log) -> None:
    small, large = batch(10), batch()
    append(log, small, large)
    kept = read(log, 1)
    assert is_of(kept, large)
    assert bytes(kept) == bytes(log.read(1, MEGABYTE, 2).records)
    assert not is_of(read(log, 0, 100), small), "several of them come in one read of the file"


def test_a_read_never_gets_less_than_the_file_has(log: Log) -> None:
    batches = [batch() for _ in range(3)]
    append(log, *batches, batch(10))
    size = len(batches[0])
    assert base_offsets(read(log, 0)) == [0, 1, 2, 3]
    assert base_offsets(read(log, 2)) == [2, 3]
    assert is_of(read(log, 0, 2 * size - 1), batches[0]), "the next one does not fit"
    assert base_offsets(read(log, 0, 2 * size)) == [0, 1]
    assert is_of(read(log, 0, MEGABYTE, 1), batches[0]), "the next one may not be read"
    assert base_offsets(read(log, 0, size - 1)) == [0], "the first one comes whole, as from the file"


def test_the_oldest_one_goes_where_there_are_too_many() -> None:
    size = len(batch())
    recent = RecentAppends(2 * size)
    logs = [open_log(name) for name in "abc"]
    batches = [batch() for _ in logs]
    for each, data in zip(logs, batches, strict=True):
        each.keep_recent(recent)
        append(each, data)
    assert [is_of(read(each, 0), data) for each, data in zip(logs, batches, strict=True)] == [False, True, True]
    logs[1].close()
    more = batch()
    append(logs[0], more)
    assert is_of(read(logs[0], 1), more)
    assert is_of(read(logs[2], 0), batches[2]), "what the closed log had kept does not count any more"


def test_a_log_that_is_cut_is_forgotten(log: Log) -> None:
    append(log, batch(), batch(value=b"a"))
    truncate_to(log, 1)
    other = batch(value=b"b")
    log.append_as_follower(bytes(build_batch([(NOW, None, b"b", ())], base_offset=1)), 0)
    assert not is_of(read(log, 1), other)
    assert len(read(log, 1)) < LEAST_BYTES


def test_a_leader_keeps_them_while_it_has_followers() -> None:
    log = open_log()
    partition = Partition(log.topic_partition, Uuid(bytes(16)), 1, log, NoJobs(), recent=RecentAppends())
    kept = []
    for epoch, leader, replicas in ((0, 1, (1,)), (1, 1, (1, 2)), (2, 2, (1, 2)), (3, 1, (1, 2)), (4, 1, (1,))):
        if leader == 1:
            partition.become_leader(epoch, epoch, replicas, replicas)
            data = batch()
            end = partition.append(data, 1, NOW).first_offset
            kept.append(is_of(read(log, end), data))
        else:
            partition.become_follower(leader, epoch, epoch, replicas, replicas)
            kept.append(log.recent is not None)
    assert kept == [False, True, False, True, False]


def test_a_batch_does_not_keep_the_memory_of_a_much_larger_request() -> None:
    recent, log = RecentAppends(), open_log()
    log.keep_recent(recent)
    for parts, is_kept in ((7, True), (10, False)):
        data = batch()
        request = bytearray(parts * len(data))
        request[: len(data)] = data
        offset = log.log_end_offset
        log.append_as_leader(memoryview(request)[: len(data)], 0, NOW)
        assert is_of(read(log, offset), request) is is_kept
        assert bytes(read(log, offset)) == bytes(request[: len(data)])
