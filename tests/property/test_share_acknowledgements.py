"""Acknowledgements as runs, and as batches of requests, say of each offset what was said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kalda.base.ids import ZERO_UUID, TopicPartition
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.sharing.held_records import HeldRecords, Run, ShareSource, batches_of, chosen_runs

KINDS = st.sampled_from(list(AcknowledgeType))


@given(st.dictionaries(st.integers(0, 120), KINDS))
def test_batches_say_what_was_said(types: dict[int, AcknowledgeType]) -> None:
    said: dict[int, AcknowledgeType] = {}
    end = -1
    for first, last, kinds in batches_of(chosen_runs(types)):
        assert end < first <= last
        assert len(kinds) in (1, last - first + 1)
        all_kinds = kinds * (last - first + 1) if len(kinds) == 1 else kinds
        said.update(zip(range(first, last + 1), map(AcknowledgeType, all_kinds), strict=True))
        end = last
    assert said == types


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), max_size=8),
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]))),
    st.sets(st.integers(0, 80)),
    st.booleans(),
)
def test_each_held_offset_is_acknowledged_once(
    spans: list[tuple[int, int]], said: list[tuple[int, AcknowledgeType]], kept: set[int], is_explicit: bool
) -> None:
    held = HeldRecords(ShareSource(0, ZERO_UUID, TopicPartition("t", 0)))
    expected: dict[int, AcknowledgeType] = {}
    at = 0
    for gap, length in spans:
        first, last = at + gap, at + gap + length - 1
        held.add((), [(first, last)])
        held.settle([Run(at + each, at + each, AcknowledgeType.GAP) for each in range(gap)])
        expected.update((offset, AcknowledgeType.GAP) for offset in range(at, first))
        at = last + 1
    offsets = set(range(at)) - set(expected)
    if is_explicit:
        for offset, kind in said:
            if offset in offsets:
                held.say(offset, kind)
                expected[offset] = kind
    else:
        held.accept(kept)
        expected.update((offset, AcknowledgeType.ACCEPT) for offset in offsets - kept)
    assert _by_offset(held.take()) == expected
    assert held.take() == []
    assert held.has_unsaid == bool(offsets - set(expected))
    held.release()
    assert _by_offset(held.take()) == dict.fromkeys(offsets - set(expected), AcknowledgeType.RELEASE)


def _by_offset(runs: list[Run]) -> dict[int, AcknowledgeType]:
    found: dict[int, AcknowledgeType] = {}
    for first, last, kind in runs:
        for offset in range(first, last + 1):
            assert offset not in found
            found[offset] = kind
    return found
