"""What the cores of consumers and of share consumers have in common: the metadata of the topics that are subscribed to
and assigned, and deserializers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, can_be_requested
from kalda.clientcore.client_core import ClientCore
from kalda.clientcore.connections.client_metrics import ClientMetrics
from kalda.clientcore.connections.errors import Random, refused
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.serdes import codec_of, deserializer_of
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.naming import MAX_ELEMENTS_SENT

if TYPE_CHECKING:
    from kalda.base.configs.consumer import ConsumerConfig
    from kalda.base.configs.share_consumer import ShareConsumerConfig
    from kalda.records.consuming import Read

_FATAL_OF_TOPIC = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
_CODECS = ("key.deserializer", "value.deserializer")


class SubscribedCore(ClientCore, ABC):
    """The machines of one consumer of any kind."""

    kept_topics: frozenset[str] = frozenset()
    """Topics whose metadata is wanted although none of their partitions is assigned: one will be."""
    config: ConsumerConfig | ShareConsumerConfig

    def __init__(
        self,
        config: ConsumerConfig | ShareConsumerConfig,
        subscription: Subscription,
        metrics: ClientMetrics,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        now_ms: int,
    ) -> None:
        """Raises `InvalidConfig`."""
        super().__init__(
            config,
            metrics,
            client_id=client_id,
            software_version=software_version,
            random=random,
            now_ms=now_ms,
            creates_topics=config.allow_auto_create_topics,
            group_id=config.group_id,
            is_fetching=True,
            labels={"group_id": config.group_id, "group_instance_id": getattr(config, "group_instance_id", None)},
        )
        self.subscription = subscription
        self.codecs: dict[str, object] = {
            name: codec_of(_deserializer(config, name), "deserialize", config.given, is_key=name == _CODECS[0])
            for name in _CODECS
        }
        """What deserializes, by the key that names it; closed by whoever closes the consumer."""
        self._topics_in_flight = False
        self._subscribed: frozenset[str] = frozenset()
        """Topics that the metadata is wanted of."""
        self._unresolved_at_ms = 0
        self.is_closed = False

    # -- turns

    @abstractmethod
    def run(self, now_ms: int, is_polling: bool) -> None: ...
    @abstractmethod
    def deadline_ms(self, now_ms: int, is_polling: bool) -> int | None: ...
    @abstractmethod
    def raise_error(self) -> None: ...
    @abstractmethod
    def _on_names(self, names: dict[Uuid, str]) -> None: ...

    def _readers(self) -> tuple[Read | None, Read | None]:
        """What makes keys and values. Raises `InvalidConfig`."""
        key, value = (deserializer_of(name, self.codecs[name], self.config.given) for name in _CODECS)
        return key, value

    # -- failures

    def _cluster_error(self) -> ApiError | None:
        """What ends every use of the cluster."""
        if self.refused is not None:
            return self.refused
        if self.metadata.fatal_error is not None:
            return refused(self.metadata.fatal_error, "the cluster's metadata")
        return None

    def _topic_error(self) -> ApiError | None:
        """Why a topic that is subscribed to cannot be read."""
        for name in self._subscribed:
            topic = self.metadata.topics.get(name)
            if topic is not None and topic.error_code in _FATAL_OF_TOPIC:
                return refused(topic.error_code, f"topic {name}")
        return None

    # -- topics

    def _want_topics(self) -> None:
        wanted = self.subscription.topics | {partition.topic for partition in self.subscription.partitions}
        wanted |= self.kept_topics
        if wanted == self._subscribed:
            return
        for name in wanted - self._subscribed:
            self.metadata.want(name, self.requests.now_ms)
        for name in self._subscribed - wanted:
            self.metadata.forget(name)
        self._subscribed = frozenset(wanted)

    def _resolve_topic_ids(self, topic_ids: Sequence[Uuid]) -> None:
        """Request the names of topics of which an assignment has the ids only."""
        if self._topics_in_flight or self.requests.now_ms < self._unresolved_at_ms:
            return
        node_id = self.requests.any_node()
        if node_id is None:
            return
        self._topics_in_flight = True
        self._unresolved_at_ms = self.requests.retry_at_ms()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids[:MAX_ELEMENTS_SENT]],
            allow_auto_topic_creation=False,
        )
        self.requests.send(node_id, request, self._on_topic_ids)

    def _on_topic_ids(self, answer: Any, error: ApiError | None) -> None:
        self._topics_in_flight = False
        if error is None:
            self._on_names(
                {topic.topic_id: topic.name for topic in answer.topics if topic.name and not topic.error_code}
            )


def require_name(topic: object) -> None:
    """Raises `ValueError` for what no topic can be called."""
    if not can_be_requested(topic):
        raise ValueError(f"{topic!r} is not the name of a topic")


def _deserializer(config: ConsumerConfig | ShareConsumerConfig, key: str) -> object:
    given = config.given.get(key)
    if given is not None:
        return given
    value = config.values[key]
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"Invalid value {value!r} for configuration {key}")
    return value
