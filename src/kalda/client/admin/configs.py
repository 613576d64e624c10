"""Configs of topics, brokers, groups and client-metrics subscriptions: DescribeConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.errors import ErrorCode
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import UnknownTopic, refused
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

_TOPICS_A_REQUEST = 100
"""A response lists every config of each topic: some 4 KB."""


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


class Resource(NamedTuple):
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


def describe_configs(
    cluster: ClusterClient, resource: Resource, names: Collection[str] | None = None, *, documentation: bool = False
) -> list[ConfigEntry]:
    """The effective configs of the resource, sorted by name. Raises `ApiError`."""
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
    answer = _request(cluster, resource, request, "results")
    return sorted(entry_of(config) for result in answer.results for config in result.configs)


def topic_overrides(cluster: ClusterClient, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """The configs that are set on each topic, or dynamically on the brokers, in few requests. A topic whose configs
    this user has no right to see has none. Raises `ApiError`."""
    shown = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
    overrides: dict[str, dict[str, str | None]] = {}

    def check(answer: DescribeConfigsResponse) -> None:
        for result in answer.results:
            if result.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                _check(result, f"topic {result.resource_name}")

    for start in range(0, len(topics), _TOPICS_A_REQUEST):
        resources = [
            DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=None)
            for name in topics[start : start + _TOPICS_A_REQUEST]
        ]
        answer = cluster.any_broker(DescribeConfigsRequest(resources=resources), check=check)
        for result in answer.results:
            entries = sorted(map(entry_of, result.configs))
            overrides[result.resource_name] = {each.name: each.value for each in entries if each.source in shown}
    return overrides


def alter_configs(
    cluster: ClusterClient,
    resource: Resource,
    alterations: Collection[Alteration],
    *,
    validate_only: bool = False,
    timeout_ms: int | None = None,
) -> None:
    """Change these configs of the resource and no others (KIP-339). Raises `ApiError`."""
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
    _request(cluster, resource, request, "responses", timeout_ms)


def set_configs(
    cluster: ClusterClient, resource: Resource, values: Mapping[str, str], *, timeout_ms: int | None = None
) -> None:
    """`alter_configs` that only sets."""
    alterations = [Alteration(name, ConfigOperation.SET, value) for name, value in values.items()]
    alter_configs(cluster, resource, alterations, timeout_ms=timeout_ms)


def _request(
    cluster: ClusterClient, resource: Resource, request: Any, results: str, timeout_ms: int | None = None
) -> Any:
    """The response; `results` is the name of its field that has the results with their error codes."""

    def check(answer: Any) -> None:
        for result in getattr(answer, results):
            _check(result, str(resource))

    broker_id = resource.broker_id
    if broker_id is not None:
        return cluster.broker(broker_id, request, check=check, timeout_ms=timeout_ms)
    return cluster.any_broker(request, check=check, timeout_ms=timeout_ms)


def _check(result: Any, what: str) -> None:
    """Raise the error of one result of a response."""
    if result.error_code:
        error = refused(result.error_code, what, result.error_message)
        raise UnknownTopic(error.message) if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error


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
