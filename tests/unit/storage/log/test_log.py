"""The log on its own: appends, reads, rolls, transactions, retention, failures."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kalda.base.disk import Disk, FileSlice
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.sensors import Counter
from kalda.records.batch import TimestampType, iter_batches, read_header
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import DAY_MS, LogConfig
from kalda.storage.log.deletion import append_fetched, delete_old_segments, truncate_fully_and_start_at, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import ColdRead, TimeSearch, collect_aborted
from kalda.storage.values import AppendOrigin, FetchInfo, TimestampOffset, UnexpectedAppendOffset

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
TOPIC_ID = Uuid(bytes(15) + b"\x09")


class Hooks:
    def __init__(self) -> None:
        self.conversions = Counter()
        self.errors: list[OSError] = []
        self.rolled = 0
        self.deletions: list[tuple[int, Callable[[Disk], None]]] = []

    def on_io_error(self, log: Log, error: OSError) -> None:
        self.errors.append(error)

    def on_rolled(self, log: Log) -> None:
        self.rolled += 1

    def on_recovery_point_lowered(self, log: Log) -> None:
        pass

    def on_log_start_lowered(self, log: Log) -> None:
        pass

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        self.deletions.append((delay_ms, remove))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


def open_log(disk: SimDisk, config: LogConfig | None = None, *, clean: bool = True, hooks: Hooks | None = None) -> Log:
    config = config or LogConfig()
    return Log.open(
        Unopened(disk, "/d/t-0", config, topic_partition=TP, topic_id=TOPIC_ID, now_ms=NOW, clean=clean), hooks=hooks
    )


def rows(count: int, size: int = 10, timestamp: int = NOW) -> list[tuple[int, bytes | None, bytes | None, tuple[()]]]:
    return [(timestamp + i, b"k", bytes(size), ()) for i in range(count)]


def append(log: Log, count: int = 1, *, epoch: int = 0, now_ms: int = NOW, timestamp: int = NOW, size: int = 10) -> int:
    info = log.append_as_leader(build_batch(rows(count, size, timestamp)), epoch, now_ms)
    log.update_high_watermark(log.log_end_offset)
    return info.first_offset


def produce(
    log: Log, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False, timestamp: int = NOW
) -> int:
    batch = build_batch(
        rows(count, timestamp=timestamp),
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=txn,
    )
    info = log.append_as_leader(batch, 0, NOW)
    return -1 - info.first_offset if info.duplicate else info.first_offset


def mark(log: Log, *, commit: bool, pid: int = 1, epoch: int = 0, coordinator: int = 0, version: int = 0) -> None:
    batch = transaction_marker_batch(
        producer_id=pid, producer_epoch=epoch, commit=commit, coordinator_epoch=coordinator, timestamp_ms=NOW
    )
    log.append_as_leader(batch, 0, NOW, origin=AppendOrigin.COORDINATOR, transaction_version=version)


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(ApiError) as found:
        yield
    assert found.value.code is code, found.value


# Appends and reads


def test_offsets_and_epoch_are_stamped(disk: SimDisk) -> None:
    log = open_log(disk)
    assert append(log, 3, epoch=5) == 0
    assert append(log, 2, epoch=6) == 3
    header = read_header(bytes(log.read(3, 1000, 5).records))
    assert (header.base_offset, header.partition_leader_epoch) == (3, 6)
    assert log.leader_epochs.entries == [(5, 0), (6, 3)]
    assert log.end_offset_for_epoch(5) == (5, 3)
    assert log.end_offset_for_epoch(6) == (6, 5)
    assert log.end_offset_for_epoch(7) == (-1, -1)


def test_a_read_never_cuts_a_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(3):
        append(log, 2, size=100)
    size = log.size_bytes // 3
    assert log.read(1, 1, 6, True).size_bytes == size  # the first one comes whole
    first = log.read(0, size - 1, 6)
    assert first.size_bytes == 0
    assert first.first_entry_incomplete
    assert log.read(0, 2 * size + 60, 6).next_offset == 4
    assert log.read(0, 10_000, 3).next_offset == 2  # the second batch ends beyond offset 3
    assert log.read(6, 10_000, 6).size_bytes == 0
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(7, 10_000, 6)


def test_a_cold_cache_is_read_by_a_thread(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.close()
    log = open_log(disk)
    disk.cold = True
    read = log.read_nowait(0, 1000, 5)
    assert isinstance(read, ColdRead)
    read.run()
    disk.cold = False
    assert read.finish()
    found = read.result
    assert isinstance(found, FetchInfo)
    assert (found.first_offset, found.next_offset) == (0, 5)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read_later(9, 1000, 5)


def test_a_follower_appends_only_batches_that_follow_its_log(disk: SimDisk) -> None:
    log = open_log(disk)
    two = build_batch(rows(2), base_offset=0, leader_epoch=1) + build_batch(rows(2), base_offset=2, leader_epoch=2)
    cut = two + build_batch(rows(2), base_offset=4, leader_epoch=2)[:40]
    assert log.append_as_follower(bytes(cut), 2).last_offset == 3
    assert log.leader_epochs.entries == [(1, 0), (2, 2)]
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(bytes(build_batch(rows(1), base_offset=3, leader_epoch=2)), 2)
    newer = build_batch(rows(1), base_offset=4, leader_epoch=3)
    assert log.append_as_follower(bytes(newer), 2).size_bytes == 0  # of a later leader than this fetch's
    damaged = build_batch(rows(1), base_offset=4, leader_epoch=2)
    damaged[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_as_follower(bytes(damaged), 2)
    assert log.log_end_offset == 4


def test_timestamps_are_found(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=300, index_interval_bytes=50))
    for i in range(10):
        append(log, 2, timestamp=NOW + 100 * i)
    assert len(log.segments) > 2
    found = TimeSearch(log, NOW + 301).complete()
    assert found is not None
    assert (found.timestamp, found.offset) == (NOW + 301, 7)
    found = TimeSearch(log, NOW + 302).complete()
    assert found is not None
    assert found.offset == 8
    assert TimeSearch(log, NOW + 902).complete() is None
    latest = TimeSearch(log, None).complete()
    assert latest is not None
    assert latest.offset == 19


def test_the_largest_time_of_appends_is_that_of_its_batchs_first_record(disk: SimDisk) -> None:
    """As in Apache Kafka: all records of the batch have it."""
    log = open_log(disk, LogConfig(message_timestamp_type=TimestampType.LOG_APPEND))
    log.append_as_leader(build_batch([(NOW, b"k", b"v", ())] * 3), 0, NOW)
    assert TimeSearch(log, None).complete() == TimestampOffset(NOW, 0, 0)


def test_the_largest_timestamp_is_0(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 1, timestamp=0)
    assert TimeSearch(log, None).complete() == TimestampOffset(0, 0, 0)


# Segments


def test_segments_roll_by_size_and_by_time(disk: SimDisk, hooks: Hooks) -> None:
    log = open_log(disk, LogConfig(segment_bytes=600, segment_ms=1000), hooks=hooks)
    append(log, 1)
    append(log, 1, timestamp=NOW + 1000)
    assert len(log.segments) == 1
    append(log, 1, timestamp=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    append(log, 1, size=500, timestamp=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    assert hooks.rolled == 2
    names = disk.list_dir("/d/t-0")
    assert "00000000000000000002.snapshot" in names
    assert log.segments.first.time_index.entries() == [(NOW + 1000, 1)]


def test_segments_roll_when_an_index_is_full(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_index_bytes=36, index_interval_bytes=0))
    for i in range(10):
        append(log, 1, timestamp=NOW + i)
    # The time index has three places, the last one for the end of the segment: the second entry, at the third batch,
    # fills it.
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]


def test_a_batch_larger_than_a_segment_is_refused(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200))
    with refused(ErrorCode.RECORD_LIST_TOO_LARGE):
        append(log, 1, size=200)
    assert log.log_end_offset == 0


def test_retention_by_time(disk: SimDisk, hooks: Hooks) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200, retention_ms=1000, file_delete_delay_ms=77), hooks=hooks)
    for i in range(6):
        append(log, 1, size=60, timestamp=NOW + 500 * i)
    assert delete_old_segments(log, NOW + 2100) == 3
    assert log.log_start_offset == log.segments.first.base_offset == 3
    assert [delay for delay, _ in hooks.deletions] == [77]
    deleted = [name for name in disk.list_dir("/d/t-0") if name.endswith(".deleted")]
    assert len(deleted) == 11  # three segments of three files; two have a snapshot at their start
    hooks.deletions[0][1](disk)
    assert not any(name.endswith(".deleted") for name in disk.list_dir("/d/t-0"))
    assert delete_old_segments(log, NOW + 100_000) == 3  # the active one too: the log goes on in a new one
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (6, 6, 0)


def test_retention_by_size_and_not_beyond_the_high_watermark(disk: SimDisk, hooks: Hooks) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200, retention_bytes=450, retention_ms=-1), hooks=hooks)
    for _ in range(8):
        log.append_as_leader(build_batch(rows(1, 60)), 0, NOW)
    one = log.segments.first.size
    log.update_high_watermark(1)
    assert delete_old_segments(log, NOW) == 1
    log.update_high_watermark(8)
    delete_old_segments(log, NOW)
    assert 450 <= log.size_bytes < 450 + one


def test_records_are_deleted_below_an_offset(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200, retention_ms=-1))
    for _ in range(5):
        append(log, 2, size=20)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.advance_log_start_offset(11)
    assert log.advance_log_start_offset(5)
    assert not log.advance_log_start_offset(4)
    assert delete_old_segments(log, NOW) == 2
    assert (log.log_start_offset, log.segments.first.base_offset) == (5, 4)
    assert log.read(5, 1000, 10).size_bytes > 0
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(4, 1000, 10)
    assert log.leader_epochs.entries == [(0, 5)]


def test_a_topic_that_only_compacts_keeps_its_segments(disk: SimDisk) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=200, retention_ms=1, retention_bytes=1)
    log = open_log(disk, config)
    for _ in range(5):
        append(log, 1, size=60)
    assert delete_old_segments(log, NOW + 10**9) == 0


# Producers


def test_a_repeated_batch_is_not_appended_again(disk: SimDisk) -> None:
    log = open_log(disk)
    for i in range(6):
        assert produce(log, 2 * i, 2) == 2 * i
    assert produce(log, 2, 2) == -1 - 2  # the oldest of five that is remembered
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        produce(log, 0, 2)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        produce(log, 13, 2)
    assert log.log_end_offset == 12


def test_epochs_of_a_producer(disk: SimDisk) -> None:
    log = open_log(disk)
    assert produce(log, 7) == 0  # nothing is known: any sequence may start
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        produce(log, 8, epoch=1)
    assert produce(log, 0, epoch=1) == 1
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        produce(log, 1, epoch=0)


def test_sequences_wrap(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 2**31 - 2, 2)
    assert produce(log, 0) == 2
    assert produce(log, 2**31 - 2, 2) == -1 - 0
    produce(log, 1)
    log.close()
    assert [state.last_sequence for state in open_log(disk).producer_states] == [1]


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_stop_outlives_a_loss_of_power(seed: int) -> None:
    """After a clean stop everything is on the device, the names of new files as well."""
    disk = SimDisk(random.Random(seed))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    log = open_log(disk)
    produce(log, 0)
    log.flush()
    produce(log, 1)
    log.close()
    disk.crash()
    assert [state.last_sequence for state in open_log(disk).producer_states] == [1]


def test_producers_expire_but_not_within_a_transaction(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0, pid=1)
    produce(log, 0, pid=2, txn=True)
    assert log.producer_states.expire(NOW + DAY_MS - 1, DAY_MS) == 0
    assert log.producer_states.expire(NOW + DAY_MS, DAY_MS) == 1
    assert [state.producer_id for state in log.producer_states] == [2]


def test_the_last_stable_offset_stays_at_an_open_transaction(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    produce(log, 0, 2, txn=True, pid=1)
    produce(log, 0, 1, txn=True, pid=2)
    log.update_high_watermark(4)
    assert log.last_stable_offset == 1
    mark(log, commit=False, pid=1)
    assert log.last_stable_offset == 1  # the marker is not replicated yet
    log.update_high_watermark(5)
    assert log.last_stable_offset == 3
    mark(log, commit=True, pid=2)
    log.update_high_watermark(6)
    assert log.last_stable_offset == 6
    aborted = collect_aborted(log.segments, 0, 6)
    assert [tuple(txn) for txn in aborted] == [(1, 1, 4, 3)]
    assert collect_aborted(log.segments, 5, 6) == []
    log.close()
    assert collect_aborted(open_log(disk).segments, 0, 6) == aborted


def test_a_transaction_survives_recovery_and_truncation(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0, 2, txn=True)
    mark(log, commit=True)
    produce(log, 2, 2, txn=True)
    log.flush()
    disk.crash()
    log = open_log(disk, clean=False)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 3
    truncate_to(log, 3)
    assert log.last_stable_offset == 3
    assert produce(log, 2, 2, txn=True) == 3
    truncate_to(log, 2)  # into the marker: the transaction is open again
    assert log.last_stable_offset == 0


def test_writes_outside_an_open_transaction_are_refused(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0, txn=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        produce(log, 1)


def test_markers_of_late_coordinators_are_refused(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0, txn=True, epoch=3)
    mark(log, commit=True, epoch=3, coordinator=7)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        mark(log, commit=True, epoch=3, coordinator=6)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        mark(log, commit=True, epoch=2, coordinator=7)


def test_under_transaction_version_2_a_marker_must_bump_the_epoch(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0, txn=True, epoch=3)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        mark(log, commit=True, epoch=3, version=2)
    mark(log, commit=True, epoch=4, version=2)
    mark(log, commit=True, epoch=4, version=2)  # a retry: nothing is open any more
    assert produce(log, 0, txn=True, epoch=4) >= 0


def test_the_first_batch_of_a_transaction_must_be_verified(disk: SimDisk) -> None:
    log = Log.open(
        Unopened(disk, "/d/t-0", LogConfig(), topic_partition=TP, now_ms=NOW, clean=True, verify_transactions=True)
    )
    with refused(ErrorCode.INVALID_TXN_STATE):
        produce(log, 0, txn=True)
    guard = log.start_verification(1, 0, 0, NOW)
    assert guard is not None
    batch = build_batch(rows(1), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(batch, 0, NOW, verification=guard)
    assert log.start_verification(1, 1, 0, NOW) is None
    assert produce(log, 1, txn=True) == 1


# Stops, truncation, failures


def test_truncation_below_the_first_segment_empties_the_log(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200, retention_ms=-1))
    for _ in range(4):
        append(log, 1, size=60)
    log.advance_log_start_offset(3)
    delete_old_segments(log, NOW)
    assert truncate_to(log, 1)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 1, 1)
    assert append(log) == 1


def test_truncate_fully(disk: SimDisk) -> None:
    log = open_log(disk)
    produce(log, 0)
    truncate_fully_and_start_at(log, 100)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (100, 100, 0)
    assert not len(log.producer_states)
    assert append(log) == 100
    log.close()
    assert open_log(disk).log_end_offset == 101


def test_a_log_that_starts_within_a_batch_never_ends_before_its_start(disk: SimDisk) -> None:
    leader = open_log(disk)
    append(leader, 5)
    append(leader, 5)
    sent = bytearray(leader.read(0, 1 << 20, 10, True).records)
    sent[-1] ^= 1  # the second batch is damaged
    follower = Log.open(
        Unopened(disk, "/d/u-0", LogConfig(), topic_partition=TP, now_ms=NOW, clean=True, log_start_offset=3)
    )
    with pytest.raises(UnexpectedAppendOffset):
        follower.append_as_follower(sent, 0)
    append_fetched(follower, sent, 0)
    assert (follower.log_start_offset, follower.log_end_offset) == (3, 5)
    with pytest.raises(CorruptRecord):
        follower.append_as_follower(sent[len(sent) // 2 :], 0)


@pytest.mark.parametrize("log_start", [0, 1, 5, 6, 7])
def test_a_log_that_was_cut_back_into_a_batch_of_its_leader_gets_the_whole_batch(disk: SimDisk, log_start: int) -> None:
    """The leader's log starts within that batch, and so do its leader epochs, by which the follower was cut back."""
    leader = open_log(disk)
    for count in (5, 5, 1):
        append(leader, count)
    follower = Log.open(
        Unopened(disk, "/d/u-0", LogConfig(), topic_partition=TP, now_ms=NOW, clean=True, log_start_offset=log_start)
    )
    if log_start < 5:
        truncate_fully_and_start_at(follower, 0)
        follower.append_as_follower(leader.read(0, 1 << 20, 10).records, 0)
        follower.update_high_watermark(7)
        follower.advance_log_start_offset(log_start)
        truncate_to(follower, 7)
    else:
        truncate_fully_and_start_at(follower, 7, log_start)
        follower.update_high_watermark(7)
    assert (follower.log_start_offset, follower.high_watermark, follower.log_end_offset) == (log_start, 7, 7)
    sent = leader.read(7, 1 << 20, 11, True).records
    append_fetched(follower, sent, 0)
    assert (follower.log_start_offset, follower.high_watermark, follower.log_end_offset) == (log_start, 7, 10)
    append_fetched(follower, leader.read(10, 1 << 20, 11, True).records, 0)
    assert follower.read(log_start, 1 << 20, 11).records == leader.read(log_start, 1 << 20, 11).records
    follower.close()
    again = Log.open(Unopened(disk, "/d/u-0", LogConfig(), topic_partition=TP, now_ms=NOW, clean=True))
    assert again.log_end_offset == 11


@pytest.mark.parametrize("offsets", [(0, 3 * 2**30), (5, 2**31 + 2, 2**31 + 3), (2**30 - 1, 2**31 + 2**30 - 3)])
def test_batches_that_compaction_has_left_far_apart_are_replicated(disk: SimDisk, offsets: tuple[int, ...]) -> None:
    """They are in one segment of the leader, whose base offset is another one."""
    config = LogConfig(index_interval_bytes=0)
    log = Log.open(Unopened(disk, "/d/t-0", config, topic_partition=TP, topic_id=TOPIC_ID, now_ms=NOW, clean=True))
    sent = [bytes(build_batch([(NOW, b"k", b"v", ())], base_offset=offset, leader_epoch=0)) for offset in offsets]
    for _ in offsets:
        missing = [each for each, offset in zip(sent, offsets, strict=True) if offset >= log.log_end_offset]
        append_fetched(log, b"".join(missing), 0)
    assert log.log_end_offset == offsets[-1] + 1
    for offset, batch in zip(offsets, sent, strict=True):
        assert log.read(offset, 1, log.log_end_offset, True).records == batch


def test_a_batch_that_ends_before_the_log_does_is_refused(disk: SimDisk) -> None:
    leader = open_log(disk)
    append(leader, 5)
    follower = Log.open(Unopened(disk, "/d/u-0", LogConfig(), topic_partition=TP, now_ms=NOW, clean=True))
    sent = leader.read(0, 1 << 20, 5).records
    append_fetched(follower, sent, 0)
    with pytest.raises(UnexpectedAppendOffset):
        append_fetched(follower, sent, 0)


def test_the_topic_id_is_kept(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close()
    assert disk.read_file("/d/t-0/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACQ"
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        Log.open(
            Unopened(disk, "/d/t-0", LogConfig(), topic_partition=TP, topic_id=Uuid(bytes(16)), now_ms=NOW, clean=True)
        )


def test_a_log_with_records_always_has_its_topic_id(disk: SimDisk) -> None:
    append(open_log(disk))
    disk.crash()
    assert open_log(disk, clean=False).topic_id == TOPIC_ID


def test_a_full_disk_takes_the_log_offline(disk: SimDisk, hooks: Hooks) -> None:
    log = open_log(disk, hooks=hooks)
    append(log)
    disk.capacity_bytes = sum(len(disk.read_file(f"/d/t-0/{name}")) for name in disk.list_dir("/d/t-0")) + 20
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log)
    assert [error.errno for error in hooks.errors] == [errno.ENOSPC]
    assert log.log_end_offset == 1
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.read(0, 100, 1)
    disk.capacity_bytes = None
    assert open_log(disk, clean=False).log_end_offset == 1  # the torn batch is cut off


def test_the_hooks_are_called_once_for_a_failing_disk(disk: SimDisk, hooks: Hooks) -> None:
    log = open_log(disk, hooks=hooks)
    append(log)
    disk.fail("/d")
    for _ in range(2):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            log.read(0, 100, 1)
    assert len(hooks.errors) == 1


def test_a_flipped_bit_ends_the_log_at_recovery(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=300))
    for _ in range(6):
        append(log, 1, size=60)
    log.close()
    size = log.segments.first.size
    disk.flip_bit("/d/t-0/00000000000000000000.log", (size - 5) * 8)
    log = open_log(disk, LogConfig(segment_bytes=300), clean=False)
    assert (log.log_end_offset, len(log.segments)) == (1, 1)
    assert append(log) == 1


def test_a_missing_index_is_rebuilt(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    log = open_log(disk, config)
    for _ in range(12):
        append(log, 1, size=60)
    entries = [segment.offset_index.entries() for segment in log.segments]
    log.close()
    disk.remove("/d/t-0/00000000000000000000.index")
    log = open_log(disk, config)
    assert [segment.offset_index.entries() for segment in log.segments] == entries
    assert log.log_end_offset == 12


def test_a_flush_of_less_does_not_remove_a_leader_epoch_from_the_file(disk: SimDisk) -> None:
    """Such as a new log's first flush, while another one goes further and an epoch has begun that has no record yet."""
    log = open_log(disk)
    append(log, 2)
    append(log, 2, epoch=1)
    log.roll(NOW)
    append(log, epoch=1)
    further = log.flush_job()
    further.run()
    log.assign_leader_epoch(2, 5)
    log.flush(1)
    further.finish()
    point = log.checkpoint_recovery_point
    assert point == 4
    disk.crash()
    log = Log.open(
        Unopened(disk, "/d/t-0", log.config, topic_partition=TP, now_ms=NOW, clean=False, recovery_point=point)
    )
    assert log.leader_epochs.entries == [(0, 0), (1, 2)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("clean", [True, False])
def test_a_rebuilt_index_outlives_a_loss_of_power(clean: bool, seed: int) -> None:
    """With zeros in the time index, retention would delete the segment."""
    disk = SimDisk(random.Random(seed))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    log = open_log(disk, LogConfig(segment_bytes=400))
    for _ in range(12):
        append(log)
    log.close()
    end, largest = log.log_end_offset, [segment.max_timestamp for segment in log.segments]
    for name in disk.list_dir("/d/t-0"):
        if name.endswith(".index"):
            disk.remove(f"/d/t-0/{name}")
    disk.sync_dir("/d/t-0")
    for as_clean in (clean, False):
        disk.crash()
        log = Log.open(
            Unopened(disk, "/d/t-0", log.config, topic_partition=TP, now_ms=NOW, clean=as_clean, recovery_point=end)
        )
    assert [segment.max_timestamp for segment in log.segments] == largest


def test_an_append_syncs_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    synced = disk.syncs
    for _ in range(100):
        append(log)
    assert disk.syncs == synced
    assert not log.flush_due
    log.update_config(LogConfig(flush_messages=100))
    assert log.flush_due
    log.flush()
    assert not log.flush_due


class NoJobs:
    def run(self, job: object, finish: object) -> None:
        raise AssertionError("a simulated disk has everything in memory")


def test_a_slice_has_the_batches_that_a_read_has(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=900_000))
    rng = random.Random(5)
    while log.log_end_offset < 3_000:
        append(log, rng.randrange(1, 20), size=rng.choice((10, 100, 3_000)))
    sliced = 0
    for offset in sorted(rng.randrange(3_000) for _ in range(60)):
        end, max_bytes = (
            rng.choice((log.log_end_offset, rng.randrange(offset + 1, 3_001))),
            rng.choice((400_000, 1 << 22)),
        )
        log.read(offset, 1, end)  # opens what is not open
        found = log.read_nowait(offset, max_bytes, end, slices=NoJobs())
        assert isinstance(found, FetchInfo)
        if not isinstance(found.records, FileSlice):
            assert log.read(offset, max_bytes, end).records == found.records
            continue
        sliced += 1
        data = found.records.read(1 << 22, lambda: None)
        read = log.read(offset, max_bytes, end)
        assert data
        assert bytes(read.records).startswith(bytes(data))
        assert 128 * 1024 <= len(data) == found.size_bytes <= max_bytes
        headers = [header for _, header in iter_batches(data)]
        assert headers[0].base_offset <= offset < headers[0].next_offset
        assert headers[-1].next_offset == found.next_offset <= end
        assert sum(header.size_bytes for header in headers) == len(data)
        assert read.size_bytes - len(data) < 80_000, "the index knows a place near the end"
    assert sliced > 20
    found = log.read_nowait(10, 100_000, log.log_end_offset, slices=NoJobs())
    assert isinstance(found, FetchInfo)
    assert not isinstance(found.records, FileSlice), "too little"
    found = log.read_nowait(log.log_end_offset, 1 << 20, log.log_end_offset, slices=NoJobs())
    assert isinstance(found, FetchInfo)
    assert not found.size_bytes
    log.close()
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.read_nowait(10, 1 << 20, log.log_end_offset, slices=NoJobs())


def test_a_large_part_that_is_cached_in_part_is_read_by_a_job(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(disk, LogConfig(segment_bytes=900_000))
    while log.log_end_offset < 400:
        append(log, 10, size=1_000)
    log.roll(0)
    log.reads.forget()
    log.read(0, 1, 400)  # opens the files
    node_of = type(next(iter(log.segments)).reading(lambda *_: b""))
    read_nowait, sizes = node_of.read_nowait, []

    def half_cached(file: Any, position: int, size: int) -> Any:
        sizes.append(size)
        return read_nowait(file, position, size) if position + size < 200_000 else None

    monkeypatch.setattr(node_of, "read_nowait", half_cached)
    assert isinstance(log.read_nowait(0, 400_000, 400, slices=NoJobs()), ColdRead)
    assert max(sizes) < 128 * 1024


@pytest.mark.parametrize("torn", [b"", b"0\n2\n1 0\n3 1"], ids=["to nothing", "within its last number"])
def test_leader_epochs_whose_file_is_torn_are_read_from_the_batches(disk: SimDisk, torn: bytes) -> None:
    """The file is written without a sync: after a loss of power it may be there in part."""
    log = open_log(disk)
    for epoch in (1, 1, 3):
        append(log, 5, epoch=epoch)
    log.flush()
    log.close()
    disk.open("/d/t-0/leader-epoch-checkpoint").truncate(0)
    disk.open("/d/t-0/leader-epoch-checkpoint").write(0, torn)
    assert open_log(disk).leader_epochs.entries == [(1, 0), (3, 10)]
