"""The format `kalda-segments` without a session: its readers, on directories of Kalda and of Apache Kafka."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from legacy_batches import legacy_batch
from pyspark.sql.types import StructType

from kalda import Consumer, Producer
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.records.control import transaction_marker_batch
from kalda.spark.options import OptionError
from kalda.spark.segments import COLUMNS, EXTRAS, SegmentReader, SegmentSource, read_segment_options
from kalda.storage.checkpoints import write_offsets
from kalda.testing import Cluster

GOLDEN = Path(__file__).parents[2] / "golden"
BATCHES = 12
EVERY = StructType([*COLUMNS.fields, *EXTRAS.fields])


def batch(base: int, count: int = 10, **options: Any) -> bytes:
    records = [(1_000 + base + n, b"k", b"%d" % (base + n), ()) for n in range(count)]
    return bytes(build_batch(records, base_offset=base, **options))


def write(home: Path, data: bytes, topic: str = "a", base: int = 0, suffix: str = ".log") -> Path:
    directory = home / f"{topic}-0"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base:020d}{suffix}"
    path.write_bytes(data)
    return path


def rows(home: Path | str, schema: StructType | None = None, **options: object) -> list[dict[str, Any]]:
    source = SegmentSource({"path": str(home), **{name: str(value) for name, value in options.items()}})
    reader = source.reader(schema or source.schema())
    assert isinstance(reader, SegmentReader)
    return read(reader)


def read(reader: SegmentReader) -> list[dict[str, Any]]:
    found = [part for task in reader.partitions() for part in reader.read(task)]
    return [row for part in found for row in part.to_pylist()]


def offsets(found: Sequence[dict[str, Any]]) -> list[int]:
    assert all(row["value"] == b"%d" % row["offset"] for row in found if row["corrupt"] is None)
    return [row["offset"] for row in found if row["corrupt"] is None]


def damage(found: Sequence[dict[str, Any]]) -> list[str]:
    return [row["corrupt"] for row in found if row["corrupt"] is not None]


def test_records_have_the_columns_of_the_source_kalda_and_may_have_those_of_their_batch(tmp_path: Path) -> None:
    data = batch(0) + batch(10, producer_id=7, producer_epoch=2, base_sequence=40, compression=Compression.ZSTD)
    path = write(tmp_path, data)
    found = rows(tmp_path, EVERY)
    assert offsets(found) == list(range(20))
    first, last = found[0], found[-1]
    assert (first["topic"], first["partition"], first["producerId"], first["compression"]) == ("a", 0, -1, "none")
    assert (last["producerId"], last["producerEpoch"], last["baseSequence"]) == (7, 2, 40)
    assert (last["compression"], last["segment"], last["logDir"]) == ("zstd", str(path), str(tmp_path))
    assert [row["position"] for row in found] == [0] * 10 + [len(batch(0))] * 10
    assert set(rows(tmp_path)[0]) == {*COLUMNS.names, "corrupt"}


def test_a_damaged_batch_hides_no_good_one(tmp_path: Path) -> None:
    data = bytearray(b"".join(batch(10 * n) for n in range(BATCHES)))
    size = len(batch(0))
    ends = [len(b"".join(batch(10 * n) for n in range(upto))) for upto in range(BATCHES + 1)]
    data[ends[3] + 70] ^= 1  # a record
    data[ends[6] + 8 : ends[6] + 12] = b"\x7f\xff\xff\xff"  # a length
    write(tmp_path, bytes(data[: -size // 2]))
    found = rows(tmp_path)
    assert offsets(found) == [n for n in range(110) if n // 10 not in (3, 6)]
    crc, length, torn = damage(found)
    assert f"position {ends[3]}, " in crc
    assert "10 bytes" not in crc
    assert "from offset 30 on" in crc
    assert "CRC" in crc
    assert f"position {ends[6]}, " in length
    assert "the file ends within the batch" in torn
    with pytest.raises(ValueError, match="Mode PERMISSIVE reads what is not damaged"):
        rows(tmp_path, mode="failfast")
    assert damage(rows(tmp_path, mode="DROPMALFORMED")) == []
    with pytest.raises(ValueError, match="Add the column corrupt"):
        rows(tmp_path, COLUMNS)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_batches_of_older_formats(tmp_path: Path, magic: int, codec: Compression) -> None:
    records = [(n, 1_000 + n, b"k", b"%d" % n) for n in range(40)]
    parts = [legacy_batch(magic, records[at : at + 10], codec) for at in range(0, 40, 10)]
    positions = [0, *accumulate(map(len, parts))]
    damaged = bytearray(b"".join(parts) + batch(40))
    damaged[positions[1] + 27] ^= 1
    write(tmp_path, bytes(damaged))
    found = rows(tmp_path, EVERY)
    lost = range(10, 11 if codec is Compression.NONE else 20)
    assert offsets(found) == [n for n in range(50) if n not in lost]
    assert len(damage(found)) == 1
    read_ones = [row for row in found if row["corrupt"] is None]
    assert [row["timestampType"] for row in read_ones[:-10]] == [0 if magic else -1] * (40 - len(lost))
    assert [row["position"] for row in read_ones if row["offset"] >= 40] == [positions[4]] * 10
    if codec is not Compression.NONE:
        assert [row["position"] for row in read_ones if row["offset"] < 10] == [0] * 10
        assert [row["position"] for row in read_ones if 20 <= row["offset"] < 30] == [positions[2]] * 10
        headers = rows(tmp_path, view="batches")
        assert [(row["baseOffset"], row["lastOffset"], row["records"]) for row in headers if row["crcValid"]] == [
            (0, 9, 10),
            (20, 29, 10),
            (30, 39, 10),
            (40, 49, 10),
        ]


def test_zeros_behind_the_last_batch_are_named(tmp_path: Path) -> None:
    write(tmp_path, batch(0) + bytes(5000))
    found = rows(tmp_path)
    assert offsets(found) == list(range(10))
    assert damage(found)[0].endswith("5000 bytes from offset 10 on: zeros: never written")


@given(st.data())
def test_what_is_not_damaged_is_read(data: st.DataObject) -> None:
    """Any bytes of the file are changed or cut off: each batch without a changed byte is read whole, in order."""
    import tempfile

    parts = [batch(10 * n, compression=data.draw(st.sampled_from(Compression))) for n in range(4)]
    whole = bytearray(b"".join(parts))
    touched = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4))
    for position in touched:
        whole[position] = data.draw(st.integers(0, 255))
    kept = data.draw(st.sampled_from([len(whole), len(whole) - 1, len(whole) // 2]))
    expected: list[int] = []
    start = 0
    for number, part in enumerate(parts):
        if bytes(whole[start : start + len(part)]) == part and start + len(part) <= kept:
            expected += range(10 * number, 10 * number + 10)
        start += len(part)
    with tempfile.TemporaryDirectory() as home:
        write(Path(home), bytes(whole[:kept]))
        found = rows(home)
        # The CRC does not cover the base offset: a batch that was moved hides others, which are named as damage then.
        if not any(_in_prefix(position, parts) for position in touched):
            assert offsets(found) == expected
        if touched or kept < len(whole):
            rows(home, view="batches")
        else:
            assert damage(found) == []


def _in_prefix(position: int, parts: list[bytes]) -> bool:
    start = 0
    for part in parts:
        if start <= position < start + 17:
            return True
        start += len(part)
    return False


def test_a_large_segment_is_cut_at_batches_of_its_index_and_small_ones_are_put_together(tmp_path: Path) -> None:
    data = b""
    path = write(tmp_path, b"")
    index = b""
    for n in range(BATCHES):
        index += struct.pack(">ii", 10 * n + 9, len(data))
        data += batch(10 * n)
    path.with_suffix(".index").write_bytes(index + bytes(64))  # Kafka allocates an index ahead
    path.write_bytes(data)
    source = SegmentSource({"path": str(tmp_path), "maxSplitBytes": str(len(data) // 4 + 1)})
    reader = source.reader(source.schema())
    assert isinstance(reader, SegmentReader)
    assert len(reader.partitions()) == 4
    assert offsets(read(reader)) == list(range(120))
    path.with_suffix(".index").write_bytes(b"\x00\x00\x00\x01\x00\x00\x00\x07" * 9)  # a wrong index loses no rows
    assert len(reader.partitions()) == 1
    assert offsets(read(reader)) == list(range(120))
    for topic in "bcd":
        write(tmp_path, batch(0), topic)
    assert len(SegmentSource({"path": str(tmp_path)}).reader(source.schema()).partitions()) == 1


def _disk() -> Any:
    from kalda.broker.process.disk import RealDisk

    return RealDisk()


def test_topics_are_chosen_by_an_option(tmp_path: Path) -> None:
    write(tmp_path, batch(0), "a")
    write(tmp_path, batch(0), "b")
    assert {row["topic"] for row in rows(tmp_path, topics="b")} == {"b"}
    assert len(rows(tmp_path, topics="a, b")) == 20


def transactional(base: int, producer_id: int) -> bytes:
    return batch(base, producer_id=producer_id, producer_epoch=0, base_sequence=base, is_transactional=True)


def marker(base: int, producer_id: int, commit: bool) -> bytes:
    return bytes(
        transaction_marker_batch(
            producer_id=producer_id, producer_epoch=0, commit=commit, coordinator_epoch=3, timestamp_ms=5,
            base_offset=base,
        )
    )  # fmt: skip


def test_read_committed_leaves_out_aborted_and_open_transactions(tmp_path: Path) -> None:
    data = transactional(0, 1) + transactional(10, 2) + marker(20, 1, False) + marker(21, 2, True)
    data += batch(22) + transactional(32, 3) + batch(42)
    write(tmp_path, data)
    assert offsets(rows(tmp_path)) == [*range(20), *range(22, 52)]
    assert offsets(rows(tmp_path, isolationLevel="read_committed")) == [*range(10, 20), *range(22, 32)]
    markers = rows(tmp_path, view="control")
    assert [(row["type"], row["producerId"], row["coordinatorEpoch"]) for row in markers] == [
        ("ABORT", 1, 3),
        ("COMMIT", 2, 3),
    ]


def test_the_longest_replica_is_read_and_marked_directories_are_not(tmp_path: Path) -> None:
    short, long = tmp_path / "one", tmp_path / "two"
    write(short, batch(0))
    write(long, batch(0) + batch(10))
    shutil.copytree(long / "a-0", long / f"b-0.{'0' * 32}-delete")
    both = f"{short},{long}"
    assert offsets(rows(both)) == list(range(20))
    assert len(rows(both, replicas="all")) == 30


def test_a_timestamp_that_spark_does_not_have_is_null(tmp_path: Path) -> None:
    times_ms = [1_000, 1_700_000_000_000_000_000, -(2**63), 2_000]
    write(tmp_path, bytes(build_batch([(time_ms, None, b"%d" % n, ()) for n, time_ms in enumerate(times_ms)])))
    found = [None if row["timestamp"] is None else row["timestamp"].timestamp() for row in rows(tmp_path)]
    assert (found, offsets(rows(tmp_path))) == ([1, None, None, 2], [0, 1, 2, 3])


def test_records_before_the_log_start_offset_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, batch(0) + batch(10))
    from kalda.base.ids import TopicPartition

    write_offsets(_disk(), f"{tmp_path}/log-start-offset-checkpoint", {TopicPartition("a", 0): 15})
    assert offsets(rows(tmp_path)) == [15, 16, 17, 18, 19]
    assert len(rows(tmp_path, includeDeletedRecords="true")) == 20


def test_a_swap_file_replaces_the_segments_within_it(tmp_path: Path) -> None:
    write(tmp_path, batch(0), base=0)
    write(tmp_path, batch(10), base=10)
    write(tmp_path, batch(20), base=20)
    write(tmp_path, batch(5, 3) + batch(15, 3), base=0, suffix=".log.swap")
    assert offsets(rows(tmp_path)) == [5, 6, 7, 15, 16, 17, *range(20, 30)]


def test_several_paths() -> None:
    for options in ({"path": "/a, /b"}, {"paths": "/a,/b"}, {"paths": '["/a", "/b"]'}, {"paths": "/a", "path": "/b"}):
        assert read_segment_options(options).paths == ("/a", "/b")


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    for options, words in (
        ({}, "path = None: a log directory"),
        ({"path": "x", "view": "y"}, "view = 'y': records, batches"),
        ({"path": "x", "viwe": "y"}, "there is no such option"),
        ({"path": "x", "maxSplitBytes": "0"}, "a whole number from 1"),
        ({"path": "x", "maxSplitBytes": "²"}, "a whole number from 1"),
        ({"paths": "[1]"}, "paths with commas between are expected, or a JSON list"),
        ({"paths": '["/a"'}, "paths with commas between are expected, or a JSON list"),
    ):
        with pytest.raises(OptionError, match=words):
            SegmentSource(dict(options)).schema()
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "empty", "no directory named TOPIC-PARTITION"), (tmp_path / "no", "there is no")):
        with pytest.raises(ValueError, match=words):
            rows(path)


@pytest.fixture(scope="module")
def kafka_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments that Apache Kafka wrote."""
    home = tmp_path_factory.mktemp("kafka")
    for path in (GOLDEN / "coordinator").glob("*.log"):
        directory = home / f"__{path.stem}"
        directory.mkdir()
        shutil.copy(path, directory / f"{0:020d}.log")
    return home


def test_internal_topics_of_apache_kafka_are_typed_columns(kafka_dir: Path) -> None:
    commits = rows(kafka_dir, view="offsets")
    assert damage(commits) == []
    assert {type(row["offset"]) for row in commits if not row["tombstone"]} == {int}
    assert all(row["groupId"] and row["topic"] for row in commits)
    groups = rows(kafka_dir, view="groups")
    assert {"OffsetCommit", "GroupMetadata"} & {row["type"] for row in groups}
    transactions = rows(kafka_dir, view="transactions")
    assert {row["state"] for row in transactions if not row["tombstone"]} >= {"Ongoing", "CompleteCommit"}
    assert any(row["partitions"] for row in transactions)


def test_a_directory_of_apache_kafka(tmp_path: Path) -> None:
    """Every view of a node's directory, record for record what the batches' headers count."""
    home = GOLDEN / "storage" / "node"
    batches = rows(home, view="batches")
    assert damage(batches) == []
    counted = sum(row["records"] for row in batches if not row["control"])
    found = rows(home, includeDeletedRecords="true")
    assert damage(found) == []
    assert len(found) == counted > 0
    for view in ("control", "producers", "aborted"):
        assert damage(rows(home, view=view)) == []


def test_rows_of_views_keep_their_schema(tmp_path: Path) -> None:
    write(tmp_path, batch(0))
    source = SegmentSource({"path": str(tmp_path), "view": "batches"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    (part,) = reader.read(task)
    assert isinstance(part, pa.RecordBatch)
    assert part.schema.names == source.schema().names


def test_segments_of_a_running_node_are_what_a_consumer_reads() -> None:
    with Cluster() as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic("stored", partitions=2)
        with Producer({"bootstrap.servers": servers, "compression.type": "zstd"}) as producer:
            for n in range(500):
                producer.send("stored", b"%d" % n * 50, b"k", n % 2)
        with Producer({"bootstrap.servers": servers, "transactional.id": "aborted"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("stored", b"aborted", None, 0)
            producer.flush()
            producer.abort_transaction()
        logged: dict[tuple[int, int], tuple[object, object]] = {}
        with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([("stored", 0), ("stored", 1)])
            consumer.seek_to_beginning(("stored", 0), ("stored", 1))
            while len(logged) < 500:
                logged |= {(each.partition, each.offset): (each.key, each.value) for each in consumer.poll(1.0)}
        home = cluster.directory(1)
        found = rows(home, topics="stored", isolationLevel="read_committed")
        assert {(row["partition"], row["offset"]): (row["key"], row["value"]) for row in found} == logged
        assert len(rows(home, topics="stored")) == 501
        assert [row["type"] for row in rows(home, topics="stored", view="control")] == ["ABORT"]
        assert {row["type"] for row in rows(home, view="metadata")} >= {"TopicRecord", "PartitionRecord"}
        states = rows(home, view="transactions")
        assert [row["transactionalId"] for row in states if row["state"] == "CompleteAbort"] == ["aborted"]
