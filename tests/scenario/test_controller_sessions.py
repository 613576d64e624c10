"""Sessions of brokers: the log refuses records, a probe is wrong."""

from __future__ import annotations

import pytest
from controller_world import World, state

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.event_queue import RERUN_MS

SESSION_MS = 9_000
SAMPLE_MS = SESSION_MS // 8
TOO_MANY = ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
UNCLEAN = {"unclean.leader.election.enable": "true"}


def a_world(*brokers: int, **settings: object) -> World:
    world = World(**settings)  # type: ignore[arg-type]
    world.start_brokers(*brokers)
    world.active.poll(world.now_ms)
    return world


def fenced(world: World) -> list[int]:
    return [broker_id for broker_id, broker in world.active.cluster.brokers.items() if broker.fenced]


def run(world: World, until_ms: int, *alive: int) -> None:
    """Poll when it is due, as a timer does; these brokers send heartbeats."""
    deadline_ms = world.active.poll(world.now_ms)
    next_heartbeat_ms = world.now_ms
    while world.now_ms < until_ms:
        assert deadline_ms is not None
        world.now_ms = min(until_ms, max(world.now_ms + 1, min(deadline_ms, next_heartbeat_ms)))
        if world.now_ms >= next_heartbeat_ms:
            next_heartbeat_ms += 2_000
            for broker_id in alive:
                world.heartbeat(broker_id)
        for probe in world.active.probes_due(world.now_ms):
            world.active.on_probed(probe, False)
        deadline_ms = world.active.poll(world.now_ms)
        world.commit()


def refuse(world: World, broker_id: int) -> None:
    """The broker's connection breaks, and a probe is refused."""
    world.active.on_broker_disconnected(broker_id, world.epochs[broker_id], world.now_ms)
    for probe in world.active.probes_due(world.now_ms):
        world.active.on_probed(probe, True)
    world.commit()


# The log refuses records


def test_a_stale_broker_is_fenced_although_the_log_refused_it_before() -> None:
    world = a_world(0, 1)
    run(world, world.now_ms + 5_000, 1)
    world.log.refuse = TOO_MANY
    while world.now_ms < SESSION_MS + 5_000:
        world.now_ms += 500
        world.active.cluster.heartbeats.contact(1, world.epochs[1], world.now_ms)
        world.active.poll(world.now_ms)
    assert fenced(world) == []
    world.log.refuse = None
    run(world, world.now_ms + SAMPLE_MS, 1)
    assert fenced(world) == [0]


def test_a_dead_broker_is_fenced_by_the_next_probe_although_the_log_refused_it_before() -> None:
    world = a_world(0)
    world.heartbeat(0)
    world.log.refuse = TOO_MANY
    refuse(world, 0)
    assert fenced(world) == []
    world.log.refuse = None
    world.now_ms += 30
    for probe in world.active.probes_due(world.now_ms):
        world.active.on_probed(probe, True)
    assert fenced(world) == [0]


@pytest.mark.parametrize("want_fence", [False, True])
def test_a_broker_is_unfenced_and_fenced_although_the_log_refused_it_before(want_fence: bool) -> None:
    world = a_world()
    world.register(0)
    if want_fence:
        world.heartbeat(0)
    world.log.refuse = TOO_MANY
    with pytest.raises(ApiError, match="too many"):
        world.heartbeat(0, want_fence=want_fence)
    world.log.refuse = None
    assert world.heartbeat(0, want_fence=want_fence).is_fenced == want_fence
    assert world.active.cluster.brokers[0].fenced == want_fence


def test_requests_are_handled_between_two_fencings() -> None:
    world = a_world(0, 1, 2)
    run(world, SESSION_MS)
    while not fenced(world):
        deadline_ms = world.active.poll(world.now_ms)
        assert deadline_ms is not None
        world.now_ms = deadline_ms
    assert fenced(world) == [0]
    assert world.active.poll(world.now_ms) == world.now_ms + RERUN_MS
    world.heartbeat(1)
    run(world, world.now_ms + RERUN_MS)
    assert fenced(world) == [0, 2]


# A probe that is wrong


@pytest.mark.parametrize("elr", [False, True])
def test_a_probe_leads_to_no_unclean_election_before_the_session_would_have_ended(elr: bool) -> None:
    world = a_world(0, 1, levels={"eligible.leader.replicas.version": 1} if elr else {})
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    world.heartbeat(0)
    last_contact_ms = world.now_ms
    refuse(world, 0)
    assert fenced(world) == [0]
    assert world.partition("t").leader == -1, "broker 1 may lack records that were acknowledged"
    run(world, last_contact_ms + SESSION_MS, 1)
    assert world.partition("t").leader == -1
    run(world, last_contact_ms + SESSION_MS + SAMPLE_MS + RERUN_MS, 1)
    assert world.partition("t").leader == 1
    assert state(world.replayed()) == state(world.active)


@pytest.mark.parametrize("elr", [False, True])
def test_a_broker_that_was_refused_wrongly_leads_again_with_all_its_records(elr: bool) -> None:
    world = a_world(0, 1, levels={"eligible.leader.replicas.version": 1} if elr else {})
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    world.heartbeat(0)
    refuse(world, 0)
    world.now_ms += 500
    assert not world.heartbeat(0).is_fenced
    assert (world.partition("t").leader, list(world.partition("t").isr)) == (0, [0])
    assert world.partition("t").leader_recovery_state.value == 0, "the election was clean"


def test_a_new_incarnation_of_a_refused_broker_leads_to_no_unclean_election_either() -> None:
    """It has the records of its predecessor on its disk, and registers before the session would have ended."""
    world = a_world(0, 1)
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    world.heartbeat(0)
    refuse(world, 0)
    world.register(0, incarnation=2)
    assert world.partition("t").leader == -1
    world.heartbeat(0)
    assert world.partition("t").leader == 0


def test_the_periodic_unclean_election_waits_as_well_also_after_a_failover() -> None:
    world = a_world(0, 1, controllers=2, unclean_leader_election_interval_ms=1_000)
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    world.heartbeat(0)
    refuse(world, 0)
    run(world, world.now_ms + 4_000, 1)
    assert world.partition("t").leader == -1
    world.elect(2)
    elected_ms = world.now_ms
    run(world, elected_ms + SESSION_MS, 1)
    assert world.partition("t").leader == -1
    run(world, elected_ms + SESSION_MS + 2_000, 1)
    assert world.partition("t").leader == 1


def test_a_session_that_ends_by_time_leads_to_an_unclean_election_at_once() -> None:
    world = a_world(0, 1)
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    run(world, world.now_ms + SESSION_MS + SAMPLE_MS + 1, 1)
    assert fenced(world) == [0]
    assert world.partition("t").leader == 1


def test_an_unclean_election_after_a_probe_is_tried_again_where_the_log_refuses_it() -> None:
    world = a_world(0, 1)
    world.create_topic("t", {0: [0, 1]}, configs=UNCLEAN)
    world.alter_partition("t", 0, [0])
    world.heartbeat(0)
    refuse(world, 0)
    world.log.refuse = TOO_MANY
    while world.now_ms < 2 * SESSION_MS:
        world.now_ms += 500
        world.active.cluster.heartbeats.contact(1, world.epochs[1], world.now_ms)
        world.active.poll(world.now_ms)
    assert world.partition("t").leader == -1
    world.log.refuse = None
    run(world, world.now_ms + 2 * SAMPLE_MS, 1)
    assert world.partition("t").leader == 1
