"""State batches, beside a dictionary of single offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kalda.base.share_states import NO_OFFSET, StateBatch
from kalda.coordinator.share.shard import combined

Model = dict[int, tuple[int, int]]
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


@st.composite
def batches(draw: st.DrawFn) -> list[StateBatch]:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        first = draw(st.integers(0, 30))
        state = draw(st.sampled_from((AVAILABLE, ACKNOWLEDGED, ARCHIVED)))
        found.append(StateBatch(first, first + draw(st.integers(0, 8)), state, draw(st.integers(1, 3))))
    return found


def laid_over(model: Model, new: list[StateBatch], start_offset: int) -> Model:
    """The same, an offset at a time."""
    result = dict(model)
    for first, last, state, count in new:
        for offset in range(first, last + 1):
            result[offset] = max(result.get(offset, (count, state)), (count, state))
    return {offset: value for offset, value in result.items() if offset >= start_offset}


def as_model(held: tuple[StateBatch, ...]) -> Model:
    return {offset: (count, state) for first, last, state, count in held for offset in range(first, last + 1)}


@given(st.lists(st.tuples(batches(), st.integers(-1, 20)), max_size=4))
def test_batches_are_those_of_single_offsets(writes: list[tuple[list[StateBatch], int]]) -> None:
    held: tuple[StateBatch, ...] = ()
    model: Model = {}
    for new, start_offset in writes:
        held, model = combined(held, new, start_offset), laid_over(model, new, start_offset)
        assert as_model(held) == model
        for before, after in pairwise(held):
            assert before.last_offset < after.first_offset, "sorted, without overlaps"
            touch = before.last_offset + 1 == after.first_offset
            assert not touch or before[2:] != after[2:], "as few batches as can be"


def test_the_same_state_next_to_it_makes_a_batch_longer() -> None:
    held = combined((), [StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(10, 14, ACKNOWLEDGED, 1)], NO_OFFSET)
    assert combined(held, [StateBatch(5, 9, ACKNOWLEDGED, 1)], NO_OFFSET) == (StateBatch(0, 14, ACKNOWLEDGED, 1),)


def test_a_later_delivery_counts_over_an_earlier_one() -> None:
    held = combined((), [StateBatch(0, 9, ACKNOWLEDGED, 1)], NO_OFFSET)
    assert combined(held, [StateBatch(3, 5, AVAILABLE, 2)], 1) == (
        StateBatch(1, 2, ACKNOWLEDGED, 1),
        StateBatch(3, 5, AVAILABLE, 2),
        StateBatch(6, 9, ACKNOWLEDGED, 1),
    )
