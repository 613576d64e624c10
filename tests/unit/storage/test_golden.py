"""Files that Apache Kafka 4.3.1 wrote: their rows are read, opening leaves them unchanged, and appending the same
batches writes the same bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.dump import dump
from kalda.storage.file_names import offset_of, parse_dir_name
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import collect_aborted

GOLDEN = Path(__file__).parents[2] / "golden" / "storage"
NODE = GOLDEN / "node"
PARTITIONS = sorted(path.name for path in NODE.iterdir() if path.is_dir())
STOPPED_MS = 1_795_252_600_000

CONFIGS = {
    "rolled": {"index.interval.bytes": "256", "internal.segment.bytes": "6000"},
    "transactional": {"index.interval.bytes": "256", "segment.ms": "9223372036854775807"},
    "idempotent": {},
    "append-time-gzip": {},
    "__consumer_offsets": {},
    "after-restart": {},
    "deleted-records": {"internal.segment.bytes": "3000"},
    "compacted": {"cleanup.policy": "compact", "index.interval.bytes": "256", "internal.segment.bytes": "4000"},
}


def config_of(topic: str) -> LogConfig:
    return LogConfig.from_dict({**CONFIGS.get(topic, {}), "retention.ms": "-1"})


def golden_disk() -> SimDisk:
    """A disk that holds the node's directory, all of it synced."""
    disk = SimDisk(random.Random(0))
    for path in sorted(NODE.rglob("*")):
        name = f"/node/{path.relative_to(NODE)}"
        if path.is_dir():
            disk.make_dirs(name)
        else:
            disk.make_dirs(name.rpartition("/")[0])
            file = disk.open(name, create=True)
            file.write(0, path.read_bytes())
            file.sync()
    for path in [NODE, *(NODE / name for name in PARTITIONS)]:
        disk.sync_dir(f"/node/{path.relative_to(NODE)}")
    disk.sync_dir("/")
    return disk


def files(disk: SimDisk, directory: str) -> dict[str, bytes]:
    return {name: disk.read_file(f"{directory}/{name}") for name in disk.list_dir(directory)}


def manager(disk: SimDisk) -> LogManager:
    found = LogManager({"/node": disk}, config_of, unique=lambda: "0" * 32, now_ms=lambda: STOPPED_MS)
    for job in found.load_jobs():
        job.complete()
    return found


def expected_rows(partition: str) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in (GOLDEN / "expected" / f"{partition}.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row.pop("file"), []).append(row)
    return rows


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_row_is_read_as_kafka_reads_it(partition: str) -> None:
    disk = golden_disk()
    for name, rows in expected_rows(partition).items():
        got = list(dump(disk, f"/node/{partition}/{name}", records=True))
        if name.endswith(".log"):
            assert len(got) == len(rows)
            for mine, theirs in zip(got, rows, strict=True):
                records = mine.pop("records")
                assert isinstance(records, list)
                assert [[r["offset"], r["timestamp"], r["sequence"]] for r in records] == theirs.pop("records", [])
                assert mine.pop("valid") is True
                assert mine.pop("count") == len(records)
                assert mine == theirs
        elif name.endswith(".timeindex"):
            assert [list(row.values()) for row in got] == rows[0]["timestamp_offset"]
        elif name.endswith(".txnindex"):
            assert got == rows[0]["aborted"]
        elif name.endswith(".index"):
            assert [list(row.values()) for row in got] == rows[0]["offset_position"]
        elif name.endswith(".snapshot"):
            assert [row["producer_id"] for row in got] == [row["producer_id"] for row in rows[0]["producers"]]
            for mine, theirs in zip(got, rows[0]["producers"], strict=True):
                assert mine["producer_epoch"] == theirs["producer_epoch"]
                assert mine["last_sequence"] == theirs["last_seq"]
                assert mine["last_offset"] == theirs["last_data_offset"]
                assert mine["offset_delta"] == theirs["last_offset_delta"]
                assert mine["last_timestamp"] == theirs["last_timestamp"]
                assert mine["coordinator_epoch"] == theirs["coordinator_epoch"]
                assert mine["current_txn_first_offset"] == theirs["current_txn_first_offset"]


def test_opened_and_closed_the_files_are_the_same() -> None:
    disk = golden_disk()
    before = {name: files(disk, f"/node/{name}") for name in PARTITIONS}
    logs = manager(disk)
    assert logs.dirs.previous_broker_epoch == 227
    assert sorted(str(log.topic_partition) for log in logs) == PARTITIONS
    logs.close(227)
    for name in PARTITIONS:
        after = files(disk, f"/node/{name}")
        # Kafka too drops on start an epoch that begins at the log's end, and snapshots of former ends.
        changed = {file for file in after if after[file] != before[name].get(file)}
        assert changed <= {"leader-epoch-checkpoint"}
        assert all(file.endswith(".snapshot") for file in before[name].keys() - after.keys())
    for name in ("meta.properties", ".kafka_cleanshutdown", "log-start-offset-checkpoint"):
        assert disk.read_file(f"/node/{name}") == (NODE / name).read_bytes()


@pytest.mark.parametrize("name", ["rolled-0", "transactional-0", "transactional-1", "__consumer_offsets-1"])
def test_appending_the_same_batches_writes_the_same_files(name: str) -> None:
    golden = {path.name: path.read_bytes() for path in (NODE / name).iterdir()}
    topic_partition = parse_dir_name(name)
    assert topic_partition is not None
    disk = SimDisk(random.Random(0))
    disk.make_dirs("/node")
    bases = [offset_of(file) for file in golden if file.endswith(".log")]
    snapshots = sorted(offset_of(file) or 0 for file in golden if file.endswith(".snapshot"))
    restarts = [offset for offset in snapshots if offset not in bases][:-1]

    def open_log(clean: bool) -> Log:
        return Log.open(
            Unopened(
                disk,
                f"/node/{name}",
                config_of(topic_partition.topic),
                topic_partition=topic_partition,
                now_ms=STOPPED_MS,
                clean=clean,
            )
        )

    log = open_log(False)
    for file in sorted(golden):
        if not file.endswith(".log"):
            continue
        for position, header in iter_batches(golden[file]):
            if log.log_end_offset in restarts:
                log.close()
                log = open_log(True)
            log.append_as_follower(golden[file][position : position + header.size_bytes], 99, STOPPED_MS)
    log.close()
    written = files(disk, f"/node/{name}")
    for file, data in golden.items():
        if file.endswith((".log", "index")) or file == f"{snapshots[-1]:020d}.snapshot":
            assert written[file] == data, file


@pytest.mark.parametrize("name", ["rolled-0", "transactional-0", "idempotent-0", "deleted-records-0", "compacted-0"])
def test_recovery_finds_what_a_clean_start_finds(name: str) -> None:
    topic_partition = parse_dir_name(name) or TopicPartition("", 0)
    logs = []
    for clean in (True, False):
        disk = golden_disk()
        log = Log.open(
            Unopened(
                disk,
                f"/node/{name}",
                config_of(topic_partition.topic),
                topic_partition=topic_partition,
                now_ms=STOPPED_MS,
                clean=clean,
            )
        )
        aborted = [segment.txn_index.entries() for segment in log.segments]
        producers = [
            (state.producer_id, state.epoch, state.last_sequence, state.last_timestamp) for state in log.producer_states
        ]
        sizes = [(segment.base_offset, segment.size) for segment in log.segments]
        logs.append((log.log_end_offset, sizes, aborted, producers, log.leader_epochs.entries))
    if name == "idempotent-0":
        # These producers expired long ago, so they are left out of a loaded snapshot; replayed batches do not expire.
        logs = [(end, sizes, aborted, None, epochs) for end, sizes, aborted, _, epochs in logs]  # type: ignore[misc]
    assert logs[0] == logs[1]


def test_a_log_start_offset_within_a_segment_is_kept() -> None:
    logs = manager(golden_disk())
    log = logs.get(TopicPartition("deleted-records", 0))
    assert log is not None
    assert (log.log_start_offset, log.segments.first.base_offset, log.log_end_offset) == (77, 45, 200)


def test_aborted_transactions_of_a_fetch() -> None:
    log = manager(golden_disk()).get(TopicPartition("transactional", 0))
    assert log is not None
    all_of_them = collect_aborted(log.segments, 0, log.log_end_offset)
    assert [txn.first_offset for txn in all_of_them] == sorted(txn.first_offset for txn in all_of_them)
    assert len(all_of_them) == 10
    assert [(txn.producer_id, txn.first_offset) for txn in collect_aborted(log.segments, 9, 12)] == [(4, 3), (3, 11)]
    assert log.last_stable_offset == log.high_watermark == log.log_end_offset
