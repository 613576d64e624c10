"""Checkpoints, properties, leader epochs, names."""

from __future__ import annotations

import random

import pytest

from kalda.base.ids import TopicPartition
from kalda.base.texts import format_properties, parse_properties
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import (
    read_clean_shutdown,
    read_lines,
    read_offsets,
    replace_file,
    stored_topic_id,
    write_clean_shutdown,
    write_offsets,
)
from kalda.storage.config import LogConfig
from kalda.storage.file_names import marked_dir_name, parse_dir_name
from kalda.storage.log import txn_index
from kalda.storage.log.offsets import LeaderEpochs
from kalda.storage.log.txn_index import AbortedTxn, TxnIndex


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


def test_a_replaced_file_is_the_old_or_the_new_one(disk: SimDisk) -> None:
    replace_file(disk, "/d/f", b"old")
    disk.crash()
    assert disk.read_file("/d/f") == b"old"
    replace_file(disk, "/d/f", b"new", durable=False)
    disk.crash()
    assert disk.read_file("/d/f") in (b"old", b"new", b"ne", b"n", b"")


def test_offset_checkpoints(disk: SimDisk) -> None:
    offsets = {TopicPartition("a", 0): 7, TopicPartition("b.c_d-e", 12): 2**63 - 1}
    write_offsets(disk, "/d/f", offsets)
    assert disk.read_file("/d/f") == b"0\n2\na 0 7\nb.c_d-e 12 9223372036854775807\n"
    assert read_offsets(disk, "/d/f") == offsets
    assert read_offsets(disk, "/d/missing") == {}


@pytest.mark.parametrize(
    "text", [b"x\n0\n", b"0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\nx\n", b"\xff\n0\n", b"0\n1\na 0 6"]
)
def test_malformed_checkpoints(disk: SimDisk, text: bytes) -> None:
    replace_file(disk, "/d/f", text)
    with pytest.raises(ValueError, match="/d/f"):
        read_offsets(disk, "/d/f")


def test_an_empty_checkpoint_has_no_entries(disk: SimDisk) -> None:
    replace_file(disk, "/d/f", b"")
    assert read_lines(disk, "/d/f") == []


def test_the_marker_of_a_clean_stop(disk: SimDisk) -> None:
    assert read_clean_shutdown(disk, "/d/m") is None
    write_clean_shutdown(disk, "/d/m", 227)
    assert disk.read_file("/d/m") == b'{"version":0,"brokerEpoch":227}'
    assert read_clean_shutdown(disk, "/d/m") == 227
    replace_file(disk, "/d/m", b"")
    assert read_clean_shutdown(disk, "/d/m") == -1


def test_properties_as_java_writes_them() -> None:
    text = format_properties({"node.id": "1", "a key": " v=1:2#!\\", "uni": "é\U0001f600"}, 1_795_252_489_000)
    assert text == (
        "#\n#Sat Nov 21 09:14:49 UTC 2026\nnode.id=1\na\\ key=\\ v\\=1\\:2\\#\\!\\\\\nuni=\\u00E9\\uD83D\\uDE00\n"
    )
    assert parse_properties(text)["a key"] == " v=1:2#!\\"
    assert parse_properties(text)["uni"] == "é\U0001f600"


def test_properties_as_people_write_them() -> None:
    text = "! comment\r\n  a : 1\nb=two\\\n   words\nc\nd==\n\\u0041=x\\ty\n"
    assert parse_properties(text) == {"a": "1", "b": "twowords", "c": "", "d": "=", "A": "x\ty"}
    with pytest.raises(ValueError, match="malformed"):
        parse_properties("a=\\u00zz")


def test_leader_epochs(disk: SimDisk) -> None:
    epochs = LeaderEpochs(disk, "/d")
    for epoch, offset in [(2, 0), (4, 10), (7, 20)]:
        assert epochs.assign(epoch, offset)
    assert not epochs.assign(7, 25)
    assert [epochs.end_offset_for(epoch, 30) for epoch in (-1, 1, 2, 3, 4, 6, 7, 8)] == [
        (-1, -1),
        (1, 0),
        (2, 10),
        (2, 10),
        (4, 20),
        (4, 20),
        (7, 30),
        (-1, -1),
    ]
    assert [epochs.epoch_for_offset(offset) for offset in (0, 9, 10, 25)] == [2, 2, 4, 7]
    epochs.truncate_from_start(12)
    assert epochs.entries == [(4, 12), (7, 20)]
    epochs.truncate_from_end(20)
    assert epochs.entries == [(4, 12)]
    assert LeaderEpochs.load(disk, "/d").entries == [(4, 12)]


def test_a_new_epoch_replaces_entries_that_contradict_it(disk: SimDisk) -> None:
    epochs = LeaderEpochs(disk, "/d", [(1, 0), (2, 10), (3, 20)])
    epochs.assign(4, 10)
    assert epochs.entries == [(1, 0), (4, 10)]


def test_names_of_directories() -> None:
    assert parse_dir_name("a-b-3") == TopicPartition("a-b", 3)
    assert parse_dir_name("a-b-3.0123456789abcdef-delete") == TopicPartition("a-b", 3)
    assert parse_dir_name("a-b-3.0123456789abcdef-stray") == TopicPartition("a-b", 3)
    for name in ("a", "-1", "a-", "a-x", "a-delete", "a--1x", ".lock"):
        assert parse_dir_name(name) is None, name
    long = marked_dir_name(TopicPartition("t" * 249, 1), "0" * 32, "-delete")
    assert len(long) == 255
    assert long.endswith("-1." + "0" * 32 + "-delete")


def test_configs_are_typed() -> None:
    config = LogConfig.from_dict(
        {
            "cleanup.policy": "compact, delete",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.25",
            "remote.storage.enable": "TRUE",
            "message.timestamp.type": "LogAppendTime",
            "follower.replication.throttled.replicas": "*",
        }
    )
    assert config.compacts
    assert config.deletes
    assert config.remote_storage_enable
    assert (config.segment_bytes, config.min_cleanable_dirty_ratio) == (1048576, 0.25)
    assert LogConfig.from_dict({"internal.segment.bytes": "10", "segment.bytes": "1048576"}).segment_bytes == 10
    with pytest.raises(ValueError, match=r"segment\.ms"):
        LogConfig.from_dict({"segment.ms": "soon"})


def test_small_files_that_have_become_large_are_damaged_files_and_no_failure_of_the_disk(disk: SimDisk) -> None:
    write_clean_shutdown(disk, "/d/f", 7)
    disk.open("/d/f").write(0, bytes(10_000))
    assert read_clean_shutdown(disk, "/d/f") == -1
    disk.open("/d/f").write(0, b"[" * 4_096)
    disk.open("/d/f").truncate(4_096)
    assert read_clean_shutdown(disk, "/d/f") == -1
    disk.open("/d/partition.metadata", create=True).write(0, bytes(10_000))
    assert stored_topic_id(disk, "/d", clean=False) is None
    with pytest.raises(ValueError, match=r"/d/partition\.metadata has more than 4096 bytes"):
        stored_topic_id(disk, "/d", clean=True)


def test_a_transaction_index_of_any_size_is_checked(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a gigabyte may have millions of aborted transactions: more bytes than are read at once."""
    index = TxnIndex(disk, "/d/f.txnindex", exists=False)
    for number in range(5):
        index.append(AbortedTxn(number, 2 * number, 2 * number + 1, 2 * number))
    index.close()
    monkeypatch.setattr(txn_index, "_ENTRIES_A_READ", 2)
    monkeypatch.setattr(disk, "read_file", lambda *_: pytest.fail("the file is read as a whole"))
    assert TxnIndex(disk, "/d/f.txnindex", exists=True).is_sane()
    file = disk.open("/d/f.txnindex")
    file.write(4 * 34 + 10, b"\x7f")
    assert not TxnIndex(disk, "/d/f.txnindex", exists=True).is_sane()
    file.truncate(file.size() - 1)
    assert not TxnIndex(disk, "/d/f.txnindex", exists=True).is_sane()
