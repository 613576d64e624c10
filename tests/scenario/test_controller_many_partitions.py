"""Brokers with more partitions than one batch of the metadata log has records."""

from __future__ import annotations

import pytest
from controller_world import World, state

from kalda.base.ids import Uuid
from kalda.protocol.messages.brokers import UnregisterBrokerRequest
from kalda.protocol.messages.metadata_records import PartitionChangeRecord, RegisterBrokerRecord
from kalda.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from kalda.statemachine import runtime


def a_large_world(elr: bool, replicas: list[int]) -> World:
    world = World(levels={"eligible.leader.replicas.version": 1} if elr else {})
    world.start_brokers(0, 1)
    for number in range(3):
        world.create_topic(f"t{number}", dict.fromkeys(range(3400), replicas), configs={"min.insync.replicas": "2"})
    return world


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("replicas", [[0], [0, 1]])
def test_a_broker_of_10200_partitions_comes_back_after_an_unclean_stop(elr: bool, replicas: list[int]) -> None:
    world = a_large_world(elr, replicas)
    for _ in range(20):
        world.heartbeat(1)
        world.poll_until(world.now_ms + 1_000)
    assert world.active.cluster.brokers[0].fenced
    written = world.written_by(lambda: world.register(0, incarnation=2))
    assert isinstance(written[-1], RegisterBrokerRecord), "the others may be written without it, not it without them"
    world.heartbeat(0)
    assert not world.active.cluster.brokers[0].fenced
    assert state(world.replayed()) == state(world.active)
    if elr and len(replicas) == 1:
        assert len(written) == 10_201


def test_a_broker_that_is_registered_anew_at_once_is_cleaned_up_after_in_several_batches() -> None:
    """Its predecessor in this process was not fenced: it is in every ISR."""
    world = World(incarnation_id=Uuid(bytes([1, 2]) * 8))
    world.start_brokers(0, 1)
    for number in range(3):
        world.create_topic(f"t{number}", {at: [0, 1] for at in range(3_400)})
    written = world.written_by(lambda: world.register(0, incarnation=2))
    assert [type(record) for record in written].count(PartitionChangeRecord) == 10_200
    assert {tuple(world.partition("t2", at).isr) for at in range(3_400)} == {(1,)}
    assert state(world.replayed()) == state(world.active)


@pytest.mark.parametrize("elr", [False, True])
def test_a_broker_of_10200_partitions_leaves(elr: bool) -> None:
    """It stops in a controlled way, and is unregistered."""
    world = a_large_world(elr, [0, 1])
    heartbeats = 1
    while not world.heartbeat(0, want_shut_down=True).should_shut_down:
        world.poll_until(world.now_ms + 10, 10)
        world.heartbeat(1)
        heartbeats += 1
    assert heartbeats == 11, "1,000 partitions in each event"
    world.request("unregister_broker", UnregisterBrokerRequest(broker_id=0))
    assert 0 not in world.active.cluster.brokers
    assert state(world.replayed()) == state(world.active)


def test_partitions_that_are_replayed_at_once_are_those_of_a_replay_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.start_brokers(0, 1, 2)
    world.create_topic("large", {at: [at % 3, (at + 1) % 3] for at in range(300)})
    world.create_topic("removed", {at: [1] for at in range(200)})
    world.request("delete_topics", DeleteTopicsRequest(topics=[DeleteTopicState(name="removed")]))
    at_once = state(world.active), state(world.replayed())
    monkeypatch.setattr(runtime, "_MANY", 1_000_000)
    assert at_once == (state(world.replayed()), state(world.replayed()))
