"""A section checked piece by piece: wherever it is cut, the outcome is that of the whole."""

from __future__ import annotations

import pytest
from section_model import BASE_TIMESTAMP, PIECES, check_damage, check_scan, scanned, section_of

from kalda.base.errors import CorruptRecord


@pytest.mark.parametrize("seed", range(40))
def test_the_pieces_do_not_matter(seed: int) -> None:
    check_scan(seed)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_found_wherever_the_pieces_end(seed: int) -> None:
    check_damage(seed)


@pytest.mark.parametrize("size", PIECES)
@pytest.mark.parametrize(("claimed", "words"), [(5, "ends in record 1 of 5"), (0, "left behind the 0 records")])
def test_a_count_that_is_not_the_sections(size: int, claimed: int, words: str) -> None:
    with pytest.raises(CorruptRecord, match=words):
        scanned(section_of([(BASE_TIMESTAMP, b"k", b"v", ())]), claimed, size)


@pytest.mark.parametrize("size", PIECES)
def test_the_first_misplaced_record_is_named(size: int) -> None:
    # Length 6, attributes, timestamp delta, offset delta, null key, null value, no headers.
    section = b"".join(bytes([12, 0, 0, 2 * delta, 1, 1, 0]) for delta in (0, 1, 5, 3))
    assert scanned(section, 4, size)[0][2] == 2


def test_faults_are_counted_beyond_those_that_are_noted() -> None:
    section = section_of([(BASE_TIMESTAMP, None, b"v", ())] * 1_000)
    (_, _, _, count), faults = scanned(section, 1_000, 64, noted=3)
    assert count == 1_000
    assert faults == [0, -1, 1, -1, 2, -1]


def test_a_record_longer_than_any_piece_is_checked() -> None:
    section = section_of([(BASE_TIMESTAMP, b"k", bytes(1_000_000), ())])
    assert scanned(section, 1, 1_000)[0] == (BASE_TIMESTAMP, BASE_TIMESTAMP, -1, 0)
