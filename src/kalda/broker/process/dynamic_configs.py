"""A broker's effective configuration: the properties file, and over it the dynamic configs in the metadata (KIP-226).

`DynamicConfigs` computes it, `DynamicConfigPublisher` hands it to all modules. A topic's configuration is computed here
too, as the broker's values are the defaults of all topics.

A controller may have accepted a value that this node cannot read, since it runs other software. Such a value is left
out, with a warning, and the value of the next layer takes its place: it stops neither the node nor its start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from kalda.base.configs.definition import InvalidConfig, to_text
from kalda.base.configs.dynamic import Layers, effective
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.topic import TOPIC
from kalda.base.configs.without_effect import idle_changes, idle_group_changes, idle_topic_changes
from kalda.broker.replicas.publishing_faults import PublishingFaults
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.storage.config import LogConfig

log = logging.getLogger("kalda.broker")

_MAX_NAMED = 5
_VALIDATE_RECORDS = "kalda.validate.records"

OnConfig = Callable[[ServerConfig, MetadataImage], None]
"""`Module.on_config` of one module."""
Changes = Mapping[ConfigResource, Mapping[str, str | None]]
"""New values by resource and key; None where the key was removed."""


class DynamicConfigs:
    """This broker's effective configuration, and what topics inherit from it."""

    def __init__(self, config: ServerConfig) -> None:
        """`config` is the properties file and the defaults."""
        self.current = config
        """The effective configuration, as of the newest image that changed it."""
        self._static = config
        self._topic_defaults = _topic_defaults(config)
        """Topic configs by name, as texts, that a topic has where it sets none itself."""

    def log_config(self, topic: str, image: MetadataImage) -> LogConfig:
        """A topic's effective config: its own, over the cluster's and this broker's defaults. A value that is not valid
        is left out."""
        config = dict(self._topic_defaults)
        for name, text in image.configs.of_topic(topic).items():
            readable = _readable(name, text)
            if readable is not None:
                config[name] = readable
        return LogConfig.from_dict(config)

    def update(self, image: MetadataImage) -> None:
        """Compute `current` anew. A dynamic value that is not valid is left out."""
        configs, static = image.configs, self._static
        layers = Layers(static.properties, configs.of(broker_resource(None)), configs.of_broker(static.node_id))
        self.current, faults = effective(layers)
        for message in dict.fromkeys(fault.message for fault in faults):  # of one value in both layers, once
            log.warning("a dynamic config is left out: %s", message)
        self._topic_defaults = _topic_defaults(self.current)


class DynamicConfigPublisher:
    """Calls `on_config` of each module, in order: with the first image, and with each later one that changes dynamic
    configs of this broker or of all brokers, or levels of features."""

    name = "DynamicConfigPublisher"

    def __init__(self, configs: DynamicConfigs, on_config: Sequence[OnConfig], faults: PublishingFaults) -> None:
        self._configs = configs
        self._faults = faults
        self._on_config = on_config
        self._is_first_image = True
        self._closed = False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """Have the dynamic configs in the image take effect."""
        if self._closed:
            return
        changes: Changes = {} if delta.configs is None else delta.configs.changes
        has_broker_changes = any(resource.type == ConfigResourceType.BROKER for resource in changes)
        sections: list[tuple[str, Callable[[], None]]] = [
            ("check configs", lambda: _warn_of_unreadable(changes)),
            ("check configs", lambda: _warn_of_idle(changes, self._configs.current.node_id)),
        ]
        if has_broker_changes:
            sections.append(("update the dynamic configs of this broker", lambda: self._configs.update(image)))
        if has_broker_changes or delta.features is not None or self._is_first_image:
            sections += [
                (f"apply configs by {_name_of(on_config)}", partial(self._apply, on_config, image))
                for on_config in self._on_config
            ]
        for section, apply in sections:
            if self._is_first_image:
                apply()
            else:
                self._faults.contain(section, apply)
        self._is_first_image = False

    def _apply(self, on_config: OnConfig, image: MetadataImage) -> None:
        on_config(self._configs.current, image)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No config depends on which node is the controller."""

    def close(self) -> None:
        """Ignore later images: the modules are about to be closed."""
        self._closed = True


def _name_of(on_config: OnConfig) -> str:
    return getattr(on_config, "__qualname__", repr(on_config))


def _topic_defaults(config: ServerConfig) -> dict[str, str]:
    defaults = {name: text for name, value in config.topic_defaults().items() if (text := to_text(value)) is not None}
    defaults[_VALIDATE_RECORDS] = config[_VALIDATE_RECORDS]
    return defaults


@lru_cache(maxsize=1_000)
def _readable(name: str, text: str) -> str | None:
    """The value of a topic config as Kafka writes it; None where it is not valid. Keys of other software pass."""
    key = TOPIC.get(name)
    if key is None:
        return text
    try:
        return to_text(key.parse(text))
    except InvalidConfig:
        return None


def _warn_of_unreadable(changes: Changes) -> None:
    """Log which of the altered topic configs are not valid. Those of brokers `DynamicConfigs.update` logs."""
    for resource, changed in changes.items():
        if resource.type == ConfigResourceType.TOPIC:
            for name, text in changed.items():
                if text is not None and _readable(name, text) is None:
                    log.warning("config %s=%s of topic %s cannot be read: it is left out", name, text, resource.name)


def _warn_of_idle(changes: Changes, node_id: int) -> None:
    """Log which of the altered configs have no effect. Of topics and groups that share a reason, a few are named."""
    resources: dict[tuple[str, ...], list[str]] = {}
    for resource, changed in changes.items():
        if resource.type == ConfigResourceType.TOPIC:
            for why, names in idle_topic_changes(changed).items():
                resources.setdefault((why, "topic", *names), []).append(resource.name)
        elif resource.type == ConfigResourceType.GROUP:
            for why, names in idle_group_changes(changed).items():
                resources.setdefault((why, "group", *names), []).append(resource.name)
        elif resource.type == ConfigResourceType.BROKER and resource.name in ("", str(node_id)):
            for why, names in idle_changes(changed).items():
                log.warning("dynamic config %s: no effect, because %s", ", ".join(names), why)
    for (why, kind, *names), found in resources.items():
        others = len(found) - _MAX_NAMED
        of = ", ".join(found[:_MAX_NAMED]) + (f" and {others} more" if others > 0 else "")
        log.warning("config %s of %s %s: no effect, because %s", ", ".join(names), kind, of, why)
