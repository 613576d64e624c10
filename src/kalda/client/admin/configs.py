"""Configs of topics, brokers, groups and client-metrics subscriptions: DescribeConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from kalda.client.cluster import Cluster
from kalda.client.errors import refused
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from, the most specific first in a list of synonyms."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Operation(IntEnum):
    """What an alteration does with a key; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None

    @property
    def is_default(self) -> bool:
        """Not set for this resource: it comes from the level above, or from the software."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class Resource(NamedTuple):
    """A broker's name is its id; the empty name is the default of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", "-")
        return f"{kind} {self.name}" if self.name else f"the default of all {kind}s"

    @property
    def broker_id(self) -> int | None:
        """The broker that has to be asked itself, since only it knows its static configuration."""
        if self.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and self.name.isdecimal():
            return int(self.name)
        return None


class Alteration(NamedTuple):
    name: str
    operation: Operation
    value: str | None = None


def describe_configs(
    cluster: Cluster, resource: Resource, names: Collection[str] | None = None, *, documentation: bool = False
) -> list[ConfigEntry]:
    """The resource's configs in force, by name. Raises `ApiError`."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configuration_keys=None if names is None else list(names),
            )
        ],
        include_synonyms=True,
        include_documentation=documentation,
    )
    answer = _ask(cluster, resource, request, "results")
    return sorted(_entry(config) for result in answer.results for config in result.configs)


def alter_configs(
    cluster: Cluster, resource: Resource, alterations: Collection[Alteration], *, validate_only: bool = False
) -> None:
    """Change some configs of the resource, and leave the others (KIP-339). Raises `ApiError`."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    IncrementalAlterConfigsRequestAlterableConfig(
                        name=change.name, config_operation=change.operation, value=change.value
                    )
                    for change in alterations
                ],
            )
        ],
        validate_only=validate_only,
    )
    _ask(cluster, resource, request, "responses")


def set_configs(cluster: Cluster, resource: Resource, values: Mapping[str, str]) -> None:
    """`alter_configs` that only sets."""
    alter_configs(cluster, resource, [Alteration(name, Operation.SET, value) for name, value in values.items()])


def _ask(cluster: Cluster, resource: Resource, request: Any, results: str) -> Any:
    def check(answer: Any) -> None:
        for result in getattr(answer, results):
            if result.error_code:
                raise refused(result.error_code, str(resource), result.error_message)

    broker_id = resource.broker_id
    if broker_id is not None:
        return cluster.broker(broker_id, request, check=check)
    return cluster.any_broker(request, check=check)


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        _source(config.config_source),
        config.read_only,
        config.is_sensitive,
        tuple(Synonym(s.name, s.value, _source(s.source)) for s in config.synonyms),
        config.documentation,
    )


def _source(code: int) -> ConfigSource:
    return ConfigSource(code) if code in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN
