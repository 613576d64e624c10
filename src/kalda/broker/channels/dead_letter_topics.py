"""Which topic the dead letters of a share group are written to, and why they are not (KIP-1191).

A group names its topic in `errors.deadletterqueue.topic.name`. Any client may cause a record to be given up, so the
administrators of the topic and of the cluster have a say: an existing topic must have
`errors.deadletterqueue.group.enable=true`, the name must begin with `errors.deadletterqueue.topic.name.prefix`, and a
missing topic is created only with `errors.deadletterqueue.auto.create.topics.enable=true`. All are read anew for each
write, so that a change counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kalda.base.configs.topic import TOPIC
from kalda.base.ids import Uuid
from kalda.broker.channels.auto_topics import TopicPlan
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.topics import TopicImage
from kalda.replication.share.share_partition import ShareSettings

_ENABLED: Final = "errors.deadletterqueue.group.enable"
_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
_CREATES: Final = "errors.deadletterqueue.auto.create.topics.enable"
PLAN: Final = TopicPlan(-1, -1, {_ENABLED: "true", "message.timestamp.type": "CreateTime"})
"""How a missing topic is created: with the numbers of partitions and replicas that new topics of the cluster have."""


class Target(NamedTuple):
    """Where the dead letters of a group go."""

    topic: str
    topic_id: Uuid
    partitions: int
    max_message_bytes: int
    copies_records: bool
    """Whether they have the keys and values of the records."""


class Missing(NamedTuple):
    """There is no such topic yet, and it may be created."""

    topic: str


class Refusal(NamedTuple):
    """Nothing can be written; `reason` has the group, the topic and the key that says so."""

    reason: str


class DeadLetterTopics:
    """The rules, as the configs are now."""

    def __init__(
        self, settings_of: Callable[[str], ShareSettings], cache: MetadataCache, values: Mapping[str, Any]
    ) -> None:
        """`settings_of(group)`: its configs. `values` are those of the broker, by key."""
        self._settings_of = settings_of
        self._cache = cache
        self._values = values

    def update(self, values: Mapping[str, Any]) -> None:
        """The broker's values have changed."""
        self._values = values

    def find(self, group_id: str) -> Target | Missing | Refusal | None:
        """Where the dead letters of a group go; None where it has no topic for these."""
        settings = self._settings_of(group_id)
        name = settings.dead_letter_topic
        if not name:
            return None
        topic = self._cache.topic(name)
        reason = self._refusal(name, topic)
        if reason is not None:
            return Refusal(f"share group {group_id}, dead letter topic {name}: {reason}")
        if topic is None:
            return Missing(name)
        text = self._cache.image.configs.of_topic(name).get("max.message.bytes")
        limit = self._values["message.max.bytes"] if text is None else TOPIC["max.message.bytes"].parse(text)
        assert isinstance(limit, int)
        return Target(name, topic.id, len(topic.partitions), limit, settings.copies_dead_letters)

    def _refusal(self, name: str, topic: TopicImage | None) -> str | None:
        """Apache Kafka's rules, in its order."""
        prefix: str = self._values[_PREFIX]
        if name.startswith("__"):
            return "a name with __ at its beginning is one of an internal topic"
        if topic is not None and self._cache.image.configs.of_topic(name).get(_ENABLED) != "true":
            return f"the topic does not set {_ENABLED}=true"
        if prefix and not name.startswith(prefix):
            return f"the name does not begin with {prefix}, which {_PREFIX} demands"
        if topic is None and not self._values[_CREATES]:
            return f"the topic does not exist, and {_CREATES} is false: create it with {_ENABLED}=true"
        return None
