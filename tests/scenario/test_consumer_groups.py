"""Consumer groups (KIP-848): members join, keep their place, change hands of partitions, and leave."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_members import Member, contents, describe, epochs, settle, state
from groups_world import EvenAssignor, World, list_groups

from kalda.assignors.server_assignor import AssignorError, GroupSpec, TargetAssignment
from kalda.base.background import Steps
from kalda.base.errors import ErrorCode

AT_ONCE = {"group.consumer.assignment.interval.ms": 0}


def world_of(partitions: int = 4, **consumers: int) -> World:
    world = World(consumers={**AT_ONCE, **consumers})
    world.topics.add("t", partitions)
    return world


def test_the_first_member_gets_everything_with_its_first_heartbeat() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    assert a.beat() == "NONE"
    assert (a.epoch, a.numbers, state(world)) == (2, [0, 1, 2, 3], "Stable")
    assert a.response.heartbeat_interval_ms == 5_000
    assert list_groups(world) == ["g consumer Stable"]


def test_a_member_that_would_get_more_partitions_than_it_can_name_waits_for_others(monkeypatch: Any) -> None:
    monkeypatch.setattr("kalda.coordinator.groups.kind_protocol.MAX_ASSIGNED", 600)
    world = world_of(800)
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    settle(world, a)
    assert (a.error, a.owned) == ("NONE", set())
    settle(world, a, b)
    assert (len(a.owned), len(b.owned)) == (400, 400)


def test_a_heartbeat_without_news_has_no_assignment_and_writes_nothing() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    appends = world.log.appends
    answer = a.send(member_epoch=a.epoch)
    assert (answer.value.error_code, answer.value.member_epoch, answer.value.assignment) == (0, 2, None)
    assert world.log.appends == appends


def test_a_partition_changes_hands_when_its_owner_has_given_it_back() -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    a.beat()
    b.beat()
    assert (b.epoch, b.owned, state(world)) == (3, set(), "Reconciling")
    a.beat()
    assert (a.epoch, a.numbers) == (2, [0, 1]), "it is told, and stays in its epoch"
    assert a.send(member_epoch=a.epoch).value.member_epoch == 2, "it has not said that it has given them back"
    b.beat()
    assert b.numbers == [], "nobody has given anything back yet"
    a.beat()
    assert a.epoch == 3
    b.beat()
    assert (b.numbers, state(world)) == ([2, 3], "Stable")


def test_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    settle(world, a, b)
    assert a.leave() == "NONE"
    assert (a.beat(member_epoch=3), epochs(world)[0]) == ("UNKNOWN_MEMBER_ID", 4)
    settle(world, b)
    assert b.numbers == [0, 1, 2, 3]
    assert b.leave() == "NONE"
    assert (state(world), list_groups(world)) == ("Empty", ["g consumer Empty"])


def test_a_member_without_heartbeats_is_removed() -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    settle(world, a, b)
    world.pass_time(40_000)
    b.beat()
    world.pass_time(5_001)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert a.beat() == "UNKNOWN_MEMBER_ID"


def test_a_member_that_does_not_give_partitions_back_in_time_is_fenced() -> None:
    world = world_of()
    a, b = Member(world, "a", "t", rebalance_timeout_ms=10_000), Member(world, "b", "t")
    a.beat(), b.beat(), a.beat()
    for _ in range(3):
        a.send(member_epoch=a.epoch), b.beat()
        world.pass_time(3_000)
    assert b.numbers == []
    world.pass_time(1_001)
    assert a.beat() == "UNKNOWN_MEMBER_ID"
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_a_lost_answer_is_no_reason_to_fence() -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    settle(world, a, b)
    b.leave()
    lost = a.send(member_epoch=a.epoch, topic_partitions=a.owned_topics())
    assert lost.value.member_epoch == 4
    assert a.send(member_epoch=3, topic_partitions=a.owned_topics()).value.member_epoch == 4
    assert a.send(member_epoch=3).error == "FENCED_MEMBER_EPOCH", "it does not say what it owns"
    a.owned = {("t", 0), ("orders", 1)}
    assert a.send(member_epoch=3, topic_partitions=a.owned_topics()).error == "FENCED_MEMBER_EPOCH"


def test_the_interval_between_assignments_does_not_delay_who_joins_an_empty_group() -> None:
    world = World(consumers={"group.consumer.assignment.interval.ms": 10_000})
    world.topics.add("t", 4)
    first, second = Member(world, "first", "t"), Member(world, "second", "t")
    settle(world, first)
    first.leave()
    assert (state(world), epochs(world)) == ("Empty", (3, 3))
    second.beat()
    assert second.numbers == [0, 1, 2, 3]


def test_an_assignment_that_a_late_request_was_answered_with_is_sent_again() -> None:
    """A client has given a join up and sent another. The second is answered before there is a target, and the first one
    comes after it."""
    world = World(consumers={"group.consumer.assignment.interval.ms": 10_000})
    world.topics.add("t", 4)
    other, a = Member(world, "other", "orders"), Member(world, "a", "t")
    settle(world, other)
    join = {"member_epoch": 0, "subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    a.take(a.send(**join))
    assert (a.numbers, a.epoch) == ([], epochs(world)[1]), "the interval has not passed"
    world.pass_time(10_001)
    assert a.send(**join).value.assignment.topic_partitions
    a.beat()
    assert a.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(("epoch", "error"), [(1, "FENCED_MEMBER_EPOCH"), (9, "FENCED_MEMBER_EPOCH")])
def test_an_epoch_that_never_was_is_fenced(epoch: int, error: str) -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    before = contents(world)
    assert a.beat(member_epoch=epoch) == error
    assert contents(world) == before


def test_a_fenced_member_joins_again_under_its_id() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    assert a.beat(member_epoch=7) == "FENCED_MEMBER_EPOCH"
    assert a.beat() == "NONE"
    assert (a.epoch, a.numbers) == (2, [0, 1, 2, 3]), "nothing has changed for the group"


def test_a_join_that_is_sent_again_gets_the_same_answer() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    first, before = a.response, contents(world)
    a.epoch = 0
    a.beat()
    assert a.response == first
    assert contents(world) == before


def test_a_member_without_subscription_is_a_member() -> None:
    world = world_of()
    a = Member(world, "a")
    a.beat()
    assert (a.epoch, a.owned, state(world)) == (1, set(), "Stable")
    a.beat(subscribed_topic_names=["t"])
    assert (a.epoch, a.numbers) == (2, [0, 1, 2, 3])


def test_partitions_of_a_topic_that_a_member_leaves_are_taken_from_it() -> None:
    world = world_of()
    a = Member(world, "a", "t", "orders")
    a.beat()
    assert {topic for topic, _ in a.owned} == {"t", "orders"}
    a.beat(subscribed_topic_names=["orders"])
    assert {topic for topic, _ in a.owned} == {"orders"}
    a.beat()
    assert (a.epoch, state(world)) == (3, "Stable")


def test_assignments_are_not_computed_more_often_than_the_interval() -> None:
    world = World()
    world.topics.add("t", 4)
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    a.beat()
    b.beat()
    assert (epochs(world), state(world)) == ((3, 2), "Assigning")
    world.pass_time(999)
    b.beat()
    assert epochs(world) == (3, 2)
    world.pass_time(1)
    b.beat()
    assert epochs(world) == (3, 3)


def test_an_assignment_does_not_wait_for_a_clock_that_was_set_back() -> None:
    """By an hour; or the coordinator before this one had a clock that was an hour ahead."""
    world = World()
    world.topics.add("t", 4)
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    a.beat()
    world.runtime._wall_ms = lambda: world.now - 3_600_000
    b.beat()
    assert epochs(world) == (3, 3)


def test_the_assignment_interval_may_be_a_groups_own() -> None:
    world = World()
    world.topics.add("t", 4)
    world.overrides["g"] = {"consumer.assignment.interval.ms": "0", "consumer.heartbeat.interval.ms": "7000"}
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    a.beat(), b.beat()
    assert epochs(world) == (3, 3)
    assert b.response.heartbeat_interval_ms == 7_000
    world.overrides["g"] = {"consumer.session.timeout.ms": "999999", "consumer.heartbeat.interval.ms": "1"}
    b.beat()
    assert b.response.heartbeat_interval_ms == 5_000, "within the broker's bounds"
    world.pass_time(59_999)
    assert b.beat() == "NONE"


def test_a_group_is_full_at_its_size() -> None:
    world = world_of(**{"group.consumer.max.size": 1})
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    assert [a.beat(), b.beat(), a.beat()] == ["NONE", "GROUP_MAX_SIZE_REACHED", "NONE"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rebalance_timeout_ms": -1}, "INVALID_REQUEST"),
    ({"topic_partitions": None}, "INVALID_REQUEST"),
    ({"subscribed_topic_names": None}, "INVALID_REQUEST"),
    ({"instance_id": " "}, "INVALID_REQUEST"),
    ({"rack_id": ""}, "INVALID_REQUEST"),
    ({"member_epoch": -3}, "INVALID_REQUEST"),
    ({"member_epoch": -2}, "INVALID_REQUEST"),
    ({"member_epoch": 5}, "GROUP_ID_NOT_FOUND"),
    ({"server_assignor": "best"}, "UNSUPPORTED_ASSIGNOR"),
    ({"subscribed_topic_regex": "(", "subscribed_topic_names": None}, "INVALID_REGULAR_EXPRESSION"),
]


@pytest.mark.parametrize(("fields", "error"), BAD)
def test_a_bad_heartbeat_is_refused_and_changes_nothing(fields: dict[str, Any], error: str) -> None:
    world = world_of()
    assert Member(world, "a", "t").beat(**fields) == error
    assert (state(world), world.log.appends) == ("Dead", 0)


def test_an_old_client_gets_its_member_id_from_the_coordinator() -> None:
    world = world_of()
    fields: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    answer = Member(world, "").send(version=0, **fields).value
    assert answer.error_code == 0
    assert answer.member_id in world.shard().consumers.groups["g"].members
    assert Member(world, "").send(version=1, **fields).error == "INVALID_REQUEST"


# -- static members


def test_a_static_member_that_leaves_for_a_while_finds_its_partitions() -> None:
    world = world_of()
    a, b = Member(world, "a", "t", instance="one"), Member(world, "b", "t")
    settle(world, a, b)
    mine, before = a.numbers, epochs(world)
    assert a.leave(-2) == "NONE"
    b.beat()
    assert (len(b.numbers), epochs(world)) == (2, before)
    again = Member(world, "a2", "t", instance="one")
    assert again.beat() == "NONE"
    assert (again.numbers, epochs(world)) == (mine, before)
    assert a.beat() == "FENCED_INSTANCE_ID"


def test_a_static_member_that_does_not_return_is_removed() -> None:
    world = world_of()
    a, b = Member(world, "a", "t", instance="one"), Member(world, "b", "t")
    settle(world, a, b)
    a.leave(-2)
    world.pass_time(40_000)
    b.beat()
    world.pass_time(5_000)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert "one" not in world.shard().consumers.groups["g"].static_members


def test_an_instance_id_in_use_is_not_given_to_another() -> None:
    world = world_of()
    a, other = Member(world, "a", "t", instance="one"), Member(world, "x", "t", instance="one")
    a.beat()
    assert other.beat() == "UNRELEASED_INSTANCE_ID"
    other.epoch = 2
    assert other.beat() == "FENCED_INSTANCE_ID"
    assert other.leave() == "FENCED_INSTANCE_ID"
    stranger = Member(world, "y", "t", instance="two")
    assert stranger.leave() == "UNKNOWN_MEMBER_ID"
    stranger.epoch = 2
    assert stranger.beat() == "UNKNOWN_MEMBER_ID"
    assert a.leave() == "NONE"
    assert state(world) == "Empty"


# -- topics


def test_a_topic_that_grows_is_assigned_with_the_next_heartbeat() -> None:
    world = world_of(2)
    a = Member(world, "a", "t")
    a.beat()
    world.topics.partitions["t"] = 3
    world.coordinator.on_topics_changed(["t"], 7, created=False)
    a.beat()
    assert (a.numbers, a.epoch) == ([0, 1, 2], 3)


def test_a_topic_that_others_use_raises_no_epoch() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    world.topics.add("new")
    world.coordinator.on_topics_changed(["new"], 7, created=True)
    a.beat()
    assert epochs(world) == (2, 2)


def test_a_subscription_may_come_before_the_topic() -> None:
    world = World(consumers=AT_ONCE)
    a = Member(world, "a", "later")
    a.beat()
    assert (a.epoch, a.owned) == (2, set())
    world.topics.add("later", 2)
    world.coordinator.on_topics_changed(["later"], 7, created=True)
    a.beat()
    assert a.numbers == [0, 1]
    world.topics.remove("later")
    world.coordinator.on_topics_changed(["later"], 8, created=False)
    a.owned = set()
    a.beat()
    a.beat()
    assert (a.epoch, a.owned, state(world)) == (4, set(), "Stable")


def test_regular_expressions_find_topics_made_later() -> None:
    world = World(consumers=AT_ONCE)
    world.topics.add("logs-1", 1)
    a = Member(world, "a", regex="logs-.*")
    a.beat()
    a.beat()
    assert a.owned == {("logs-1", 0)}
    world.topics.add("logs-2", 1)
    world.coordinator.on_topics_changed(["logs-2"], 7, created=True)
    world.pass_time(10_001)
    a.beat(), a.beat()
    assert a.owned == {("logs-1", 0), ("logs-2", 0)}
    a.beat(subscribed_topic_regex="")
    a.beat()
    assert (a.owned, dict(world.shard().consumers.groups["g"].regexes.items())) == (set(), {})


def test_a_regular_expression_does_not_wait_for_a_clock_that_was_set_back() -> None:
    """By an hour; or the coordinator before this one had a clock that was an hour ahead."""
    world = World(consumers=AT_ONCE)
    world.topics.add("logs-1", 1)
    a = Member(world, "a", regex="logs-.*")
    a.beat(), a.beat()
    world.topics.add("logs-2", 1)
    world.coordinator.on_topics_changed(["logs-2"], 7, created=True)
    world.runtime._wall_ms = lambda: world.now - 3_600_000
    a.beat(), a.beat()
    assert a.owned == {("logs-1", 0), ("logs-2", 0)}
    assert world.shard().consumers.groups["g"].regexes["logs-.*"].timestamp_ms == world.now - 3_600_000


def test_a_regular_expression_finds_only_what_its_member_may_describe() -> None:
    class OnlyFirst:
        def allows(self, caller: Any, operation: Any, resource: Any, name: str, *_: Any) -> bool:
            return name == "logs-1"

    world = World(consumers=AT_ONCE)
    world.topics.add("logs-1", 1)
    world.topics.add("logs-2", 1)
    a = Member(world, "a", regex="logs-.*")
    a.beat(authorizer=OnlyFirst())
    a.beat()
    assert a.owned == {("logs-1", 0)}


# -- other requests


def test_offsets_are_fenced_by_the_epoch() -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t")
    settle(world, a, b)

    def commit(member: str, epoch: int, partition: int = 0, version: int = 9) -> list[str]:
        errors: list[str] = world.commit({("t", partition): 5}, member=member, generation=epoch, version=version).errors
        return errors

    assert commit("a", 3) == ["NONE"]
    assert commit("a", 2) == ["NONE"], "it has had the partition since that epoch (KIP-1251)"
    assert commit("b", 2, partition=2) == ["STALE_MEMBER_EPOCH"]
    assert commit("a", 4) == ["STALE_MEMBER_EPOCH"]
    assert commit("x", 3) == ["UNKNOWN_MEMBER_ID"]
    assert commit("", -1) == ["UNKNOWN_MEMBER_ID"]
    assert commit("a", 3, version=8) == ["UNSUPPORTED_VERSION"]
    assert world.commit_in_transaction({("t", 0): 6}, member="a", generation=1).errors == ["ILLEGAL_GENERATION"]
    assert world.commit_in_transaction({("t", 0): 6}, member="a", generation=3).errors == ["NONE"]
    assert world.fetch(member="a", epoch=3) == {("t", 0): 5}
    assert world.fetch(member="a", epoch=2) == "STALE_MEMBER_EPOCH"
    assert world.fetch(member="x", epoch=3) == "UNKNOWN_MEMBER_ID"
    assert world.fetch() == {("t", 0): 5}
    a.leave(), b.leave()
    assert commit("", -1) == ["NONE"], "a tool may, where there are no members"


def test_describe_shows_members_targets_and_epochs() -> None:
    world = world_of()
    a, b = Member(world, "a", "t", instance="one"), Member(world, "b", "t")
    a.beat(), b.beat(), a.beat()
    (group,) = describe(world, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 3, 3)
    assert group.assignor_name == "even"
    first, second = group.members
    assert (first.member_id, first.instance_id, first.member_epoch, first.member_type) == ("a", "one", 2, 1)
    assert first.subscribed_topic_names == ["t"]
    assert [each.partitions for each in first.assignment.topic_partitions] == [[0, 1, 2, 3]], "until it gave them back"
    assert [each.partitions for each in first.target_assignment.topic_partitions] == [[0, 1]]
    assert second.assignment.topic_partitions == []
    world.commit({("t", 0): 1}, group="simple")
    names = [(each.group_id, each.error_code, each.error_message) for each in describe(world, "simple", "no", "")]
    assert names == [
        ("simple", 69, "Group simple is not a consumer group."),
        ("no", 69, "Group no not found."),
        ("", 24, None),
    ]


def test_a_group_with_members_is_not_deleted() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    world.commit({("t", 0): 1}, member="a", generation=2)
    assert world.delete("g") == ["NON_EMPTY_GROUP"]
    a.leave()
    assert world.delete("g") == ["NONE"]
    assert (state(world), world.fetch(), list_groups(world)) == ("Dead", {}, [])
    world.elect()
    assert list_groups(world) == []


def test_an_empty_group_ends_with_its_offsets() -> None:
    world = World(consumers=AT_ONCE, offsets_retention_ms=1_000_000, retention_check_interval_ms=600_000)
    world.topics.add("t", 1)
    a = Member(world, "a", "t")
    a.beat()
    world.commit({("t", 0): 1}, member="a", generation=2)
    a.leave()
    world.pass_time(600_000)
    assert list_groups(world) == ["g consumer Empty"]
    world.pass_time(600_000)
    assert (list_groups(world), contents(world)) == ([], None)


# -- faults


class Failing:
    name = "failing"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        yield from ()
        raise AssignorError("it cannot")


class Greedy:
    name = "greedy"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        yield from ()
        return {member_id: {topic_id: frozenset({0}) for topic_id in spec.topics} for member_id in spec.members}


class Faulty:
    name = "faulty"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        yield from ()
        raise TypeError("a mistake")


class Strange:
    name = "strange"

    def assign(self, spec: GroupSpec) -> Any:
        yield from ()
        return {member_id: dict.fromkeys(spec.topics, "all") for member_id in spec.members}


@pytest.mark.parametrize("assignor", [Failing(), Greedy(), Faulty(), Strange()])
def test_an_assignor_that_fails_breaks_nothing(assignor: Any) -> None:
    world = world_of()
    a, b = Member(world, "a", "t"), Member(world, "b", "t", assignor=assignor.name)
    world.assignors[assignor.name] = assignor
    a.beat()
    a.leave()
    b.beat()
    c = Member(world, "c", "t", assignor=assignor.name)
    assert c.beat() == "UNKNOWN_SERVER_ERROR"
    assert state(world) == "Assigning"
    world.assignors[assignor.name] = EvenAssignor()
    settle(world, b, c)
    assert (len(b.numbers), len(c.numbers)) == (2, 2)


def test_an_assignor_that_fails_in_the_background_is_logged_and_called_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kalda.coordinator.groups.consumer_protocol._SMALL", 0)
    world = world_of()
    member = Member(world, "a", "t", assignor="faulty")
    world.assignors["faulty"] = Faulty()
    assert (member.beat(), member.beat()) == ("NONE", "NONE")
    assert "the target assignment failed: TypeError: a mistake" in caplog.text
    world.assignors["faulty"] = EvenAssignor()
    settle(world, member)
    assert member.numbers == [0, 1, 2, 3]


def test_a_heartbeat_whose_write_fails_is_sent_again() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert a.beat() == "COORDINATOR_NOT_AVAILABLE"
    world.log.failure = None
    assert a.beat() == "NONE"
    assert a.numbers == [0, 1, 2, 3]


def test_an_answer_waits_for_its_commit() -> None:
    world = world_of()
    a = Member(world, "a", "t")
    a.beat()
    world.log.replicated = False
    b = Member(world, "b", "t")
    fields: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    joining = b.send(**fields)
    beating = a.send(member_epoch=2)
    assert (joining.waits, beating.waits) == (True, True)
    assert [each.member_id for each in describe(world, "g")[0].members] == ["a"]
    world.replicate()
    assert (joining.error, beating.error) == ("NONE", "NONE")
