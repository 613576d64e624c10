"""Runs of batches: what stops them, and that damage in a batch is left to those who name it."""

from __future__ import annotations

import random
from array import array

import pytest

from kalda.base.errors import CorruptRecord
from kalda.records.batch import HEADER_SIZE, BatchHeader, read_header, write_header
from kalda.records.builder import build_batch, read_records, rebuild_batch
from kalda.records.checksum import crc32c
from kalda.records.compacting import KeyScan
from kalda.records.compacting_runs import COMPILED, RunFilter, crc_by_table, map_run
from kalda.records.compression import Compression
from kalda.records.key_offsets import ENTRY_BYTES, KeyOffsets

pytestmark = pytest.mark.skipif(not COMPILED, reason="without a compiler no batch is plain")
NOW = 1_700_000_000_000


def chunk_of(*batches: tuple[int, ...], **fields: object) -> bytes:
    """Batches of records with these keys, one offset each."""
    chunk, offset = b"", 0
    for keys in batches:
        rows = [(NOW, b"%d" % key, b"value", ()) for key in keys]
        chunk += build_batch(rows, base_offset=offset, **fields)  # type: ignore[arg-type]
        offset += len(keys)
    return chunk


def new_map(entries: int = 100) -> KeyOffsets:
    return KeyOffsets(entries * ENTRY_BYTES, bytes(16))


def new_filter(offsets: KeyOffsets, room_bytes: int = 10_000, **rules: int) -> RunFilter:
    return RunFilter(offsets, array("q"), rules.get("round_end", -1), NOW, 1_000, 4_096, room_bytes)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1_001])
def test_the_checksum_without_an_instruction_is_the_same(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc_by_table(data) == crc32c(data)


def test_a_run_ends_before_a_batch_that_is_not_plain() -> None:
    plain = chunk_of((1, 2), (3,))
    for other in (
        chunk_of((4,), compression=Compression.LZ4),
        chunk_of((4,), is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        build_batch([(NOW, b"\0\0\0\1", b"", ())], is_control=True),
        rebuild_batch(read_header(chunk_of((4,))), []),
        chunk_of((4,))[:-1],
        chunk_of((4,))[: HEADER_SIZE - 1],
    ):
        offsets = new_map()
        assert map_run(offsets, plain + other, 0, 1_000, 0) == len(plain)
        assert (offsets.size, offsets.latest_offset) == (3, 2)
        assert new_filter(offsets).run(plain + other, 0, 1_000) == len(plain)


def test_a_run_ends_where_the_slice_does() -> None:
    chunk = chunk_of((1, 2), (3,), (4,))
    first = read_header(chunk).size_bytes
    assert map_run(new_map(), chunk, 0, 1, 0) == first
    assert map_run(new_map(), chunk, 0, first, 0) == first
    assert new_filter(new_map()).run(chunk, 0, first) == first


def test_a_run_ends_before_the_batch_with_a_key_too_many() -> None:
    chunk, offsets = chunk_of((1, 2, 3), (1,), (4, 5)), new_map(4)
    end = map_run(offsets, chunk, 0, len(chunk), 0)
    assert read_header(chunk, end).base_offset == 4
    assert (offsets.size, offsets.latest_offset) == (3, 3)


def test_records_below_the_dirty_part_are_not_mapped() -> None:
    chunk, offsets = chunk_of((1, 2), (3, 4), (5,)), new_map()
    assert map_run(offsets, chunk, 0, len(chunk), 3) == len(chunk)
    assert [offsets.get(b"%d" % key) for key in range(1, 6)] == [-1, -1, -1, 3, 4]


def test_a_filter_that_is_full_goes_on_once_it_was_emptied() -> None:
    chunk = chunk_of(*((key,) for key in range(20)))
    offsets = new_map()
    map_run(offsets, chunk, 0, len(chunk), 0)
    runs, at, left = new_filter(offsets, 600), 0, b""
    while at < len(chunk):
        before, at = at, runs.run(chunk, at, len(chunk))
        assert at > before
        assert runs.is_full == (at < len(chunk))
        part, placed = runs.take()
        left += part
        assert sum(size for _, _, size in placed) == len(part) == runs.written
        runs.clear()
    assert left == chunk


def test_batches_without_an_index_entry_count_as_one() -> None:
    """The first of a segment stands alone, and so does one that follows more bytes than the interval."""
    chunk = chunk_of(*((key,) for key in range(10, 30)))
    size = len(chunk) // 20
    runs = RunFilter(new_map(), array("q"), -1, NOW, 1_000, 4 * size)
    assert runs.run(chunk, 0, len(chunk)) == len(chunk)
    rows = runs.take()[1]
    assert [row[2] // size for row in rows] == [1, 4, 1, 4, 1, 4, 1, 4]
    assert [row[0] for row in rows] == [0, 1, 5, 6, 10, 11, 15, 16], "of equal times the first counts"
    runs.run(chunk, 0, size)
    assert [row[2] for row in runs.take()[1]] == [size]
    runs.skip(4 * size)
    runs.run(chunk, size, 4 * size)
    assert [row[2] for row in runs.take()[1]] == [size, 2 * size]


def test_a_batch_that_stays_as_a_header_is_left_to_others() -> None:
    chunk = chunk_of((1,), (1,), (1,), producer_id=5, producer_epoch=0, base_sequence=0)
    offsets, size = new_map(), len(chunk) // 3
    map_run(offsets, chunk, 0, len(chunk), 0)
    assert new_filter(offsets).run(chunk, 0, len(chunk)) == len(chunk)
    assert new_filter(offsets, round_end=2).run(chunk, 0, len(chunk)) == size
    runs = RunFilter(offsets, array("q", [0, 1]), -1, NOW, 1_000, 4_096)
    assert runs.run(chunk, 0, len(chunk)) == 0
    assert runs.run(chunk, size, len(chunk)) == size
    assert runs.run(chunk, 2 * size, len(chunk)) == len(chunk)


def test_a_released_map_is_refused() -> None:
    chunk, offsets = chunk_of((1,)), new_map()
    runs = new_filter(offsets)
    offsets.release()
    assert map_run(offsets, chunk, 0, len(chunk), 0) == 0
    with pytest.raises(ValueError, match="released"):
        runs.run(chunk, 0, len(chunk))


@pytest.mark.parametrize("seed", range(40))
def test_damage_of_any_byte_stops_a_run(seed: int) -> None:
    rng = random.Random(seed)
    chunk = bytearray(chunk_of((1, 2), (3,)))
    first = read_header(chunk).size_bytes
    at = rng.randrange(first + 8, len(chunk))  # the CRC does not cover base offset and leader epoch
    if at in range(first + 12, first + 16):
        return
    chunk[at] ^= 1 << rng.randrange(8)
    assert map_run(new_map(), bytes(chunk), 0, len(chunk), 0) == first
    assert new_filter(new_map()).run(bytes(chunk), 0, len(chunk)) == first


def hostile(rng: random.Random) -> tuple[bytes, BatchHeader]:
    """A batch whose CRC is right, with nonsense in its records or its header."""
    rows = [(NOW, b"%d" % rng.randrange(5), b"v" * rng.randrange(9), [("h", b"x")]) for _ in range(rng.randrange(1, 9))]
    batch = build_batch(rows, base_offset=7)
    for _ in range(rng.randrange(4)):
        batch[rng.randrange(HEADER_SIZE, len(batch))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    header = read_header(batch)
    if rng.random() < 0.3:
        header = header._replace(records_count=rng.choice((0, -1, 1, 2**31 - 1)))
    if rng.random() < 0.3:
        header = header._replace(last_offset_delta=rng.choice((0, -1, 3, 2**31 - 1)))
    write_header(batch, 0, header)
    return bytes(batch), read_header(batch)


@pytest.mark.parametrize("seed", range(400))
def test_of_hostile_batches_a_run_takes_those_that_single_passes_take(seed: int) -> None:
    batch, header = hostile(random.Random(seed))
    by_run, single = new_map(), new_map()
    taken = map_run(by_run, batch, 0, len(batch), 0) == len(batch)
    if taken:
        for bits in (None, bytearray(100)):
            scan = KeyScan(
                single, header.records_count, 7, header.last_offset_delta, header.base_timestamp, 0, bits, True
            )
            scan.feed(batch[HEADER_SIZE:])
            scan.finish()
            single.latest_offset = header.last_offset
        assert (by_run.size, by_run.latest_offset) == (single.size, single.latest_offset)
        runs = new_filter(by_run)
        assert runs.run(batch, 0, len(batch)) == len(batch)
        part, _ = runs.take()
        assert len(read_records(part) if part else ()) == scan.kept
    else:
        runs = new_filter(by_run)
        assert runs.run(batch, 0, len(batch)) == 0
        assert runs.take() == (b"", [])


def test_a_count_that_cannot_be_right_is_named_by_others() -> None:
    batch = chunk_of((1,))
    header = read_header(batch)
    with pytest.raises(CorruptRecord, match="claims 9 records"):
        KeyScan(new_map(), 9, 0, header.last_offset_delta, 0, 0, None, True)
