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
from kalda.storage.index import OffsetIndex, read_waiting
from kalda.storage.log import Log

NOW = 1_700_000_000_000
BATCHES = 40
Spoil = Callable[[int, int, int], tuple[int, int]]


def open_log(disk: SimDisk) -> Log:
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=1_000)
    return Log.open(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW, clean=True)


def spoil_indexes(disk: SimDisk, spoil: Spoil) -> None:
    for name in disk.list_dir("/d/t-0"):
        if name.endswith(".index"):
            path = f"/d/t-0/{name}"
            rows = OffsetIndex.ENTRY.iter_unpack(disk.read_file(path))
            wrong = [spoil(number, relative, position) for number, (relative, position) in enumerate(rows)]
            with_file = disk.open(path)
            with_file.write(0, b"".join(OffsetIndex.ENTRY.pack(*row) for row in wrong))
            with_file.close()


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
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    log = open_log(disk)
    for number in range(BATCHES):
        log.append_as_leader(build_batch([(NOW + number, b"k", bytes(1_000), ())]), 0, NOW)
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
