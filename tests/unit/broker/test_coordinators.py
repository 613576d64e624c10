"""The table of coordinators, with groups and a made-up kind in it: elections, automatic creation, FindCoordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from broker_by_hand import COUNTERS, BrokerByHand, DiskLog, counters, served
from by_hand import inline_background
from coordinator_world import CountingShard, counter_batch

from kalda.base.background import run_to_end
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.broker.channels.auto_topics import AutoTopics, TopicPlan
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.replicas.coordinators import Coordinators
from kalda.coordinator.internal_topics import GROUPS, SHARE_STATE, coordinator_partition
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.protocol.messages.groups import CoordinatorType, FindCoordinatorRequest


def table(broker: Any) -> tuple[Coordinators, CoordinatorRuntime[CountingShard], CoordinatorRuntime[CountingShard]]:
    """Two coordinators of different topics."""
    properties = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "9@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "transaction.state.log.num.partitions": "7",
    }
    config = ServerConfig(properties)
    cache: Any = SimpleNamespace(topic=lambda name: None)
    coordinators = Coordinators(config, cache, broker, broker, broker, broker, inline_background())
    groups, other = counters(GROUPS.name), counters()
    coordinators.add(GROUPS, groups)
    coordinators.add(COUNTERS, other)
    return coordinators, groups, other


def test_elections_reach_the_coordinator_of_their_topic_only() -> None:
    broker = BrokerByHand()
    coordinators, groups, other = table(broker)
    coordinators.on_elected(broker.lead("orders", 0, DiskLog(counter_batch(0, 9), 1)))
    coordinators.on_elected(broker.lead(COUNTERS.name, 0, DiskLog(counter_batch(0, 3, 4), 2)))
    assert (served(groups), served(other)) == ("NOT_COORDINATOR", "7")
    coordinators.on_elected(broker.lead(GROUPS.name, 0, DiskLog(counter_batch(0, 5), 1)))
    assert (served(groups), served(other)) == ("5", "7")
    coordinators.on_resigned(TopicPartition(GROUPS.name, 0))
    coordinators.on_resigned(TopicPartition("orders", 0))
    assert (served(groups), served(other)) == ("NOT_COORDINATOR", "7")


def test_deleted_topics_reach_every_coordinator() -> None:
    broker = BrokerByHand()
    coordinators, groups, other = table(broker)
    for topic in (GROUPS.name, COUNTERS.name):
        coordinators.on_elected(broker.lead(topic, 0, DiskLog(counter_batch(0, 1), 1)))
    coordinators.on_topics_deleted({"orders": Uuid(bytes(16))})
    assert [runtime.shard_for("key").deleted for runtime in (groups, other)] == [["orders"], ["orders"]]


def test_coordinators_are_found_and_their_topics_made_by_their_rows() -> None:
    coordinators, _, _ = table(BrokerByHand())
    assert [coordinators.topic_of(key_type) for key_type in CoordinatorType] == [GROUPS.name, COUNTERS.name, None]
    groups = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
    assert coordinators.plan(GROUPS.name) == TopicPlan(50, 3, groups)
    assert coordinators.plan(COUNTERS.name) == TopicPlan(
        7, 3, {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    )
    assert coordinators.plan("__share_group_state") is None


class Cluster:
    """Metadata with one broker, and the requests that go to the controller."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.created: list[str] = []

    def add(self, name: str, partitions: int) -> None:
        led = {index: SimpleNamespace(leader=1 if index % 2 else 2) for index in range(partitions)}
        self.topics[name] = SimpleNamespace(name=name, partitions=led)

    def topic(self, name: str) -> Any:
        return self.topics.get(name)

    def alive_brokers(self, listener: str) -> list[Any]:
        return [SimpleNamespace(id=1, listeners={listener: SimpleNamespace(host="localhost", port=9092)})]

    def send(self, request: Any, timeout_ms: int) -> Any:
        self.created += [topic.name for topic in request.topics]
        return SimpleNamespace(then=lambda callback: None)


def find(cluster: Any, key_type: int, *keys: str, version: int = 4) -> list[tuple[str, int]]:
    """Error and node of each key."""
    coordinators, _, _ = table(BrokerByHand())
    coordinators.add(SHARE_STATE, counters(SHARE_STATE.name))
    auto_topics = AutoTopics(cluster, False, coordinators.plan, 30_000)
    handlers = MetadataHandlers(cluster, "cluster", auto_topics, coordinators.topic_of, 2_000)
    context: Any = SimpleNamespace(api_version=version, listener_name="PLAINTEXT")
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    response = run_to_end(handlers.find_coordinator(context, request))
    return [(ErrorCode(found.error_code).name, found.node_id) for found in response.coordinators]


@pytest.mark.parametrize(
    ("key_type", "topic"), [(CoordinatorType.GROUP, GROUPS.name), (CoordinatorType.TRANSACTION, COUNTERS.name)]
)
def test_a_key_is_found_at_the_leader_of_its_partition_in_the_topic_of_its_type(
    key_type: CoordinatorType, topic: str
) -> None:
    cluster = Cluster()
    keys = [key for key in "abcdefgh" if coordinator_partition(key, 5) % 2]
    unavailable = ("COORDINATOR_NOT_AVAILABLE", -1)
    assert find(cluster, key_type, *keys) == [unavailable] * len(keys)
    assert cluster.created == [topic], "once, though automatic creation of other topics is off"
    cluster.add(topic, 5)
    assert find(cluster, key_type, *keys) == [("NONE", 1)] * len(keys)
    others = [key for key in "abcdefgh" if key not in keys]
    assert find(cluster, key_type, *others) == [unavailable] * len(others), "its leader is not alive"


def test_a_share_partition_is_found_by_its_three_parts() -> None:
    cluster, share = Cluster(), CoordinatorType.SHARE
    keys = [f"team:red:AAECAwQFBgcICQoLDA0ODw:{number}" for number in range(20)]
    assert find(cluster, share, keys[0], version=6) == [("COORDINATOR_NOT_AVAILABLE", -1)]
    assert cluster.created == [SHARE_STATE.name]
    cluster.add(SHARE_STATE.name, 5)
    led = [coordinator_partition(key, 5) % 2 == 1 for key in keys]
    assert [node == 1 for _, node in find(cluster, share, *keys, version=6)] == led
    padded = [f"{key[:-1]}0{key[-1]}" for key in keys[:10]]
    assert [node == 1 for _, node in find(cluster, share, *padded, version=6)] == led[:10], "the number counts"
    refused = ("INVALID_REQUEST", -1)
    assert find(cluster, share, "g", "g:t:0", keys[led.index(True)], version=6) == [refused, refused, ("NONE", 1)]
    assert find(cluster, share, keys[0], version=5) == [refused], "a version that has no such keys"


@pytest.mark.parametrize("key_type", [3, -1])
def test_a_coordinator_that_is_not_there_is_not_served(key_type: int) -> None:
    cluster = Cluster()
    with pytest.raises(ApiError) as refused:
        find(cluster, key_type, "a")
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert cluster.created == []
