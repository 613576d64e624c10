"""`kalda dump-log` on small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from legacy_batches import legacy_batch

from kalda.base.ids import Uuid
from kalda.broker.process.disk import RealDisk
from kalda.cli.commands import cli
from kalda.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from kalda.protocol.messages.metadata_records import ConfigRecord, TopicRecord, UserScramCredentialRecord
from kalda.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from kalda.protocol.record_framing import encode_coordinator_record, encode_metadata_record
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.records.control import transaction_marker_batch
from kalda.storage.log.producer_snapshot import write_snapshot
from kalda.storage.log.producer_state import BatchMetadata, ProducerState

SEGMENT = "00000000000000000000.log"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["dump-log", *map(str, arguments)])


def segment(directory: Path, *batches: bytes) -> Path:
    directory.mkdir()
    path = directory / SEGMENT
    path.write_bytes(b"".join(batches))
    return path


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    batches = [
        build_batch([(1, b"k", b"v%d" % i, ()), (2, None, None, (("h", b"\xff"),))], base_offset=2 * i)
        for i in range(3)
    ]
    return segment(tmp_path / "orders-0", *map(bytes, batches))


def test_batches_and_their_records(orders: Path) -> None:
    shallow, deep = run(orders), run(orders, "--deep")
    assert shallow.exit_code == deep.exit_code == 0
    assert shallow.output.count("base_offset: ") == 3
    assert "| offset" not in shallow.output
    assert "| offset: 4  timestamp: 1  sequence: -1  key: k  value: v2" in deep.output


def test_json_is_an_object_a_line(orders: Path) -> None:
    rows = [json.loads(line) for line in run(orders, "--deep", "--json").output.splitlines()]
    assert [row["base_offset"] for row in rows] == [0, 2, 4]
    assert rows[0]["file"] == str(orders)
    assert rows[0]["records"][1]["headers"] == [["h", {"base64": "/w=="}]]


def test_damage_exits_with_1_and_shows_the_rest(orders: Path) -> None:
    data = bytearray(orders.read_bytes())
    data[len(data) // 2] ^= 1
    orders.write_bytes(data)
    result = run(orders)
    assert result.exit_code == 1
    assert result.output.count("base_offset: ") == 3
    assert "damaged" in result.stderr


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_batches_of_older_formats(tmp_path: Path, magic: int, codec: Compression) -> None:
    old = legacy_batch(magic, [(at, 5 + at, b"k", b"v%d" % at) for at in range(3)], codec)
    path = segment(tmp_path / "orders-0", old, bytes(build_batch([(9, None, b"new", ())], base_offset=3)))
    rows = [json.loads(line) for line in run(path, "--deep", "--json").output.splitlines()]
    assert [row["magic"] for row in rows] == [magic] * (3 if codec is Compression.NONE else 1) + [2]
    assert rows[0]["base_offset"] == 0
    assert rows[-2]["last_offset"] == 2
    assert sum(row["count"] for row in rows) == 4
    assert [record["value"] for row in rows for record in row["records"]] == ["v0", "v1", "v2", "new"]
    times = [record["timestamp"] for row in rows for record in row["records"]]
    assert times == ([5, 6, 7] if magic else [-1, -1, -1]) + [9]
    assert rows[0]["timestamp_type"] == ("CreateTime" if magic else "NoTimestampType")


def test_a_batch_of_an_unknown_format_does_not_hide_those_after_it(orders: Path) -> None:
    data = bytearray(orders.read_bytes())
    data[len(data) // 3 + 16] = 3
    orders.write_bytes(data)
    result = run(orders, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["base_offset"], row["magic"]) for row in rows] == [(0, 2), (2, 3), (4, 2)]
    assert "magic 3" in rows[1]["error"]
    assert result.exit_code == 1
    assert "not known" in result.stderr


@pytest.mark.parametrize("suffix", [".corrupt", ".1.corrupt", ".deleted", ".cleaned", ".swap"])
def test_files_that_are_no_part_of_a_log_any_more(orders: Path, suffix: str) -> None:
    path = orders.rename(f"{orders}{suffix}")
    for where in (path, path.parent):
        result = run(where, "--deep")
        assert result.exit_code == 0
        assert result.output.count("base_offset: ") == 3


def test_metadata_records_are_decoded(tmp_path: Path) -> None:
    value = encode_metadata_record(TopicRecord(name="orders", topic_id=Uuid(bytes(15) + b"\x07")), 0)
    segment(tmp_path / "__cluster_metadata-0", bytes(build_batch([(1, None, value, ())])))
    (row,) = [json.loads(line) for line in run(tmp_path, "--deep", "--json").output.splitlines()]
    meaning = row["records"][0]["meaning"]
    assert meaning == {
        "type": "TopicRecord",
        "version": 0,
        "data": {"name": "orders", "topic_id": "AAAAAAAAAAAAAAAAAAAABw"},
    }


def test_secrets_in_metadata_records_are_not_shown(tmp_path: Path) -> None:
    """A password in a broker's dynamic configs, what authenticates a user; also not in the bytes that JSON has."""
    records = [
        UserScramCredentialRecord(name="ann", mechanism=1, salt=b"hush", stored_key=b"hush", server_key=b"hush"),
        *(
            ConfigRecord(resource_type=4, resource_name="1", name=name, value=value)
            for name, value in (
                ("listener.name.x.plain.sasl.jaas.config", "hush"),
                ("listener.name.x.ssl.keystore.password", "hush"),
                ("unknown.key", "hush"),
                ("log.cleaner.threads", "2"),
            )
        ),
    ]
    values = [(1, None, encode_metadata_record(record, 0), ()) for record in records]
    path = segment(tmp_path / "__cluster_metadata-0", bytes(build_batch(values, base_offset=0)))
    text, as_json = run(path, "--deep"), run(path, "--deep", "--json")
    assert "hush" not in text.output
    assert text.output.count("[redacted]") == 6
    assert '"value": "2"' in text.output
    [row] = [json.loads(line) for line in as_json.output.splitlines()]
    assert [record["value"] is None for record in row["records"]] == [True, True, True, True, False]
    assert "hush" not in as_json.output


def test_committed_offsets_are_decoded_and_other_records_are_unreadable(tmp_path: Path) -> None:
    key, value = encode_coordinator_record(
        OffsetCommitKey(group="g", topic="t", partition=3), OffsetCommitValue(offset=42), 3
    )
    rows = [(1, key, value, ()), (1, key, None, ()), (1, b"\x7f\xff", b"", ())]
    path = segment(tmp_path / "__consumer_offsets-9", bytes(build_batch(rows)))
    (row,) = [json.loads(line) for line in run(path, "--deep", "--json").output.splitlines()]
    commit, tombstone, other = [record["meaning"] for record in row["records"]]
    assert (commit["key"], commit["value"]["offset"]) == ({"group": "g", "topic": "t", "partition": 3}, 42)
    assert tombstone["value"] is None
    assert "unknown" in other["unreadable"]


def test_small_files_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 3 17\n")
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n5 9\n")
    (tmp_path / "unknown.txt").write_text("not a file of a log")
    result = run(tmp_path)
    assert "topic: orders  partition: 3  offset: 17" in result.output
    assert "epoch: 5  start_offset: 9" in result.output
    assert "unknown.txt" not in result.output
    assert run(tmp_path / "unknown.txt").exit_code == 1


def test_transactions_are_decoded(tmp_path: Path) -> None:
    """By the name of the directory, or with the option of Apache Kafka's tool."""
    value = TransactionLogValue(producer_id=7, producer_epoch=3, transaction_status=2, client_transaction_version=2)
    rows = [
        encode_coordinator_record(TransactionLogKey(transactional_id="payments"), value, 1),
        encode_coordinator_record(TransactionLogKey(transactional_id="old"), None),
        encode_coordinator_record(
            TransactionLogKey(transactional_id="later"), TransactionLogValue(transaction_status=9), 1
        ),
    ]
    batch = bytes(build_batch([(1, key, data, ()) for key, data in rows]))
    named = segment(tmp_path / "__transaction_state-3", batch)
    unnamed = segment(tmp_path / "backup", batch)
    for result in (run(named, "--deep", "--json"), run(unnamed, "--deep", "--json", "--transaction-log-decoder")):
        first, second, third = (record["meaning"] for record in json.loads(result.output)["records"])
        assert first["key"] == {"transactional_id": "payments"}
        assert (first["state"], first["version"], first["value"]["producer_id"]) == ("PrepareCommit", 1, 7)
        assert second["value"] is None
        assert third["state"] == "unknown 9"


def test_markers_and_producers_are_decoded(tmp_path: Path) -> None:
    batches = [
        transaction_marker_batch(
            producer_id=7, producer_epoch=3, commit=commit, coordinator_epoch=5, timestamp_ms=1, base_offset=offset
        )
        for offset, commit in enumerate([True, False])
    ]
    path = segment(tmp_path / "orders-0", *map(bytes, batches))
    output = run(path, "--deep").output
    assert "control: COMMIT  end_txn_marker: COMMIT  coordinator_epoch: 5" in output
    assert "control: ABORT  end_txn_marker: ABORT  coordinator_epoch: 5" in output
    disk = RealDisk()
    states = [ProducerState(7, 3, 5, 1, 11, (BatchMetadata(4, 12, 1, 1),)), ProducerState(8, 0, 2, 1)]
    write_snapshot(disk.open(str(path.parent / "00000000000000000013.snapshot"), create=True), states)
    output = run(path.parent / "00000000000000000013.snapshot").output
    assert "producer_id: 7  producer_epoch: 3  first_sequence: 3  last_sequence: 4  last_offset: 12" in output
    assert "coordinator_epoch: 5  current_txn_first_offset: 11" in output
    assert "producer_id: 8  producer_epoch: 0  first_sequence: -1" in output


def test_no_record_can_send_sequences_to_the_terminal(tmp_path: Path) -> None:
    name = "h\x1b[2J\n\x9b"
    data = build_batch([(1, name.encode(), name.encode(), [(name, name.encode())])])
    segment(tmp_path / "orders-0", bytes(data))
    for arguments in ((), ("--json",)):
        shown = run(tmp_path, "--deep", *arguments).output
        assert all(line.isprintable() for line in shown.splitlines()), shown
