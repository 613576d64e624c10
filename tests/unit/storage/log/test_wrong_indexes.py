"""Damaged offset indexes: batches are found all the same, and the directory stays online."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kalda.base.errors import CorruptRecord
from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.index import OffsetIndex, read_waiting
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log

NOW = 1_700_000_000_000
BATCHES = 40
Spoil = Callable[[int, int, int], tuple[int, int]]


def open_log(disk: SimDisk) -> Log:
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=1_000)
    return Log.open(Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True))


def spoil_indexes(disk: SimDisk, spoil: Spoil) -> None:
    for name in disk.list_dir("/d/t-0"):
        if name.endswith(".index"):
            path = f"/d/t-0/{name}"
            rows = OffsetIndex.ENTRY.iter_unpack(disk.read_file(path))
            wrong = [spoil(number, relative, position) for number, (relative, position) in enumerate(rows)]
            with_file = disk.open(path)
            with_file.write(0, b"".join(OffsetIndex.ENTRY.pack(*row) for row in wrong))
            with_file.close()


def log_of_batches(count: int) -> tuple[SimDisk, Log]:
    """A log with so many batches of one record, and its disk."""
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    log = open_log(disk)
    for number in range(count):
        log.append_as_leader(build_batch([(NOW + number, b"k", bytes(1_000), ())]), 0, NOW)
    return disk, log


@pytest.mark.parametrize(
    "spoil",
    [
        lambda number, relative, position: (relative, -position),
        lambda number, relative, position: (relative, position + 10_000_000),
        lambda number, relative, position: (relative, position + 13),
        lambda number, relative, position: (relative, position + 1_100),
        lambda number, relative, position: (-relative, -1),
        lambda number, relative, position: (
            random.Random(number).getrandbits(31),
            random.Random(position).getrandbits(31),
        ),
    ],
)
def test_every_offset_is_found_and_the_log_goes_on(spoil: Spoil) -> None:
    disk, log = log_of_batches(BATCHES)
    log.close()
    spoil_indexes(disk, spoil)
    log = open_log(disk)
    assert log.log_end_offset == BATCHES
    for offset in range(BATCHES):
        found = log.read(offset, 3_000, log.log_end_offset)
        assert next(iter_batches(bytes(found.records)))[1].base_offset == offset
    assert log.append_as_leader(build_batch([(NOW, b"k", b"v", ())]), 0, NOW).first_offset == BATCHES


def test_a_walk_begins_within_the_file() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    segment = open_log(disk).segments.active
    for position in (-1, segment.size + 1):
        with pytest.raises(CorruptRecord, match=f"no position {position}"):
            next(segment.walk(position, read_waiting))


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_file_that_lacks_batches_which_its_index_names_is_recovered(is_empty: bool) -> None:
    """Also where it ends just where its last index entry names a batch. Otherwise the log would end where the segment
    begins, and give offsets twice."""
    disk, log = log_of_batches(BATCHES - 4)
    base = log.segments.active.base_offset
    log.close()
    path = f"/d/t-0/{base:020d}"
    relative, position = list(OffsetIndex.ENTRY.iter_unpack(disk.read_file(f"{path}.index")))[-1]
    file = disk.open(f"{path}.log")
    file.truncate(0 if is_empty else position)
    file.close()
    log = open_log(disk)
    end = base if is_empty else base + relative
    assert log.log_end_offset == end
    for number in range(5):
        log.append_as_leader(build_batch([(NOW + number, b"k", bytes(1_000), ())]), 0, NOW)
    assert log.log_end_offset == end + 5
    for offset in range(end + 5):
        assert log.read(offset, 1_200, end + 5).next_offset == offset + 1


@pytest.mark.parametrize("is_at_head", [False, True])
def test_a_reader_passes_stray_bytes_between_two_segments(is_at_head: bool) -> None:
    """As in Apache Kafka: where a segment has no whole batch from the offset on, the next one is read. What follows a
    read is remembered, and must not hide that."""
    disk, log = log_of_batches(BATCHES)
    log.close()
    names = sorted(name for name in disk.list_dir("/d/t-0") if name.endswith(".log"))
    second, third = (int(name[:-4]) for name in names[1:3])
    first = disk.open(f"/d/t-0/{names[0]}")
    if is_at_head:
        first.truncate(first.size() - 1_000)
        disk.open(f"/d/t-0/{names[1]}").write(0, b"\x7f" * 40)
    else:
        first.write(first.size(), b"\x7f" * 40)
    log = open_log(disk)
    offset = second - 2
    for _ in range(6):
        offset = log.read(offset, 1_200, BATCHES, True).next_offset
    assert offset > (third if is_at_head else second)
