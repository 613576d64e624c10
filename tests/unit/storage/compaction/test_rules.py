"""What is left of a batch, against a model that decodes its records and rebuilds it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from kalda.base.errors import CorruptRecord
from kalda.records.batch import HEADER_SIZE, BatchHeader, TimestampType, check_crc, read_header, write_header
from kalda.records.builder import Record, build_batch, read_records, rebuild_batch
from kalda.records.compression import Compression
from kalda.records.key_offsets import KeyOffsets
from kalda.sim.disk import SimDisk, SimFile
from kalda.storage.compaction.passes import BatchReader, CleanedTransactions, CleanRules, KeyMapping, filter_batch
from kalda.storage.config import LogConfig
from kalda.storage.log.segment import Placed, Segment

NOW = 1_700_000_000_000
RETENTION_MS = 5_000
KEYS = [None, *(b"%d" % number for number in range(40))]


def read_batches(segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each batch of a segment."""
    reader = BatchReader(segment)
    while reader.find():
        yield reader.take()


def _random_batch(rng: random.Random, base_offset: int) -> bytearray:
    """A batch as producers send it, or as compaction has left it."""
    codec = rng.choice(list(Compression))
    long = rng.choice([50, 50, 50, 100_000])
    rows = [
        (NOW + rng.randrange(-1000, 1000), rng.choice(KEYS), rng.choice([None, bytes(rng.randrange(long))]), ())
        for _ in range(rng.randrange(1, 40))
    ]
    kind = rng.choice([TimestampType.CREATE, TimestampType.LOG_APPEND])
    append_time_ms = NOW + 7 if kind is TimestampType.LOG_APPEND else -1
    batch = build_batch(
        rows, base_offset=base_offset, compression=codec, timestamp_type=kind, append_time_ms=append_time_ms
    )
    header = read_header(batch)
    kept = [record for record in read_records(batch) if rng.random() < 0.7]
    if rng.random() < 0.5:
        batch = rebuild_batch(header, kept, delete_horizon_ms=rng.choice([None, NOW - 1, NOW, NOW + 1]))
    return batch


def _expected(rules: CleanRules, batch: bytearray) -> tuple[Sequence[Record], bytes]:
    """The records that are kept, and the whole batch."""
    header = read_header(batch)
    records = read_records(batch)
    horizon = header.delete_horizon_ms
    kept = [
        record
        for record in records
        if record.offset > rules.offsets.latest_offset
        or (
            record.key is not None
            and record.offset >= rules.offsets.get(record.key)
            and (record.value is not None or horizon is None or rules.now_ms < horizon)
        )
    ]
    if not kept:
        return kept, b""
    if horizon is None and any(record.value is None for record in kept):
        return kept, rebuild_batch(header, kept, delete_horizon_ms=NOW + RETENTION_MS)
    return kept, batch if len(kept) == len(records) else rebuild_batch(header, kept, delete_horizon_ms=horizon)


@pytest.mark.parametrize("seed", range(150))
def test_what_is_left_of_batches(seed: int) -> None:
    """The bytes are those that a rebuilt batch has; compressed ones unfold to the same."""
    rng = random.Random(seed)
    batches = [_random_batch(rng, 100 * number) for number in range(6)]
    offsets = KeyOffsets(1 << 20, rng.randbytes(16))
    disk = SimDisk(rng)
    disk.make_dirs("/d")
    segment = Segment.create(disk, "/d", 0, LogConfig(), NOW)
    headers = [read_header(batch) for batch in batches]
    segment.append(batches, [Placed(header.last_offset, header.max_timestamp, header.size_bytes) for header in headers])
    mapping = KeyMapping(offsets, [segment.view()], 0, 600, CleanedTransactions())
    while not mapping.run(1):
        pass
    last = {record.key: record.offset for batch in batches for record in read_records(batch) if record.key is not None}
    assert {key: offsets.get(key) for key in KEYS if key is not None and offsets.get(key) >= 0} == last
    assert offsets.latest_offset == 599
    offsets.latest_offset = rng.choice([599, rng.randrange(600)])
    rules = CleanRules(offsets, {}, RETENTION_MS, NOW, -1)
    batch_filter = rules.batch_filter(4_096)
    for header, data in read_batches(segment):
        left = filter_batch(rules, batch_filter, header, data, False)
        whole = b"".join(left.parts)
        records, expected = _expected(rules, bytearray(data))
        assert len(whole) == left.size_bytes
        if not records:
            assert not whole
            continue
        found = read_header(whole)
        check_crc(whole, 0, found)
        assert found.max_timestamp == left.max_timestamp
        assert found._replace(batch_length=0, crc=0) == read_header(expected)._replace(batch_length=0, crc=0)
        assert read_records(whole) == records
        if header.compression is Compression.NONE:
            assert whole == expected


@pytest.mark.parametrize(("slice_bytes", "largest"), [(1, 65_536), (100_000, 100_000), (1 << 30, 1 << 20)])
def test_a_slice_reads_no_more_at_once_than_its_bytes(
    slice_bytes: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a limited bandwidth is spread evenly."""
    reads: list[int] = []
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    segment = Segment.create(disk, "/d", 0, LogConfig(), NOW)
    rows = [(NOW, b"k", bytes(10_000), ())]
    for offset in range(200):
        header = read_header(batch := build_batch(rows, base_offset=offset))
        segment.append(batch, [Placed(offset, NOW, header.size_bytes)])
    read = SimFile.read

    def noted(file: SimFile, position: int, size: int) -> bytes:
        reads.append(size)
        return read(file, position, size)

    monkeypatch.setattr(SimFile, "read", noted)
    mapping = KeyMapping(KeyOffsets(1 << 20, bytes(16)), [segment.view()], 0, 200, CleanedTransactions())
    while not mapping.run(slice_bytes):
        pass
    assert max(reads) == largest


def _header_with(count: int, compression: Compression) -> bytearray:
    """A batch that claims to have so many records at as many offsets."""
    batch = build_batch([(NOW, b"key", b"value", ())], compression=compression)
    write_header(batch, 0, read_header(batch)._replace(records_count=count, last_offset_delta=max(0, count - 1)))
    return batch


@pytest.mark.parametrize("count", [-1, 100_000, 2**31 - 1])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_count_that_the_bytes_cannot_hold_is_malformed(count: int, compression: Compression) -> None:
    batch = _header_with(count, compression)
    rules = CleanRules(KeyOffsets(1000, bytes(16)), {}, RETENTION_MS, NOW, -1)
    with pytest.raises(CorruptRecord, match=f"claims {count} records"):
        filter_batch(rules, rules.batch_filter(4_096), read_header(batch), batch, False)


@pytest.mark.parametrize("sizes", [(10,), (1 << 20, 10, 1 << 20), (9 << 20, 100), (10,) * 2_000, (600_000,) * 5])
@pytest.mark.parametrize("cut", [0, 1, HEADER_SIZE, HEADER_SIZE + 5])
def test_batches_of_any_size_are_read_whole(sizes: tuple[int, ...], cut: int) -> None:
    """The last one may be cut off."""
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    segment = Segment.create(disk, "/d", 0, LogConfig(), NOW)
    batches = [build_batch([(NOW, None, bytes(size), ())], base_offset=at) for at, size in enumerate(sizes)]
    placed = [Placed(at, NOW, len(batch)) for at, batch in enumerate(batches)]
    segment.append(batches, placed)
    segment.size -= cut
    found = []

    def read() -> None:
        found.extend(bytes(data) for _, data in read_batches(segment))

    if cut:
        with pytest.raises(CorruptRecord, match=r"cut off|too few"):
            read()
        batches.pop()
    else:
        read()
    assert found == batches
