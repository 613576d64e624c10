"""Replication throttles (KIP-73): a replica that is moved is copied at the rate of its quota, and joins the ISR."""

from __future__ import annotations

import pytest
from replication_world import TP, World

from kalda.base.configs.server import ServerConfig
from kalda.base.sensors import Sensors
from kalda.base.stats import MetricConfig
from kalda.broker.handlers.data import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    ReplicationThrottles,
)
from kalda.metadata.image import EMPTY, MetadataDelta, Provenance
from kalda.metadata.publisher import Manifest
from kalda.protocol.messages.metadata_records import ConfigRecord
from kalda.quota.replication_quotas import ALL, ReplicationQuota, throttled_partitions
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetchers

RATE = 2_000
BATCHES = 60


def quota(rate: float = RATE) -> ReplicationQuota:
    made = ReplicationQuota(MetricConfig(1_000, 11))
    made.set_bound(rate)
    made.set_throttled(TP.topic, [TP.partition])
    return made


def behind() -> tuple[World, int]:
    """Brokers 1 and 2 are in sync, 3 is down, and a log of that many bytes is to be copied to it."""
    world = World()
    world.run()
    world.kill(3)
    world.elect(1, (1, 2))
    for _ in range(BATCHES):
        world[1].write("x" * 40)
    world.run(2_000)
    assert world[2].log.log_end_offset == world[1].log.log_end_offset
    return world, world[1].log.size_bytes


def restart_behind(world: World, throttle: ReplicationQuota | None = None) -> None:
    """Start 3, which fetches little by little."""
    world.restart(3)
    broker = world[3]
    broker.fetchers.stop(broker.partition)
    config = FetcherConfig(3, "cluster")._replace(partition_max_bytes=1_000)
    broker.fetchers = ReplicaFetchers(config, lambda: broker.epoch, broker._started, throttle)
    broker.replicas.following = broker.fetchers
    broker.fetchers.follow(broker.partition)


def copied_in(world: World, limit_ms: int = 60_000) -> int:
    """The milliseconds until 3 is in the ISR."""
    for passed_ms in range(0, limit_ms, 50):
        if 3 in world.assignment.isr:
            return passed_ms
        world.run(50)
    raise AssertionError("it never joins the ISR")


def test_without_a_throttle_a_replica_is_copied_at_once() -> None:
    world, _ = behind()
    restart_behind(world)
    assert copied_in(world) < 1_000


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_replica_is_copied_at_its_rate_and_joins_the_isr(side: str) -> None:
    world, size = behind()
    throttle = quota()
    if side == "leader":
        world[1].replicas.throttle = throttle
        restart_behind(world)
    else:
        restart_behind(world, throttle)
    taken_ms = copied_in(world)
    assert taken_ms == pytest.approx(size / RATE * 1_000, rel=0.1)
    assert throttle.rate.total(world.time.now_ms) > 0
    # In sync, it is fetched whatever the rate is, and stays a member.
    end = world[1].log.log_end_offset
    throttle.set_bound(1)
    for _ in range(30):
        world[1].write("y" * 40)
        world.run(100)
    assert world[3].log.log_end_offset == end + 30 * 40
    assert set(world.assignment.isr) == {1, 2, 3}


def test_replicas_in_sync_are_not_left_out_while_another_is_throttled() -> None:
    world, _ = behind()
    world[1].replicas.throttle = quota(10)
    restart_behind(world)
    world.run(2_000)
    assert 3 not in world.assignment.isr
    world[1].write("z")
    world.run(20)
    assert world[2].log.log_end_offset == world[1].log.log_end_offset
    assert world[3].log.log_end_offset < world[1].log.log_end_offset


def test_replicas_that_no_config_names_are_not_throttled() -> None:
    world, _ = behind()
    world[1].replicas.throttle = other = quota(10)
    other.set_throttled(TP.topic, [TP.partition + 1])
    restart_behind(world)
    assert copied_in(world) < 1_000
    assert other.rate.total(world.time.now_ms) == 0


# -- configs


def test_which_replicas_are_throttled() -> None:
    assert throttled_partitions("0:1,1:2,5:1", 1) == {0, 5}
    assert throttled_partitions("*", 1) is ALL
    assert throttled_partitions("", 1) == throttled_partitions("none", 1) == frozenset()
    assert throttled_partitions(" 2:1 , nonsense,3", 1) == {2}
    made = ReplicationQuota(MetricConfig(1_000, 11))
    assert not made.is_throttled("t", 0)
    made.set_throttled("t", ALL)
    assert made.is_throttled("t", 7)
    assert not made.is_enabled, "there is no rate"
    made.set_bound(5)
    assert made.is_enabled
    made.set_throttled("t", frozenset())
    assert not made.is_enabled


def test_configs_take_effect_with_the_image_that_has_them() -> None:
    static = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "c:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/data",
    }
    throttles = ReplicationThrottles(1, ServerConfig(static), Sensors())
    image = EMPTY

    def alter(name: str, value: str | None) -> None:
        nonlocal image
        delta = MetadataDelta(image)
        delta.replay(ConfigRecord(resource_type=2, resource_name="t", name=name, value=value))
        provenance = Provenance(image.offset + 1, 1, 0)
        image = delta.apply(provenance)
        throttles.on_metadata_update(delta, image, Manifest(provenance))

    throttles.set_rates(ServerConfig(static))
    alter(LEADER_REPLICAS, "3:1,4:2")
    alter(FOLLOWER_REPLICAS, "*")
    assert not throttles.leader.is_enabled
    throttles.set_rates(ServerConfig({**static, FOLLOWER_RATE: "100"}))
    assert (throttles.leader.is_enabled, throttles.follower.is_enabled) == (False, True)
    assert (throttles.leader.is_throttled("t", 3), throttles.leader.is_throttled("t", 4)) == (True, False)
    assert throttles.follower.is_throttled("t", 99)
    alter(FOLLOWER_REPLICAS, None)
    assert not throttles.follower.is_enabled
