"""Whether the topic that a share group names may have its dead letters; GroupConfigs reads what the group says."""

from __future__ import annotations

import pytest
from by_hand import HandTime

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid
from kalda.broker.channels.dead_letter_writer import DeadLetterTopics, Missing, Refusal, Target
from kalda.broker.handlers.share import GroupConfigs
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.protocol.messages.metadata_records import ConfigRecord, FeatureLevelRecord, PartitionRecord, TopicRecord

PROPERTIES = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.quorum.voters": "2@localhost:9093",
    "log.dirs": "/tmp/kalda",
}
LETTERS = Uuid(b"letters".ljust(16, b"."))
ENABLED = {"errors.deadletterqueue.group.enable": "true"}


def _topics(
    name: str, *, level: int = 2, topic: dict[str, str] | None = None, broker: dict[str, str] | None = None
) -> DeadLetterTopics:
    """Of a group that names this topic, which exists where it has configs."""
    delta = MetadataDelta(MetadataImage())
    delta.replay(FeatureLevelRecord(name="share.version", feature_level=level))
    group = {"errors.deadletterqueue.topic.name": name}
    for kind, resource, configs in (
        (ConfigResourceType.GROUP, "g", group),
        (ConfigResourceType.TOPIC, name, topic or {}),
    ):
        for key, value in configs.items():
            delta.replay(ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=value))
    if topic is not None:
        delta.replay(TopicRecord(name=name, topic_id=LETTERS))
        for number in range(3):
            delta.replay(PartitionRecord(topic_id=LETTERS, partition_id=number, replicas=[1], isr=[1], leader=1))
    cache = MetadataCache(HandTime())
    cache.set_image(delta.apply(MetadataImage().provenance))
    config = ServerConfig({**PROPERTIES, **(broker or {})})
    return DeadLetterTopics(GroupConfigs(config, cache, lambda: 0).settings, cache, config.values)


def test_a_topic_that_allows_it_has_the_letters() -> None:
    found = _topics("dlq.g", topic={**ENABLED, "max.message.bytes": "5000"}).find("g")
    assert found == Target("dlq.g", LETTERS, 3, 5000, False)
    assert _topics("dlq.g", topic=ENABLED).find("g") == Target("dlq.g", LETTERS, 3, 1_048_588, False)


def test_without_a_name_or_below_level_2_there_are_no_letters() -> None:
    assert _topics(" ").find("g") is None
    assert _topics("dlq.g", topic=ENABLED).find("other") is None
    assert _topics("dlq.g", level=1, topic=ENABLED).find("g") is None


PREFIX, CREATES = "errors.deadletterqueue.topic.name.prefix", "errors.deadletterqueue.auto.create.topics.enable"


@pytest.mark.parametrize(
    ("name", "topic", "broker", "words"),
    [
        ("__internal", ENABLED, {PREFIX: ""}, "internal topic"),
        ("dlq.g", {}, {}, "does not set errors.deadletterqueue.group.enable=true"),
        ("orders", ENABLED, {}, r"does not begin with dlq\."),
        ("dlq.g", None, {}, f"does not exist, and {CREATES} is false"),
    ],
)
def test_a_topic_is_refused(name: str, topic: dict[str, str] | None, broker: dict[str, str], words: str) -> None:
    found = _topics(name, topic=topic, broker=broker).find("g")
    assert isinstance(found, Refusal)
    assert words.replace("\\", "") in found.reason


def test_the_rules_follow_the_configs_of_the_broker() -> None:
    topics = _topics("orders", topic=ENABLED)
    topics.update(ServerConfig({**PROPERTIES, PREFIX: ""}).values)
    assert isinstance(topics.find("g"), Target)
    missing = _topics("dlq.g", broker={CREATES: "true"})
    assert missing.find("g") == Missing("dlq.g")
