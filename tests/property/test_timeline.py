"""Timeline collections against a model that has a full copy for every snapshot."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet, TimelineValue

KEYS = st.integers(0, 6)
VALUES = st.integers(0, 99)
State = tuple[dict[int, int], frozenset[int], int]


class TimelineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = SnapshotRegistry()
        self.map: TimelineDict[int, int] = TimelineDict(self.registry)
        self.members: TimelineSet[int] = TimelineSet(self.registry)
        self.number: TimelineValue[int] = TimelineValue(self.registry, 0)
        self.past: dict[int, State] = {}
        self.now: State = ({}, frozenset(), 0)
        self.next_epoch = 0

    @rule(key=KEYS, value=VALUES)
    def put(self, key: int, value: int) -> None:
        self.map[key] = value
        self.now = ({**self.now[0], key: value}, self.now[1], self.now[2])

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        assert self.map.pop(key, None) == self.now[0].get(key)
        self.now = ({k: v for k, v in self.now[0].items() if k != key}, self.now[1], self.now[2])

    @rule()
    def clear(self) -> None:
        self.map.clear()
        self.now = ({}, self.now[1], self.now[2])

    @rule(key=KEYS)
    def add(self, key: int) -> None:
        self.members.add(key)
        self.now = (self.now[0], self.now[1] | {key}, self.now[2])

    @rule(key=KEYS)
    def discard(self, key: int) -> None:
        self.members.discard(key)
        self.now = (self.now[0], self.now[1] - {key}, self.now[2])

    @rule(value=VALUES)
    def assign(self, value: int) -> None:
        self.number.value = value
        self.now = (self.now[0], self.now[1], value)

    @rule(skip=st.integers(0, 3))
    def snapshot(self, skip: int) -> None:
        self.next_epoch += skip
        self.registry.create_snapshot(self.next_epoch)
        self.past[self.next_epoch] = self.now
        self.next_epoch += 1

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def revert(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.past)))
        self.registry.revert_to(epoch)
        self.now = self.past[epoch]
        self.past = {e: s for e, s in self.past.items() if e <= epoch}

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.past)))
        self.registry.restore(epoch)
        self.now = self.past[epoch]

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def delete_up_to(self, data: st.DataObject) -> None:
        epoch = data.draw(st.integers(0, self.next_epoch))
        self.registry.delete_up_to(epoch)
        self.past = {e: s for e, s in self.past.items() if e >= epoch}

    @rule()
    def reset(self) -> None:
        self.registry.reset()
        self.past = {}
        self.now = ({}, frozenset(), 0)

    @invariant()
    def agrees(self) -> None:
        assert (dict(self.map), frozenset(self.members), self.number.value) == self.now
        assert self.registry.epochs == tuple(sorted(self.past))
        assert len(self.map) == len(self.now[0])
        for epoch, (mapping, members, number) in self.past.items():
            assert dict(self.map.items(epoch)) == mapping
            assert set(self.map.keys(epoch)) == mapping.keys()
            assert self.map.size(epoch) == len(mapping)
            assert frozenset(self.members.members(epoch)) == members
            assert self.number.get(epoch) == number
            for key in range(7):
                assert self.map.get(key, None, epoch) == mapping.get(key)
                assert self.map.contains(key, epoch) == (key in mapping)
                assert self.members.contains(key, epoch) == (key in members)


TimelineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTimeline = TimelineMachine.TestCase


def test_a_read_at_an_epoch_without_a_snapshot_raises() -> None:
    registry = SnapshotRegistry()
    mapping: TimelineDict[str, int] = TimelineDict(registry)
    registry.create_snapshot(5)
    with pytest.raises(KeyError, match="no snapshot at 4"):
        mapping.get("a", None, 4)


def test_nothing_is_saved_without_a_snapshot() -> None:
    registry = SnapshotRegistry()
    mapping: TimelineDict[int, int] = TimelineDict(registry)
    for key in range(100):
        mapping[key] = key
    assert mapping._tiers == []


def test_iteration_is_in_order_of_insertion() -> None:
    registry = SnapshotRegistry()
    members: TimelineSet[str] = TimelineSet(registry)
    for name in ("zebra", "ant", "mole"):
        members.add(name)
    registry.create_snapshot(1)
    members.discard("ant")
    assert list(members) == ["zebra", "mole"]
    assert list(members.members(1)) == ["zebra", "mole", "ant"]
