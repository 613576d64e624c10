"""Dynamic configs of brokers: layers, and which alterations are valid (KIP-226).

A value comes from the first layer that has the key or one of its synonyms: this broker's dynamic configs, the
cluster's dynamic configs, the properties file, the default. `Layers` holds the first three as texts. `effective` makes
a `ServerConfig` of them. It leaves out a dynamic value that does not parse, and one of a key that is not dynamic, so
that such a value cannot stop the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kalda.base.configs.broker import (
    BROKER,
    CLUSTER_LEVEL_LISTENER,
    LISTENER_SECURITY,
    PER_BROKER_ONLY,
    base_name,
    find_key,
    has_listener_prefix,
    is_dynamic,
    synonyms,
)
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.resources import ConfigSource
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.server_checks import RequirementFailed
from kalda.base.errors import ErrorCode

_READ_ONLY = "Cannot update these configs dynamically"
_THREADS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "log.cleaner.threads",
)


class Layers(NamedTuple):
    """Where a broker's values come from, each layer as texts by key."""

    static: Mapping[str, str]
    cluster: Mapping[str, str] = MappingProxyType({})
    """dynamic, for all brokers: the config resource with the empty name"""
    broker: Mapping[str, str] = MappingProxyType({})
    """dynamic, for this broker"""

    def in_order(self) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
        """The layers with their sources, in order of precedence."""
        return (
            (self.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        )

    def merged(self) -> dict[str, str]:
        """All layers in one. A dynamic value replaces all its synonyms of lower layers, whatever the precedence among
        these synonyms."""
        merged = dict(self.static)
        for layer in (self.cluster, self.broker):
            for name, text in layer.items():
                for synonym in synonyms(name, match_listener=False):
                    merged.pop(synonym, None)
                merged[name] = text
        return merged


def effective(layers: Layers) -> tuple[ServerConfig, list[InvalidConfig]]:
    """The effective configuration, and the errors of the dynamic values that were left out."""
    faults: list[InvalidConfig] = []
    kept = Layers(layers.static, dynamic_values(layers.cluster, faults), dynamic_values(layers.broker, faults))
    try:
        return ServerConfig(kept.merged()), faults
    except InvalidConfig as error:
        faults.append(error)
        return ServerConfig(layers.static), faults


def dynamic_values(layer: Mapping[str, str], faults: list[InvalidConfig] | None = None) -> dict[str, str]:
    """A dynamic layer without the values that cannot be used, whose errors are added to `faults`: a controller takes
    what no broker has checked."""
    kept: dict[str, str] = {}
    for name, text in layer.items():
        key = find_key(name)
        try:
            _refuse([name] if _is_read_only(name) else [], _READ_ONLY)
            if key is not None:
                key.parse(text)
        except InvalidConfig as error:
            if faults is not None:
                faults.append(error)
        else:
            kept[name] = text
    return kept


def check_alteration(layers: Layers, altered: Mapping[str, str], *, per_broker: bool) -> ServerConfig:
    """Check that `altered` may replace all dynamic configs of a broker (with `per_broker` off, those of the cluster).

    Returns the effective configuration with them. Raises `InvalidConfig` with INVALID_REQUEST, as Kafka does.
    """
    try:
        _check_names(altered, per_broker)
        for name, text in altered.items():
            key = find_key(name)
            if key is not None:
                key.parse(text)
        if per_broker:
            after = Layers(layers.static, layers.cluster, altered)
        else:
            after = Layers(layers.static, altered, layers.broker)
        config = ServerConfig(after.merged())
        before, _ = effective(layers)
        _check_threads(before, config)
    except InvalidConfig as error:
        prefix = "requirement failed: " if isinstance(error, RequirementFailed) else ""
        raise InvalidConfig(prefix + error.message, ErrorCode.INVALID_REQUEST) from None
    return config


def _check_names(altered: Iterable[str], per_broker: bool) -> None:
    names = list(altered)
    _refuse([name for name in names if _is_read_only(name)], _READ_ONLY)
    _refuse(
        [name for name in names if name in LISTENER_SECURITY],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    if not per_broker:
        _refuse(
            [name for name in names if _is_per_broker(name)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


def _is_read_only(name: str) -> bool:
    """True of the keys of the properties file. The controllers accept them as dynamic configs, without effect."""
    return name in BROKER and not is_dynamic(name)


def _is_per_broker(name: str) -> bool:
    if has_listener_prefix(name):
        return base_name(name) not in CLUSTER_LEVEL_LISTENER
    return name in PER_BROKER_ONLY


def _refuse(names: list[str], why: str) -> None:
    if names:
        raise InvalidConfig(f"{why}: [{', '.join(names)}]")


def _check_threads(before: ServerConfig, after: ServerConfig) -> None:
    """A thread count grows to at most double, and shrinks to at least half, of the current value."""
    for name in _THREADS:
        old, new = before[name], after[name]
        if new == old:
            continue
        failure = f"Dynamic thread count update validation failed for {name}={new}"
        if new <= 0:
            raise InvalidConfig(f"{failure}, value should be at least 1")
        if new < old // 2:
            raise InvalidConfig(f"{failure}, value should be at least half the current value {old}")
        if new > old * 2:
            raise InvalidConfig(f"{failure}, value should not be greater than double the current value {old}")
