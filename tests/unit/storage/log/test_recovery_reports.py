"""What a start cuts off, drops or rebuilds: it is logged, and what is cut off is kept for a while."""

from __future__ import annotations

import logging
import random

import pytest

from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import read_epochs, replace_file, write_epochs, write_offsets
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x09")
NOW = 1_700_000_000_000
BATCH = 61 + 17


class Node:
    """One partition in one directory, over several starts."""

    def __init__(self, **config: int) -> None:
        self.now_ms = NOW
        self.disk = SimDisk(random.Random(1), now_ms=lambda: self.now_ms)
        self.disk.make_dirs("/d")
        self.config = LogConfig(segment_bytes=5 * BATCH)
        self.manager_config = LogManagerConfig(**config)
        self.start()

    def start(self) -> None:
        self.logs = LogManager(
            {"/d": self.disk},
            lambda _: self.config,
            config=self.manager_config,
            unique=lambda: "f" * 32,
            now_ms=lambda: self.now_ms,
        )
        for job in self.logs.load_jobs():
            job.complete()
        for job in self.logs.maintenance.poll(self.now_ms):
            job.complete()
        self.log = self.logs.get_or_create_log(TP, TOPIC_ID, self.config, None)

    def kill(self) -> None:
        """The next start finds the same files, and no marker of a clean stop."""
        self.disk.let_go()

    def append(self, count: int, epoch: int = 0) -> None:
        for _ in range(count):
            self.log.append_as_leader(build_batch([(NOW, None, bytes(10), ())]), epoch, NOW)

    def path(self, name: str) -> str:
        return f"/d/t-0/{name}"

    def kept(self) -> list[str]:
        return [name for name in self.disk.names("/d/t-0") if name.endswith(".corrupt")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_damaged_batch_and_all_that_follows_it_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(12)
    segment = node.path("00000000000000000000.log")
    node.disk.flip_bit(segment, (2 * BATCH + 70) * 8)
    bytes_before = node.disk.peek(segment)
    later = node.disk.peek(node.path("00000000000000000005.log"))
    node.kill()
    node.start()
    assert node.log.log_end_offset == 2
    found = warnings(caplog)
    assert f"t-0: recovery cuts {3 * BATCH} bytes off {segment} at position {2 * BATCH}: " in found[0]
    assert "CRC" in found[0]
    assert "The log ends at offset 2 now; 3 batches up to offset 4 are lost; it is kept in" in found[0]
    assert f"the segment of {5 * BATCH} bytes at offset 5 is removed, as records before it are missing" in found[1]
    assert f"the segment of {2 * BATCH} bytes at offset 10 is removed" in found[2]
    assert node.kept() == [f"{offset:020d}.log.corrupt" for offset in (2, 5, 10)]
    assert node.disk.peek(node.path("00000000000000000002.log.corrupt")) == bytes_before[2 * BATCH :]
    assert node.disk.peek(node.path("00000000000000000005.log.corrupt")) == later
    # No start reads these files as segments, and none of them is overwritten.
    node.append(1)
    node.disk.flip_bit(segment, (2 * BATCH + 70) * 8)
    node.kill()
    node.start()
    assert node.log.log_end_offset == 2
    assert "00000000000000000002.log.1.corrupt" in node.kept()
    node.logs.close()
    node.start()
    assert node.log.log_end_offset == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_index_costs_no_records(is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Not even where a batch beside it was damaged since it was synced. Apache Kafka cuts that segment, and keeps the
    later ones."""
    node = Node()
    node.append(12)
    node.log.flush()
    directory = node.logs.dirs[0]
    directory.recovery_point_job().complete()  # type: ignore[union-attr]
    if is_clean:
        node.logs.close()
    segment = node.path("00000000000000000005.log")
    node.disk.flip_bit(segment, (2 * BATCH + 70) * 8)
    node.disk.remove(node.path("00000000000000000005.index"))
    if not is_clean:
        node.kill()
    before = node.disk.peek(segment)
    node.start()
    assert node.log.log_end_offset == 12
    assert [each.base_offset for each in node.log.segments] == [0, 5, 10]
    assert node.disk.peek(segment) == before
    assert any(f"{segment} is damaged at position {2 * BATCH}: " in line for line in warnings(caplog))
    assert not node.kept()
    node.append(1)
    assert node.log.read(10, 10_000, 13).next_offset == 13


def test_zeros_at_the_end_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(2)
    node.disk.open(node.path("00000000000000000000.log")).write(2 * BATCH, bytes(500))
    node.kill()
    node.start()
    assert "cuts 500 bytes" in warnings(caplog)[0]
    assert not node.kept()


def test_the_oldest_are_removed_first(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(corrupt_bytes=5 * BATCH)
    for count in (3, 4, 3):
        node.now_ms += 1
        node.append(count)
        node.disk.flip_bit(node.path("00000000000000000000.log"), 70 * 8)
        node.kill()
        node.start()
        assert node.log.log_end_offset == 0
        assert node.disk.used_bytes < 20 * BATCH
    assert len(node.kept()) == 1
    assert any("is removed: 390 bytes are kept at most" in line for line in warnings(caplog))


def test_nothing_is_kept_where_nothing_is_to_be_kept() -> None:
    node = Node(corrupt_bytes=0)
    node.append(12)
    node.disk.flip_bit(node.path("00000000000000000000.log"), 70 * 8)
    node.kill()
    node.start()
    assert node.log.log_end_offset == 0
    assert not node.kept()


def test_a_full_disk_does_not_keep_a_log_from_being_recovered(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(4)
    node.disk.flip_bit(node.path("00000000000000000000.log"), 70 * 8)
    node.disk.capacity_bytes = node.disk.used_bytes + BATCH
    node.kill()
    node.start()
    assert node.log.log_end_offset == 0
    assert any("cannot be kept" in line for line in warnings(caplog))
    assert not node.kept()


def test_a_missing_end_of_a_segment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(7)
    file = node.disk.open(node.path("00000000000000000000.log"))
    file.truncate(3 * BATCH)
    node.kill()
    node.start()
    assert node.log.log_end_offset == 3
    assert "t-0: offsets 3 to 4 are missing, the end of a segment that was not synced" in warnings(caplog)
    assert node.kept() == ["00000000000000000005.log.corrupt"]


def test_damaged_small_files_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(2, epoch=1)
    node.append(2, epoch=3)
    node.logs.close()
    replace_file(node.disk, "/d/log-start-offset-checkpoint", b"nonsense")
    replace_file(node.disk, node.path("leader-epoch-checkpoint"), b"nonsense")
    node.start()
    found = "\n".join(warnings(caplog))
    assert "/d/log-start-offset-checkpoint does not begin with version 0 and a count; all logs of this dir" in found
    assert "t-0: the leader epochs are read from all batches, 2 entries, as their file cannot be used: /d/t-0" in found


def test_epochs_that_are_dropped_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(2, epoch=1)
    node.log.flush()
    entries = read_epochs(node.disk, node.path("leader-epoch-checkpoint"))
    write_epochs(node.disk, node.path("leader-epoch-checkpoint"), [*entries, (4, 9), (5, 11)], durable=True)
    node.kill()
    node.start()
    assert "are dropped: 4 from offset 9, 5 from offset 11" in "\n".join(warnings(caplog))
    assert node.log.leader_epochs.entries == [(1, 0)]


def test_a_clean_log_that_has_to_be_recovered_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(2)
    node.logs.close()
    node.disk.open(node.path("00000000000000000000.log")).write(2 * BATCH, b"stray")
    node.start()
    found = "\n".join(warnings(caplog))
    assert "stray bytes after position 156; the segment is recovered, although the last stop was clean" in found
    assert "recovery cuts 5 bytes" in found


def test_a_start_after_a_clean_stop_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(12, epoch=2)
    node.logs.close()
    node.start()
    node.append(3, epoch=4)
    node.kill()
    node.start()
    assert node.log.log_end_offset == 15
    assert not warnings(caplog)


def test_an_interrupted_compaction_that_is_finished_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.append(7)
    node.log.close(clean=False)
    node.disk.rename(node.path("00000000000000000000.log"), node.path("00000000000000000000.log.swap"))
    node.kill()
    Log.open(Unopened(node.disk, "/d/t-0", node.config, topic_partition=TP, now_ms=NOW, clean=False))
    [line] = warnings(caplog)
    assert "had written 00000000000000000000.log.swap, which replaces offsets up to 5; removed: 000000" in line


def test_a_log_whose_first_records_were_deleted_and_whose_file_was_lost_is_opened() -> None:
    """The checkpoint of the high watermark may be older than the deletion. What is between the two is not read before
    it has been recovered."""
    node = Node()
    node.append(3)
    node.log.update_high_watermark(3)
    directory = node.logs.dirs[0]
    node.log.advance_log_start_offset(1)
    directory.log_start_job().complete()  # type: ignore[union-attr]
    write_offsets(node.disk, "/d/replication-offset-checkpoint", {TP: 0})
    segment = node.path("00000000000000000000.log")
    node.disk.open(segment).write(0, bytes(3 * BATCH))
    node.kill()
    node.start()
    assert (node.log.log_start_offset, node.log.log_end_offset) == (1, 1)
    node.append(1)
    assert node.log.log_end_offset == 2
