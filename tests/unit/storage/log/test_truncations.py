"""Truncations of many logs at a time: threads wait for the device, and each checkpoint is written once."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError, CorruptRecord
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import read_offsets
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.deletion import begin_anew_at, begin_truncation, start_truncations
from kalda.storage.log.log import Log

TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000
CHECKPOINT = "/d/recovery-point-offset-checkpoint"


class Threads:
    """Jobs that run one half at a time; `is_job` is true in the halves for other threads."""

    def __init__(self) -> None:
        self.halves: list[Callable[[], None]] = []
        self.is_job = False

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        def first() -> None:
            self.is_job = True
            error = None
            try:
                job()
            except OSError as failure:
                error = failure
            finally:
                self.is_job = False
            self.halves.append(lambda: finish(None, error))

        self.halves.append(first)

    def step(self) -> bool:
        if self.halves:
            self.halves.pop(0)()
        return bool(self.halves)

    def all(self) -> None:
        while self.step():
            pass


class Node:
    """Logs of ten records each, in two segments or more, flushed up to offset 8."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.disk.make_dirs("/d")
        self.disk.sync_dir("/")
        self.config = LogConfig(segment_bytes=400)
        self.failed: list[OSError] = []
        self.start()
        for number in range(count):
            log = self.log(number)
            append(log, 0, 7)
            append(log, 1, 3)
            log.flush(8)
        self.logs.dirs[0]._checkpoints["recovery-point-offset-checkpoint"].replace_durably(
            self.logs.dirs[0]._recovery_points()
        )
        self.disk.sync_dir("/d")
        self.threads = Threads()
        self.done: list[bool] = []
        self.awaited: list[tuple[str, str]] = []

    def start(self) -> None:
        numbers = itertools.count()
        self.logs = LogManager(
            {"/d": self.disk},
            lambda _: self.config,
            unique=lambda: f"{next(numbers):032x}",
            now_ms=lambda: NOW,
            on_dir_failed=lambda _, error: self.failed.append(error),
        )
        for job in self.logs.load_jobs():
            job.complete()

    def log(self, number: int) -> Log:
        return self.logs.get_or_create_log(TopicPartition("t", number), TOPIC_ID, self.config, None)

    def truncate(self, offset: int, *, fully: bool = False) -> None:
        begin = begin_anew_at if fully else begin_truncation
        truncations = [begin(log, offset) for log in self.logs]
        start_truncations(
            self.threads, [each for each in truncations if each is not None], lambda: self.done.append(True)
        )

    def watch(self) -> None:
        """Note what the owner's thread waits for from now on."""
        self.writes = 0

        def before(path: str, operation: str) -> None:
            if operation == "sync" and not self.threads.is_job:
                self.awaited.append((path, operation))
            if operation == "name" and path == CHECKPOINT:
                self.writes += 1

        self.disk.before = before


def append(log: Log, epoch: int, count: int) -> None:
    """By a producer of that epoch."""
    for _ in range(count):
        state = log.producer_states.get(3 + epoch)
        batch = build_batch(
            [(NOW, None, bytes(50), ())],
            producer_id=3 + epoch,
            producer_epoch=0,
            base_sequence=0 if state is None else state.last_sequence + 1,
        )
        log.append_as_leader(batch, epoch, NOW)


@pytest.mark.parametrize("fully", [False, True])
def test_the_owner_of_the_logs_waits_for_no_device_and_a_checkpoint_is_written_once(fully: bool) -> None:
    node = Node(70)
    node.watch()
    node.truncate(5, fully=fully)
    node.threads.all()
    assert node.done == [True]
    assert not node.awaited
    assert node.writes == 1
    for log in node.logs:
        assert (log.log_end_offset, log.truncation, log.blocked) == (5, None, False)
        assert log.leader_epochs.entries == ([] if fully else [(0, 0)])
        assert [state.producer_id for state in log.producer_states] == ([] if fully else [3])
        append(log, 2, 1)
    assert not any(name.endswith(".deleted") for name in node.disk.names("/d/t-0"))


@pytest.mark.parametrize("fully", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_power_fails_between_two_steps(seed: int, fully: bool) -> None:
    """The checkpoint never names more than a log has, so what is appended later is not taken for synced."""
    rng = random.Random(seed)
    node = Node(3, seed)
    node.truncate(5, fully=fully)
    for _ in range(rng.randrange(14)):
        node.threads.step()
    if rng.random() < 0.3:
        append(node.log(1), 2, 2)
    done = [log.truncation is None for log in (node.log(number) for number in range(3))]
    node.disk.crash()
    points = read_offsets(node.disk, CHECKPOINT)
    node.start()
    assert not node.failed
    for number in range(3):
        log = node.log(number)
        assert points[log.topic_partition] <= 5 or log.log_end_offset >= 8
        if done[number]:
            assert log.log_end_offset <= 7
            assert log.leader_epochs.latest in (None, 0, 2)
        append(log, 4, 1)


def test_an_append_completes_the_truncation_of_its_log() -> None:
    node = Node(2)
    node.truncate(5)
    log = node.log(0)
    append(log, 2, 1)
    assert log.truncation is None
    assert (log.log_end_offset, log.leader_epochs.entries) == (6, [(0, 0), (2, 5)])
    node.threads.all()
    assert node.done == [True]
    assert (log.log_end_offset, log.leader_epochs.entries) == (6, [(0, 0), (2, 5)])
    assert node.log(1).log_end_offset == 5


def test_flushes_meanwhile_do_not_raise_the_recovery_point_above_the_new_end() -> None:
    node = Node(1)
    log = node.log(0)
    before = log.flush_job()
    before.run()
    node.truncate(5)
    before.finish()
    log.flush()
    assert log.recovery_point == 5
    node.threads.all()
    assert log.recovery_point == 5


@pytest.mark.parametrize("steps", range(9))
def test_a_log_is_deleted_and_made_anew_while_it_is_truncated(steps: int) -> None:
    node = Node(2)
    node.truncate(5)
    for _ in range(steps):
        node.threads.step()
    node.logs.delete_log(TopicPartition("t", 0))
    new = node.log(0)
    append(new, 0, 9)
    node.threads.all()
    assert node.done == [True]
    assert not node.failed
    assert new.log_end_offset == 9
    assert new.read(0, 10_000, 9).size_bytes
    assert node.log(1).log_end_offset == 5
    new.flush()
    node.disk.let_go()
    node.start()
    assert node.log(0).log_end_offset == 9


@pytest.mark.parametrize("steps", range(6))
def test_a_disk_that_fails_takes_the_directory_offline_and_the_others_go_on(steps: int) -> None:
    node = Node(3)
    node.truncate(5)
    for _ in range(steps):
        node.threads.step()
    node.disk.fail("/d", errno.EIO, frozenset(("sync",)))
    node.threads.all()
    assert node.done == [True]
    assert len(node.failed) == 1
    assert all(log.offline for log in [*node.logs])


def test_without_a_descriptor_nothing_is_begun() -> None:
    node = Node(1)
    log = node.log(0)
    log.segments.active.close()
    log.segments.floor(5).close()  # type: ignore[union-attr]
    node.disk.handles_left = 0
    with pytest.raises(ApiError):
        begin_truncation(log, 5)
    node.disk.handles_left = None
    assert (log.log_end_offset, log.truncation, log.offline) == (10, None, False)


@pytest.mark.parametrize("damage", [(8, b"\0\0\0\1"), (8, b"\x7f\0\0\1"), (16, b"\7")], ids=["short", "long", "magic"])
def test_a_log_that_is_damaged_where_it_is_to_be_cut_is_not_changed(damage: tuple[int, bytes]) -> None:
    """Otherwise later segments would be gone, and the log would still claim their offsets."""
    node = Node(1)
    log = node.log(0)
    before = [(segment.base_offset, segment.size) for segment in log.segments]
    holder = log.segments.floor(4)
    assert holder is not None
    at, value = damage
    holder.file().write(next(position for position, header in holder.headers() if header.base_offset == 4) + at, value)
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            begin_truncation(log, 5)
        assert (log.log_end_offset, log.truncation, log.blocked) == (10, None, False)
    assert [(segment.base_offset, segment.size) for segment in log.segments] == before
    append(log, 2, 1)
    assert log.log_end_offset == 11


def test_an_unexpected_error_in_a_step_never_completes_a_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(2)
    log = node.log(0)

    def fail(*_: object) -> None:
        raise CorruptRecord("damaged since it was looked at")

    with monkeypatch.context() as patched:
        patched.setattr(type(log.segments.active), "shorten_to", fail)
        node.truncate(5)
        node.threads.all()
    assert node.done == [True]
    assert log.offline
    assert len(node.failed) == 1
    with pytest.raises(ApiError):
        append(log, 2, 1)


def test_producers_behind_a_damaged_batch_do_not_keep_a_log_from_being_cut() -> None:
    node = Node(2)
    log = node.log(0)
    first = log.segments.first
    first.file().write(16, b"\7")
    log.snapshots.remove_outside(0, 0)
    node.truncate(5)
    node.threads.all()
    assert not node.failed
    assert [each.log_end_offset for each in node.logs] == [5, 5]
    assert [each.truncation for each in node.logs] == [None, None]


def test_a_snapshot_that_was_found_damaged_by_a_truncation_is_not_flushed() -> None:
    node = Node(1)
    log = node.log(0)
    log.roll(NOW)
    append(log, 1, 2)
    damaged = log.snapshots.unsynced[-1]
    node.disk.flip_bit(log.snapshots.path(damaged), 80)
    log.update_high_watermark(damaged)
    node.truncate(damaged + 1)
    node.threads.all()
    assert damaged not in log.snapshots.offsets
    log.flush()
    assert (log.recovery_point, node.failed) == (damaged + 1, [])


def test_the_directory_of_a_log_is_renamed_while_it_is_flushed() -> None:
    """A copy gets the name of the log that it replaces; the thread was about to sync the former name."""
    node = Node(1)
    log = node.log(0)
    log.roll(NOW)
    append(log, 1, 1)
    job = log.flush_job().on_failure(log.on_io_error)

    def rename(path: str, operation: str) -> None:
        if path == "/d/t-0" and operation == "sync":
            node.disk.before = lambda *_: None
            log.rename_dir("/d/u-0")

    node.disk.before = rename
    recovery_point = log.recovery_point
    job.complete()
    assert (log.offline, node.failed, log.recovery_point) == (False, [], recovery_point)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    node.disk.crash()
    assert node.disk.stat("/d/u-0") is not None


def test_a_directory_that_is_missing_when_it_is_synced_has_failed() -> None:
    node = Node(1)
    log = node.log(0)
    log.roll(NOW)
    job = log.flush_job().on_failure(log.on_io_error)
    node.disk.rename("/d/t-0", "/d/elsewhere")
    with pytest.raises(ApiError):
        job.complete()
    assert len(node.failed) == 1
