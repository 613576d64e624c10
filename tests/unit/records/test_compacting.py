"""Compaction's passes over a section, against a dict and a list."""

from __future__ import annotations

import pytest
from section_model import PIECES, check_compaction, pieces

from kalda.base.errors import CorruptRecord
from kalda.records import values
from kalda.records.compacting import KeyScan
from kalda.records.key_offsets import ENTRY_BYTES, KeyOffsets, siphash128

SECRET = bytes(range(16))


@pytest.mark.parametrize("seed", range(60))
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
    offsets = KeyOffsets(10 * ENTRY_BYTES, SECRET)
    rows = [(0, b"%d" % at, b"v", ()) for at in range(12)]
    section = bytes(values.encode_records(rows, 0, 0, 0, False)[0])
    scan = KeyScan(offsets, 12, 0, 11, 0, 0, None, True)
    scan.feed(section)
    scan.finish()
    assert scan.full
    assert offsets.size == offsets.max_size == 9
    assert [offsets.get(b"%d" % at) for at in range(12)] == [*range(9), -1, -1, -1]


@pytest.mark.parametrize("size", PIECES)
@pytest.mark.parametrize("deltas", [(-5,), (0, 0), (1, 0), (0, 3)], ids=str)
def test_offsets_that_do_not_rise_within_the_batch_are_malformed(size: int, deltas: tuple[int, ...]) -> None:
    section = b"".join(bytes([12, 0, 0, (delta << 1 ^ delta >> 7) & 0xFF, 0, 1, 0]) for delta in deltas)
    scan = KeyScan(KeyOffsets(1_000, SECRET), len(deltas), 7, 2, 0, 0, bytearray(1), True)

    def feed() -> None:
        for piece in pieces(section, size):
            scan.feed(piece)

    with pytest.raises(CorruptRecord, match="at offset 7 is malformed"):
        feed()


@pytest.mark.parametrize("count", [-5, 4])
def test_a_count_of_records_that_the_offsets_do_not_allow_is_malformed(count: int) -> None:
    with pytest.raises(CorruptRecord, match=f"claims {count} records in 3 offsets"):
        KeyScan(KeyOffsets(1_000, SECRET), count, 7, 2, 0, 0, bytearray(1), True)


def test_fewer_bits_than_records_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer bits than records"):
        KeyScan(KeyOffsets(1_000, SECRET), 9, 0, 8, 0, 0, bytearray(1), True)


def test_a_map_that_was_released_cannot_be_used() -> None:
    offsets = KeyOffsets(1_000, SECRET)
    offsets.release()
    offsets.release()
    with pytest.raises(ValueError, match="released"):
        offsets.get(b"key")
    with pytest.raises(ValueError, match="released"):
        KeyScan(offsets, 1, 0, 0, 0, 0, None, True)
