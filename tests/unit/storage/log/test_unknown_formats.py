"""What is of a later version is no damage: that log is offline with the reason, and none of its files is changed. The
other logs of the directory are served."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import read_offsets
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log
from kalda.storage.values import AppendOrigin

TOPIC_ID = Uuid(bytes(15) + b"\x09")
ODD, PLAIN = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_700_000_000_000
SEGMENT = "00000000000000000000"


class Node:
    def __init__(self) -> None:
        self.now_ms = NOW
        self.disk = SimDisk(random.Random(1), now_ms=lambda: self.now_ms)
        self.disk.make_dirs("/d")
        self.failed: list[str] = []
        self.unique = itertools.count()
        self.start()

    def start(self) -> None:
        self.logs = LogManager(
            {"/d": self.disk},
            lambda _: LogConfig(),
            unique=lambda: f"{next(self.unique):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=lambda directory, error: self.failed.append(str(error)),
        )
        for job in self.logs.load_jobs():
            job.complete()

    def log(self, topic_partition: TopicPartition) -> Log:
        return self.logs.get_or_create_log(topic_partition, TOPIC_ID, LogConfig(), None)

    def checkpoint(self) -> None:
        self.now_ms += 120_000
        for job in self.logs.maintenance.poll(self.now_ms):
            job.complete()

    def stop(self, clean: bool) -> None:
        if clean:
            self.logs.close()
        else:
            self.disk.let_go()

    def files(self, topic_partition: TopicPartition) -> dict[str, bytes]:
        directory = f"/d/{topic_partition.topic}-{topic_partition.partition}"
        return {name: self.disk.peek(f"{directory}/{name}") for name in self.disk.names(directory)}

    def change(self, name: str, edit: Callable[[bytes], bytes]) -> None:
        file = self.disk.open(f"/d/{name}")
        data = edit(bytes(file.read(0, file.size())))
        file.truncate(0)
        file.write(0, data)
        file.sync()
        file.close()


def filled(*, clean: bool) -> Node:
    """A transaction was aborted in the first log; each has a snapshot, as there was a roll."""
    node = Node()
    for topic_partition in (ODD, PLAIN):
        log = node.log(topic_partition)
        batch = build_batch(
            [(NOW, b"k", b"v", ())], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        log.append_as_leader(batch, 3, NOW, verification=log.start_verification(1, 0, 0, NOW))
        marker = transaction_marker_batch(
            producer_id=1, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=NOW
        )
        log.append_as_leader(marker, 3, NOW, origin=AppendOrigin.COORDINATOR)
        log.roll(NOW)
        for value in (b"a", b"b"):
            log.append_as_leader(build_batch([(NOW, b"k", value, ())]), 3, NOW)
        log.update_high_watermark(4)
        log.flush(2)
    node.checkpoint()
    node.stop(clean)
    return node


def later_magic(data: bytes) -> bytes:
    at = len(data) // 2
    return data[: at + 16] + b"\x03" + data[at + 17 :]


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "leader epochs": ("leader-epoch-checkpoint", lambda data: b"1" + data[1:]),
    "topic id": ("partition.metadata", lambda data: data.replace(b"version: 0", b"version: 1")),
    "producers": ("00000000000000000002.snapshot", lambda data: b"\x00\x02" + data[2:]),
    "aborted": (f"{SEGMENT}.txnindex", lambda data: b"\x00\x01" + data[2:]),
}


def assert_is_offline(node: Node, before: dict[str, bytes], named: str) -> None:
    assert node.files(ODD) == before
    assert node.failed == []
    assert node.logs.get(ODD) is None
    with pytest.raises(ApiError, match=named) as refused:
        node.log(ODD)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.log(PLAIN).log_end_offset == 4


@pytest.mark.parametrize(
    ("what", "clean"),
    # A recovery does not read the transaction index of a segment below the recovery point.
    [(what, clean) for what in CHANGES for clean in (True, False) if clean or what != "aborted"],
)
def test_a_log_with_a_file_of_a_later_version_is_left_as_it_is(what: str, clean: bool) -> None:
    node = filled(clean=clean)
    name, edit = CHANGES[what]
    if clean and what == "producers":
        name = "00000000000000000004.snapshot"  # that of the stop
    node.change(f"t-0/{name}", edit)
    before = node.files(ODD)
    point = read_offsets(node.disk, "/d/recovery-point-offset-checkpoint")[ODD]
    node.start()
    assert_is_offline(node, before, name)
    node.log(PLAIN).append_as_leader(build_batch([(NOW, b"k", b"c", ())]), 3, NOW)
    node.log(PLAIN).update_high_watermark(5)
    node.checkpoint()
    node.stop(clean=True)
    assert read_offsets(node.disk, "/d/recovery-point-offset-checkpoint")[ODD] == point > 0
    assert read_offsets(node.disk, "/d/replication-offset-checkpoint") == {ODD: 4, PLAIN: 5}
    assert node.disk.stat("/d/.kafka_cleanshutdown") is None
    node.start()
    assert node.files(ODD) == before
    assert node.log(PLAIN).log_end_offset == 5


def test_a_log_with_a_batch_of_a_later_magic_is_left_as_it_is() -> None:
    node = filled(clean=False)
    node.change("t-0/00000000000000000002.log", later_magic)
    before = {name: data for name, data in node.files(ODD).items() if not name.endswith("index")}
    node.start()
    after = {name: data for name, data in node.files(ODD).items() if not name.endswith("index")}
    assert after == before
    assert_is_offline(node, node.files(ODD), "00000000000000000002.log, position .* magic 3")


@pytest.mark.parametrize("has_its_crc", [True, False])
def test_a_log_that_ends_with_a_batch_of_a_later_magic_is_left_as_it_is_after_a_clean_stop(has_its_crc: bool) -> None:
    node = Node()
    for topic_partition in (ODD, PLAIN):
        for _ in range(2):
            node.log(topic_partition).append_as_leader(build_batch([(NOW, b"k", b"v", ())] * 2), 3, NOW)
    node.stop(clean=True)
    name = f"{SEGMENT}.log"
    node.change(f"t-0/{name}", later_magic if has_its_crc else lambda data: later_magic(data)[:-1] + b"?")
    before = node.files(ODD)[name]
    for _ in range(2):  # the second one recovers, as the stop before it is not marked as clean
        node.start()
        assert node.files(ODD)[name] == before
        assert node.logs.get(ODD) is None
        assert node.log(PLAIN).log_end_offset == 4
        node.stop(clean=True)


def test_once_the_format_is_known_the_log_is_served_again() -> None:
    node = filled(clean=True)
    node.change("t-0/leader-epoch-checkpoint", lambda data: b"1" + data[1:])
    node.start()
    node.stop(clean=True)
    node.change("t-0/leader-epoch-checkpoint", lambda data: b"0" + data[1:])
    node.start()
    assert node.log(ODD).log_end_offset == 4
    assert node.log(ODD).leader_epochs.entries == [(3, 0)]


@pytest.mark.parametrize("name", ["recovery-point", "replication", "log-start", "cleaner"])
def test_a_directory_with_a_checkpoint_of_a_later_version_is_offline(name: str) -> None:
    node = filled(clean=True)
    path = f"{name}-offset-checkpoint"
    file = node.disk.open(f"/d/{path}", create=True)
    file.truncate(0)
    file.write(0, b"1\n1\nt 0 4 of a later version\n")
    file.close()
    before = node.files(ODD)
    node.start()
    assert len(node.failed) == 1
    assert f"/d/{path} has version 1" in node.failed[0]
    assert node.files(ODD) == before
    assert node.disk.peek(f"/d/{path}") == b"1\n1\nt 0 4 of a later version\n"


def test_the_log_of_a_deleted_topic_is_removed_all_the_same() -> None:
    node = filled(clean=True)
    node.change("t-0/leader-epoch-checkpoint", lambda data: b"1" + data[1:])
    node.start()
    node.logs.delete_log(ODD)
    assert node.log(ODD).log_end_offset == 0
    node.checkpoint()
    assert not [name for name in node.disk.names("/d") if name.endswith("-delete")]


def test_the_log_of_a_former_topic_is_set_aside() -> None:
    node = filled(clean=True)
    node.change("t-0/leader-epoch-checkpoint", lambda data: b"1" + data[1:])
    before = node.files(ODD)
    node.start()
    assert node.logs.unreadable[ODD].topic_id == TOPIC_ID
    node.logs.set_aside(ODD, "is the log of a former topic of that name")
    assert node.log(ODD).log_end_offset == 0
    (aside,) = [name for name in node.disk.names("/d") if name.endswith("-stray")]
    assert {name: node.disk.peek(f"/d/{aside}/{name}") for name in node.disk.names(f"/d/{aside}")} == before


@pytest.mark.parametrize("what", ["producers", "aborted"])
def test_a_file_that_a_loss_of_power_filled_with_garbage_is_damaged(what: str) -> None:
    node = filled(clean=False)
    node.disk.remove("/d/recovery-point-offset-checkpoint")  # all is recovered
    node.change(f"t-0/{CHANGES[what][0]}", lambda data: b"\x7f" * len(data))
    node.start()
    assert node.log(ODD).log_end_offset == 4
    assert [each.first_offset for each in node.log(ODD).segments.first.txn_index.entries()] == [0]
