"""Classic groups, as transcripts: joining, rebalancing, leaving, and being removed."""

from __future__ import annotations

from groups_world import Answer, Client, Context, World, settle

from kalda.base.errors import ErrorCode
from kalda.coordinator.groups.records import MAX_GROUP_BYTES
from kalda.protocol.messages.groups import DeleteGroupsRequest


def test_a_first_member_is_given_an_id_and_leads_generation_one() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a = Client(world, "a")

    refused = a.join(retry=False)
    assert refused.error == "MEMBER_ID_REQUIRED"
    a.member_id = refused.value.member_id
    assert a.member_id.startswith("a-")
    joined = a.join()
    assert world.state() == "PreparingRebalance 0"

    world.pass_time(2_999)
    assert joined.waits
    world.pass_time(1)
    assert (joined.value.generation_id, joined.value.leader, joined.value.protocol_name) == (1, a.member_id, "range")
    assert [each.member_id for each in joined.value.members] == [a.member_id]
    assert world.state() == "CompletingRebalance 1"

    synced = a.sync({a: b"all"})
    assert (synced.value.assignment, synced.value.protocol_name) == (b"all", "range")
    assert world.state() == "Stable 1"
    assert a.beat() == "NONE"


def test_the_initial_delay_grows_with_newcomers_up_to_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a, b, c = (Client(world, name, rebalance_ms=7_000) for name in "abc")
    first = a.join()
    world.pass_time(2_000)
    b.join()
    world.pass_time(1_000)
    assert first.waits, "b came during the delay"
    world.pass_time(2_000)
    c.join()
    world.pass_time(1_000)
    assert first.waits, "c came during the second delay"
    world.pass_time(1_000)
    assert len(first.value.members) == 3


def test_without_initial_delay_the_first_join_is_answered_at_once() -> None:
    world = World(initial_rebalance_delay_ms=0)
    assert Client(world).join().value.generation_id == 1


def test_a_second_member_rebalances_the_group() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a)

    joined_b = b.join()
    assert joined_b.waits
    assert a.beat() == "REBALANCE_IN_PROGRESS"
    joined_a = a.join()
    assert (joined_a.value.generation_id, joined_b.value.generation_id) == (2, 2)
    assert len(joined_a.value.members) == 2
    assert joined_b.value.members == [], "only the leader gets the members"

    synced_b = b.sync()
    assert synced_b.waits
    assert a.sync({a: b"0", b: b"1"}).value.assignment == b"0"
    assert synced_b.value.assignment == b"1"
    assert world.state() == "Stable 2"


def test_a_member_that_does_not_rejoin_in_time_is_out() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = (Client(world, name, session_ms=60_000, rebalance_ms=20_000) for name in "ab")
    settle(world, a)
    joined_b = b.join()
    world.pass_time(19_999)
    assert joined_b.waits
    world.pass_time(1)
    assert joined_b.value.leader == b.member_id
    assert a.beat() == "UNKNOWN_MEMBER_ID"


def test_a_session_that_ends_rebalances_the_others() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a, b)
    for _ in range(3):
        world.pass_time(3_000)
        assert a.beat() == "NONE"
    world.pass_time(1_000)
    assert a.beat() == "REBALANCE_IN_PROGRESS"
    assert b.beat() == "UNKNOWN_MEMBER_ID"
    assert a.join().value.generation_id == 2


def test_a_member_that_sends_no_sync_is_removed_after_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = (Client(world, name, session_ms=60_000, rebalance_ms=15_000) for name in "ab")
    a.join()
    joined_b = b.join()
    a.join()
    assert joined_b.value.generation_id == 2
    a.sync({a: b"0", b: b"1"})
    assert world.state() == "Stable 2"
    world.pass_time(14_999)
    assert a.beat() == "NONE"
    world.pass_time(1)
    assert b.beat() == "UNKNOWN_MEMBER_ID"
    assert a.beat() == "REBALANCE_IN_PROGRESS"


def test_the_last_member_leaves_an_empty_group_behind() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    settle(world, a)
    left = a.leave()
    assert [each.error_code for each in left.value.members] == [0]
    assert world.state() == "Empty 2"
    assert a.beat() == "UNKNOWN_MEMBER_ID"
    assert a.sync().error == "UNKNOWN_MEMBER_ID"


def test_leaving_with_a_parked_join_answers_it() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a)
    joined_b = b.join()
    b.leave(version=2)
    assert joined_b.error == "UNKNOWN_MEMBER_ID"
    assert a.join().value.generation_id == 2


def test_a_pending_id_that_does_not_come_back_holds_the_barrier_only_for_its_session() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a", session_ms=60_000), Client(world, "b", session_ms=10_000)
    settle(world, a)
    assert b.join(retry=False).error == "MEMBER_ID_REQUIRED"
    joined = a.join()
    assert joined.waits
    world.pass_time(10_000)
    assert joined.value.generation_id == 2


def test_the_same_metadata_again_gets_the_present_generation() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    a.join()
    b.join()
    a.join()
    assert world.state() == "CompletingRebalance 2"
    assert len(a.join().value.members) == 2
    assert b.join().value.generation_id == 2
    a.sync({a: b"0", b: b"1"})
    assert b.join().value.generation_id == 2, "a follower of a stable group gets its generation again"
    assert a.join().waits, "a leader of a stable group starts a rebalance"


def test_protocols_are_chosen_by_votes() -> None:
    world = World(initial_rebalance_delay_ms=100)
    a = Client(world, "a", protocols=("range", "roundrobin", "sticky"))
    b = Client(world, "b", protocols=("roundrobin", "sticky"))
    c = Client(world, "c", protocols=("sticky", "roundrobin"))
    joined = [client.join() for client in (a, b, c)]
    world.pass_time(1_000)
    assert {each.value.protocol_name for each in joined} == {"roundrobin"}
    assert Client(world, "d", protocols=("range",)).join().error == "INCONSISTENT_GROUP_PROTOCOL"
    assert Client(world, "e", protocol_type="connect").join().error == "INCONSISTENT_GROUP_PROTOCOL"


def test_metadata_and_assignment_of_other_protocols_pass_through() -> None:
    world = World(initial_rebalance_delay_ms=0)
    worker = Client(world, "worker", protocol_type="connect", protocols=("sessioned", "compatible"))
    worker.protocols[0].metadata = b"\xff\xfe opaque"
    assert worker.join().value.members[0].metadata == b"\xff\xfe opaque"
    assert worker.sync({worker: b"\x00\x01\xff"}).value.assignment == b"\x00\x01\xff"
    assert world.state() == "Stable 1"


def test_cooperative_members_rebalance_twice_to_move_a_partition() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = (Client(world, name, protocols=("cooperative-sticky",)) for name in "ab")
    settle(world, a)
    b.join()
    a.join()
    assert b.sync().waits
    assert a.sync({a: b"0", b: b""}).value.assignment == b"0"
    assert world.state() == "Stable 2"
    a.protocols[0].metadata += b"owns 0"
    joined_a = a.join()
    assert b.beat() == "REBALANCE_IN_PROGRESS"
    b.join()
    assert joined_a.value.generation_id == 3
    a.sync({a: b"0", b: b"1"})
    assert b.sync().value.assignment == b"1"


def test_sync_checks_generation_member_and_protocol() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    a.join()
    assert a.sync(generation_id=7).error == "ILLEGAL_GENERATION"
    assert a.sync(member_id="nobody").error == "UNKNOWN_MEMBER_ID"
    assert a.sync(protocol_name="sticky").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert a.sync(protocol_type="connect").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert a.sync(protocol_name=None).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert a.sync(protocol_name=None, protocol_type=None, version=4).error == "NONE"


def test_a_group_that_is_too_large_to_be_stored_is_refused_before_it_is_encoded() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    b.protocols[0].metadata = bytes(MAX_GROUP_BYTES + 1)
    assert b.join(retry=False).error == "INVALID_REQUEST"
    a.join()
    written: list[object] = []
    world.log.append = lambda *batch: written.append(batch)  # type: ignore[method-assign]
    assert a.sync({a: bytes(MAX_GROUP_BYTES)}).error == "UNKNOWN_SERVER_ERROR"
    assert not written


def test_a_rebalance_sends_those_who_wait_for_an_assignment_back_to_join() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b, c = (Client(world, name) for name in "abc")
    a.join(), b.join(), a.join()
    synced_b = b.sync()
    c.join()
    assert synced_b.error == "REBALANCE_IN_PROGRESS"


def test_group_max_size_turns_away_the_last() -> None:
    world = World(initial_rebalance_delay_ms=3_000, max_group_size=2)
    a, b, c = (Client(world, name) for name in "abc")
    settle(world, a, b)
    refused = c.join()
    assert (refused.error, refused.value.member_id) == ("GROUP_MAX_SIZE_REACHED", "")
    assert world.state() == "Stable 1"


def test_session_timeouts_are_bounded_and_ids_checked() -> None:
    world = World()
    assert Client(world, session_ms=5_999).join().error == "INVALID_SESSION_TIMEOUT"
    assert Client(world, session_ms=1_800_001).join().error == "INVALID_SESSION_TIMEOUT"
    assert Client(world, group="").join().error == "INVALID_GROUP_ID"
    stranger = Client(world)
    stranger.member_id = "made-up"
    assert stranger.join().error == "UNKNOWN_MEMBER_ID"
    assert stranger.beat() == "UNKNOWN_MEMBER_ID"
    assert [each.error_code for each in stranger.leave().value.members] == [25]


def test_old_versions_need_no_id_and_have_no_null_protocol() -> None:
    world = World(initial_rebalance_delay_ms=0)
    for version in range(4):
        old = Client(world, f"v{version}", group=f"g{version}", version=version)
        assert old.join().value.generation_id == 1
        assert world.group(f"g{version}").members[old.member_id].rebalance_timeout_ms == (30_000 if version else 10_000)
        assert old.sync({old: b"x"}, version=0).value.assignment == b"x"


def test_a_group_whose_last_session_has_just_ended_can_be_deleted() -> None:
    """The timer of the session may not have run yet when DeleteGroups arrives."""
    world = World(initial_rebalance_delay_ms=0)
    settle(world, Client(world, "a", session_ms=10_000))
    request = DeleteGroupsRequest(groups_names=["g"])

    def delete() -> str:
        answer = Answer(world.coordinator.delete_groups(Context(2), request, world.now), 2)
        return ErrorCode(answer.value.results[0].error_code).name

    world.now += 9_000
    assert delete() == "NON_EMPTY_GROUP"
    world.now += 2_000
    assert delete() == "NONE"
