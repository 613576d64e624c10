"""Logs with batches of the message formats 0 and 1: opened, recovered, read, searched, cut and replicated, as Apache
Kafka 4.3.1 does. What is of a format that is not known is no damage."""

from __future__ import annotations

import random
from typing import Any

import pytest
from legacy_batches import LegacyRecord, legacy_batch

from kalda.base.errors import UnsupportedFormat
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.batch import iter_batches
from kalda.records.builder import Record, build_batch, read_records
from kalda.records.compression import Compression
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import delete_old_segments, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.segment import Segment
from kalda.storage.log.snapshot_jobs import TimeSearch

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000
CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
FORMATS = [(magic, codec) for magic in (0, 1) for codec in CODECS]
SEGMENTS = ("00000000000000000000", "00000000000000000040")


def records_from(offset: int, count: int, magic: int) -> list[LegacyRecord]:
    return [
        (at, NOW + at * 1000 if magic else -1, f"key-{at % 7}".encode(), None if at % 9 == 8 else b"value %d" % at)
        for at in range(offset, offset + count)
    ]


def segment_bytes(first: int, magic: int, codec: Compression) -> bytes:
    return b"".join(legacy_batch(magic, records_from(at, 5, magic), codec) for at in range(first, first + 40, 5))


def put(disk: SimDisk, name: str, data: bytes) -> None:
    file = disk.open(f"/d/t-0/{name}", create=True)
    file.truncate(0)
    file.write(0, data)
    file.sync()
    file.close()


def old_disk(magic: int, codec: Compression) -> SimDisk:
    """Two segments of 40 records each, without indexes, as copied from an old broker."""
    disk = SimDisk(random.Random(1), now_ms=lambda: NOW)
    disk.make_dirs("/d/t-0")
    for name, first in zip(SEGMENTS, (0, 40), strict=True):
        put(disk, f"{name}.log", segment_bytes(first, magic, codec))
    disk.sync_dir("/")
    disk.sync_dir("/d")
    disk.sync_dir("/d/t-0")
    return disk


def open_log(disk: SimDisk, *, clean: bool, **config: int) -> Log:
    log = Log.open(
        Unopened(
            disk,
            "/d/t-0",
            LogConfig(index_interval_bytes=100, **config),
            topic_partition=TP,
            topic_id=TOPIC_ID,
            now_ms=NOW,
            clean=clean,
        )
    )
    log.update_high_watermark(log.log_end_offset)
    return log


def read_all(log: Log, offset: int = 0) -> list[Record]:
    found: list[Record] = []
    while offset < log.log_end_offset:
        info = log.read(offset, 300, log.log_end_offset, min_one_message=True)
        for position, header in iter_batches(info.records):
            found += [r for r in read_records(info.records, position, header) if r.offset >= offset]
        assert info.next_offset > offset, f"nothing is read at {offset}"
        offset = info.next_offset
    return found


def expected(magic: int, offset: int = 0, end: int = 80) -> list[Record]:
    return [Record(*row, ()) for row in records_from(offset, end - offset, magic)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_every_record_is_kept_and_served_at_each_offset(magic: int, codec: Compression, clean: bool) -> None:
    disk = old_disk(magic, codec)
    before = [disk.peek(f"/d/t-0/{name}.log") for name in SEGMENTS]
    log = open_log(disk, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, 80)
    assert [disk.peek(f"/d/t-0/{name}.log") for name in SEGMENTS] == before
    for offset in range(80):
        assert read_all(log, offset) == expected(magic, offset)
    log.close()
    again = open_log(disk, clean=True)
    assert read_all(again) == expected(magic)
    assert again.leader_epochs.entries == []


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_batches_of_the_current_format_follow(magic: int, codec: Compression) -> None:
    disk = old_disk(magic, codec)
    log = open_log(disk, clean=True)
    for at in range(3):
        log.append_as_leader(build_batch([(NOW, b"k", b"%d" % at, ())]), 7, NOW)
    assert log.leader_epochs.entries == [(7, 80)]
    log.close(clean=False)
    log = open_log(disk, clean=False)
    assert log.log_end_offset == 83
    assert log.leader_epochs.entries == [(7, 80)]
    assert [r.offset for r in read_all(log)] == list(range(83))


def test_a_clean_start_reads_the_headers_of_the_last_old_segment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find out that there are no leader epochs: a log of old formats has no entry in their file."""
    disk = old_disk(1, Compression.GZIP)
    open_log(disk, clean=False).close()
    read: list[int] = []
    headers = Segment.headers

    def counted(self: Segment, *arguments: Any) -> Any:
        read.append(self.base_offset)
        return headers(self, *arguments)

    monkeypatch.setattr(Segment, "headers", counted)
    assert open_log(disk, clean=True).log_end_offset == 80
    assert set(read) == {40}


def test_the_smallest_message_is_read_wherever_it_stands() -> None:
    disk = SimDisk(random.Random(1), now_ms=lambda: NOW)
    disk.make_dirs("/d/t-0")
    rows: list[LegacyRecord] = [(at, -1, None, None) for at in range(700)]
    put(disk, f"{SEGMENTS[0]}.log", legacy_batch(0, rows))
    for clean in (False, True):
        log = open_log(disk, clean=clean)
        assert log.log_end_offset == 700
        for offset in (0, 300, 698, 699):
            info = log.read(offset, 1 << 20, 700)
            assert (len(info.records), info.next_offset) == (26 * (700 - offset), 700)
        assert log.read(699, 10, 700, min_one_message=True).next_offset == 700
        assert len(log.read(0, 1 << 20, 699).records) == 26 * 699
        log.close()


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_damage_is_cut_off_and_nothing_before_it(magic: int, codec: Compression) -> None:
    disk = old_disk(magic, codec)
    data = bytearray(disk.peek(f"/d/t-0/{SEGMENTS[1]}.log"))
    positions = [position for position, header in iter_batches(data) if header.last_offset <= 59]
    data[positions[-1] + 30] ^= 4
    put(disk, f"{SEGMENTS[1]}.log", bytes(data))
    log = open_log(disk, clean=False)
    end = 59 if codec is Compression.NONE else 55
    assert log.log_end_offset == end
    assert read_all(log) == expected(magic, 0, end)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_the_log_is_cut_before_the_batch_that_holds_the_offset(magic: int, codec: Compression) -> None:
    log = open_log(old_disk(magic, codec), clean=False)
    truncate_to(log, 52)
    assert log.log_end_offset == 52
    # As in Kafka the log ends at that offset, and a follower appends the batch that it gets for it again.
    log.append_as_follower(segment_bytes(40, magic, codec)[log.segments.active.size :], 3)
    assert read_all(log) == expected(magic)
    log.update_high_watermark(80)
    log.advance_log_start_offset(33)
    assert read_all(log, 33)[0].offset == 33


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_found_by_their_time(codec: Compression) -> None:
    log = open_log(old_disk(1, codec), clean=False)
    for offset in (0, 4, 17, 42, 79):
        found = TimeSearch(log, NOW + offset * 1000).complete()
        assert found == (NOW + offset * 1000, offset, -1)
    assert TimeSearch(log, NOW + 80_000).complete() is None
    assert TimeSearch(log, None).complete() == (NOW + 79_000, 79, -1)


@pytest.mark.parametrize("codec", CODECS)
def test_records_without_a_time_are_not_found_by_it(codec: Compression) -> None:
    log = open_log(old_disk(0, codec), clean=False)
    assert TimeSearch(log, 0).complete() is None
    assert TimeSearch(log, None).complete() is None


def test_retention_goes_by_the_records_time_or_that_of_the_file() -> None:
    """Formats without a time have that of the file, as in Kafka."""
    log = open_log(old_disk(1, Compression.GZIP), clean=False, retention_ms=100_000)
    assert delete_old_segments(log, NOW + 139_000) == 0
    assert delete_old_segments(log, NOW + 139_001) == 1
    assert log.log_start_offset == 40
    log = open_log(old_disk(0, Compression.GZIP), clean=False, retention_ms=100_000)
    assert delete_old_segments(log, NOW + 100_000) == 0
    assert delete_old_segments(log, NOW + 100_001) == 2


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_follower_takes_them_as_they_are(magic: int, codec: Compression) -> None:
    leader = open_log(old_disk(magic, codec), clean=True)
    disk = SimDisk(random.Random(2), now_ms=lambda: NOW)
    disk.make_dirs("/d")
    follower = open_log(disk, clean=True)
    while follower.log_end_offset < leader.log_end_offset:
        offset = follower.log_end_offset
        follower.append_as_follower(leader.read(offset, 400, 80, min_one_message=True).records, 3)
    assert disk.peek(f"/d/t-0/{SEGMENTS[0]}.log") == segment_bytes(0, magic, codec) + segment_bytes(40, magic, codec)
    assert read_all(follower) == expected(magic)


def test_an_old_batch_after_newer_ones_clears_the_leader_epochs() -> None:
    """As in Kafka: such a leader cannot say where its epochs began, so the high watermark decides what is cut."""
    disk = SimDisk(random.Random(2), now_ms=lambda: NOW)
    disk.make_dirs("/d")
    log = open_log(disk, clean=True)
    log.append_as_leader(build_batch([(NOW, b"k", b"v", ())]), 7, NOW)
    log.append_as_follower(legacy_batch(1, records_from(1, 3, 1)), 8)
    assert log.leader_epochs.entries == []
    assert log.log_end_offset == 4


@pytest.mark.parametrize("magic", [3, 100, 200])
def test_a_batch_of_an_unknown_format_is_neither_read_nor_cut(magic: int) -> None:
    disk = SimDisk(random.Random(2), now_ms=lambda: NOW)
    disk.make_dirs("/d")
    log = open_log(disk, clean=True)
    for at in range(4):
        log.append_as_leader(build_batch([(NOW, b"k", b"%d" % at, ())]), 7, NOW)
    log.close(clean=False)
    path = f"/d/t-0/{SEGMENTS[0]}.log"
    data = bytearray(disk.peek(path))
    data[2 * len(data) // 4 + 16] = magic
    put(disk, f"{SEGMENTS[0]}.log", bytes(data))
    with pytest.raises(UnsupportedFormat, match=rf"{path}, position {len(data) // 2}: .* magic"):
        open_log(disk, clean=False)
    assert disk.peek(path) == data


def test_garbage_at_the_end_is_damage_whatever_its_magic_seems_to_be() -> None:
    for garbage in (b"\x7f" * 100, bytes(16) + b"\x05" + bytes(60), (7).to_bytes(8, "big") + b"\x7f" * 90):
        disk = old_disk(1, Compression.NONE)
        put(disk, f"{SEGMENTS[1]}.log", segment_bytes(40, 1, Compression.NONE) + garbage)
        log = open_log(disk, clean=False)
        assert log.log_end_offset == 80
        assert read_all(log) == expected(1)


def test_a_torn_batch_at_the_end_is_cut_whatever_its_magic_seems_to_be() -> None:
    disk = SimDisk(random.Random(2), now_ms=lambda: NOW)
    disk.make_dirs("/d")
    log = open_log(disk, clean=True)
    for at in range(3):
        log.append_as_leader(build_batch([(NOW, b"k", b"%d" % at, ())]), 7, NOW)
    log.close(clean=False)
    path = f"/d/t-0/{SEGMENTS[0]}.log"
    data = disk.peek(path)
    for kept, epochs in ((16, b""), (12, b""), (16, None)):
        torn = 2 * len(data) // 3 + kept
        garbage = b"\x7f" * (len(data) - torn)
        put(disk, f"{SEGMENTS[0]}.log", data[:torn] + garbage)
        if epochs is not None:  # a loss of power has emptied that file too
            put(disk, "leader-epoch-checkpoint", epochs)
        log = open_log(disk, clean=False)
        assert (log.log_end_offset, log.leader_epochs.entries) == (2, [(7, 0)])
        assert disk.peek(path) == data[: 2 * len(data) // 3]
        log.close(clean=False)


def test_a_batch_of_27_bytes_is_not_served_without_its_last_byte() -> None:
    disk = SimDisk(random.Random(2), now_ms=lambda: NOW)
    disk.make_dirs("/d/t-0")
    data = b"".join(legacy_batch(0, [(at, -1, None, b"v")]) for at in range(4))
    assert len(data) == 4 * 27
    put(disk, f"{SEGMENTS[0]}.log", data)
    log = open_log(disk, clean=False)
    info = log.read(0, 27 + 27 + 26, log.log_end_offset, min_one_message=True)
    assert (bytes(info.records), info.next_offset) == (data[: 2 * 27], 2)
