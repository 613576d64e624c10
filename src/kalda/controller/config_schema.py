"""The `ConfigSchema` of the controller over the config tables and this node's properties.

A topic's value comes from the first of these layers that sets it: the topic's own configs; the dynamic configs of this
broker; those of all brokers; this node's properties; the default. In the layers of brokers several keys may set it, in
order of precedence, and in other units than the topic's key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kalda.base.configs import client_metrics, group
from kalda.base.configs.broker import BROKER, find_key
from kalda.base.configs.client_metrics import CLIENT_METRICS
from kalda.base.configs.definition import Definition, Type, Value, to_text
from kalda.base.configs.dynamic import Layers
from kalda.base.configs.group import GROUP
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.configs.topic import BROKER_SYNONYMS, TOPIC
from kalda.base.configs.topic import validate as validate_topic
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import validate_topic_name
from kalda.controller.configs import EffectiveConfig
from kalda.metadata.configs import ConfigResource

_TABLES: Mapping[ConfigResourceType, Definition] = {
    ConfigResourceType.TOPIC: TOPIC,
    ConfigResourceType.BROKER: BROKER,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS,
    ConfigResourceType.GROUP: GROUP,
}

_FILES = frozenset(("ssl.keystore.location", "ssl.truststore.location"))
"""Dynamic configs that name files."""


class NodeConfigSchema:
    """A `ConfigSchema` over one node's `server.properties`."""

    def __init__(
        self, properties: Mapping[str, str], refusal_of_file: Callable[[str], str | None] = lambda _: None
    ) -> None:
        """`refusal_of_file(path)` returns why no node may read the file that a config names; None: it may be read."""
        self._properties = dict(properties)
        self._refusal_of_file = refusal_of_file
        self._values: Mapping[str, Value] = {
            key.name: key.parse(properties[key.name]) if key.name in properties else BROKER.default(key.name)
            for key in BROKER
        }
        self._remote_storage = self._values.get("remote.log.storage.system.enable") is True
        self._topic_defaults = {key.name: self._topic_default(key.name) for key in TOPIC}

    def _topic_default(self, name: str) -> Value:
        text, source = _effective(name, {}, Layers(self._properties))
        return (
            TOPIC[name].parse(text)
            if text is not None and source is ConfigSource.STATIC_BROKER_CONFIG
            else TOPIC.default(name)
        )

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], existing: Mapping[str, str]) -> None:
        match resource.type:
            case ConfigResourceType.TOPIC:
                if not resource.name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
                validate_topic_name(resource.name)
                validate_topic(proposed, self._topic_defaults, existing=existing, remote_storage=self._remote_storage)
            case ConfigResourceType.BROKER:
                _validate_node_name(resource.name)
                for name, text in proposed.items():
                    key = find_key(name)
                    if key is None:
                        continue
                    key.parse(text)  # the broker has checked it too, but the controller itself uses some keys
                    if key.name in _FILES and text != existing.get(name):
                        self._require_file(name, text)
            case ConfigResourceType.CLIENT_METRICS:
                if not resource.name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
                client_metrics.validate(resource.name, proposed)
            case ConfigResourceType.GROUP:
                if not resource.name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
                group.validate(proposed, self._values, self._task_assignors)
            case _:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")

    def _task_assignors(self) -> Sequence[str]:
        from kalda.assignors.server_assignors import task_assignor_names  # a node's start does without

        return task_assignor_names(self._values["group.streams.assignors"])

    def _require_file(self, name: str, path: str) -> None:
        """A broker checks it too; a request to the controller itself, or about another broker, passes that by."""
        why = self._refusal_of_file(path)
        if why is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {path} for configuration {name}: {why}")

    def is_list(self, kind: ConfigResourceType, key: str) -> bool:
        """Whether values can be appended to and subtracted. The list of a client metrics subscription is replaced as a
        whole, as Kafka's controller has no types for that resource."""
        table = None if kind is ConfigResourceType.CLIENT_METRICS else _TABLES.get(kind)
        definition = None if table is None else table.get(key)
        return definition is not None and definition.type is Type.LIST

    def default(self, kind: ConfigResourceType, key: str) -> str | None:
        table = _TABLES.get(kind)
        return None if table is None or key not in table else to_text(table.default(key))

    def static_or_default(self, key: str) -> str | None:
        return self._properties[key] if key in self._properties else self.default(ConfigResourceType.BROKER, key)

    def effective_topic_value(
        self, key: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str | None:
        return _effective(key, topic, Layers(self._properties, cluster, broker))[0]

    def effective_topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Sequence[EffectiveConfig]:
        configs, layers = [], Layers(self._properties, cluster, broker)
        for name in sorted(key.name for key in TOPIC if not key.internal):
            value, source = _effective(name, topic, layers)
            configs.append(EffectiveConfig(name, value, source, TOPIC[name].sensitive))
        return configs


def _effective(key: str, topic: Mapping[str, str], layers: Layers) -> tuple[str | None, ConfigSource]:
    if key in topic:
        return topic[key], ConfigSource.DYNAMIC_TOPIC_CONFIG
    for layer, source in layers.in_order():
        for synonym, factor in BROKER_SYNONYMS.get(key, ()):
            if synonym in layer:
                return _in_topic_unit(layer[synonym], factor), source
    return to_text(TOPIC.default(key)), ConfigSource.DEFAULT_CONFIG


def _in_topic_unit(text: str, factor: int) -> str:
    """The value in the unit of the topic's key. Negative values mean no limit, in any unit."""
    if factor == 1:
        return text
    value = int(text)
    return text if value < 0 else str(value * factor)


def _validate_node_name(name: str) -> None:
    if not name:
        return
    try:
        node_id = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.") from None
    if node_id < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
