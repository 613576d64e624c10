"""Streams groups at their coordinator: joining with a topology, tasks, sessions, static members, their end."""

from __future__ import annotations

from typing import Any

import pytest
from groups_world import Client, Context, World, list_groups
from streams_members import StreamsMember, StreamsReply, described, offsets, settle, task_lists, topology

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
)

ALL = {"0_0", "0_1", "0_2", "0_3"}


@pytest.fixture
def world() -> World:
    """Topics `orders` and `payments` of four partitions each; no delay before the first assignment."""
    return World(consumers={"group.streams.initial.rebalance.delay.ms": 0})


def group_of(world: World) -> Any:
    return world.shard("app").streams.get("app")


def large() -> Any:
    """A topology of 800 tasks: their assignment, and the steps towards it, are found beside other requests."""
    names = [f"s{number}" for number in range(200)]
    each = [StreamsGroupHeartbeatRequestSubtopology(subtopology_id=name, source_topics=["orders"]) for name in names]
    return StreamsGroupHeartbeatRequestTopology(epoch=0, subtopologies=each)


# -- members and their tasks


def test_one_member_runs_all_tasks(world: World) -> None:
    member = StreamsMember(world, "a")
    assert member.beat() == "NONE"
    assert (member.epoch, member.active, member.statuses) == (2, ALL, {})
    assert (member.response.heartbeat_interval_ms, member.response.task_offset_interval_ms) == (5_000, 60_000)
    assert list_groups(world) == ["app streams Stable"]
    member.beat()
    assert member.response.active_tasks is None, "what has not changed is not sent again"


def next_beat(member: StreamsMember) -> StreamsGroupHeartbeatRequest:
    active, standby, warmup = member.owned()
    return StreamsGroupHeartbeatRequest(
        group_id="app",
        member_id=member.member_id,
        member_epoch=member.epoch,
        active_tasks=active,
        standby_tasks=standby,
        warmup_tasks=warmup,
    )


def test_a_step_of_very_many_tasks_is_found_before_the_heartbeat(world: World, monkeypatch: Any) -> None:
    first, second = StreamsMember(world, "a", reads=large()), StreamsMember(world, "b", reads=large())
    settle(world, first)
    assert len(first.active) == 800
    second.beat()
    world.pass_time(1_000)
    second.beat()
    first.beat()
    assert (len(first.active), len(second.active)) == (400, 0)
    # What was found while the other member still has the tasks is not used once it has given them back.
    context: Any = Context(1)
    request = next_beat(second)
    stale = run_to_end(world.coordinator.prepare_streams_heartbeat(request))
    first.beat()
    answer = world.coordinator.streams_group_heartbeat(context, request, stale, world.now)
    assert second.take(StreamsReply(answer, 1)) == "NONE"
    assert len(second.active) == 400
    assert not first.active & second.active
    # Otherwise it is: the heartbeat does not search again.
    first.leave()
    second.beat()
    world.pass_time(1_000)
    request = next_beat(second)
    prepared = run_to_end(world.coordinator.prepare_streams_heartbeat(request))
    monkeypatch.setattr("kalda.coordinator.groups.streams.protocol.next_member", None)
    answer = world.coordinator.streams_group_heartbeat(context, request, prepared, world.now)
    assert second.take(StreamsReply(answer, 1)) == "NONE"
    assert len(second.active) == 800


def test_a_member_whose_answer_was_lost_gets_its_tasks_with_the_next_one(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first)
    second.beat()
    world.pass_time(1_000)
    second.beat()
    first.beat()
    first.beat()
    lost = second.send(member_epoch=second.epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assert len(lost.value.active_tasks[0].partitions) == 2
    assert (second.beat(), len(second.active)) == ("NONE", 2)


def test_a_member_that_would_get_more_tasks_than_it_can_name_waits_for_others(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("kalda.coordinator.groups.kind_protocol.MAX_ASSIGNED", 600)
    first, second = StreamsMember(world, "a", reads=large()), StreamsMember(world, "b", reads=large())
    settle(world, first)
    assert (first.error, first.active) == ("NONE", set())
    settle(world, first, second)
    assert (len(first.active), len(second.active)) == (400, 400)


def test_a_task_moves_when_its_process_has_given_it_back(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first)
    held = first.owned()
    assert second.beat() == "NONE"
    world.pass_time(1_000)
    assert second.beat() == "NONE"
    assert (second.active, second.epoch) == (set(), 3)
    assert first.beat(active_tasks=held[0], standby_tasks=[], warmup_tasks=[]) == "NONE"
    assert len(first.active) == 2, "it is told to give two back"
    assert first.epoch == 2
    assert second.beat() == "NONE"
    assert second.active == set(), "they are not released yet"
    assert first.beat() == "NONE"
    assert second.beat() == "NONE"
    assert (first.epoch, second.epoch) == (3, 3)
    assert first.active | second.active == ALL
    assert not first.active & second.active


def test_a_member_that_keeps_what_it_should_give_back_is_removed(world: World) -> None:
    first, second = StreamsMember(world, "a", rebalance_timeout_ms=10_000), StreamsMember(world, "b")
    settle(world, first)
    held = first.owned()[0]
    second.beat()
    world.pass_time(1_000)
    second.beat()
    for _ in range(4):
        first.beat(active_tasks=held)
        world.pass_time(3_000)
    assert first.beat(active_tasks=held) == "UNKNOWN_MEMBER_ID"
    settle(world, second)
    assert second.active == ALL


def test_standby_copies_are_in_another_process(world: World) -> None:
    world.overrides["app"] = {"streams.num.standby.replicas": "1"}
    world.topics.add("store-log")
    reads = topology("orders", changelogs=("store-log",))
    first, second = (StreamsMember(world, name, reads=reads) for name in "ab")
    settle(world, first, second)
    assert first.active | second.active == ALL
    assert (first.standby, second.standby) == (second.active, first.active)
    assert described(world).members[0].assignment.standby_tasks


def test_a_standby_copy_runs_in_its_place_once_the_other_has_left(world: World) -> None:
    world.overrides["app"] = {"streams.num.standby.replicas": "1"}
    world.topics.add("store-log")
    reads = topology("orders", changelogs=("store-log",))
    first, second = (StreamsMember(world, name, reads=reads) for name in "ab")
    settle(world, first, second)
    assert first.leave() == "NONE"
    settle(world, second)
    assert (second.active, second.standby) == (ALL, set())


def test_the_first_assignment_waits_for_more_members() -> None:
    world = World()
    members = [StreamsMember(world, name) for name in "ab"]
    for member in members:
        assert member.beat() == "NONE"
        assert (member.epoch, member.active) == (1, set())
        assert member.statuses == {
            "ASSIGNMENT_DELAYED": "Assignment delayed due to the configured initial rebalance delay."
        }
    assert group_of(world).state().value == "Assigning"
    world.pass_time(3_000)
    for member in members:
        member.beat()
    assert members[0].active | members[1].active == ALL
    assert len(members[0].active) == 2


def test_assignments_are_some_time_apart(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    first.beat()
    second.beat()
    assert second.statuses == {"ASSIGNMENT_DELAYED": "Assignment delayed due to the configured assignment interval."}
    world.pass_time(1_000)
    second.beat()
    assert second.statuses == {}


def test_an_assignment_follows_configs_of_the_group(world: World) -> None:
    world.topics.add("store-log")
    members = [StreamsMember(world, name, reads=topology("orders", changelogs=("store-log",))) for name in "ab"]
    settle(world, *members)
    epoch = group_of(world).epochs.group
    assert members[0].standby == set()
    world.overrides["app"] = {"streams.num.standby.replicas": "1"}
    settle(world, *members, rounds=6)
    assert group_of(world).epochs.group == epoch + 1
    assert members[0].standby == members[1].active


# -- topics


def test_missing_source_topics_are_reported_until_they_are_there(world: World) -> None:
    member = StreamsMember(world, "a", reads=topology("clicks"))
    assert member.beat() == "NONE"
    assert member.statuses == {"MISSING_SOURCE_TOPICS": "Source topics clicks are missing."}
    assert member.active == set()
    assert list_groups(world) == ["app streams NotReady"]
    world.topics.add("clicks", 2)
    world.coordinator.on_topics_changed(["clicks"], 1, created=True)
    world.pass_time(1_000)
    settle(world, member)
    assert (member.active, member.statuses) == ({"0_0", "0_1"}, {})


def test_internal_topics_are_asked_for(world: World) -> None:
    member = StreamsMember(world, "a", reads=topology("orders", repartitions=("repartition",)))
    assert member.beat() == "NONE"
    assert member.statuses == {"MISSING_INTERNAL_TOPICS": "Internal topics are missing: repartition"}
    assert member.missing == {"repartition": 4}
    world.topics.add("repartition")
    world.coordinator.on_topics_changed(["repartition"], 1, created=True)
    world.pass_time(1_000)
    settle(world, member)
    assert member.missing == {}
    assert member.active == ALL | {"1_0", "1_1", "1_2", "1_3"}
    topics = described(world).topology.subtopologies[1].repartition_source_topics
    assert [(each.name, each.partitions) for each in topics] == [("repartition", 4)]


def test_a_topic_that_grows_has_more_tasks(world: World) -> None:
    member = StreamsMember(world, "a")
    settle(world, member)
    world.topics.partitions["orders"] = 6
    world.coordinator.on_topics_changed(["orders"], 1, created=False)
    settle(world, member)
    assert member.active == ALL | {"0_4", "0_5"}


# -- topologies


def test_an_older_topology_is_stale_and_another_one_is_refused(world: World) -> None:
    first = StreamsMember(world, "a", reads=topology("orders", epoch=3))
    first.beat()
    older = StreamsMember(world, "b", reads=topology("payments", epoch=2))
    assert older.beat() == "NONE"
    assert older.statuses["STALE_TOPOLOGY"] == ("The member's topology epoch 2 is behind the group's topology epoch 3.")
    other = StreamsMember(world, "c", reads=topology("payments", epoch=3))
    assert (other.beat(), other.message) == ("INVALID_REQUEST", "Topology updates are not supported yet.")
    newer = StreamsMember(world, "d", reads=topology("orders", epoch=4))
    assert newer.beat() == "INVALID_REQUEST"


def test_what_a_heartbeat_must_have(world: World) -> None:
    member = StreamsMember(world, "a")
    for changed, message in (
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"active_tasks": task_lists({"0_1"})}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": None}, "StandbyTasks must be empty when (re-)joining."),
        (
            {"member_epoch": 5, "topology": None, "warmup_tasks": None},
            "If one task-type is non-null, all must be non-null.",
        ),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"instance_id": " "}, "InstanceId can't be empty."),
        ({"member_epoch": 5}, "Topology can only be provided when (re-)joining."),
    ):
        assert (member.beat(**changed), member.message) == ("INVALID_REQUEST", message)
    bad = topology("orders", changelogs=("store",))
    bad.subtopologies[0].state_changelog_topics[0].partitions = 3
    assert member.beat(topology=bad) == "STREAMS_INVALID_TOPOLOGY"
    assert member.message == "Changelog topic store must have an undefined partition count, but it is set to 3."
    twice = topology("orders", repartitions=("r",))
    twice.subtopologies[1].subtopology_id = "0"
    assert member.beat(topology=twice) == "STREAMS_INVALID_TOPOLOGY"
    assert list_groups(world) == []


def test_tasks_that_do_not_exist_are_refused(world: World) -> None:
    member = StreamsMember(world, "a")
    settle(world, member)
    epoch = member.epoch
    assert member.beat(active_tasks=task_lists({"0_4"})) == "INVALID_REQUEST"
    assert member.message == "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4"
    assert member.beat(active_tasks=task_lists({"7_0"})) == "INVALID_REQUEST"
    assert member.message == "Subtopology 7 does not exist in the topology."
    twice = offsets(t0_1=5) * 2
    assert member.beat(task_offsets=twice) == "INVALID_REQUEST"
    assert member.beat() == "NONE"
    assert member.epoch == epoch


# -- fencing


def test_forged_and_replayed_heartbeats_are_fenced(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first)
    held = first.owned()[0]
    settle(world, first, second)
    assert first.epoch > 2
    newer = first.send(member_epoch=first.epoch + 1).value
    assert (newer.error_code, "greater member epoch" in newer.error_message) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        True,
    )
    older = first.send(member_epoch=1).value
    assert older.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    # The answer to the last step was lost: the same heartbeat again is accepted, one that still has more is not.
    before = group_of(world).member("a").previous_epoch
    again = first.send(member_epoch=before, active_tasks=first.owned()[0], standby_tasks=[], warmup_tasks=[]).value
    assert (again.error_code, again.member_epoch) == (0, first.epoch)
    more = first.send(member_epoch=before, active_tasks=held, standby_tasks=[], warmup_tasks=[]).value
    assert more.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert StreamsMember(world, "x").send(member_epoch=2).value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for epoch, message in ((2, "Streams group none not found."), (-1, "Group none not found.")):
        absent = StreamsMember(world, "x", group="none").send(member_epoch=epoch).value
        assert (absent.error_code, absent.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, message)


def test_a_group_has_a_bounded_size(world: World) -> None:
    world.consumers["group.streams.max.size"] = 1
    world.elect()
    assert StreamsMember(world, "a").beat() == "NONE"
    second = StreamsMember(world, "b")
    assert second.beat() == "GROUP_MAX_SIZE_REACHED"
    assert second.message == "The streams group has reached its maximum capacity of 1 members."


def test_a_session_ends(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first, second)
    for _ in range(10):
        world.pass_time(5_000)
        second.beat()
    settle(world, second)
    assert second.active == ALL
    assert first.beat() == "UNKNOWN_MEMBER_ID"


def test_a_shutdown_reaches_all_members(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first, second)
    assert first.beat(shutdown_application=True) == "NONE"
    second.beat()
    assert second.statuses == {
        "SHUTDOWN_APPLICATION": "Streams group member a encountered a fatal error and requested a shutdown for the "
        "entire application."
    }
    assert (first.leave(), second.leave()) == ("NONE", "NONE")
    second.epoch = 0
    second.beat()
    assert "SHUTDOWN_APPLICATION" not in second.statuses, "it ends with the last member"


# -- static members


def test_a_static_member_returns_to_its_tasks(world: World) -> None:
    first = StreamsMember(world, "a1", instance="one", process="p1")
    second = StreamsMember(world, "b1", instance="two", process="p2")
    settle(world, first, second)
    epoch, tasks = group_of(world).epochs.group, set(first.active)
    twin = StreamsMember(world, "a2", instance="one", process="p1")
    assert twin.beat() == "UNRELEASED_INSTANCE_ID"
    assert first.leave(epoch=-2) == "NONE"
    assert twin.beat() == "NONE"
    assert (twin.active, twin.epoch) == (tasks, epoch)
    assert group_of(world).epochs.group == epoch, "nothing is assigned anew"
    assert first.beat(member_epoch=epoch, topology=None) == "FENCED_INSTANCE_ID"
    assert StreamsMember(world, "x", instance="none").leave() == "UNKNOWN_MEMBER_ID"
    assert twin.leave() == "NONE"
    settle(world, second)
    assert second.active == ALL


# -- endpoints, tags and offsets of tasks


def test_members_know_where_partitions_are_found(world: World) -> None:
    first = StreamsMember(world, "a", endpoint=("host-a", 1))
    second = StreamsMember(world, "b", endpoint=("host-b", 2))
    settle(world, first, second)
    first.beat()
    second.beat()
    assert first.endpoints == second.endpoints
    assert set(first.endpoints) == {"host-a:1", "host-b:2"}
    assert first.endpoints["host-a:1"] == [f"orders-{name[-1]}" for name in sorted(first.active)]
    first.beat()
    assert first.response.partitions_by_user_endpoint is None, "its epoch is the group's"


def test_client_tags_that_are_missing_are_reported(world: World) -> None:
    world.overrides["app"] = {"streams.rack.aware.assignment.tags": "zone,cluster"}
    member = StreamsMember(world, "a", tags={"zone": "z1"})
    member.beat()
    assert member.statuses["MISSING_CLIENT_TAGS"].startswith(
        "Missing required client tags for rack-aware standby assignment: [cluster]."
    )


def test_offsets_of_tasks_are_shown(world: World) -> None:
    member = StreamsMember(world, "a")
    settle(world, member)
    member.beat(task_offsets=offsets(t0_1=7), task_end_offsets=offsets(t0_1=9, t0_0=3))
    found = described(world).members[0]
    assert [(each.partition, each.offset) for each in found.task_offsets] == [(1, 7)]
    assert [(each.partition, each.offset) for each in found.task_end_offsets] == [(0, 3), (1, 9)]


# -- the log


def test_another_coordinator_goes_on(world: World) -> None:
    world.overrides["app"] = {"streams.num.standby.replicas": "1"}
    world.topics.add("store-log")
    reads = topology("orders", changelogs=("store-log",))
    members = [StreamsMember(world, name, reads=reads, endpoint=(name, 1), tags={"z": name}) for name in "ab"]
    settle(world, *members)
    before = described(world)
    tasks = [(set(each.active), set(each.standby), each.epoch) for each in members]
    world.elect()
    for member in members:
        assert member.beat() == "NONE"
    assert [(each.active, each.standby, each.epoch) for each in members] == tasks
    assert described(world) == before
    assert group_of(world).state().value == "Stable"
    world.pass_time(50_000)
    assert group_of(world).state().value == "Empty"


def test_groups_of_other_kinds(world: World) -> None:
    member = StreamsMember(world, "a", group="g")
    client = Client(world, group="g")
    client.join()
    assert (member.beat(), member.message) == ("GROUP_ID_NOT_FOUND", "Group g is not a streams group.")
    world.pass_time(400_000)
    assert member.beat() == "NONE"
    assert list_groups(world) == ["g streams Stable"]
    assert client.join(retry=False).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert member.leave() == "NONE"
    assert list_groups(world) == ["g streams Empty"]
    client.member_id = ""
    client.join()
    assert list_groups(world)[0].startswith("g consumer")


def test_a_group_is_deleted_with_its_offsets(world: World) -> None:
    member = StreamsMember(world, "a")
    settle(world, member)
    assert world.commit({("orders", 0): 5}, group="app", member="a", generation=member.epoch).error == "NONE"
    assert world.delete("app") == ["NON_EMPTY_GROUP"]
    member.leave()
    assert world.delete("app") == ["NONE"]
    assert list_groups(world) == []
    assert described(world).error_message == "Group app not found."
    shard = world.loaded_anew()
    assert not list(shard.listed())


def test_offsets_are_fenced_by_the_epochs_of_tasks(world: World) -> None:
    first, second = StreamsMember(world, "a"), StreamsMember(world, "b")
    settle(world, first)
    old_epoch = first.epoch
    settle(world, first, second)
    kept = int(min(first.active)[-1])
    gone = int(min(second.active)[-1])

    def commit(partition: int, epoch: int, topic: str = "orders", member: str = "a") -> str:
        return str(world.commit({(topic, partition): 5}, group="app", member=member, generation=epoch).error)

    assert first.epoch > old_epoch
    assert commit(kept, first.epoch) == "NONE"
    assert commit(kept, old_epoch) == "NONE", "the task is its own since then"
    assert commit(gone, old_epoch) == "STALE_MEMBER_EPOCH"
    assert commit(kept, old_epoch, topic="payments") == "STALE_MEMBER_EPOCH"
    assert commit(kept, first.epoch + 1) == "STALE_MEMBER_EPOCH"
    assert commit(kept, first.epoch, member="x") == "UNKNOWN_MEMBER_ID"
    assert world.commit({("orders", 0): 1}, group="app", generation=-1).error == "UNKNOWN_MEMBER_ID"
    assert (
        world.commit({("orders", kept): 1}, group="app", member="a", generation=first.epoch, version=8).error
        == "UNSUPPORTED_VERSION"
    )
