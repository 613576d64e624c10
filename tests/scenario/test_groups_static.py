"""Static members (KIP-345, KIP-814), as transcripts."""

from __future__ import annotations

import pytest
from groups_world import Client, World, settle

from kalda.base.errors import ErrorCode


def world_of_two(**config: int) -> tuple[World, Client, Client]:
    world = World(initial_rebalance_delay_ms=3_000, **config)
    a, b = Client(world, "a", instance="one"), Client(world, "b", instance="two")
    settle(world, a, b)
    return world, a, b


def restarted(client: Client, **more: int) -> Client:
    return Client(client.world, client.name, instance=client.instance, **more)  # type: ignore[arg-type]


def test_a_static_member_needs_no_round_trip_for_its_id() -> None:
    world, a, _ = world_of_two()
    assert a.member_id.startswith("one-")
    assert world.state() == "Stable 1"


def test_a_restarted_follower_takes_its_old_assignment_without_a_rebalance() -> None:
    world, a, b = world_of_two()
    again = restarted(b)
    joined = again.join()
    assert (joined.error, joined.value.generation_id, joined.value.members) == ("NONE", 1, [])
    assert again.member_id != b.member_id
    assert again.sync().value.assignment == b"b"
    assert world.state() == "Stable 1"
    assert a.beat() == "NONE"


def test_a_restarted_leader_is_told_to_skip_assigning() -> None:
    _, a, _b = world_of_two()
    joined = restarted(a).join()
    assert joined.value.skip_assignment
    assert joined.value.leader == joined.value.member_id
    assert len(joined.value.members) == 2


def test_an_old_restarted_leader_is_told_that_its_old_id_leads() -> None:
    _, a, _b = world_of_two()
    joined = restarted(a, version=8).join()
    assert joined.value.leader == a.member_id
    assert joined.value.members == []


def test_the_replaced_id_is_fenced_everywhere() -> None:
    world, _, b = world_of_two()
    restarted(b).join()
    assert b.beat() == "FENCED_INSTANCE_ID"
    assert b.sync().error == "FENCED_INSTANCE_ID"
    assert b.join().error == "FENCED_INSTANCE_ID"
    assert b.commit({("orders", 0): 1}).error == "FENCED_INSTANCE_ID"
    assert [each.error_code for each in leave_with(b, b.member_id).value.members] == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.state() == "Stable 1"


def leave_with(client: Client, member_id: str) -> object:
    from groups_world import Answer, Context

    from kalda.protocol.messages.groups import LeaveGroupRequest, MemberIdentity

    identity = MemberIdentity(member_id=member_id, group_instance_id=client.instance, reason="test")
    request = LeaveGroupRequest(group_id=client.group_id, members=[identity])
    world = client.world
    return Answer(world.coordinator.leave_group(Context(5), request, world.now), 5)


def test_a_parked_join_of_the_replaced_id_is_fenced() -> None:
    world, a, b = world_of_two()
    a.protocols[0].metadata += b"changed"
    parked = a.join()
    assert parked.waits
    again = restarted(a)
    assert again.join().waits
    assert parked.error == "FENCED_INSTANCE_ID"
    b.join()
    assert world.state() == "CompletingRebalance 2"


def test_a_restart_while_assignments_are_awaited_rebalances_anew() -> None:
    world, a, b = world_of_two()
    a.join(), b.join()
    assert world.state() == "CompletingRebalance 2"
    synced = b.sync()
    restarted(a).join()
    assert synced.error == "REBALANCE_IN_PROGRESS"
    assert world.state() == "PreparingRebalance 2"


def test_a_restart_with_other_protocols_rebalances() -> None:
    world, _, _b = world_of_two()
    Client(world, "b", instance="two", protocols=("sticky", "range")).join()
    assert world.state() == "Stable 1", "range is what all support still"
    world2 = World(initial_rebalance_delay_ms=0)
    only = Client(world2, "a", instance="one")
    settle(world2, only)
    Client(world2, "a", instance="one", protocols=("sticky", "range")).join()
    assert world2.group().protocol_name == "sticky"
    assert world2.state() == "CompletingRebalance 2"


def test_static_members_survive_a_rebalance_they_miss_until_their_session_ends() -> None:
    world, a, b = world_of_two()
    a.join()
    world.pass_time(9_999)
    assert b.member_id in world.group().members
    world.pass_time(1)
    assert b.member_id not in world.group().members
    assert a.generation == 2


def test_an_admin_removes_members_by_instance_id() -> None:
    world, _, b = world_of_two()
    assert [each.error_code for each in leave_with(b, "").value.members] == [0]  # type: ignore[attr-defined]
    assert b.beat() == "UNKNOWN_MEMBER_ID"
    assert world.state() == "PreparingRebalance 1"


def test_a_restart_that_cannot_be_written_is_taken_back() -> None:
    world, _, b = world_of_two()
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = restarted(b).join()
    assert (refused.error, refused.value.member_id) == ("COORDINATOR_NOT_AVAILABLE", "")
    world.log.failure = None
    assert b.beat() == "NONE"
    assert b.sync().value.assignment == b"b"


@pytest.mark.parametrize("version", [5, 9])
def test_a_restart_is_answered_when_its_record_is_committed(version: int) -> None:
    world, _, b = world_of_two()
    world.log.replicated = False
    joined = restarted(b, version=version).join()
    assert joined.waits
    world.replicate()
    assert joined.error == "NONE"
