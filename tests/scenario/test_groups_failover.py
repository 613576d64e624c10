"""Another coordinator that loads the log continues where the former one stopped."""

from __future__ import annotations

from groups_world import Answer, Client, Context, World, describe, list_groups, settle

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.groups import DeleteGroupsRequest, OffsetFetchRequest, OffsetFetchRequestGroup


def delete(world: World, *groups: str) -> list[str]:
    request = DeleteGroupsRequest(groups_names=list(groups))
    answer = Answer(world.coordinator.delete_groups(Context(2), request, world.now), 2)
    return [ErrorCode(each.error_code).name for each in answer.value.results]


def fetch(world: World) -> Answer:
    """Of all offsets, with an answer that may wait."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    return Answer(world.coordinator.offsets.fetch(Context(9), request, world.now), 9)


def test_members_and_offsets_outlive_their_coordinator() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a, b = Client(world, "a"), Client(world, "b", instance="two")
    settle(world, a, b)
    a.commit({("orders", 0): 5})
    before = world.group().to_record()

    world.elect()
    assert world.group().to_record() == before
    assert world.state() == "Stable 1"
    assert (a.beat(), b.beat()) == ("NONE", "NONE")
    assert b.sync().value.assignment == b"b"
    assert world.fetch() == {("orders", 0): 5}
    assert a.commit({("orders", 0): 6}).error == "NONE"


def test_sessions_start_anew_on_the_new_coordinator() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world, session_ms=10_000)
    settle(world, a)
    world.pass_time(9_000)
    world.elect()
    world.pass_time(9_999)
    assert a.beat() == "NONE"
    world.pass_time(10_000)
    assert world.state() == "Empty 2"


def test_a_generation_without_assignment_is_not_loaded() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    settle(world, a)
    a.join()
    assert world.state() == "CompletingRebalance 2"
    world.elect()
    assert world.state() == "Stable 1"
    assert a.beat() == "ILLEGAL_GENERATION"
    assert a.join().value.generation_id == 2


def test_what_was_not_replicated_is_not_loaded() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    settle(world, a)
    world.log.replicated = False
    committing = a.commit({("orders", 0): 5})
    a.join()
    syncing = a.sync({a: b"x"})
    world.runtime.on_resigned(0)
    assert committing.error == "NOT_COORDINATOR"
    assert syncing.error == "NOT_COORDINATOR"
    assert a.beat() == "NOT_COORDINATOR"
    world.log.batches[0] = world.log.batches[0][:-2]
    world.elect()
    assert world.fetch() == {}
    assert world.state() == "Stable 1"


def test_what_is_in_the_log_but_not_yet_replicated_is_loaded_and_seen_once_it_is() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    world.log.replicated = False
    world.commit({("orders", 0): 2})
    world.elect()
    fetching = fetch(world)
    assert fetching.waits, "the predecessor may have answered that commit"
    answer = world.commit({("orders", 1): 3})
    assert answer.waits
    world.replicate()
    assert fetching.value.groups[0].topics[0].partitions[0].committed_offset == 2
    assert answer.error == "NONE"
    assert world.fetch() == {("orders", 0): 2, ("orders", 1): 3}


def test_an_answered_commit_is_not_undone_by_a_coordinator_whose_high_watermark_is_lower() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    known = dict(world.log.high_watermarks)
    assert world.commit({("orders", 0): 2}).error == "NONE"
    world.log.high_watermarks = known
    world.elect()
    fetching = fetch(world)
    world.replicate()
    assert fetching.value.groups[0].topics[0].partitions[0].committed_offset == 2
    world.log.replicated = False
    world.commit({("orders", 0): 3})
    assert world.fetch() == {("orders", 0): 2}, "its own commits are seen when they are answered"


def test_parked_requests_get_not_coordinator_when_leadership_is_lost() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a)
    joining = b.join()
    world.runtime.on_resigned(0)
    assert joining.error == "NOT_COORDINATOR"
    world.pass_time(3_600_000)
    assert world.runtime.next_deadline_ms() is None


def test_an_assignment_that_cannot_be_written_starts_another_rebalance() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    a.join(), b.join(), a.join()
    waiting = b.sync()
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert a.sync({a: b"0", b: b"1"}).error == "COORDINATOR_NOT_AVAILABLE"
    assert waiting.error == "COORDINATOR_NOT_AVAILABLE"
    assert world.state() == "PreparingRebalance 2"


def test_an_assignment_is_answered_when_it_is_committed() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    a.join()
    world.log.replicated = False
    synced = a.sync({a: b"x"})
    assert synced.waits
    assert a.beat() == "NONE", "a heartbeat writes nothing and waits for nothing"
    world.replicate()
    assert synced.value.assignment == b"x"
    assert world.state() == "Stable 1"


def test_groups_are_described_listed_and_deleted() -> None:
    world = World(initial_rebalance_delay_ms=0, partitions=4)
    a = Client(world, group="live")
    settle(world, a)
    world.commit({("orders", 0): 1}, group="simple")
    assert describe(world, "live", "simple", "none") == [
        ("Stable", "range", "NONE", 1),
        ("Empty", "", "NONE", 0),
        ("Dead", "", "GROUP_ID_NOT_FOUND", 0),
    ]
    assert describe(world, "none", version=5) == [("Dead", "", "NONE", 0)]
    for version in (5, 6):
        again = describe(world, "live", "live", version=version)
        assert again == [("Stable", "range", "NONE", 1), ("", "", "INVALID_REQUEST", 0)]
    twice = OffsetFetchRequest(groups=2 * [OffsetFetchRequestGroup(group_id="simple", topics=None)])
    fetched = Answer(world.coordinator.offsets.fetch(Context(9), twice, world.now), 9).value.groups
    assert [(group.error_code, len(group.topics)) for group in fetched] == [(0, 1), (ErrorCode.INVALID_REQUEST, 0)]
    assert sorted(list_groups(world)) == ["live consumer Stable", "simple  Empty"]
    assert list_groups(world, states_filter=["stable"]) == ["live consumer Stable"]
    assert list_groups(world, states_filter=["EMPTY", "dead"]) == ["simple  Empty"]
    assert list_groups(world, types_filter=["consumer"]) == []
    assert len(list_groups(world, types_filter=["Classic"])) == 2
    assert len(list_groups(world, version=0)) == 2

    assert delete(world, "live", "simple", "none") == ["NON_EMPTY_GROUP", "NONE", "GROUP_ID_NOT_FOUND"]
    assert world.fetch(group="simple") == {}
    world.elect()
    assert list_groups(world) == ["live consumer Stable"]


def test_a_loaded_group_over_capacity_rebalances() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a, b)
    world.config = type(world.config)(max_group_size=1)
    world.elect()
    assert a.beat() == "REBALANCE_IN_PROGRESS"
    a.join()
    assert b.join().error == "GROUP_MAX_SIZE_REACHED"


def test_a_log_with_a_broken_batch_is_not_served() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    broken = bytearray(world.log.batches[0][0])
    broken[57:61] = (2**31 - 1).to_bytes(4, "big")
    world.log.batches[0] = [bytes(broken)]
    world.elect()
    assert world.fetch() == "NOT_COORDINATOR"
