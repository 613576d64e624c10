"""A group with members turns from the classic protocol to that of KIP-848 and back, member by member."""

from __future__ import annotations

from typing import Any

import pytest
from classic_members import ClassicMember
from consumer_members import Member, contents, describe, epochs, state
from groups_world import World, list_groups

from kalda.assignors.consumer_protocol import write_assignment
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition

AT_ONCE = {"group.consumer.assignment.interval.ms": 0}


def world_of(policy: str = "bidirectional", partitions: int = 6, **config: int) -> World:
    consumers: dict[str, Any] = {**AT_ONCE, "group.consumer.migration.policy": policy}
    world = World(consumers=consumers, **{"initial_rebalance_delay_ms": 0, **config})
    world.topics.add("t", partitions)
    return world


def run(world: World, *members: ClassicMember | Member, rounds: int = 20) -> None:
    """All do what their clients do, a second apart. Nobody may own what another owns."""
    for _ in range(rounds):
        for member in members:
            if isinstance(member, ClassicMember):
                member.step()
            else:
                member.beat()
            if kind(world) == "consumer":
                owned = [partition for each in members for partition in each.owned]
                assert len(owned) == len(set(owned)), "a partition has two owners"
        world.pass_time(1_000)


def everything(*members: ClassicMember | Member) -> list[int]:
    return sorted(number for member in members for number in member.numbers)


def kind(world: World) -> str:
    [found] = list_groups(world)
    return "classic" if world.group() is not None else found.split()[1]


def test_members_roll_to_the_consumer_protocol_and_back() -> None:
    world = world_of()
    old = [ClassicMember(world, name) for name in "abc"]
    run(world, *old)
    assert (kind(world), everything(*old)) == ("classic", list(range(6)))
    generation = world.group().generation
    present: list[ClassicMember | Member] = list(old)
    new = [Member(world, name, "t") for name in "xyz"]
    for left, joined in zip(old, new, strict=True):
        left.leave()
        present[present.index(left)] = joined
        run(world, *present)
        assert kind(world) == "consumer"
        assert everything(*present) == list(range(6))
        assert all(len(member.owned) == 2 for member in present)
    assert epochs(world)[0] > generation
    assert contents(world) == contents(world, shard=world.loaded_anew())
    again = [ClassicMember(world, name) for name in "def"]
    for order, (leaver, joiner) in enumerate(zip(new, again, strict=True)):
        leaver.leave()
        present[present.index(leaver)] = joiner
        run(world, *present)
        assert kind(world) == ("consumer" if order < 2 else "classic")
        assert everything(*present) == list(range(6))
    assert world.loaded_anew().groups["g"].to_record() == world.group().to_record()


def test_the_last_consumer_member_that_leaves_makes_the_group_classic_with_its_offsets() -> None:
    world = world_of()
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    run(world, a)
    assert a.commit({("t", 0): 7}).errors == ["NONE"]
    run(world, a, x)
    assert (state(world), everything(a, x)) == ("Stable", list(range(6)))
    assert describe(world, "g")[0].members[0].member_type == 0
    group_epoch = epochs(world)[0]
    x.leave()
    assert (kind(world), world.state()) == ("classic", f"PreparingRebalance {group_epoch}")
    assert a.beat(generation=group_epoch) == "REBALANCE_IN_PROGRESS"
    run(world, a)
    assert (world.state(), a.numbers) == (f"Stable {group_epoch + 1}", list(range(6)))
    assert world.fetch({"t": [0]}) == {("t", 0): 7}


def test_a_consumer_member_that_dies_makes_the_group_classic() -> None:
    world = world_of()
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    run(world, a)
    run(world, a, x)
    run(world, a, rounds=60)
    assert (kind(world), a.numbers) == ("classic", list(range(6)))


def test_requests_that_wait_are_answered_when_the_group_is_upgraded() -> None:
    world = world_of()
    a, b = ClassicMember(world, "a"), ClassicMember(world, "b")
    run(world, a)
    waiting = b.join()
    assert waiting.waits
    x = Member(world, "x", "t")
    assert x.beat() == "NONE"
    world.pass_time(0)
    assert waiting.error == "REBALANCE_IN_PROGRESS"
    run(world, a, b, x)
    assert everything(a, b, x) == list(range(6))
    assert len(describe(world, "g")[0].members) == 3, "b has kept its member id"


def test_a_group_in_its_first_rebalance_is_upgraded() -> None:
    world = world_of(initial_rebalance_delay_ms=3_000)
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    waiting = a.join()
    assert x.beat() == "NONE"
    world.pass_time(0)
    assert waiting.error == "REBALANCE_IN_PROGRESS"
    run(world, a, x)
    assert everything(a, x) == list(range(6))


@pytest.mark.parametrize("policy", ["disabled", "DOWNGRADE"])
def test_a_classic_group_stays_where_upgrades_are_off(policy: str) -> None:
    world = world_of(policy)
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    run(world, a)
    assert x.beat() == "GROUP_ID_NOT_FOUND"
    assert "online upgrade is disabled" in x.response.error_message
    assert kind(world) == "classic"
    assert a.beat() == "NONE"


def test_a_consumer_group_stays_where_downgrades_are_off_and_goes_on() -> None:
    world = world_of("upgrade")
    a, b, x = ClassicMember(world, "a"), ClassicMember(world, "b"), Member(world, "x", "t")
    run(world, a, b)
    run(world, a, b, x)
    x.leave()
    run(world, a, b)
    assert (kind(world), state(world), everything(a, b)) == ("consumer", "Stable", list(range(6)))
    world.topics.add("t", 8)
    world.coordinator.on_topics_changed(["t"], 5, created=False)
    run(world, a, b)
    assert everything(a, b) == list(range(8)), "their heartbeats bring the new partitions"


def test_classic_members_may_not_join_where_migration_is_off() -> None:
    world = world_of("disabled")
    x, a = Member(world, "x", "t"), ClassicMember(world, "a")
    x.beat()
    assert a.join().error == "INCONSISTENT_GROUP_PROTOCOL"


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        (b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01x", "unsupported custom assignor"),
        (b"\x00\x01\x7f\xff\xff\xff", "protocol is malformed"),
        (b"\xff\xff", "protocol is malformed"),
    ],
)
def test_a_group_whose_assignments_would_be_lost_is_not_upgraded(assignment: bytes, problem: str) -> None:
    world = world_of()
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    a.join()
    assert a.sync({a: assignment}).error == "NONE"
    assert x.beat() == "GROUP_ID_NOT_FOUND"
    assert problem in x.response.error_message
    assert a.beat() == "NONE"


def test_other_protocol_types_and_large_groups_are_not_upgraded() -> None:
    world = world_of()
    a, x = ClassicMember(world, "a", protocol_type="connect"), Member(world, "x", "t")
    run(world, a)
    assert x.beat() == "GROUP_ID_NOT_FOUND"
    assert "does not use the consumer embedded protocol" in x.response.error_message
    world = world_of()
    world.consumers["group.consumer.max.size"] = 1
    world.elect()
    a, b, x = ClassicMember(world, "a"), ClassicMember(world, "b"), Member(world, "x", "t")
    run(world, a, b)
    assert x.beat() == "GROUP_ID_NOT_FOUND"
    assert "exceeds the consumer group maximum size" in x.response.error_message


def test_a_refused_heartbeat_leaves_the_classic_group_as_it_is() -> None:
    world = world_of()
    a = ClassicMember(world, "a")
    run(world, a)
    assert Member(world, "x", regex="[").beat() == "INVALID_REGULAR_EXPRESSION"
    assert (kind(world), a.beat()) == ("classic", "NONE")


def test_a_write_that_fails_leaves_the_group_as_it_is() -> None:
    world = world_of()
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    run(world, a)
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert x.beat() == "COORDINATOR_NOT_AVAILABLE"
    assert (kind(world), a.beat()) == ("classic", "NONE")
    world.log.failure = None
    run(world, a, x)
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = x.send(member_epoch=-1)
    assert answer.error == "COORDINATOR_NOT_AVAILABLE"
    world.log.failure = None
    assert (kind(world), x.beat()) == ("consumer", "NONE")


def test_classic_members_have_their_own_timeouts() -> None:
    world = world_of()
    a, b, x = (
        ClassicMember(world, "a", session_ms=10_000),
        ClassicMember(world, "b", session_ms=40_000, rebalance_ms=20_000),
        Member(world, "x", "t"),
    )
    run(world, a, b)
    run(world, a, b, x)
    run(world, b, x, rounds=14)
    assert everything(b, x) == list(range(6)), "the session of a has ended after 10 s"
    y = Member(world, "y", "t")
    y.beat()
    for _ in range(25):
        x.beat()
        y.beat()
        if b.generation >= 0:
            b.beat()
        world.pass_time(1_000)
    assert b.beat() == "UNKNOWN_MEMBER_ID", "it was told to join again, and did not within its rebalance timeout"
    run(world, x, y)
    assert everything(x, y) == list(range(6))
    c = ClassicMember(world, "c", session_ms=60_000, rebalance_ms=5_000)
    assert c.join().error == "NONE"
    world.pass_time(6_000)
    assert c.beat() == "UNKNOWN_MEMBER_ID", "it sent no SyncGroup"


def test_what_classic_members_may_not_do_in_a_consumer_group() -> None:
    world = world_of()
    x, a = Member(world, "x", "t"), ClassicMember(world, "a")
    run(world, x)
    run(world, x, a)
    assert ClassicMember(world, "b", protocols=("other",)).join().error == "INCONSISTENT_GROUP_PROTOCOL"
    assert ClassicMember(world, "b", protocol_type="connect").join().error == "INCONSISTENT_GROUP_PROTOCOL"
    broken = ClassicMember(world, "b")
    broken.protocols[0].metadata = b"\x00\x01\x00\x00\xff\xff"
    assert broken.join().error == "INCONSISTENT_GROUP_PROTOCOL"
    assert a.beat(generation=a.generation + 1) == "ILLEGAL_GENERATION"
    assert a.sync(generation_id=a.generation - 1).error == "ILLEGAL_GENERATION"
    assert a.sync(protocol_name="other").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert a.sync(member_id="x", generation_id=x.epoch).error == "UNKNOWN_MEMBER_ID", "x uses the other protocol"
    assert a.commit({("t", 0): 1}).errors == ["NONE"]
    a.generation += 1
    assert a.commit({("t", 0): 1}).errors == ["ILLEGAL_GENERATION"]
    assert ClassicMember(world, "c").beat() == "UNKNOWN_MEMBER_ID"
    assert [each.error_code for each in a.leave().value.members] == [0]
    assert [each.error_code for each in a.leave().value.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    world = world_of()
    a, b = ClassicMember(world, "a", instance="one"), ClassicMember(world, "b", instance="two")
    run(world, a, b)
    kept = a.owned
    x = Member(world, "x", "t", instance="one")
    assert x.beat() == "NONE"
    assert x.owned == kept
    assert a.beat() == "FENCED_INSTANCE_ID"
    run(world, x, b)
    assert (kind(world), everything(x, b)) == ("consumer", list(range(6)))
    c = ClassicMember(world, "c", instance="one")
    c.step()
    assert kind(world) == "classic"
    assert x.beat() in ("GROUP_ID_NOT_FOUND", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
    run(world, b, c)
    assert everything(b, c) == list(range(6))
    assert world.loaded_anew().groups["g"].to_record() == world.group().to_record()


def test_an_assignment_of_topics_that_are_gone_is_left_out() -> None:
    world = world_of()
    a, x = ClassicMember(world, "a"), Member(world, "x", "t")
    a.join()
    assigned = [TopicPartition("gone", 0), TopicPartition("t", 1), TopicPartition("t", 99)]
    a.sync({a: write_assignment(assigned)})
    assert x.beat() == "NONE"
    [member, _] = sorted(describe(world, "g")[0].members, key=lambda each: each.member_type)
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [("t", [1])]
    run(world, a, x)
    assert everything(a, x) == list(range(6))
