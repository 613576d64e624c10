"""Compaction's work on records: single batches against a dict and a list; what stops a run of batches; damage."""

from __future__ import annotations

import random
from array import array

import pytest
from section_model import NOW, check_compaction, header_of, new_filter

from kalda.base.errors import CorruptRecord
from kalda.records import values
from kalda.records.batch import HEADER_SIZE, BatchHeader, read_header, write_header
from kalda.records.builder import build_batch, read_records, rebuild_batch
from kalda.records.compaction import COMPILED, map_batch, map_run
from kalda.records.compression import Compression
from kalda.records.key_offsets import ENTRY_BYTES, KeyOffsets, siphash128

SECRET = bytes(range(16))
needs_compiler = pytest.mark.skipif(not COMPILED, reason="without a compiler no batch is plain")


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


@pytest.mark.parametrize("seed", range(120))
def test_what_is_kept_and_what_is_written(seed: int) -> None:
    check_compaction(seed)


@pytest.mark.parametrize(
    ("length", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_the_hash_is_siphash(length: int, digest: str) -> None:
    """Vectors of the reference implementation: key and message are 0, 1, 2 …"""
    k0, k1 = (int.from_bytes(SECRET[at : at + 8], "little") for at in (0, 8))
    assert siphash128(bytes(range(length)), k0, k1).hex() == digest


def test_a_full_map_takes_no_more_keys_and_loses_none() -> None:
    offsets = new_map(10)
    rows = [(0, b"%d" % at, b"v", ()) for at in range(12)]
    section = bytes(values.encode_records(rows, 0, 0, 0, False)[0])
    assert not map_batch(offsets, header_of(12, 0, 11, 0), section, 0)
    assert offsets.size == 9
    assert [offsets.get(b"%d" % at) for at in range(12)] == [*range(9), -1, -1, -1]


@pytest.mark.parametrize("deltas", [(-5,), (0, 0), (1, 0), (0, 3)], ids=str)
def test_offsets_that_do_not_rise_within_the_batch_are_malformed(deltas: tuple[int, ...]) -> None:
    section = b"".join(bytes([12, 0, 0, (delta << 1 ^ delta >> 7) & 0xFF, 0, 1, 0]) for delta in deltas)
    header = header_of(len(deltas), 7, 2, 0)
    match = f"record {len(deltas) - 1} of {len(deltas)} at offset 7 is malformed"
    with pytest.raises(CorruptRecord, match=match):
        map_batch(new_map(), header, section, 0)
    with pytest.raises(CorruptRecord, match=match):
        new_filter(new_map()).filter_batch(header, section)


@pytest.mark.parametrize("count", [-5, 0, 4])
def test_a_count_of_records_that_the_offsets_do_not_allow_is_malformed(count: int) -> None:
    with pytest.raises(CorruptRecord, match=f"claims {count} records in 3 offsets"):
        map_batch(new_map(), header_of(count, 7, 2, 0), bytes(1_000), 0)
    with pytest.raises(CorruptRecord, match=f"claims {count} records in 3 offsets"):
        new_filter(new_map()).filter_batch(header_of(count, 7, 2, 0), bytes(1_000))


def test_a_map_that_was_released_cannot_be_used() -> None:
    offsets = new_map()
    batches = new_filter(offsets)
    offsets.release()
    offsets.release()
    header = header_of(1, 0, 0, 0)
    for use in (
        lambda: offsets.get(b"key"),
        lambda: map_batch(offsets, header, bytes(7), 0),
        lambda: batches.filter_batch(header, bytes(7)),
    ):
        with pytest.raises(ValueError, match="released"):
            use()


@needs_compiler
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


@needs_compiler
def test_a_run_ends_where_the_slice_does() -> None:
    chunk = chunk_of((1, 2), (3,), (4,))
    first = read_header(chunk).size_bytes
    assert map_run(new_map(), chunk, 0, 1, 0) == first
    assert map_run(new_map(), chunk, 0, first, 0) == first
    assert new_filter(new_map()).run(chunk, 0, first) == first


@needs_compiler
def test_a_run_ends_before_the_batch_with_a_key_too_many() -> None:
    chunk, offsets = chunk_of((1, 2, 3), (1,), (4, 5)), new_map(4)
    end = map_run(offsets, chunk, 0, len(chunk), 0)
    assert read_header(chunk, end).base_offset == 4
    assert (offsets.size, offsets.latest_offset) == (3, 3)


@needs_compiler
def test_records_below_the_dirty_part_are_not_mapped() -> None:
    chunk, offsets = chunk_of((1, 2), (3, 4), (5,)), new_map()
    assert map_run(offsets, chunk, 0, len(chunk), 3) == len(chunk)
    assert [offsets.get(b"%d" % key) for key in range(1, 6)] == [-1, -1, -1, 3, 4]


@needs_compiler
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


@needs_compiler
def test_batches_without_an_index_entry_count_as_one() -> None:
    """The first of a segment stands alone, and so does one that follows more bytes than the interval."""
    chunk = chunk_of(*((key,) for key in range(10, 30)))
    size = len(chunk) // 20
    runs = new_filter(new_map(), 1_000_000, interval_bytes=4 * size)
    assert runs.run(chunk, 0, len(chunk)) == len(chunk)
    rows = runs.take()[1]
    assert [row[2] // size for row in rows] == [1, 4, 1, 4, 1, 4, 1, 4]
    assert [row[0] for row in rows] == [0, 1, 5, 6, 10, 11, 15, 16], "of equal times the first counts"
    runs.run(chunk, 0, size)
    assert [row[2] for row in runs.take()[1]] == [size]
    runs.skip(4 * size)
    runs.run(chunk, size, 4 * size)
    assert [row[2] for row in runs.take()[1]] == [size, 2 * size]


@needs_compiler
def test_a_batch_that_stays_as_a_header_is_left_to_others() -> None:
    chunk = chunk_of((1,), (1,), (1,), producer_id=5, producer_epoch=0, base_sequence=0)
    offsets, size = new_map(), len(chunk) // 3
    map_run(offsets, chunk, 0, len(chunk), 0)
    assert new_filter(offsets).run(chunk, 0, len(chunk)) == len(chunk)
    assert new_filter(offsets, round_end=2).run(chunk, 0, len(chunk)) == size
    runs = new_filter(offsets, last_offsets=array("q", [0, 1]))
    assert runs.run(chunk, 0, len(chunk)) == 0
    assert runs.run(chunk, size, len(chunk)) == size
    assert runs.run(chunk, 2 * size, len(chunk)) == len(chunk)


@needs_compiler
def test_a_released_map_is_refused() -> None:
    chunk, offsets = chunk_of((1,)), new_map()
    runs = new_filter(offsets)
    offsets.release()
    assert map_run(offsets, chunk, 0, len(chunk), 0) == 0
    with pytest.raises(ValueError, match="released"):
        runs.run(chunk, 0, len(chunk))


@needs_compiler
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


@needs_compiler
@pytest.mark.parametrize("seed", range(400))
def test_of_hostile_batches_a_run_takes_those_that_are_taken_alone(seed: int) -> None:
    batch, header = hostile(random.Random(seed))
    by_run, single = new_map(), new_map()
    section = batch[HEADER_SIZE:]
    if map_run(by_run, batch, 0, len(batch), 0) == len(batch):
        assert map_batch(single, header, section, 0)
        single.latest_offset = header.last_offset
        assert (by_run.size, by_run.latest_offset) == (single.size, single.latest_offset)
        runs = new_filter(by_run)
        assert runs.run(batch, 0, len(batch)) == len(batch)
        part, _ = runs.take()
        left, records = new_filter(single).filter_batch(header, section)
        assert len(read_records(part) if part else ()) == left.records_count
        if records is not None:
            assert part[HEADER_SIZE:] == records[HEADER_SIZE:]
    else:
        runs = new_filter(by_run)
        assert runs.run(batch, 0, len(batch)) == 0
        assert runs.take() == (b"", [])
        with pytest.raises(CorruptRecord):
            map_batch(single, header, section, 0)
        with pytest.raises(CorruptRecord):
            new_filter(single).filter_batch(header, section)
