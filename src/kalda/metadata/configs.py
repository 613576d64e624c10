"""Dynamic configs, by resource. The image has the values that were set, without defaults or synonyms.

Not obvious:

- A removed topic's configs have no records of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.base.configs.resources import ConfigResourceType
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import ConfigRecord


class ConfigResource(NamedTuple):
    """A resource with configs. `BROKER` with an empty name is the cluster-wide default of all brokers."""

    type: int
    name: str


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, name)


def broker_resource(broker_id: int | None) -> ConfigResource:
    """The resource of one broker; with None, that of the default of all brokers."""
    return ConfigResource(ConfigResourceType.BROKER, "" if broker_id is None else str(broker_id))


class ConfigsImage(NamedTuple):
    """Value by key, by resource; resources without configs are left out."""

    resources: Mapping[ConfigResource, Mapping[str, str]]

    @property
    def is_empty(self) -> bool:
        return not self.resources

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.resources.get(resource, _NOTHING)

    def of_topic(self, name: str) -> Mapping[str, str]:
        return self.of(topic_resource(name))

    def of_broker(self, broker_id: int) -> dict[str, str]:
        """The cluster-wide default, overridden by the configs of this broker."""
        return {**self.of(broker_resource(None)), **self.of(broker_resource(broker_id))}

    def write(self, writer: ImageWriter) -> None:
        for resource in sorted(self.resources):
            for name, value in sorted(self.resources[resource].items()):
                writer.write(
                    ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
                )


_NOTHING: Mapping[str, str] = {}
EMPTY = ConfigsImage({})


class ConfigsDelta:
    """Changed keys by changed resource; None for a key that was removed."""

    __slots__ = ("changes", "image")

    def __init__(self, image: ConfigsImage) -> None:
        self.image = image
        self.changes: dict[ConfigResource, dict[str, str | None]] = {}

    @classmethod
    def of_whole(cls, image: ConfigsImage) -> ConfigsDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update({resource: dict(configs) for resource, configs in image.resources.items()})
        return delta

    def replay(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        self.changes.setdefault(resource, {})[record.name] = record.value

    def remove_topic(self, name: str) -> None:
        """Remove the configs of a removed topic. The log has no records for this."""
        resource = topic_resource(name)
        removed: dict[str, str | None] = dict.fromkeys((*self.image.of(resource), *self.changes.get(resource, {})))
        if removed:
            self.changes[resource] = removed

    def finish_snapshot(self) -> None:
        for resource, configs in self.image.resources.items():
            changes = self.changes.setdefault(resource, {})
            for name in configs:
                changes.setdefault(name, None)

    def apply(self) -> ConfigsImage:
        resources = dict(self.image.resources)
        for resource, changes in self.changes.items():
            merged = {**self.image.of(resource), **changes}
            kept = {name: value for name, value in merged.items() if value is not None}
            if kept:
                resources[resource] = kept
            else:
                resources.pop(resource, None)
        return ConfigsImage(resources)
