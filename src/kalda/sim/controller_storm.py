"""Seeded faults around controllers: stalls, bugs in requests and tasks, records that cannot be applied, a log that
refuses, elections; brokers that die, restart, fall silent, or are refused wrongly.

In the end all faults are removed. Then one controller is active, all have the state of the log, brokers are
fenced exactly where they are dead, and what can have a leader has one.
"""

from __future__ import annotations

import random
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.controller.quorum_controller import QuorumController
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
)
from kalda.protocol.messages.metadata_records import TopicRecord
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.sim import bugs
from kalda.sim.controllers import FETCH_TIMEOUT_MS, SESSION_MS, ControllerNode, Controllers

_BUGS = (*bugs.PARTS, ("topics", "create"))
"""Parts of a controller that raise once."""


def storm(seed: int, steps: int = 60) -> Controllers:
    """A cluster after `steps` faults. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(~seed)
    world = Controllers(rng.choice((1, 1, 3)), rng.choice((3, 4)), elr=rng.random() < 0.5, seed=seed)
    world.max_delay_ms = rng.choice((5, 50, 300))
    world.elect()
    world.run(5_000)
    for number in range(rng.randint(2, 4)):
        _create(world, rng, f"t{number}")
        world.run(500)
    for _ in range(steps):
        roll = rng.random()
        if roll < 0.35:
            _change_isr(world, rng)
        elif roll < 0.6:
            _befall_broker(world, rng)
        elif roll < 0.7:
            _create(world, rng, f"n{rng.randrange(10**6)}")
        else:
            _befall_controller(world, rng)
        world.run(rng.choice((5, 100, 1_000, 4_000)))
    return world


def stalls(seed: int, rounds: int = 5) -> Controllers:
    """A lone controller that stalls again and again, while all brokers go on."""
    rng = random.Random(~seed)
    world = Controllers(1, 3, elr=rng.random() < 0.5, seed=seed)
    world.elect()
    world.run(5_000)
    _create(world, rng, "t")
    for _ in range(rounds):
        world.run(rng.randint(1_000, 20_000))
        world.stall(world.nodes[1], rng.randint(2_000, 5 * SESSION_MS))
        world.run(5 * SESSION_MS + 1)
    return world


def recover(world: Controllers) -> None:
    """Remove all faults but one: a broker is dead, and the log refuses its fencing at first. Raises `AssertionError`
    where the end is not as it must be."""
    world.max_delay_ms, world.has_healed = 5, True
    for node in world.nodes.values():
        node.refuses = False
        node.is_poisoned = False
        node.go_on()
        if not node.up:
            node.start()
    for broker in world.brokers.values():
        broker.silent = broker.behind_firewall = False
        broker.start()
    world.elect()
    world.run(3 * FETCH_TIMEOUT_MS)
    world.elect()
    world.run(2 * SESSION_MS)
    leader = world.leader
    assert leader is not None, "there is no leader without faults"
    world.brokers[0].kill(breaks_connection=False)
    leader.refuses = True
    world.run(SESSION_MS + SESSION_MS // 2)
    leader.refuses = False
    world.run(SESSION_MS)
    assert world.leader is leader, "the leader was replaced without faults"
    assert leader.controller.is_active, "the leader's controller is not active"
    created = _create(world, random.Random(0), "the-end")
    world.run(1_000)
    assert created is not None
    assert created.value is not None, f"a topic cannot be created without faults: {created.error}"
    result = created.value.topics[0]
    assert result.error_code == ErrorCode.NONE, f"a topic cannot be created without faults: {result.error_message}"
    _check_end(world, leader.controller)


def _check_end(world: Controllers, controller: QuorumController) -> None:
    fresh = ControllerNode(world, 99)
    fresh.deliver()
    for node in (*world.nodes.values(), fresh):
        assert _state(node.controller) == _state(controller), f"node {node.id} has another state than the leader"
    for broker_id, broker in world.brokers.items():
        is_fenced = controller.cluster.brokers[broker_id].fenced
        assert is_fenced != broker.up, f"broker {broker_id}: fenced {is_fenced}, up {broker.up}"
    for at, partition in controller.partitions.partitions.items():
        last = (*partition.isr, *partition.elr)
        if not partition.has_leader and any(world.brokers[replica].up for replica in last):
            raise AssertionError(f"{at} has no leader, and the replicas {last} have all its records")


def _state(controller: QuorumController) -> list[dict[Any, Any]]:
    partitions = controller.partitions
    return [
        dict(each.items())
        for each in (
            controller.cluster.brokers,
            partitions.topic_ids,
            partitions.partitions,
            partitions.partition_counts,
            controller.configs.values,
        )
    ]


# What happens.


def _create(world: Controllers, rng: random.Random, name: str) -> Any:
    """A topic with some ten partitions; of every other one unclean elections are allowed."""
    brokers, factor = list(world.brokers), rng.choice((2, 3))
    assignments = [
        CreatableReplicaAssignment(partition_index=at, broker_ids=rng.sample(brokers, factor))
        for at in range(rng.randint(4, 12))
    ]
    unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value=str(rng.random() < 0.5).lower())
    least = CreatableTopicConfig(name="min.insync.replicas", value=rng.choice(("1", "2")))
    topic = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[unclean, least]
    )
    return world.request("create_topics", CreateTopicsRequest(topics=[topic]))


def _change_isr(world: Controllers, rng: random.Random) -> None:
    """Leaders take replicas out of their ISRs, or all live ones into them."""
    node = world.leader
    if node is None or node.stalled or not node.controller.is_active:
        return
    shrinks = rng.random() < 0.5
    for at, partition in list(node.controller.partitions.partitions.items()):
        leader = world.brokers.get(partition.leader)
        if leader is None or not leader.up or leader.epoch is None or rng.random() < 0.5:
            continue
        isr = [leader.id] if shrinks else [each for each in partition.replicas if world.brokers[each].up]
        states = [
            AlterPartitionRequestBrokerState(broker_id=each, broker_epoch=world.brokers[each].epoch or -1)
            for each in isr
        ]
        data = AlterPartitionRequestPartitionData(
            partition_index=at.partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=states,
        )
        topics = [AlterPartitionRequestTopicData(topic_id=at.topic_id, partitions=[data])]
        request = AlterPartitionRequest(broker_id=leader.id, broker_epoch=leader.epoch, topics=topics)
        if world.request("alter_partition", request) is None or not node.controller.is_active:
            return


def _befall_broker(world: Controllers, rng: random.Random) -> None:
    broker = rng.choice(list(world.brokers.values()))
    match rng.randrange(5):
        case 0:
            broker.kill(breaks_connection=rng.random() < 0.7)
        case 1:
            for each in world.brokers.values():
                each.start()
        case 2:
            broker.silent = not broker.silent
        case 3:
            broker.behind_firewall = True
            broker.break_connection()
        case _:
            for each in world.brokers.values():
                each.silent = each.behind_firewall = False


def _befall_controller(world: Controllers, rng: random.Random) -> None:
    node = world.leader or rng.choice(list(world.nodes.values()))
    match rng.randrange(6):
        case 0:
            if not node.stalled and node.up:
                world.stall(node, rng.choice((500, 3_000, 12_000, 30_000)))
        case 1:
            bugs.raise_once(node.controller, *rng.choice(_BUGS), lambda: not world.has_healed)
        case 2:
            _poison(node)
        case 3:
            node.refuses = rng.random() < 0.7
            world.at(rng.choice((500, 5_000, 15_000)), lambda: setattr(node, "refuses", False))
        case 4:
            world.kill(node)
            world.at(rng.choice((1_000, 5_000)), lambda: None if node.up else node.start())
            world.at(8_000, world.elect)
        case _:
            world.elect()


def _poison(node: ControllerNode) -> None:
    """A request with a bug makes a record that no node can apply: a topic that there is already."""
    controller = node.controller
    if node.stalled or not node.up or not controller.is_active or node.refuses:
        return
    name = next(iter(controller.partitions.topic_ids), None)
    if name is None:
        return
    record = TopicRecord(name=name, topic_id=node.world.new_id())
    node.is_poisoned = True
    node.do(lambda: controller._write_records("bug", lambda: [VersionedRecord(record, 0)]))
