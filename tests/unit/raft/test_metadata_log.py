"""The files of the metadata partition."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from legacy_batches import legacy_batch
from raft_world import topic

from kalda.base.disk import File
from kalda.base.ids import Uuid
from kalda.broker.process.disk import RealDisk
from kalda.protocol.messages.metadata_records import PartitionRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.log_state import SnapshotRequired, Valid
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig
from kalda.raft.snapshots import decode_all, encode_batch, inspect_fetched, snapshot_name, write_snapshot
from kalda.raft.voters import OffsetAndEpoch, VoterSet
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk


@pytest.mark.parametrize(("at", "value"), [(8, 0xFF), (16, 9), (23, 0xFF), (30, 0xFF)])
def test_batches_before_a_damaged_one_are_appended(tmp_path: Path, at: int, value: int) -> None:
    """The damage is in the length, the magic, the number of records, a record."""
    damaged = encode_batch([topic("b")], 1, 1, 1)
    damaged[at] = value
    fetched = encode_batch([topic("a")], 0, 1, 1) + damaged
    assert [batch.last_offset for batch in inspect_fetched(fetched)] == [0]
    log = MetadataLog.open(RealDisk(), f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    log.append_fetched(fetched, 1, 1)
    assert log.log.log_end_offset == 1
    log.close()


def test_batches_before_one_of_an_old_format_are_appended() -> None:
    """A checksum that is right does not help: the metadata log has never had another format than magic 2."""
    old = legacy_batch(1, [(1, 5, None, b"v")])
    assert [batch.last_offset for batch in inspect_fetched(encode_batch([topic("a")], 0, 1, 1) + old)] == [0]


def test_the_partitions_of_a_topic_are_read_as_they_were_written() -> None:
    """Those that are alike but for their ids are encoded together."""

    def partition(topic_id: bytes, at: int, replicas: list[int], version: int = 2) -> VersionedRecord:
        return VersionedRecord(
            PartitionRecord(
                topic_id=Uuid(topic_id * 16), partition_id=at, replicas=replicas, isr=replicas, leader=replicas[0],
                directories=[Uuid(b"d" * 16)] * len(replicas) if version else [],
            ),
            version,
        )  # fmt: skip

    records = [topic("t"), *(partition(b"t", at, [1]) for at in range(300)), partition(b"t", 300, [2, 1])]
    records += [
        partition(b"u", 7, [2, 1]),
        topic("v"),
        partition(b"u", 2**31 - 1, [2, 1]),
        partition(b"u", 8, [2, 1], 0),
    ]
    (batch,) = decode_all(encode_batch(records, 0, 1, 1))
    assert batch.records == records


class Cleaning(RealDisk):
    """Retention deletes each file just before it is read."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> File:
        if not writable:
            self.remove(path)
        return super().open(path, create=create, exclusive=exclusive, writable=writable)


def snapshot_of_one_topic(disk: RealDisk | SimDisk, tmp_path: Path, snapshot: OffsetAndEpoch) -> int:
    """In the directory `m` of the log. Returns its size."""
    return write_snapshot(
        disk,
        f"{tmp_path}/m",
        snapshot,
        [topic("a")],
        last_contained_timestamp_ms=1,
        kraft_version=0,
        voters=VoterSet(),
        now_ms=1,
    )


def test_a_chunk_is_empty_past_the_end_and_none_without_a_file(tmp_path: Path) -> None:
    disk = RealDisk()
    log = MetadataLog.open(disk, f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    snapshot = OffsetAndEpoch(3, 1)
    size = snapshot_of_one_topic(disk, tmp_path, snapshot)
    found = log.read_chunk(snapshot, size - 1, 100)
    assert found is not None
    assert (found[0], len(found[1])) == (size, 1)
    for position in (size, 1 << 40, (1 << 63) - 1):
        assert log.read_chunk(snapshot, position, 100) == (size, b"")
    log.disk = Cleaning()
    assert log.read_chunk(snapshot, 0, 100) is None
    log.close()


def test_a_snapshot_from_before_the_log_start_is_ignored(tmp_path: Path) -> None:
    """It was written while a fetched one replaced the log, or power was lost before retention deleted it."""
    disk = RealDisk()
    log = MetadataLog.open(disk, f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    for snapshot in (OffsetAndEpoch(40, 3), OffsetAndEpoch(60, 5)):
        snapshot_of_one_topic(disk, tmp_path, snapshot)
    log.restart_at(OffsetAndEpoch(60, 5))
    log.append(encode_batch([topic("b")], 60, 6, 1), 6)
    log.close()
    log = MetadataLog.open(disk, f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    state = log.state()
    assert state.validate_fetch(OffsetAndEpoch(60, 3)) == SnapshotRequired(OffsetAndEpoch(60, 5)), (
        "the fetching log has another epoch before 60"
    )
    assert state.validate_fetch(OffsetAndEpoch(60, 5)) == Valid()
    assert state.snapshots == [OffsetAndEpoch(60, 5)]
    assert not (tmp_path / "m" / snapshot_name(OffsetAndEpoch(40, 3))).exists()
    log.close()


def test_a_snapshot_that_is_not_fetched_any_more_leaves_no_file(tmp_path: Path) -> None:
    log = MetadataLog.open(RealDisk(), f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    first, second = OffsetAndEpoch(40, 3), OffsetAndEpoch(60, 5)

    def parts() -> list[str]:
        return sorted(path.name for path in (tmp_path / "m").glob("*.part"))

    log.save_chunk(first, 0, b"abc")
    log.save_chunk(first, 3, b"def")
    assert parts() == ["00000000000000000040-0000000003.checkpoint.part"]
    log.save_chunk(second, 0, b"abc")
    assert parts() == ["00000000000000000060-0000000005.checkpoint.part"]
    log.drop_partial(second)
    assert len(parts()) == 1
    log.drop_partial(None)
    assert not parts()
    log.save_chunk(second, 0, b"abc")
    log.publish_job(second)
    log.drop_partial(None)
    assert len(parts()) == 1, "the job that verifies it needs it"
    log.close()


def test_a_snapshot_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(1), capacity_bytes=100)
    disk.make_dirs("/m")
    with pytest.raises(OSError, match="no space"):
        snapshot_of_one_topic(disk, Path("/"), OffsetAndEpoch(40, 3))
    assert not disk.names("/m")


def test_what_recovery_cuts_off_the_metadata_log_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    log = MetadataLog.open(disk, "/m", MetadataLogConfig(), now_ms=1)
    for offset in range(4):
        log.append(build_batch([(1, None, b"a record", ())], base_offset=offset, leader_epoch=1), 1)
    size = log.log.size_bytes // 4
    log.log.flush()
    segment = f"/m/{0:020}.log"
    whole = disk.peek(segment)
    disk.flip_bit(segment, 8 * (2 * size - 1))
    disk.let_go()
    log = MetadataLog.open(disk, "/m", MetadataLogConfig(), now_ms=1)
    assert log.log.log_end_offset == 1
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"__cluster_metadata-0: recovery cuts {3 * size} bytes off {segment} at position {size}: ")
    assert "The log ends at offset 1 now; 3 batches up to offset 3 are lost; it is kept in" in line
    assert disk.peek(f"/m/{1:020}.log.corrupt")[size:] == whole[2 * size :]


def test_a_former_leader_that_has_cut_its_log_sends_no_batch_of_it() -> None:
    """The read began before that, and finds no batch where one was."""
    log = MetadataLog.open(SimDisk(random.Random(1)), "/m", MetadataLogConfig(), now_ms=1)
    for offset, size in enumerate((50, 400, 50)):
        log.append(build_batch([(1, None, bytes(size), ())], base_offset=offset, leader_epoch=1), 1)
    segment = log.log.segments.active
    segment.close()
    log.log.reads.forget()
    read = log.read_for_fetch(0, 10_000)
    assert callable(read)
    log.truncate(1)
    log.append(build_batch([(1, None, b"", ())], base_offset=1, leader_epoch=2), 2)
    segment.file().write(segment.size, b"\xff" * 300)
    assert read() == b""
