"""Configs of topics, brokers, groups and client-metrics subscriptions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.administration import (
    ANY,
    Ask,
    Outcomes,
    Plan,
    Target,
    TargetKind,
    error_in,
    error_of,
    per_item,
    single,
)
from kalda.clientcore.connections.errors import UnknownTopic, refused
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """`value` is None where it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None

    @property
    def is_default(self) -> bool:
        """The value is set nowhere; it is the default of the software."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class ConfigResource(NamedTuple):
    """A broker's name is its id; the empty name is the default of all brokers."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", "-")
        return f"{kind} {self.name}" if self.name else f"the default of all {kind}s"

    @property
    def broker_id(self) -> int | None:
        """The broker that must get the request itself, since no other has its static configuration; else None."""
        if self.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and self.name.isdecimal():
            return int(self.name)
        return None


class Alteration(NamedTuple):
    name: str
    operation: ConfigOperation
    value: str | None = None


_SHOWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)


_TOPICS_A_REQUEST = 100
"""A response lists every config of each topic: some 4 KB."""


def _resource_target(resource: ConfigResource) -> Target:
    broker_id = resource.broker_id
    return ANY if broker_id is None else Target(TargetKind.BROKER, broker_id)


def describe_configs(
    resources: Collection[ConfigResource], *, documentation: bool
) -> Plan[Outcomes[ConfigResource, dict[str, ConfigEntry]]]:
    """DescribeConfigs."""

    def build(group: list[ConfigResource]) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=r.type, resource_name=r.name, configuration_keys=None)
                for r in group
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )

    def read(
        answer: Any, _: list[ConfigResource]
    ) -> Iterator[tuple[ConfigResource, dict[str, ConfigEntry] | ApiError]]:
        for each in answer.results:
            resource = ConfigResource(ConfigResourceType(each.resource_type), each.resource_name)
            yield resource, error_in(each, str(resource)) or {config.name: entry_of(config) for config in each.configs}

    return per_item(resources, _resource_target, build, read)


def entry_of(config: DescribeConfigsResourceResult) -> ConfigEntry:
    """The config of a response."""
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource(config.config_source),
        config.read_only,
        config.is_sensitive,
        tuple(Synonym(s.name, s.value, ConfigSource(s.source)) for s in config.synonyms),
        config.documentation,
    )


def alter_configs(
    alterations: Mapping[ConfigResource, Collection[Alteration]], *, validate_only: bool
) -> Plan[Outcomes[ConfigResource, None]]:
    """IncrementalAlterConfigs."""

    def build(group: list[ConfigResource]) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        IncrementalAlterConfigsRequestAlterableConfig(
                            name=change.name, config_operation=change.operation, value=change.value
                        )
                        for change in alterations[resource]
                    ],
                )
                for resource in group
            ],
            validate_only=validate_only,
        )

    def read(answer: Any, _: list[ConfigResource]) -> Iterator[tuple[ConfigResource, ApiError | None]]:
        for each in answer.responses:
            resource = ConfigResource(ConfigResourceType(each.resource_type), each.resource_name)
            yield resource, error_in(each, str(resource))

    return per_item(alterations, _resource_target, build, read)


def topic_overrides(topics: Sequence[str]) -> Plan[dict[str, dict[str, str | None]]]:
    """DescribeConfigs in few requests: the configs that are set on each topic, or dynamically on the brokers. A topic
    whose configs this user has no right to see has none. Raises `ApiError`."""
    overrides: dict[str, dict[str, str | None]] = {}

    def check(answer: Any) -> ApiError | None:
        for result in answer.results:
            if result.error_code and result.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                error = refused(result.error_code, f"topic {result.resource_name}", result.error_message)
                is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return UnknownTopic(error.message) if is_unknown else error
        return None

    for start in range(0, len(topics), _TOPICS_A_REQUEST):
        resources = [
            DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=None)
            for name in topics[start : start + _TOPICS_A_REQUEST]
        ]
        answer = yield from single(Ask(ANY, DescribeConfigsRequest(resources=resources)), check)
        for result in answer.results:
            entries = sorted(map(entry_of, result.configs))
            overrides[result.resource_name] = {each.name: each.value for each in entries if each.source in _SHOWN}
    return overrides


def list_config_resources(
    types: Collection[ConfigResourceType], what: str = "the config resources"
) -> Plan[list[ConfigResource]]:
    """ListConfigResources."""
    answer = yield from single(Ask(ANY, ListConfigResourcesRequest(resource_types=list(types))), error_of(what))
    return sorted(ConfigResource(ConfigResourceType(r.resource_type), r.resource_name) for r in answer.config_resources)
