"""A log with very many producers: their snapshots, their expiry, and the limit on all logs of a node."""

from __future__ import annotations

import random

import pytest

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.batch import read_header
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import DAY_MS, LogConfig, LogManagerConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log import producer_snapshot, producer_state
from kalda.storage.log.deletion import truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.producer_snapshot import read_snapshot, write_snapshot
from kalda.storage.log.producer_state import CompletedTxn, ProducerState, ProducerStates
from kalda.storage.log.state import StandaloneHooks
from kalda.storage.values import AppendInfo, AppendOrigin

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000


class NoMaintenance(StandaloneHooks):
    """Leaves the jobs of a roll to the test."""

    def on_rolled(self, log: Log) -> None:
        pass


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshot, "_WRITTEN_AT_ONCE", 3)
    monkeypatch.setattr(producer_snapshot, "_ENTRIES_A_WRITE", 2)
    monkeypatch.setattr(producer_snapshot, "_ENTRIES_A_READ", 3)


def open_log(disk: SimDisk, *, clean: bool) -> Log:
    return Log.open(
        Unopened(
            disk,
            "/d/t-0",
            LogConfig(),
            topic_partition=TP,
            topic_id=TOPIC_ID,
            now_ms=NOW,
            clean=clean,
        ),
        hooks=NoMaintenance(disk),
    )


def produce(log: Log, pid: int, sequence: int = 0, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
    batch = build_batch([(NOW, None, b"x", ())], producer_id=pid, producer_epoch=0, base_sequence=sequence)
    info = log.append_as_leader(batch, 0, NOW, origin)
    log.update_high_watermark(log.log_end_offset)
    return info


def sequences(log: Log) -> dict[int, int]:
    return {state.producer_id: state.last_sequence for state in log.producer_states}


def test_a_snapshot_of_any_size_can_be_read_back(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a million producers, and above 64 MiB."""
    monkeypatch.undo()
    count = 64 * 1024 * 1024 // 46 + 1
    states = [ProducerState(0, 3, 1, NOW)] * count
    states[-1] = ProducerState(count - 1, 3, 1, NOW)
    file = disk.open("/d/5.snapshot", create=True)
    write_snapshot(file, states)
    assert file.size() > 64 * 1024 * 1024
    found = read_snapshot(disk, "/d/5.snapshot")
    assert len(found) == count
    assert (found[-1].producer_id, found[-1].epoch, found[-1].last_timestamp) == (count - 1, 3, NOW)


@pytest.mark.parametrize("size", [0, 9, 10, 30, 56, 101])
def test_a_torn_snapshot_is_refused(disk: SimDisk, size: int) -> None:
    file = disk.open("/d/5.snapshot", create=True)
    write_snapshot(file, [ProducerState(producer_id) for producer_id in range(2)])
    assert len(read_snapshot(disk, "/d/5.snapshot")) == 2
    file.truncate(size)
    with pytest.raises(CorruptRecord):
        read_snapshot(disk, "/d/5.snapshot")


def test_the_snapshot_of_a_roll_has_the_producers_of_the_roll(disk: SimDisk) -> None:
    """It is written by a job, while producers go on."""
    log = open_log(disk, clean=True)
    for pid in range(5):
        produce(log, pid)
    log.roll(NOW)
    job = log.snapshot_job()
    assert job is not None
    assert log.snapshot_job() is None
    produce(log, 4, 1)
    produce(log, 9)
    assert produce(log, 4, 1).duplicate
    assert produce(log, 3).duplicate
    with pytest.raises(ApiError, match="out of order"):
        produce(log, 3, 7)
    assert sequences(log) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 9: 0}
    assert len(log.producer_states) == 6
    job.run()
    produce(log, 2, 1)
    job.finish()
    assert sequences(log) == {0: 0, 1: 0, 2: 1, 3: 0, 4: 1, 9: 0}
    found = read_snapshot(disk, log.snapshots.path(5))
    assert {state.producer_id: state.last_sequence for state in found} == dict.fromkeys(range(5), 0)


def test_a_roll_while_a_snapshot_is_written_gets_none(disk: SimDisk) -> None:
    log = open_log(disk, clean=True)
    for pid in range(5):
        produce(log, pid)
    log.roll(NOW)
    first = log.snapshot_job()
    assert first is not None
    produce(log, 5)
    log.roll(NOW)
    assert log.snapshot_job() is None
    first.complete()
    produce(log, 6)
    log.roll(NOW)
    last = log.snapshot_job()
    assert last is not None
    last.complete()
    assert log.snapshots.offsets == [5, 7]
    log.close(clean=False)
    disk.let_go()
    assert sequences(open_log(disk, clean=False)) == dict.fromkeys(range(7), 0)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_truncation_while_a_snapshot_is_written(disk: SimDisk, is_written: bool) -> None:
    log = open_log(disk, clean=True)
    for pid in range(5):
        produce(log, pid)
    log.roll(NOW)
    job = log.snapshot_job()
    assert job is not None
    if is_written:
        job.run()
    truncate_to(log, 2)
    assert sequences(log) == {0: 0, 1: 0}
    if not is_written:
        job.run()
    job.finish()
    assert sequences(log) == {0: 0, 1: 0}
    for pid in range(10, 15):
        produce(log, pid)
    expected = sequences(log)
    log.close(clean=False)
    disk.let_go()
    assert sequences(open_log(disk, clean=False)) == expected


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_clean_stop_while_a_snapshot_is_written(disk: SimDisk, appended: bool, is_finished: bool) -> None:
    log = open_log(disk, clean=True)
    for pid in range(5):
        produce(log, pid)
    log.roll(NOW)
    job = log.snapshot_job()
    assert job is not None
    if appended:
        produce(log, 3, 1)
    expected = sequences(log)
    closing = log.close_job()
    if is_finished:
        job.run()
        closing.run()
        job.finish()
        closing.finish()
    else:
        closing.complete()
    disk.crash()
    reopened = open_log(disk, clean=True)
    assert sequences(reopened) == expected
    assert reopened.log_end_offset == 5 + appended


def test_producers_expire_some_at_a_time(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "_EXPIRED_A_CALL", 4)
    states = ProducerStates("t-0")
    states.load([ProducerState(producer_id, 0, -1, NOW) for producer_id in range(9)], 5)
    assert states.expire(NOW + DAY_MS, DAY_MS) is None
    assert len(states) == 5
    assert states.expire(NOW + DAY_MS, DAY_MS) is None
    assert states.expire(NOW + DAY_MS, DAY_MS) == 1
    assert not len(states)


class Logs:
    """Two logs of a node that may hold ten producer ids."""

    def __init__(self, disk: SimDisk) -> None:
        config = LogManagerConfig(max_producer_ids=10, verify_transactions=False)
        self.manager = LogManager({"/d": disk}, lambda _: LogConfig(), config=config, unique=str, now_ms=lambda: NOW)
        for job in self.manager.load_jobs():
            job.complete()
        self.one, self.other = (
            self.manager.get_or_create_log(TopicPartition("t", i), TOPIC_ID, LogConfig(), None) for i in range(2)
        )


def test_at_the_limit_the_log_with_most_producer_ids_releases_its_oldest(disk: SimDisk) -> None:
    """So a writer of very many ids releases its own: all others go on, and new ones are served."""
    logs = Logs(disk)
    for pid in (100, 101):
        produce(logs.other, pid)
    produce(logs.one, 200)
    for pid in range(50):
        produce(logs.one, pid)
        produce(logs.one, 200, pid + 1)
        assert logs.one.producer_states.held + logs.other.producer_states.held <= 10
    assert sequences(logs.other) == {100: 0, 101: 0}
    assert sequences(logs.one)[200] == 50, "it has written last, and is known still"
    assert 49 in sequences(logs.one)
    produce(logs.other, 102)
    assert produce(logs.other, 100).duplicate
    assert 0 not in sequences(logs.one)
    produce(logs.one, 0, 1)  # goes on after its release


def test_producer_ids_with_an_open_transaction_are_not_released(disk: SimDisk) -> None:
    logs = Logs(disk)
    for pid in range(10):
        batch = build_batch(
            [(NOW, None, b"x", ())], producer_id=pid, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        logs.one.append_as_leader(batch, 0, NOW)
    with pytest.raises(ApiError, match=r"kalda\.producer\.ids\.max=10") as refused:
        produce(logs.other, 10)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert logs.other.log_end_offset == 0
    assert set(sequences(logs.one)) == set(range(10))
    produce(logs.one, 10, origin=AppendOrigin.COORDINATOR)


def test_producer_ids_that_a_snapshot_is_being_made_of_are_not_released(disk: SimDisk) -> None:
    logs = Logs(disk)
    for pid in range(10):
        produce(logs.one, pid)
    logs.one.roll(NOW)
    job = logs.one.snapshot_job()
    if job is None:
        (job,) = logs.manager.maintenance.poll(NOW)
    with pytest.raises(ApiError, match="being written to a snapshot"):
        produce(logs.other, 10)
    job.complete()
    logs.manager._producer_limit.on_released()
    produce(logs.other, 10)


def test_verifications_without_an_append_are_released_too() -> None:
    states = ProducerStates("t-0")
    for pid in range(5):
        states.verify(pid, 0, 0, NOW, supports_epoch_bump=True)
    assert [states.release_oldest() for _ in range(4)] == [3, 1, 1, 0]


def test_a_call_releases_some_producers_and_the_next_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "_RELEASED_A_CALL", 4)
    states = ProducerStates("t-0")
    header = read_header(build_batch([(NOW, b"k", b"v", ())], producer_id=0, producer_epoch=0))
    for pid in range(8):
        states.apply_data(header._replace(base_offset=pid, producer_id=pid))
    assert states.release_oldest() == 2
    assert [state.producer_id for state in states] == [4, 5, 6, 7, 2, 3]
    assert states.release_oldest() == 2
    assert [state.producer_id for state in states] == [2, 3, 6, 7]


def test_transactions_that_a_recovery_finds_are_very_many() -> None:
    """The high watermark is not known meanwhile, so all of them may be unreplicated. Their ends are in another order
    than their beginnings. Time for each that grew with their number would be minutes here."""
    states, pairs = ProducerStates("t-0"), 50_000
    data = read_header(build_batch([(NOW, b"k", b"v", ())], producer_id=0, producer_epoch=0, is_transactional=True))
    for first in range(0, 4 * pairs, 4):
        for number in (0, 1):
            states.apply_data(data._replace(base_offset=first + number, producer_id=first + number))
        for number in (1, 0):
            states.complete(CompletedTxn(first + number, first + number, first + 3 - number, aborted=False))
    assert states.first_unstable_offset == 0
    states.on_high_watermark(4 * 1_000 + 3)
    assert states.first_unstable_offset == 4 * 1_000, "its marker is the last of the four"
    states.on_high_watermark(4 * pairs)
    assert states.first_unstable_offset is None


def test_a_transaction_that_may_be_hanging_is_late() -> None:
    states = ProducerStates("t-0")
    assert not states.has_late_transaction(NOW, 0)
    data = read_header(build_batch([(NOW, b"k", b"v", ())], producer_id=4, producer_epoch=0, is_transactional=True))
    states.apply_data(data)
    buffer_ms = 5 * 60_000
    assert not states.has_late_transaction(NOW + 900_000 + buffer_ms, 900_000)
    assert states.has_late_transaction(NOW + 900_000 + buffer_ms + 1, 900_000)
