"""Offsets of a topic as those of its copy, whose log has other gaps."""

from __future__ import annotations

import random

from kalda.pipeline.mirror import MAX_BOUNDARIES, MAX_COUNTED, Boundary, translated, with_boundary


def test_offsets_between_two_logs_with_gaps() -> None:
    """Whatever the gaps and the boundaries: a group gets exactly the records that it has not had."""
    dice = random.Random(7)
    for _ in range(200):
        source = sorted(dice.sample(range(100), 40))
        copy = sorted(dice.sample(range(100), 40))
        cuts = sorted(dice.sample(range(41), 5))
        boundaries: list[Boundary] = []
        for cut in cuts:
            before = source[cut - 1] + 1 if cut else 0
            boundaries = with_boundary(boundaries, Boundary(before, copy[cut - 1] + 1 if cut else 0))

        def count(start: int, end: int, log: list[int] = source) -> int:
            return sum(start <= each < end for each in log)

        def behind(start: int, records: int, log: list[int] = copy) -> int:
            return [each for each in log if each >= start][records - 1] + 1

        for offset in range(101):
            had = sum(each < offset for each in source)
            found = translated(boundaries, offset, count, behind)
            if offset < boundaries[0].source:
                assert found is None
            elif found is not None:
                copied = sum(each < found for each in copy)
                assert copied == min(had, cuts[-1])


def test_what_is_far_from_a_boundary_is_translated_to_it() -> None:
    def fails(_: int, __: int) -> int:
        raise AssertionError("nothing is read")

    pairs = [Boundary(0, 5), Boundary(MAX_COUNTED * 2, 9)]
    assert translated(pairs, MAX_COUNTED + 1, fails, fails) == 5
    assert translated(pairs, MAX_COUNTED * 2, fails, fails) == 9
    assert translated(pairs, MAX_COUNTED * 3, fails, fails) == 9  # not copied yet
    assert translated([], 3, fails, fails) is None


def test_boundaries_are_bounded_and_the_newest_are_dense() -> None:
    pairs: list[Boundary] = []
    for n in range(5_000):
        pairs = with_boundary(pairs, Boundary(n, n))
    assert len(pairs) <= MAX_BOUNDARIES
    assert pairs[0] == (0, 0)
    assert [each.source for each in pairs[-50:]] == list(range(4_950, 5_000))
    assert with_boundary(pairs, Boundary(4_999, 7)) is pairs
