"""A broker whose process is dead is fenced before its session ends, and no other broker is."""

from __future__ import annotations

import pytest
from controller_world import World

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.liveness import MAX_UNDER_WAY, PROBES_MS, Probe, Probes, addresses
from kalda.metadata.cluster import Endpoint

SESSION_MS = 9_000


def a_world(*brokers: int, **settings: object) -> World:
    """A world whose brokers have sent heartbeats, so that none is probed."""
    world = World(**settings)  # type: ignore[arg-type]
    world.start_brokers(*brokers)
    world.now_ms += 10
    assert world.active.probes_due(world.now_ms) == []
    return world


def disconnect(world: World, broker_id: int, epoch: int | None = None) -> None:
    world.active.on_broker_disconnected(broker_id, world.epochs[broker_id] if epoch is None else epoch, world.now_ms)


def answer(world: World, probe: Probe, refused: bool) -> None:
    world.active.on_probed(probe, refused)
    world.commit()


def fenced(world: World) -> list[int]:
    return [broker_id for broker_id, broker in world.active.cluster.brokers.items() if broker.fenced]


def test_a_broker_that_refuses_connections_is_fenced() -> None:
    world = a_world(0, 1, 2)
    world.create_topic("t", {0: [0, 1, 2], 1: [1, 2, 0]})
    disconnect(world, 0)
    (probe,) = world.active.probes_due(world.now_ms)
    assert probe == Probe(0, world.epochs[0], (("h", 9092),))
    answer(world, probe, refused=True)
    assert fenced(world) == [0]
    assert (world.partition("t", 0).leader, list(world.partition("t", 0).isr)) == (1, [1, 2])
    assert list(world.partition("t", 1).isr) == [1, 2], "with acks=all no producer waits for a dead follower"
    assert world.active.probes_due(world.now_ms + 60_000) == []


@pytest.mark.parametrize(("stops", "level"), [(False, "WARNING"), (True, "INFO")])
def test_only_the_end_of_a_broker_that_served_is_a_warning(
    stops: bool, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    if stops:
        world.heartbeat(0, want_shut_down=True)
        world.commit()
    disconnect(world, 0)
    with caplog.at_level("INFO"):
        answer(world, *world.active.probes_due(world.now_ms), refused=True)
    (record,) = [each for each in caplog.records if "are refused" in each.msg]
    assert record.levelname == level


def test_a_new_incarnation_does_not_wait_for_the_session_of_a_dead_one() -> None:
    world = a_world(0)
    with pytest.raises(ApiError) as raised:
        world.register(0, incarnation=2)
    assert raised.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    disconnect(world, 0)
    answer(world, *world.active.probes_due(world.now_ms), refused=True)
    world.register(0, incarnation=2)
    assert not world.heartbeat(0).is_fenced


def test_without_a_refusal_the_session_timeout_decides() -> None:
    """A paused process, a full backlog, a host that is down: no probe is refused."""
    world = a_world(0, 1)
    began = world.now_ms
    disconnect(world, 0)
    probed_ms = []
    while world.now_ms < began + SESSION_MS - 500:
        for probe in world.active.probes_due(world.now_ms):
            probed_ms.append(world.now_ms - began)
            answer(world, probe, refused=False)
        world.heartbeat(1)
        world.poll_until(world.now_ms + 10, 10)
        assert fenced(world) == []
    assert len(probed_ms) == len(PROBES_MS)
    assert all(late - due < 10 for due, late in zip(PROBES_MS, probed_ms, strict=True))
    world.heartbeat(1)
    world.poll_until(began + SESSION_MS + 2_000, 100)
    assert 0 in fenced(world)


def test_a_dying_process_that_still_has_its_listener_is_found_by_the_next_probe() -> None:
    world = a_world(0)
    disconnect(world, 0)
    answer(world, *world.active.probes_due(world.now_ms), refused=False)
    assert world.active.probes_due(world.now_ms) == []
    deadline = world.active.poll(world.now_ms)
    assert deadline == world.now_ms + PROBES_MS[1]
    world.now_ms += PROBES_MS[1]
    answer(world, *world.active.probes_due(world.now_ms), refused=True)
    assert fenced(world) == [0]


def test_a_broker_that_sends_a_heartbeat_while_it_is_probed_is_not_fenced() -> None:
    """For example its connection was closed because it was idle, and a firewall refuses the probe."""
    world = a_world(0)
    disconnect(world, 0)
    (probe,) = world.active.probes_due(world.now_ms)
    world.heartbeat(0)
    answer(world, probe, refused=True)
    assert fenced(world) == []
    assert world.active.probes_due(world.now_ms + 60_000) == []


def test_a_broker_is_probed_when_another_process_registers_under_its_id() -> None:
    """Its machine was reset, so no connection broke."""
    world = a_world(0)
    with pytest.raises(ApiError):
        world.register(0, incarnation=2)
    (probe,) = world.active.probes_due(world.now_ms)
    with pytest.raises(ApiError):
        world.register(0, incarnation=2)
    assert world.active.probes_due(world.now_ms) == [], "a probe is under way"
    answer(world, probe, refused=True)
    world.register(0, incarnation=2)
    assert not world.heartbeat(0).is_fenced


def test_a_broker_that_does_not_refuse_keeps_its_registration() -> None:
    world = a_world(0)
    for _ in PROBES_MS:
        with pytest.raises(ApiError):
            world.register(0, incarnation=2)
        answer(world, *world.active.probes_due(world.now_ms), refused=False)
        world.now_ms += max(PROBES_MS)
        world.heartbeat(0)
    assert fenced(world) == []


def test_only_the_epoch_of_the_heartbeats_on_the_connection_is_fenced() -> None:
    world = a_world(0)
    old = world.epochs[0]
    disconnect(world, 0)
    (probe,) = world.active.probes_due(world.now_ms)
    world.now_ms += SESSION_MS + 1
    world.start_brokers(0, incarnation=2)
    assert world.epochs[0] > old
    answer(world, probe, refused=True)
    assert fenced(world) == []
    disconnect(world, 0, epoch=old)
    assert world.active.probes_due(world.now_ms) == [], "the broken connection was of the previous incarnation"


def test_a_registration_that_is_not_committed_yet_is_not_fenced_either() -> None:
    world = a_world(0)
    disconnect(world, 0)
    (probe,) = world.active.probes_due(world.now_ms)
    world.now_ms += SESSION_MS + 1
    world.register(0, incarnation=2)
    world.active.on_probed(probe, True)
    assert world.written_by(world.commit) == []
    world.heartbeat(0)
    assert fenced(world) == []


def test_a_broker_that_was_fenced_wrongly_is_not_probed_again() -> None:
    world = a_world(0)
    disconnect(world, 0)
    answer(world, *world.active.probes_due(world.now_ms), refused=True)
    assert fenced(world) == [0]
    assert not world.heartbeat(0).is_fenced, "it is alive, and has read its registration"
    disconnect(world, 0)
    assert world.active.probes_due(world.now_ms) == []
    assert fenced(world) == []


def test_a_new_active_controller_probes_brokers_without_a_heartbeat() -> None:
    """Their connections to the previous controller may have broken before it stopped, or with it."""
    world = World(controllers=2)
    world.start_brokers(0, 1, 2)
    world.elect(2)
    world.active.poll(world.now_ms)
    probes = {probe.broker_id: probe for probe in world.active.probes_due(world.now_ms)}
    assert sorted(probes) == [0, 1, 2]
    world.heartbeat(0)
    answer(world, probes[0], refused=True)
    answer(world, probes[1], refused=True)
    answer(world, probes[2], refused=False)
    assert fenced(world) == [1]
    assert [probe.broker_id for probe in world.active.probes_due(world.now_ms + 100)] == [2]


def test_a_standby_probes_no_broker() -> None:
    world = World(controllers=2)
    world.start_brokers(0)
    world.now_ms += 10
    disconnect(world, 0)
    (probe,) = world.active.probes_due(world.now_ms)
    former = world.active
    world.elect(2)
    before = len(world.records)
    former.on_broker_disconnected(0, world.epochs[0], world.now_ms)
    former.on_probed(probe, True)
    assert former.probes_due(world.now_ms) == []
    assert len(world.records) == before


def test_the_detection_can_be_turned_off() -> None:
    world = a_world(0, dead_process_detection_enable=False)
    disconnect(world, 0)
    assert world.active.probes_due(world.now_ms) == []


def test_the_number_of_probes_under_way_is_bounded() -> None:
    probes = Probes()
    for broker_id in range(1_000):
        probes.begin(broker_id, 1, 0)
    first = probes.due(0)
    assert len(first) == MAX_UNDER_WAY
    assert probes.due(10_000) == []
    assert probes.deadline_ms is None, "no further probe may start before one of these ends"
    assert probes.on_probed(*first[0], refused=False) is False
    assert probes.deadline_ms is not None
    assert len(probes.due(10_000)) == 1
    for broker_id in range(1_000):
        probes.on_heartbeat(broker_id, 1)
    assert probes.deadline_ms is None
    probes.begin(5, 1, 0)
    assert probes.due(0) == [(5, 1)], "no probe is under way any more"


def test_which_listener_is_probed() -> None:
    inner, outer = Endpoint("INTERNAL", "a", 1, 0), Endpoint("EXTERNAL", "b", 2, 1)
    listeners = {"EXTERNAL": outer, "INTERNAL": inner}
    assert addresses(listeners, "INTERNAL") == (("a", 1),)
    assert addresses(listeners, "PLAINTEXT") == (("b", 2), ("a", 1)), "without that listener, all must refuse"
