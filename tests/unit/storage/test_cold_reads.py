"""Reads by other threads: they see as much of a log as its own thread does."""

from __future__ import annotations

import random

import pytest

from kalda.base.ids import TopicPartition
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.cleaner import LogCleaner
from kalda.storage.config import LogConfig
from kalda.storage.log import Log
from kalda.storage.log_manager import LogManager

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000


def compacted() -> Log:
    """A log of small segments, three of which compaction has left nothing in."""
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
    LogCleaner(logs).clean(NOW_MS)
    assert [segment.base_offset for segment in log.segments if not segment.size] == [1, 2, 3, 6]
    return log


@pytest.mark.parametrize("by_name", [False, True])
def test_segments_that_compaction_has_emptied_are_passed_over(by_name: bool) -> None:
    log, offset, found = compacted(), 0, []
    while offset < log.log_end_offset:
        info = log.cold_read(offset, by_name=by_name)(offset, 1, log.log_end_offset, True)
        assert info.size_bytes, f"nothing from {offset} on"
        offset = info.next_offset
        found.append(offset - 1)
    assert found == [0, 4, 5]
