"""Placement of replicas."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.placement import UsableBroker, _Racks, place_replicas


def brokers(*racks: str | None, fenced: tuple[int, ...] = ()) -> list[UsableBroker]:
    return [UsableBroker(at, rack, at in fenced) for at, rack in enumerate(racks)]


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8),
    fenced=st.sets(st.integers(0, 7)),
    partitions=st.integers(1, 20),
    factor=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_the_two_rules(racks: list[str | None], fenced: set[int], partitions: int, factor: int, seed: int) -> None:
    usable = brokers(*racks, fenced=tuple(fenced))
    if factor > len(usable) or all(broker.fenced for broker in usable):
        with pytest.raises(ApiError) as raised:
            place_replicas(usable, partitions, factor, random.Random(seed))
        assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
        return
    placed = place_replicas(usable, partitions, factor, random.Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert not usable[replicas[0]].fenced
    assert placed == place_replicas(usable, partitions, factor, random.Random(seed))


@given(
    racks=st.lists(st.sampled_from([None, None, None, "a"]), min_size=1, max_size=8),
    fenced=st.sets(st.integers(0, 30)),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_many_partitions_are_placed_as_one_after_the_other(
    racks: list[str | None], fenced: set[int], partitions: int, factor: int, seed: int
) -> None:
    usable = brokers(*racks, fenced=tuple(fenced))
    if factor > len(usable) or all(broker.fenced for broker in usable):
        return
    one_by_one, together = random.Random(seed), random.Random(seed)
    racks_of_one = _Racks(usable, one_by_one)
    placed = [racks_of_one.place(factor) for _ in range(partitions)]
    assert [list(each) for each in place_replicas(usable, partitions, factor, together)] == placed
    assert one_by_one.getstate() == together.getstate(), "committed seeds stay what they are"


def test_replicas_spread_over_racks_and_leaders_over_brokers() -> None:
    usable = brokers("a", "a", "b", "b", "c", "c")
    placed = place_replicas(usable, 12, 3, random.Random(1))
    for replicas in placed:
        assert {usable[replica].rack for replica in replicas} == {"a", "b", "c"}
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(6), 2)
    assert set(Counter(replica for replicas in placed for replica in replicas).values()) == {6}


def test_fenced_brokers_are_used_last() -> None:
    placed = place_replicas(brokers(None, None, None, fenced=(1,)), 6, 2, random.Random(1))
    assert all(sorted(replicas) == [0, 2] for replicas in placed)


def test_a_factor_must_be_positive() -> None:
    with pytest.raises(ApiError) as raised:
        place_replicas(brokers(None), 1, 0, random.Random(1))
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
