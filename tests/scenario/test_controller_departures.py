"""A broker with many partitions leaves in several events, and requests are handled between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_world import World, state

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller import broker_changes
from kalda.protocol.messages.metadata_records import BrokerRegistrationChangeRecord, PartitionChangeRecord

STEP, PARTITIONS, SESSION_MS = 10, 95, 9_000


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_changes, "PARTITIONS_A_STEP", STEP)


def a_world(elr: bool = False, controllers: int = 1) -> World:
    """Three brokers that have sent heartbeats; each leads a third of the partitions, and follows in the others."""
    world = World(controllers, levels={"eligible.leader.replicas.version": 1} if elr else {})
    world.start_brokers(0, 1, 2)
    world.create_topic("t", {at: [(at + each) % 3 for each in range(3)] for at in range(PARTITIONS)})
    world.now_ms += 10
    assert world.active.probes_due(world.now_ms) == []
    return world


def with_0(world: World) -> tuple[int, int]:
    """How many partitions broker 0 leads, and how many have it in the ISR."""
    its = [world.partition("t", at) for at in range(PARTITIONS)]
    return sum(each.leader == 0 for each in its), sum(0 in each.isr for each in its)


def poll(world: World, wait_ms: int = 10) -> None:
    world.poll_until(world.now_ms + wait_ms, wait_ms)


def expire(world: World) -> None:
    """The session of broker 0 is over, those of the others are not. It is fenced from the next poll on."""
    for _ in range(9):
        world.now_ms += 1_000
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
    world.now_ms += 1


def lose_session(world: World) -> None:
    expire(world)
    poll(world, 2_000)


def refuse_connections(world: World) -> None:
    world.active.on_broker_disconnected(0, world.epochs[0], world.now_ms)
    for probe in world.active.probes_due(world.now_ms):
        world.active.on_probed(probe, True)
    poll(world)


def check_it_is_fenced_in_the_end(world: World) -> None:
    for _ in range(60):
        poll(world, 500)
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
    assert world.active.cluster.brokers[0].fenced
    assert with_0(world) == (0, 0)


LEAVES = pytest.mark.parametrize("leave", [lose_session, refuse_connections])


@pytest.mark.parametrize("elr", [False, True])
@LEAVES
def test_a_broker_is_fenced_by_the_last_of_several_events(leave: Callable[[World], None], elr: bool) -> None:
    world = a_world(elr)
    first = len(world.log.batches)
    leave(world)
    seen = [with_0(world)]
    while not world.active.cluster.brokers[0].fenced:
        poll(world)
        seen.append(with_0(world))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == (0, 0)
    assert len(seen) >= PARTITIONS // STEP
    assert next(in_isr for led, in_isr in seen if not led) >= PARTITIONS - 40, "the partitions that it leads come first"
    batches = [batch.records for batch in world.log.batches[first:] if batch.records]
    assert max(map(len, batches)) <= STEP
    assert [type(each.record) for each in batches[-1]] == [BrokerRegistrationChangeRecord]
    assert state(world.replayed()) == state(world.active)
    ends = len(world.log.batches)
    poll(world, 1_500)
    assert len(world.log.batches) == ends, "there is no more to do"


@LEAVES
def test_it_counts_as_inactive_from_the_first_event_on(leave: Callable[[World], None]) -> None:
    world = a_world()
    leave(world)
    at = next(each for each in range(PARTITIONS) if 0 not in world.partition("t", each).isr)
    assert world.alter_partition("t", at, [1, 2, 0]).error_code == ErrorCode.INELIGIBLE_REPLICA
    world.create_topic("new", {0: [0, 1]})
    assert list(world.partition("new", 0).isr) == [1]


@LEAVES
def test_a_heartbeat_ends_that_and_the_broker_stays(leave: Callable[[World], None]) -> None:
    world = a_world()
    leave(world)
    led, in_isr = with_0(world)
    assert 0 < in_isr < PARTITIONS
    world.now_ms += 1
    assert not world.heartbeat(0).is_fenced
    for _ in range(20):
        poll(world)
    assert with_0(world) == (led, in_isr)
    at = next(each for each in range(PARTITIONS) if 0 not in world.partition("t", each).isr)
    assert world.alter_partition("t", at, [1, 2, 0]).error_code == ErrorCode.NONE
    assert not world.active.cluster.brokers[0].fenced


@pytest.mark.parametrize("elr", [False, True])
@LEAVES
def test_no_partition_loses_its_only_leader_before_the_last_event(leave: Callable[[World], None], elr: bool) -> None:
    """The broker may stay, and would not be elected again: only one that is unfenced is."""
    world = a_world(elr)
    world.create_topic("alone", {at: [0] for at in range(3 * STEP)})
    world.create_topic("apart", {at: [0, 1] for at in range(3 * STEP)})
    for at in range(3 * STEP):
        world.alter_partition("apart", at, [0])
    mine = [("alone", at) for at in range(3 * STEP)] + [("apart", at) for at in range(3 * STEP)]
    leave(world)
    for _ in range(PARTITIONS // STEP - 2):
        poll(world)
        assert not world.active.cluster.brokers[0].fenced
        assert {world.partition(*each).leader for each in mine} == {0}
    world.now_ms += 1
    world.heartbeat(0)
    for _ in range(20):
        poll(world)
    assert {world.partition(*each).leader for each in mine} == {0}
    check_it_is_fenced_in_the_end(world)
    assert {world.partition(*each).leader for each in mine} == {-1}
    assert not world.heartbeat(0).is_fenced
    assert {world.partition(*each).leader for each in mine} == {0}


def test_requests_are_handled_in_between() -> None:
    world = a_world()
    lose_session(world)
    written = world.written_by(lambda: world.create_topic("other", {0: [1, 2]}))
    assert written
    assert not any(isinstance(each, PartitionChangeRecord) for each in written)
    assert not world.active.cluster.brokers[0].fenced


@LEAVES
def test_records_that_the_log_refuses_are_written_later(leave: Callable[[World], None]) -> None:
    world = a_world()
    leave(world)
    before = with_0(world)
    world.log.refuse = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    poll(world)
    world.log.refuse = None
    if not world.controllers[1].is_active:
        world.elect(1)
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
    assert with_0(world) == before
    check_it_is_fenced_in_the_end(world)


@LEAVES
def test_the_next_controller_goes_on(leave: Callable[[World], None]) -> None:
    world = a_world(controllers=2)
    leave(world)
    world.elect(2)
    assert state(world.replayed()) == state(world.active)
    assert not world.active.cluster.brokers[0].fenced
    check_it_is_fenced_in_the_end(world)


@pytest.mark.parametrize("elr", [False, True])
def test_a_broker_that_stops_waits_for_the_last_event(elr: bool) -> None:
    world = a_world(elr)
    first = len(world.log.batches)
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    assert with_0(world) == (32 - STEP, PARTITIONS - STEP)
    beats = 0
    while not world.heartbeat(0, want_shut_down=True).should_shut_down:
        poll(world)
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
        beats += 1
        assert beats < 100
    assert beats >= PARTITIONS // STEP - 1
    assert with_0(world) == (0, 0)
    assert max(len(batch.records) for batch in world.log.batches[first:]) <= STEP + 1
    assert state(world.replayed()) == state(world.active)


def test_a_stop_waits_until_others_have_read_the_last_event() -> None:
    world = a_world()
    world.heartbeat(0, want_shut_down=True)
    behind = world.log.log_end_offset
    for _ in range(PARTITIONS // STEP):
        poll(world)
    assert with_0(world) == (0, 0)
    for broker_id in (1, 2):
        world.heartbeat(broker_id, current_metadata_offset=behind)
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    for broker_id in (1, 2):
        world.heartbeat(broker_id)
    assert world.heartbeat(0, want_shut_down=True).should_shut_down


def test_a_broker_that_dies_while_it_stops_is_fenced() -> None:
    world = a_world()
    world.heartbeat(0, want_shut_down=True)
    expire(world)
    for _ in range(30):
        poll(world, 100)
    assert world.active.cluster.brokers[0].fenced
    assert with_0(world) == (0, 0)


@LEAVES
def test_a_broker_that_is_being_fenced_can_stop(leave: Callable[[World], None]) -> None:
    """Its heartbeat ends the fencing and begins the stop, whose partitions are still to be moved."""
    world = a_world()
    leave(world)
    assert with_0(world)[1] > STEP
    for _ in range(60):
        if world.heartbeat(0, want_shut_down=True).should_shut_down:
            break
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
        poll(world)
    assert world.active.cluster.brokers[0].fenced
    assert with_0(world) == (0, 0)


def test_the_next_controller_is_asked_to_go_on_with_a_stop() -> None:
    world = a_world(controllers=2)
    world.heartbeat(0, want_shut_down=True)
    world.elect(2)
    for _ in range(30):
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
        if world.heartbeat(0, want_shut_down=True).should_shut_down:
            break
        poll(world)
    assert with_0(world) == (0, 0)
    assert world.active.cluster.brokers[0].fenced


def test_a_partition_without_other_replicas_keeps_its_last_member() -> None:
    """Such partitions stay in the index of the fenced broker, and must not be taken for unfinished ones."""
    world = World(levels={})
    world.start_brokers(0, 1)
    world.create_topic("t", {at: [0] for at in range(PARTITIONS)})
    world.now_ms += SESSION_MS + 1
    world.heartbeat(1)
    for _ in range(30):
        poll(world, 100)
    assert world.active.cluster.brokers[0].fenced
    assert with_0(world) == (0, PARTITIONS)
    ends = len(world.log.batches)
    world.heartbeat(1)
    poll(world, 1_500)
    assert len(world.log.batches) == ends
    assert not world.heartbeat(0).is_fenced
    assert with_0(world) == (PARTITIONS, PARTITIONS)
