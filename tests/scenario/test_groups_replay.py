"""What is replayed of a group, and what happens to a live group whose record is replayed; loads that fail."""

from __future__ import annotations

import pytest
from groups_world import Client, World, list_groups, settle

from kalda.coordinator.groups.classic_group import ClassicGroup, GroupState
from kalda.coordinator.groups.records import GroupRecord, KindRecord, decode_record
from kalda.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import encode_coordinator_record


def consumer_group(group_id: str) -> KindRecord:
    """The record by which a group of the consumer protocol (KIP-848) exists."""
    key, value = ConsumerGroupMetadataKey(group_id=group_id), ConsumerGroupMetadataValue(epoch=3)
    record = decode_record(*encode_coordinator_record(key, value))
    assert isinstance(record, KindRecord)
    return record


def timers_of(group: ClassicGroup) -> list[int]:
    """Deadlines of the group's timers that are armed."""
    timers = [group.join_timer, group.sync_timer, *group.pending_joins.values()]
    timers += [member.session_timer for member in group.members.values()]
    return [timer.deadline_ms for timer in timers if timer is not None and timer.deadline_ms is not None]


REMOVALS = [(GroupRecord("g", None), "UNKNOWN_MEMBER_ID"), (consumer_group("g"), "REBALANCE_IN_PROGRESS")]


@pytest.mark.parametrize(("record", "error"), REMOVALS)
def test_a_record_that_removes_a_live_group_answers_its_parked_joins(
    record: GroupRecord | KindRecord, error: str
) -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b, c = (Client(world, name) for name in "abc")
    settle(world, a)
    joining = b.join()
    c.join(retry=False)
    group = world.group()
    assert joining.waits
    assert timers_of(group)
    world.shard().partition.write([record])
    assert joining.waits, "the answer goes out after the write"
    world.pass_time(0)
    assert joining.error == error
    assert (world.group(), group.state, timers_of(group)) == (None, GroupState.DEAD, [])


@pytest.mark.parametrize(("record", "error"), REMOVALS)
def test_a_record_that_removes_a_live_group_answers_its_parked_syncs(
    record: GroupRecord | KindRecord, error: str
) -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    a.join(), b.join(), a.join()
    world.log.replicated = False
    syncing = b.sync(), a.sync({a: b"0", b: b"1"})
    group = world.group()
    world.shard().partition.write([record])
    world.pass_time(0)
    assert [each.error for each in syncing] == [error] * 2
    assert timers_of(group) == []
    world.replicate()
    assert group.state is GroupState.DEAD, "the assignment that was being written is given to no member"


def test_a_parked_request_of_a_removed_group_is_answered_though_leadership_is_lost() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a)
    joining = b.join()
    world.shard().partition.write([GroupRecord("g", None)])
    world.runtime.on_resigned(0)
    world.pass_time(0)
    assert joining.error == "UNKNOWN_MEMBER_ID"


def test_a_group_of_another_type_takes_the_id_and_gives_it_back() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world, session_ms=10_000)
    settle(world, a)
    checkpoint = world.group().to_record()
    world.shard().partition.write([consumer_group("g")])
    assert a.join().error == "UNKNOWN_MEMBER_ID", "an empty group is taken over by a new member only"
    assert list_groups(world) == ["g consumer Empty"]

    world.shard().partition.write([GroupRecord("g", checkpoint)])
    assert world.group().to_record() == checkpoint
    assert world.state() == "Stable 1"
    assert a.beat() == "NONE"
    world.pass_time(10_000)
    assert world.state() == "Empty 2", "the sessions of its members have begun"


def consumer_member(member_id: str, *, leaves: bool = False) -> list[KindRecord]:
    """What Apache Kafka writes of a member of such a group, or when it leaves."""
    pairs: list[tuple[RecordBody, RecordBody]] = [
        (ConsumerGroupMemberMetadataKey(group_id="g", member_id=member_id), ConsumerGroupMemberMetadataValue()),
        (
            ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id=member_id),
            ConsumerGroupTargetAssignmentMemberValue(),
        ),
        (
            ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id),
            ConsumerGroupCurrentMemberAssignmentValue(),
        ),
    ]
    records = [decode_record(*encode_coordinator_record(key, None if leaves else value)) for key, value in pairs]
    return [record for record in records if isinstance(record, KindRecord)]


def consumer_world() -> World:
    """A log that Apache Kafka has written: a group of the consumer protocol with a member and offsets."""
    world = World(initial_rebalance_delay_ms=0)
    world.topics.add("t")
    world.shard().partition.write([consumer_group("g")])
    assert world.commit({("t", 0): 7, ("t", 1): 9}).errors == ["NONE", "NONE"], "as a tool commits them"
    world.shard().partition.write(consumer_member("m"))
    return world


@pytest.mark.parametrize("reload", [False, True])
def test_a_classic_member_takes_an_empty_consumer_group_over_with_its_offsets(reload: bool) -> None:
    world = consumer_world()
    a = Client(world)
    assert list_groups(world) == ["g consumer Assigning"]
    assert a.join().error == "INCONSISTENT_GROUP_PROTOCOL"
    assert world.commit({("t", 0): 1}).errors == ["UNKNOWN_MEMBER_ID"], "its members commit, elsewhere"
    world.shard().partition.write(consumer_member("m", leaves=True))
    if reload:
        world.elect()
        world.load()
    assert list_groups(world) == ["g consumer Empty"]
    assert list_groups(world, types_filter=["classic"]) == []
    assert list_groups(world, types_filter=["Consumer"], states_filter=["empty"]) == ["g consumer Empty"]
    assert world.fetch() == {("t", 0): 7, ("t", 1): 9}
    settle(world, a)
    assert world.state() == "Stable 1"
    assert world.fetch() == {("t", 0): 7, ("t", 1): 9}
    world.elect()
    world.load()
    assert list_groups(world) == ["g consumer Stable"]
    assert list_groups(world, types_filter=["consumer"]) == [], "nothing of the former group is left"
    assert world.fetch() == {("t", 0): 7, ("t", 1): 9}


def test_empty_consumer_and_share_groups_can_be_deleted() -> None:
    world = consumer_world()
    share = decode_record(
        *encode_coordinator_record(ShareGroupMetadataKey(group_id="s"), ShareGroupMetadataValue(epoch=1))
    )
    world.shard().partition.write([share])
    assert world.delete("g", "s") == ["NON_EMPTY_GROUP", "NONE"]
    world.shard().partition.write(consumer_member("m", leaves=True))
    assert world.delete("g", "s") == ["NONE", "GROUP_ID_NOT_FOUND"]
    world.elect()
    world.load()
    assert list_groups(world) == []
    assert world.fetch() == {}


def test_a_share_group_has_no_committed_offsets() -> None:
    world = World()
    world.topics.add("t")
    key, value = ShareGroupMetadataKey(group_id="g"), ShareGroupMetadataValue(epoch=1)
    world.shard().partition.write([decode_record(*encode_coordinator_record(key, value))])
    assert world.commit({("t", 0): 7}).errors == ["GROUP_ID_NOT_FOUND"]
    assert world.fetch() == {}


@pytest.mark.parametrize("live", [True, False])
def test_a_record_makes_the_same_group_live_and_loaded(live: bool) -> None:
    origin = World(initial_rebalance_delay_ms=3_000)
    settle(origin, Client(origin, "a"), Client(origin, "b", instance="two"))
    checkpoint = origin.group().to_record()

    world = World()
    record = GroupRecord("g", checkpoint)
    if live:
        world.shard().partition.write([record])
    else:
        world.log.append(0, [world.shard().encode(record)], world.now)
        world.elect()
    group = world.group()
    assert group.to_record() == world.shard().checkpoints["g"] == checkpoint
    assert (group.state, len(timers_of(group))) == (GroupState.STABLE, 2)


def test_a_leader_that_assigns_twice_is_held_to_its_first_assignment() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    a.join()
    world.log.replicated = False
    a.sync({a: b"first"})
    again = a.sync({a: b"second"})
    world.replicate()
    assert again.value.assignment == b"first"
    world.elect()
    assert a.sync().value.assignment == b"first", "the members and the log have the same"


def test_a_failed_load_is_tried_again_and_its_members_go_on() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world, session_ms=10_000)
    settle(world, a)
    a.commit({("orders", 0): 5})
    world.log.read_failure = "no disk"
    world.elect()
    assert (a.beat(), world.fetch(), list_groups(world)) == ("NOT_COORDINATOR", "NOT_COORDINATOR", [])
    world.pass_time(60_000)
    assert a.beat() == "NOT_COORDINATOR"
    world.log.read_failure = None
    world.pass_time(60_000)
    assert world.fetch() == {("orders", 0): 5}
    assert a.beat() == "UNKNOWN_MEMBER_ID", "its session began with the load, and has ended since"


def test_one_bad_record_does_not_cost_the_others() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    world.log.append(0, [(b"\x00\x01\x00\xff", b""), (b"\x00\x63", b"")], world.now)
    world.commit({("orders", 1): 2})
    world.elect()
    assert world.fetch() == {("orders", 0): 1, ("orders", 1): 2}
