"""What `kalda explain rebalance` is told by a coordinator: causes of the last rebalances, who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_members import Member
from consumer_members import settle as settle_consumers
from groups_world import Client, World, settle
from share_members import ShareMember
from streams_members import StreamsMember, topology
from streams_members import settle as settle_streams

from kalda.base.errors import ErrorCode
from kalda.cli.explain import print_rebalances
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory


def explain(world: World, group: str = "g") -> Any:
    return world.coordinator.explain_rebalance(group, world.now)


def ids(members: list[Any]) -> list[str]:
    return [member["client_id"] for member in members]


def causes(rebalance: Any) -> list[tuple[str, list[str]]]:
    return [(cause["what"], ids(cause["members"])) for cause in rebalance["causes"]]


def test_each_rebalance_has_its_causes_and_the_member_that_came_last() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a, b, c = (Client(world, name) for name in "abc")
    a.join()
    assert explain(world)["waits"]["for"] == "group.initial.rebalance.delay.ms"
    b.join()
    world.pass_time(6_000)
    assert explain(world)["waits"]["for"] == "SyncGroup of the leader"
    syncs = [b.sync(), a.sync({a: b"1", b: b"2"})]
    assert [each.error for each in syncs] == ["NONE", "NONE"]
    c.join()
    world.pass_time(2_000)
    b.join()
    world.pass_time(500)
    a.join()
    syncs = [c.sync(), b.sync(), a.sync({})]
    assert [each.error for each in syncs] == ["NONE"] * 3
    first, second = explain(world)["rebalances"]
    assert (first["generation"], first["next_generation"], first["members"]) == (0, 1, 2)
    assert causes(first) == [("joined", ["a"]), ("joined", ["b"])]
    assert first["outcome"] == second["outcome"] == "assigned"
    assert causes(second) == [("joined", ["c"])], "a and b join again since they must"
    assert second["last_member"]["client_id"] == "a"
    assert second["last_ms"] - second["started_ms"] == 2_500
    assert second["joined_ms"] == second["last_ms"]
    assert explain(world)["waits"] is None


def test_who_waits_for_whom_and_who_did_not_come() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = (Client(world, name, rebalance_ms=20_000, session_ms=30_000) for name in "ab")
    settle(world, a)
    b.join()
    world.pass_time(4_000)
    waits = explain(world)["waits"]
    assert (waits["for"], waits["left_ms"]) == ("JoinGroup", 16_000)
    assert (ids(waits["waiting"]), ids(waits["awaited"])) == (["b"], ["a"])
    assert world.now - waits["waiting"][0]["since_ms"] == 4_000
    assert waits["awaited"][0]["session_left_ms"] == 26_000
    world.pass_time(16_000)
    assert ids(explain(world)["rebalances"][-1]["removed"]) == ["a"]
    waits = explain(world)["waits"]
    assert (waits["for"], ids(waits["awaited"])) == ("SyncGroup of the leader", ["b"])


def test_members_that_leave_or_die_are_causes_also_during_a_rebalance(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b, c = (Client(world, name, session_ms=6_000 + 1_000 * order) for order, name in enumerate("abc"))
    settle(world, a)
    b.join()
    c.join()
    settle(world, a, b, c)
    a.leave()
    world.pass_time(7_000)
    last = explain(world)["rebalances"][-1]
    assert causes(last) == [("left", ["a"]), ("session ended", ["b"])]
    assert last["cause_count"] == 2
    world.pass_time(2_000)
    last = explain(world)["rebalances"][-1]
    assert causes(last)[-1] == ("session ended", ["c"])
    assert last["outcome"] == "no members are left"
    print_rebalances({"node": 1, **explain(world)})
    shown = capsys.readouterr().out
    assert "broker 1 coordinates g, a classic group: Empty" in shown
    assert "127.0.0.1) session ended" in shown


def test_a_coordinator_that_has_handed_its_groups_over_keeps_what_it_saw() -> None:
    world = World(initial_rebalance_delay_ms=100)
    Client(world, "a").join()
    world.runtime.on_resigned(0)
    found = explain(world)
    assert found["error"] == ErrorCode.NOT_COORDINATOR.name
    assert [each["outcome"] for each in found["rebalances"]] == ["another broker coordinates the group"]


def consumer_world() -> World:
    world = World(consumers={"group.consumer.assignment.interval.ms": 0})
    world.topics.add("t", 4)
    return world


def test_a_consumer_group_tells_who_is_to_give_back_what_others_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    world = consumer_world()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    a.beat()
    world.pass_time(1_000)
    b.beat()
    world.pass_time(2_000)
    a.beat()
    world.pass_time(3_000)
    found = explain(world)
    assert (found["type"], found["state"], found["generation"], found["members"]) == ("consumer", "Reconciling", 3, 2)
    waits = found["waits"]
    assert [member["member_id"] for member in waits["waiting"]] == ["b"]
    assert [member["member_id"] for member in waits["awaited"]] == ["a"]
    assert waits["left_ms"] == 57_000, "of the rebalance timeout of a"
    assert waits["awaited"][0]["session_left_ms"] == 42_000
    print_rebalances({"node": 1, **found})
    assert "1 member waits for partitions of 1 member, for 57.0 s at most" in capsys.readouterr().out
    a.beat()
    world.pass_time(1_000)
    b.beat()
    first, second = explain(world)["rebalances"]
    assert [causes_of(each) for each in (first, second)] == [[("joined", ["a"])], [("joined", ["b"])]]
    assert (second["generation"], second["next_generation"], second["members"]) == (2, 3, 2)
    assert (first["outcome"], second["outcome"]) == ("stable", "stable")
    assert second["last_member"]["member_id"] == "b"
    assert second["ended_ms"] - second["started_ms"] == 6_000
    assert explain(world)["waits"] is None
    print_rebalances({"node": 1, **explain(world)})
    assert "epoch 2 to 3, 2 members: stable after 6.0 s" in capsys.readouterr().out


def test_epochs_of_a_consumer_group_have_causes() -> None:
    world = consumer_world()
    a, b, c = Member(world, "a", "t"), Member(world, "b", "t"), Member(world, "c", "t")
    settle_consumers(world, a, b, c)
    a.topics = ["t", "orders"]
    a.beat(subscribed_topic_names=a.topics)
    settle_consumers(world, a, b, c)
    world.topics.add("t", 5)
    world.coordinator.on_topics_changed(["t"], 5, created=False)
    settle_consumers(world, a, b, c)
    b.leave()
    settle_consumers(world, a, c)
    world.pass_time(46_000)
    found = [cause for each in explain(world)["rebalances"] for cause in causes_of(each)]
    assert found == [
        *[("joined", [member]) for member in "abc"],
        ("subscribes to other topics", ["a"]),
        ("topics that the group subscribes to have changed", []),
        ("left", ["b"]),
        ("session ended", ["a"]),
        ("session ended", ["c"]),
    ]
    assert explain(world)["rebalances"][-1]["outcome"] == "no members are left"


def causes_of(rebalance: Any) -> list[tuple[str, list[str]]]:
    return [(cause["what"], [each["member_id"] for each in cause["members"]]) for cause in rebalance["causes"]]


def test_a_share_group_tells_its_epochs_and_who_has_not_come_to_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(consumers={"group.share.assignment.interval.ms": 0})
    world.topics.add("t", 4)
    a, b = ShareMember(world, "a"), ShareMember(world, "b")
    a.settle("t")
    b.beat("t")
    found = explain(world, "s")
    assert (found["type"], found["state"], found["members"]) == ("share", "Stable", 2)
    waits = found["waits"]
    assert (waits["for"], [member["member_id"] for member in waits["waiting"]]) == ("their next heartbeat", ["a"])
    a.settle()
    assert explain(world, "s")["waits"] is None
    world.topics.add("t", 5)
    world.coordinator.on_topics_changed(["t"], 5, created=False)
    a.settle()
    b.settle()
    a.beat(epoch=-1)
    b.settle()
    world.pass_time(46_000)
    rebalances = explain(world, "s")["rebalances"]
    assert [cause for each in rebalances for cause in causes_of(each)] == [
        ("joined", ["a"]),
        ("joined", ["b"]),
        ("topics that the group subscribes to have changed", []),
        ("partitions were initialized", []),
        ("left", ["a"]),
        ("session ended", ["b"]),
    ]
    assert rebalances[-1]["outcome"] == "no members are left"
    print_rebalances({"node": 1, **explain(world, "s")})
    assert "epoch 5 to 6, 1 member: stable" in capsys.readouterr().out


def test_a_streams_group_tells_who_is_to_give_back_what_others_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(consumers={"group.streams.initial.rebalance.delay.ms": 2_000})
    a, b = StreamsMember(world, "a"), StreamsMember(world, "b")
    a.beat()
    waits = explain(world, "app")["waits"]
    assert (waits["for"], waits["left_ms"]) == ("group.streams.initial.rebalance.delay.ms", 2_000)
    world.pass_time(2_000)
    settle_streams(world, a)
    held = a.owned()[0]
    b.beat()
    world.pass_time(1_000)
    b.beat()
    a.beat(active_tasks=held, standby_tasks=[], warmup_tasks=[])
    b.beat()
    found = explain(world, "app")
    assert (found["type"], found["state"], found["members"]) == ("streams", "Reconciling", 2)
    waits = found["waits"]
    assert (waits["for"], waits["left_ms"]) == ("tasks", 60_000)
    assert [member["member_id"] for member in waits["waiting"]] == ["b"]
    assert [member["member_id"] for member in waits["awaited"]] == ["a"]
    settle_streams(world, a, b)
    b.leave()
    settle_streams(world, a)
    rebalances = explain(world, "app")["rebalances"]
    assert [causes_of(each) for each in rebalances] == [[("joined", ["a"])], [("joined", ["b"])], [("left", ["b"])]]
    assert [each["outcome"] for each in rebalances] == ["stable"] * 3
    print_rebalances({"node": 1, **explain(world, "app")})
    assert "epoch 2 to 3, 2 members: stable" in capsys.readouterr().out


def test_a_streams_group_without_its_topics_says_which() -> None:
    world = World(consumers={"group.streams.initial.rebalance.delay.ms": 0})
    a = StreamsMember(world, "a", reads=topology("nowhere"))
    a.beat()
    found = explain(world, "app")
    assert (found["state"], found["waits"]["for"]) == ("NotReady", "topics: Source topics nowhere are missing.")
    world.topics.add("nowhere", 1)
    world.coordinator.on_topics_changed(["nowhere"], 9, created=True)
    settle_streams(world, a)
    causes = [cause for each in explain(world, "app")["rebalances"] for cause in causes_of(each)]
    assert causes == [("joined", ["a"]), ("topics of the topology have changed", [])]


def test_memory_is_bounded() -> None:
    history = RebalanceHistory()
    for group in range(2_000):
        history.begin(f"g{group}", 1, Cause("joined"), group)
    for generation in range(50):
        history.begin("g1999", generation, Cause("joined", reason="r" * 100_000), generation)
        for _ in range(50):
            history.add_cause("g1999", Cause("left"))
    assert not history.of("g0")
    assert history.of("g1998")
    rebalances = list(history.of("g1999"))
    assert [each.generation for each in rebalances] == list(range(40, 50))
    assert {(len(each.causes), each.cause_count) for each in rebalances} == {(3, 51)}
    assert all(len(cause.reason) <= 100 for each in rebalances for cause in each.causes)
