"""A sync that fails, after which the system counts the bytes as synced: the next start reads what the device has."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from kalda.base.disk import Disk
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition, Uuid
from kalda.broker.process.disk import RealDisk
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig
from kalda.raft.quorum_state import ElectionState
from kalda.raft.voters import ReplicaKey
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import DISK_FAILED_FILE, mark_failed
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000
SYNCS = frozenset(("sync",))


def new_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    disk.forgets_failed_writes = True
    return disk


def start(disk: Disk) -> tuple[LogManager, Log]:
    logs = LogManager({"/d": disk}, lambda _: LogConfig(), unique=lambda: "f" * 32, now_ms=lambda: NOW)
    for job in logs.load_jobs():
        job.complete()
    return logs, logs.get_or_create_log(TP, TOPIC_ID, LogConfig(), None)


def append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(build_batch([(NOW, None, bytes(600), ())]), 0, NOW)


def failed_log() -> SimDisk:
    """A node that ends after a failed sync: three records are on its device, five in its page cache."""
    disk = new_disk()
    _, log = start(disk)
    append(log, 3)
    log.flush()
    append(log, 2)
    disk.fail("/d/t-0", errno.EIO, SYNCS)
    with pytest.raises(OSError, match="EIO"):
        log.flush()
    log.failed(OSError(errno.EIO, "a sync failed"))
    disk.mend("/d/t-0")
    disk.let_go()
    return disk


def test_records_that_only_the_page_cache_has_are_not_taken_for_synced() -> None:
    disk = failed_log()
    assert DISK_FAILED_FILE in disk.names("/d")
    _, log = start(disk)
    assert log.log_end_offset == 3
    assert DISK_FAILED_FILE not in disk.names("/d")
    append(log, 1)
    log.flush()
    disk.crash()
    _, log = start(disk)
    assert log.log_end_offset == 4
    assert log.topic_id == TOPIC_ID


def test_the_mark_stays_until_all_logs_have_been_recovered() -> None:
    disk = failed_log()
    disk.fail("/d/t-0", errno.EIO, frozenset(("read",)))
    logs = LogManager({"/d": disk}, lambda _: LogConfig(), unique=lambda: "f" * 32, now_ms=lambda: NOW)
    for job in logs.load_jobs():
        job.complete()
    assert DISK_FAILED_FILE in disk.names("/d")


def test_a_stop_counts_as_unclean_where_the_disk_has_failed() -> None:
    disk = new_disk()
    logs, log = start(disk)
    append(log, 2)
    logs.close()
    disk.open(f"/d/{DISK_FAILED_FILE}", create=True)
    logs, log = start(disk)
    assert not logs.dirs[0].had_clean_shutdown
    assert log.log_end_offset == 2


def test_a_disk_that_takes_no_mark_is_no_further_failure(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    logs, log = start(disk)
    disk.fail("/d")
    logs.dirs.fail(logs.dirs[0], OSError(errno.EIO, "broken"))
    assert log.offline
    assert "/d cannot be marked as failed" in caplog.text


def test_the_metadata_log_is_read_from_the_device_too() -> None:
    disk = new_disk()
    log = MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1)
    disk.sync_dir("/d")
    for offset in range(2):
        log.append(build_batch([(NOW, None, bytes(600), ())], base_offset=offset, leader_epoch=1), 1)
    log.flush_job(2).complete()
    log.append(build_batch([(NOW, None, bytes(600), ())], base_offset=2, leader_epoch=1), 1)
    disk.fail("/d/m", errno.EIO, SYNCS)
    with pytest.raises(ApiError):
        log.flush_job(3).complete()
    disk.mend("/d/m")
    disk.let_go()
    log = MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1)
    assert log.log.log_end_offset == 2
    assert DISK_FAILED_FILE not in disk.names("/d/m")


def test_the_cache_of_a_real_file_is_dropped_and_it_is_whole(tmp_path: Path) -> None:
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    file.write(0, b"abc")
    file.drop_cache()
    assert file.read(0, 10) == b"abc"


def test_a_metadata_log_that_cannot_be_synced_at_its_opening_is_read_from_the_device_next_time() -> None:
    disk = new_disk()
    log = MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1)
    disk.sync_dir("/d")
    log.append(build_batch([(NOW, None, bytes(600), ())], leader_epoch=1), 1)
    disk.let_go()  # killed: the record is in the page cache only
    disk.fail("/d/m", errno.EIO, SYNCS)
    with pytest.raises(OSError, match="EIO"):
        MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1)
    disk.mend("/d/m")
    disk.let_go()
    assert MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1).log.log_end_offset == 0


def test_the_election_state_that_is_found_after_a_failed_sync_outlives_a_loss_of_power() -> None:
    disk = new_disk()
    log = MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1)
    disk.sync_dir("/d")
    log.write_election(ElectionState(4), (), 1)
    disk.fail("/d/m", errno.EIO, SYNCS)
    with pytest.raises(OSError, match="EIO"):
        log.write_election(ElectionState(5, None, ReplicaKey(2)), (), 1)
    # It was renamed all the same by an operator, or by a file system that synced nothing.
    disk.rename("/d/m/quorum-state.tmp", "/d/m/quorum-state")
    mark_failed(disk, "/d/m")
    disk.mend("/d/m")
    disk.let_go()
    voted = MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1).read_election()
    assert voted == ElectionState(5, None, ReplicaKey(2))
    disk.crash()
    assert MetadataLog.open(disk, "/d/m", MetadataLogConfig(), now_ms=1).read_election() == voted


def test_producers_that_only_the_page_cache_has_are_read_from_batches() -> None:
    disk = new_disk()
    _, log = start(disk)
    log.append_as_leader(build_batch([(NOW, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0), 0, NOW)
    log.flush()
    log.roll(NOW)
    disk.fail("/d/t-0/00000000000000000001.snapshot", errno.EIO, SYNCS)
    with pytest.raises(OSError, match="EIO"):
        log.flush()
    log.failed(OSError(errno.EIO, "a sync failed"))
    disk.mend("/d/t-0/00000000000000000001.snapshot")
    disk.let_go()
    logs, log = start(disk)
    assert [state.producer_id for state in log.producer_states] == [7]
    logs.close()
    disk.crash()
    _, log = start(disk)
    assert [state.producer_id for state in log.producer_states] == [7]
