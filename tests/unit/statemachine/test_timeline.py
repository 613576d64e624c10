"""What the random tests of timeline collections leave out: loading many keys, dropping all snapshots."""

from __future__ import annotations

from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict, TimelineSet


def test_keys_loaded_at_once_replace_the_former_ones() -> None:
    registry = SnapshotRegistry()
    names: TimelineDict[str, int] = TimelineDict(registry)
    members: TimelineSet[str] = TimelineSet(registry)
    names.load({"new": 2, "newer": 3})
    members.load(["a", "b", "a"])
    registry.create_snapshot(5)
    names["new"] = 4
    members.discard("a")
    assert dict(names.items(5)) == {"new": 2, "newer": 3}
    assert list(members.members(5)) == ["b", "a"]
    registry.revert_to(5)
    assert dict(names.items()) == {"new": 2, "newer": 3}


def test_many_changes_at_once_are_reverted() -> None:
    registry = SnapshotRegistry()
    names: TimelineDict[str, int] = TimelineDict(registry)
    members: TimelineSet[str] = TimelineSet(registry)
    names["a"], names["b"] = 1, 2
    members.load(["a", "b"])
    registry.create_snapshot(1)
    names.load({"a": 3, "c": 4})
    names.remove_all(["b", "c"])
    members.remove_all(["a"])
    members.load(["c"])
    registry.create_snapshot(2)
    names.remove_all(["a"])
    assert (dict(names.items(1)), dict(names.items(2)), dict(names)) == ({"a": 1, "b": 2}, {"a": 3}, {})
    assert (set(members.members(1)), set(members)) == ({"a", "b"}, {"b", "c"})
    registry.revert_to(1)
    assert (dict(names), set(members)) == ({"a": 1, "b": 2}, {"a", "b"})


def test_dropping_snapshots_keeps_the_state() -> None:
    registry = SnapshotRegistry()
    names: TimelineDict[str, int] = TimelineDict(registry)
    for epoch in (1, 2, 3):
        registry.create_snapshot(epoch)
        names["a"] = epoch
    registry.drop_all()
    assert (registry.epochs, names["a"]) == ((), 3)
    names["a"] = 4
    registry.create_snapshot(3)
    names["a"] = 5
    registry.revert_to(3)
    assert names["a"] == 4
