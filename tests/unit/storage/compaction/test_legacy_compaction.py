"""Compaction of batches of the message formats 0 and 1: what is kept is of magic 2, as in Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest
from compacted_node import DAY, NOW, TP, CompactedNode, batches, contents
from legacy_batches import LegacyRecord, legacy_batch

from kalda.records.batch import BatchHeader, TimestampType, check_crc, iter_batches
from kalda.records.compression import Compression
from kalda.storage.log.deletion import truncate_to

FORMATS = [
    (magic, codec)
    for magic in (0, 1)
    for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
]


def rows(offset: int, *pairs: tuple[str | None, str | None]) -> list[LegacyRecord]:
    return [
        (
            offset + at,
            NOW + offset + at,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
        )
        for at, (key, value) in enumerate(pairs)
    ]


def append(node: CompactedNode, data: bytes) -> None:
    node.log.append_as_follower(data, 0)
    node.log.update_high_watermark(node.log.log_end_offset)


def headers(node: CompactedNode) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    for segment in node.log.segments:
        data = node.disk.peek(f"/d/t-0/{segment.base_offset:020d}.log")
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            found.append(header)
    return found


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_the_last_value_of_each_key_stays_with_its_offset_and_time(magic: int, codec: Compression) -> None:
    node = CompactedNode()
    append(node, legacy_batch(magic, rows(0, ("a", "1"), ("b", "1"), ("c", "1"), (None, "no key")), codec))
    append(node, legacy_batch(magic, rows(4, ("d", "1"), ("a", "2"), ("b", "2"), ("e", "1")), codec))
    node.put(("b", "3"))
    assert node.clean() == 1
    assert contents(node.log) == [(2, "c", "1"), (4, "d", "1"), (5, "a", "2"), (7, "e", "1"), (8, "b", "3")]
    times = [record.timestamp for records in batches(node.log) for record in records][:-1]
    assert times == ([-1] * 4 if magic == 0 else [NOW + at for at in (2, 4, 5, 7)])
    found = headers(node)
    assert {header.magic for header in found} == {2}
    assert {header.compression for header in found[:-1]} == {codec}
    if codec is not Compression.NONE:
        assert [(header.base_offset, header.last_offset) for header in found] == [(2, 2), (4, 7), (8, 8)]
    node.logs.close()
    node.start()
    assert contents(node.log)[0] == (2, "c", "1")
    assert node.cleaner.uncleanable == {}


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_deletion_gets_a_horizon(magic: int, codec: Compression) -> None:
    node = CompactedNode(delete_retention_ms=str(DAY))
    append(node, legacy_batch(magic, rows(0, ("a", "1"), ("b", "1")), codec))
    append(node, legacy_batch(magic, rows(2, ("a", None), ("c", "1")), codec))
    assert node.clean() == 1
    assert contents(node.log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert [header.delete_horizon_ms for header in headers(node) if header.base_offset == 2] == [NOW + DAY]
    node.now_ms += DAY
    node.put(("d", "1"))
    assert node.clean() == 1
    assert contents(node.log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_a_deletion_in_a_segment_that_older_cleaners_left_goes_by_the_segments_age() -> None:
    node = CompactedNode(delete_retention_ms=str(DAY))
    append(node, legacy_batch(1, rows(0, ("a", None), ("b", "1")), Compression.GZIP))
    node.log.roll(node.now_ms)
    node.now_ms += DAY + 1
    append(node, legacy_batch(1, rows(2, ("c", None), ("d", "1")), Compression.GZIP))
    node.log.roll(node.now_ms)
    node.log.flush()
    directory = node.logs.dir_of(TP)
    assert directory is not None
    directory.cleaner_offsets[TP] = 4  # both are clean, as an older version has left them
    node.put(("e", "1"))
    node.clean()
    assert contents(node.log) == [(1, "b", "1"), (2, "c", None), (3, "d", "1"), (4, "e", "1")]


@pytest.mark.parametrize("magic", [0, 1])
def test_of_a_batch_at_the_end_of_the_range_the_header_stays(magic: int) -> None:
    node = CompactedNode()
    append(node, legacy_batch(magic, rows(0, ("a", "1"), (None, "no key")), Compression.GZIP))
    append(node, legacy_batch(magic, rows(2, (None, "no key"), (None, "no key")), Compression.GZIP))
    node.clean()
    assert contents(node.log) == [(0, "a", "1")]
    assert [(h.base_offset, h.last_offset, h.records_count) for h in headers(node)] == [(0, 0, 1), (2, 3, 0)]
    node.logs.close()
    node.start()
    assert node.log.log_end_offset == 4


def test_records_keep_the_time_of_their_append() -> None:
    node = CompactedNode()
    batch = legacy_batch(1, rows(0, ("a", "1"), ("b", "1")), Compression.SNAPPY, append_time_ms=NOW + 77)
    append(node, batch)
    node.put(("a", "2"))
    node.clean()
    (first, _) = headers(node)
    assert (first.base_offset, first.timestamp_type, first.max_timestamp) == (1, TimestampType.LOG_APPEND, NOW + 77)
    assert batches(node.log)[0][0].timestamp == NOW + 77


def test_a_batch_that_begins_before_its_segment_ends_the_compaction_and_loses_nothing() -> None:
    """A follower was cut within a compressed batch, rolled, and got the batch again."""
    node = CompactedNode()
    append(node, legacy_batch(1, rows(0, ("a", "1"), ("b", "1"), ("c", "1")), Compression.GZIP))
    wrapper = legacy_batch(1, rows(3, ("d", "1"), ("e", "1"), ("f", "1")), Compression.GZIP)
    append(node, wrapper)
    truncate_to(node.log, 4)
    node.log.roll(node.now_ms)
    append(node, wrapper)
    assert node.log.segments.active.base_offset == 4
    node.put(("a", "2"))
    whole = contents(node.log)
    assert [offset for offset, _, _ in whole] == list(range(7))
    node.clean()
    assert TP in node.cleaner.uncleanable
    assert contents(node.log) == whole
    node.disk.let_go()
    node.start()
    assert contents(node.log) == whole
