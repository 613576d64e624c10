"""What the random tests of timeline collections do not ask: loading many keys, forgetting all snapshots."""

from __future__ import annotations

import pytest

from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet


def test_what_is_loaded_at_once_is_there_and_what_was_is_forgotten() -> None:
    registry = SnapshotRegistry()
    names: TimelineDict[str, int] = TimelineDict(registry)
    members: TimelineSet[str] = TimelineSet(registry)
    registry.create_snapshot(1)
    names["old"] = 1
    with pytest.raises(AssertionError):
        names.load({"new": 2})
    registry.reset()
    names.load({"new": 2, "newer": 3})
    members.load(["a", "b", "a"])
    registry.create_snapshot(5)
    names["new"] = 4
    members.discard("a")
    assert dict(names.items(5)) == {"new": 2, "newer": 3}
    assert list(members.members(5)) == ["b", "a"]
    registry.revert_to(5)
    assert dict(names.items()) == {"new": 2, "newer": 3}


def test_forgetting_snapshots_keeps_the_state() -> None:
    registry = SnapshotRegistry()
    names: TimelineDict[str, int] = TimelineDict(registry)
    for epoch in (1, 2, 3):
        registry.create_snapshot(epoch)
        names["a"] = epoch
    registry.forget()
    assert (registry.epochs, names["a"]) == ((), 3)
    names["a"] = 4
    registry.create_snapshot(3)
    names["a"] = 5
    registry.revert_to(3)
    assert names["a"] == 4
