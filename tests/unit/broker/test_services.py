"""The modules of a broker, and how dynamic configs reach them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.broker.handlers.services import Services
from kalda.broker.module import Module
from kalda.broker.process.dynamic_configs import DynamicConfigPublisher, DynamicConfigs
from kalda.broker.replicas.publishing_faults import PublishingFaults
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from kalda.testing import Cluster
from waiting import wait_until

STATIC = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "c:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/data",
    "num.replica.fetchers": "2",
    "log.retention.ms": "5000",
}


class World:
    """The publisher of a broker that has no config of its own yet, and what its only module is called with."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.configs = DynamicConfigs(ServerConfig(STATIC))
        self.faults = PublishingFaults()
        self.failure: Exception | None = None
        """What a second module raises, which is called before the other."""
        self.publisher = DynamicConfigPublisher(self.configs, [self._fail, self._on_config], self.faults)
        self.image = EMPTY
        self.update()

    def _fail(self, current: ServerConfig, image: MetadataImage) -> None:
        if self.failure is not None:
            raise self.failure

    def _on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        assert image is self.image
        self.seen.append(current["num.replica.fetchers"])

    def update(self, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance(self.image.offset + 1, 1, 0))
        self.publisher.on_metadata_update(delta, self.image, None)

    def set(self, kind: ConfigResourceType, resource: str, name: str, value: str | None) -> None:
        self.update(ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value))


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_image_brings_the_configuration_even_where_nothing_is_dynamic(world: World) -> None:
    assert world.seen == [2]
    world.update()
    assert world.seen == [2]


def test_a_module_that_fails_does_not_keep_configs_from_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.failure = ZeroDivisionError("by no one's doing")
    world.set(ConfigResourceType.BROKER, "", "num.replica.fetchers", "3")
    assert (world.seen, world.faults.count) == ([2, 3], 1)
    assert "cannot apply configs by World._fail: by no one's doing" in caplog.text


def test_a_module_that_fails_with_the_first_image_stops_the_start(world: World) -> None:
    world.failure = ZeroDivisionError("by no one's doing")
    publisher = DynamicConfigPublisher(world.configs, [world._fail], world.faults)
    with pytest.raises(ZeroDivisionError):
        publisher.on_metadata_update(MetadataDelta.of_whole(world.image), world.image, None)


def test_a_config_that_cannot_be_read_is_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Other software may have written it. It must not keep a node from its start."""
    world.set(ConfigResourceType.TOPIC, "orders", "retention.ms", "a week")
    world.set(ConfigResourceType.TOPIC, "orders", "segment.bytes", "1048577")
    world.set(ConfigResourceType.BROKER, "", "log.cleaner.min.cleanable.ratio", "half")
    config = world.configs.log_config("orders", world.image)
    assert (config.retention_ms, config.segment_bytes) == (5_000, 1_048_577), "the broker's default is in its place"
    assert config.min_cleanable_dirty_ratio == 0.5
    assert caplog.messages == [
        "config retention.ms=a week of topic orders cannot be read: it is left out",
        "a dynamic config is left out: Invalid value half for configuration log.cleaner.min.cleanable.ratio: "
        "Not a number of type DOUBLE",
    ]


def test_a_config_of_a_group_says_that_it_has_no_effect(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.set(ConfigResourceType.GROUP, "readers", "consumer.session.timeout.ms", "50000")
    world.set(ConfigResourceType.GROUP, "readers", "streams.num.warmup.replicas", "3")
    world.set(ConfigResourceType.GROUP, "readers", "streams.num.warmup.replicas", None)
    assert caplog.messages == [
        "config streams.num.warmup.replicas of group readers: no effect, because tasks of streams groups move without "
        "copies that warm up, as in Apache Kafka 4.4"
    ]


def test_a_number_of_java_is_read_as_java_does(world: World) -> None:
    world.set(ConfigResourceType.BROKER, "", "log.cleaner.min.cleanable.ratio", "0.25f")
    assert world.configs.log_config("orders", world.image).min_cleanable_dirty_ratio == 0.25
    world.set(ConfigResourceType.TOPIC, "orders", "min.cleanable.dirty.ratio", "0.5d")
    assert world.configs.log_config("orders", world.image).min_cleanable_dirty_ratio == 0.5
    world.set(ConfigResourceType.TOPIC, "orders", "min.cleanable.dirty.ratio", "1_0")
    assert world.configs.log_config("orders", world.image).min_cleanable_dirty_ratio == 0.25


def test_the_configs_of_this_broker_take_effect_before_those_of_all_brokers(world: World) -> None:
    world.set(ConfigResourceType.BROKER, "", "num.replica.fetchers", "3")
    world.set(ConfigResourceType.BROKER, "1", "num.replica.fetchers", "4")
    world.set(ConfigResourceType.BROKER, "", "num.replica.fetchers", "5")
    world.set(ConfigResourceType.BROKER, "1", "num.replica.fetchers", None)
    assert world.seen == [2, 3, 4, 4, 5]


def test_levels_of_features_matter_as_well_and_configs_of_topics_do_not(world: World) -> None:
    world.set(ConfigResourceType.TOPIC, "t", "retention.ms", "7000")
    assert len(world.seen) == 1
    world.update(FeatureLevelRecord(name="metadata.version", feature_level=20))
    assert len(world.seen) == 2


def test_a_topic_inherits_from_the_effective_configuration(world: World) -> None:
    world.set(ConfigResourceType.BROKER, "", "log.retention.ms", "6000")
    assert world.configs.log_config("t", world.image).retention_ms == 6_000
    world.set(ConfigResourceType.TOPIC, "t", "retention.ms", "7000")
    assert world.configs.log_config("t", world.image).retention_ms == 7_000


def test_a_dynamic_value_that_is_not_valid_is_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.set(ConfigResourceType.BROKER, "", "num.replica.fetchers", "many")
    assert world.seen == [2, 2]
    assert "a dynamic config is left out" in caplog.text


def test_modules_that_are_closed_receive_no_more_configs(world: World) -> None:
    world.publisher.close()
    world.set(ConfigResourceType.BROKER, "", "num.replica.fetchers", "3")
    assert world.seen == [2]


def test_a_module_that_cannot_be_closed_keeps_none_open(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class One(Module):
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        async def close(self) -> None:
            if self.error is not None:
                raise self.error
            closed.append(self.name)

    services = Services.__new__(Services)
    services.modules = (One("a"), One("b", RuntimeError("broken")), One("c"))
    services.dynamic_configs = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
    asyncio.run(services.close())
    assert closed == ["c", "a"]
    assert "One could not be closed" in caplog.text


def test_modules_start_in_order_and_close_in_reverse() -> None:
    calls: list[str] = []

    class Recorder(Module):
        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None:
            calls.append(f"start {self.name}")

        async def close(self) -> None:
            await asyncio.sleep(0)
            calls.append(f"close {self.name}")

    services = Services.__new__(Services)
    services.modules = Recorder("a"), Recorder("b")
    services.dynamic_configs = SimpleNamespace(close=lambda: calls.append("no more configs"))  # type: ignore[assignment]
    services.start()
    asyncio.run(services.close())
    assert calls == ["start a", "start b", "no more configs", "close b", "close a"]


def test_dynamic_configs_reach_all_modules_of_a_running_broker() -> None:
    """The list is complete: listeners, fetchers, moves, the cleaner."""
    altered = {
        "max.connections": "77",
        "listener.name.plaintext.max.connections": "66",
        "num.replica.fetchers": "2",
        "replica.alter.log.dirs.io.max.bytes.per.second": "1234",
        "log.cleaner.io.max.bytes.per.second": "4321",
    }
    with Cluster() as cluster:
        broker: Any = cluster.nodes[1].running.broker
        server: Any = cluster.nodes[1].running.listeners.server
        modules = {type(module).__name__: module for module in broker.services.modules}

        def in_effect() -> list[object]:
            return [
                server.limits.max_connections,
                server.listeners["PLAINTEXT"].limits.max_connections,
                modules["ReplicationModule"]._fetchers._fetchers._config.fetchers_a_leader,
                modules["LogDirsModule"]._moves.bytes_per_second,
                modules["LogMaintenanceModule"]._cleaner.config.max_bytes_per_second,
            ]

        with CommandAdmin(cluster.bootstrap_servers) as client:
            client.set_configs(ConfigResource(ConfigResourceType.BROKER, "1"), altered)
        wanted: list[object] = [int(value) for value in altered.values()]
        wait_until(lambda: in_effect() == wanted, "all are in effect")


def test_a_broker_answers_every_api_of_its_listeners_that_it_serves() -> None:
    with Cluster() as cluster:
        broker: Any = cluster.nodes[1].running.broker
        answered = {row.key for module in broker.services.modules for row in module.rows()}
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.JOIN_GROUP, ApiKey.CREATE_TOPICS} <= answered
    assert all(API[key].listeners & Listener.BROKER for key in answered)
