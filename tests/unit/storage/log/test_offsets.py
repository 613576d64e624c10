"""The offsets of a log: their order holds after each move, and whenever another callback runs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kalda.base.disk import Disk
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.base.sensors import Counter
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import append_fetched, delete_old_segments, truncate_fully_and_start_at, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.offsets import LogOffsets

NOW_MS = 1_700_000_000_000


def in_order(offsets: LogOffsets) -> bool:
    return (
        offsets.log_start_offset <= offsets.high_watermark <= offsets.log_end_offset
        and offsets.log_start_offset <= offsets.last_stable_offset <= offsets.high_watermark
        and offsets.recovery_point <= offsets.log_end_offset
    )


@pytest.mark.parametrize(
    "move",
    [
        lambda offsets: offsets.raise_log_start(8),
        lambda offsets: offsets.raise_log_start(1),
        lambda offsets: offsets.raise_recovery_point(11),
        lambda offsets: offsets.end_at(4),
        lambda offsets: offsets.end_at(11),
        lambda offsets: offsets.begin_anew_at(20, 21),
        lambda offsets: offsets.begin_anew_at(3, 3),
    ],
    ids=["start beyond high watermark", "start back", "synced beyond end", "end below synced", "end grows",
        "start beyond end", "anew below synced"],
)  # fmt: skip
def test_moves_that_would_break_the_order_are_refused(move: Callable[[LogOffsets], None]) -> None:
    offsets = LogOffsets(log_start_offset=2, log_end_offset=10, recovery_point=5)
    offsets.high_watermark = 7
    with pytest.raises(AssertionError):
        move(offsets)
    assert in_order(offsets)


class Watching:
    """Hooks of a log, each of which checks the order of its offsets."""

    def __init__(self) -> None:
        self.conversions = Counter()
        self.calls: list[str] = []

    def _note(self, name: str, log: Log) -> None:
        self.calls.append(name)
        assert in_order(log), f"{name}: {log.describe()}"

    def on_io_error(self, log: Log, error: OSError) -> None:
        self._note("error", log)

    def on_rolled(self, log: Log) -> None:
        self._note("rolled", log)

    def on_recovery_point_lowered(self, log: Log) -> None:
        self._note("recovery point", log)

    def on_log_start_lowered(self, log: Log) -> None:
        self._note("log start", log)

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        self._note("delete", log)


def open_log(hooks: Watching) -> tuple[SimDisk, Log]:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    config = LogConfig(segment_bytes=300, retention_bytes=600)
    log = Log.open(
        Unopened(disk, "/d/t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW_MS, clean=True), hooks=hooks
    )
    return disk, log


def batch(count: int, base_offset: int = 0) -> bytearray:
    return build_batch([(NOW_MS, b"k", bytes(40), ())] * count, base_offset=base_offset, leader_epoch=0)


def append(log: Log, batches: int) -> None:
    for _ in range(batches):
        log.append_as_leader(batch(3), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def test_callbacks_find_the_offsets_in_order() -> None:
    hooks = Watching()
    _, log = open_log(hooks)
    append(log, 6)
    log.flush()
    delete_old_segments(log, NOW_MS)
    assert log.log_start_offset > 0
    truncate_to(log, log.log_end_offset - 2)
    truncate_fully_and_start_at(log, 5)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (5, 5, 5)
    assert {"rolled", "delete", "recovery point", "log start"} <= set(hooks.calls)


def test_a_log_that_starts_within_a_batch_is_in_order_throughout() -> None:
    """The first records of the batch are below the log's start: while the batch is appended, the log starts before
    it."""
    hooks = Watching()
    _, log = open_log(hooks)
    truncate_fully_and_start_at(log, 12)
    info = append_fetched(log, batch(5, 10), 0)
    assert "log start" in hooks.calls
    assert (info.first_offset, info.last_offset, info.log_start_offset) == (10, 14, 12)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (12, 12, 15)
    assert log.leader_epochs.entries == [(0, 12)]


def test_a_disk_that_fails_below_a_new_log_start_finds_the_offsets_in_order() -> None:
    hooks = Watching()
    disk, log = open_log(hooks)
    append(log, 3)
    log.assign_leader_epoch(1, log.log_end_offset)
    append(log, 1)
    disk.fail("/d", operations=frozenset({"name", "write"}))
    with pytest.raises(ApiError, match="EIO"):
        log.advance_log_start_offset(10)
    assert hooks.calls[-1] == "error"


def test_the_last_stable_offset_is_not_below_the_log_start() -> None:
    """Records of an open transaction were deleted, and another transaction begins."""
    _, log = open_log(Watching())
    for producer_id in (1, 2):
        rows = [(NOW_MS, b"k", b"v", ())] * 3
        transactional = build_batch(
            rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        log.append_as_leader(transactional, 0, NOW_MS)
        assert in_order(log)
        log.update_high_watermark(log.log_end_offset)
        log.advance_log_start_offset(2)
        assert log.last_stable_offset == 2
        assert in_order(log)
