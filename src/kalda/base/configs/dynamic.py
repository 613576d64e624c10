"""Dynamic configs, and what is effective with them: layers, valid alterations, values with their source.

A value comes from the first layer that has the key or one of its synonyms: this broker's dynamic configs, the cluster's
dynamic configs, the properties file, the default. `Layers` holds the first three as texts. `effective` makes a
`ServerConfig` of them. It leaves out a dynamic value that does not parse, and one of a key that is not dynamic, so that
such a value cannot stop the node.

Effective configs with their source and synonyms, as DescribeConfigs shows them (KIP-226, KIP-524).

A chain of synonyms lists every place where the value is set. The first one determines the effective value. Sensitive
values are replaced by None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kalda.base.configs.broker import (
    BROKER,
    CLUSTER_LEVEL_LISTENER,
    DYNAMIC_ONLY,
    LISTENER_SECURITY,
    PER_BROKER_ONLY,
    base_name,
    find_key,
    has_listener_prefix,
    is_dynamic,
    is_sensitive,
    synonyms,
)
from kalda.base.configs.client_metrics import CLIENT_METRICS
from kalda.base.configs.definition import Definition, InvalidConfig, Type, Value, to_text
from kalda.base.configs.group import BROKER_SYNONYMS as GROUP_SYNONYMS
from kalda.base.configs.group import GROUP
from kalda.base.configs.resources import ConfigSource
from kalda.base.configs.server import RequirementFailed, ServerConfig, with_node_id_synonyms
from kalda.base.configs.topic import BROKER_SYNONYMS as TOPIC_SYNONYMS
from kalda.base.configs.topic import TOPIC
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


class Synonym(NamedTuple):
    """One place where a value is set."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(NamedTuple):
    """One described config."""

    name: str
    value: str | None
    source: ConfigSource
    type: Type
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


def describe_topic(
    layers: Layers, config: ServerConfig, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[Entry]:
    """A topic's configs, internal ones where the topic sets them. `config` is the effective configuration of `layers`.
    `names` selects keys, None all of them; unknown names are left out."""
    defaults = config.topic_defaults()
    entries = []
    for key in TOPIC:
        if (key.internal and key.name not in overrides) or (names is not None and key.name not in names):
            continue
        sources = TOPIC_SYNONYMS.get(key.name, ())
        chain = _broker_chain(layers, sources[0][0]) if sources else []
        value = to_text(defaults[key.name])
        if key.name in overrides:
            value = _shown(TOPIC, key.name, overrides[key.name])
            chain.insert(0, Synonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        source = chain[0].source if chain else ConfigSource.DEFAULT_CONFIG
        entries.append(Entry(key.name, value, source, key.type, synonyms=tuple(chain)))
    return entries


def describe_broker(layers: Layers, config: ServerConfig, names: Collection[str] | None = None) -> list[Entry]:
    """All configs of a broker: the keys of the table, and other keys that are set."""
    known = [key.name for key in BROKER if not key.internal]
    listed = dict.fromkeys([*known, *layers.merged()])
    return [_broker_entry(layers, name, config.values.get(name)) for name in listed if names is None or name in names]


def describe_cluster_default(layers: Layers, names: Collection[str] | None = None) -> list[Entry]:
    """The dynamic configs for all brokers: only those that are set, and only from this layer."""
    only = Layers({}, layers.cluster, {})
    entries = []
    for name, text in layers.cluster.items():
        if names is not None and name not in names:
            continue
        key = find_key(name)
        entry = _broker_entry(only, name, _parsed(name, text) if key is not None else text)
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        chain = tuple(synonym for synonym in entry.synonyms if synonym.source is source)
        entries.append(Entry(name, entry.value, source, entry.type, entry.read_only, entry.sensitive, chain))
    return entries


def describe_group(
    layers: Layers,
    config: ServerConfig,
    overrides: Mapping[str, str],
    task_assignor: Callable[[], str],
    names: Collection[str] | None = None,
) -> list[Entry]:
    """A group's configs, internal ones where the group sets them; those that are not set come from the broker's.
    `task_assignor` returns the name of the first of `group.streams.assignors`."""
    entries = []
    for key in GROUP:
        if (key.internal and key.name not in overrides) or (names is not None and key.name not in names):
            continue
        synonym = GROUP_SYNONYMS.get(key.name)
        if synonym is not None:
            value = task_assignor() if synonym == "group.streams.assignors" else to_text(config[synonym])
            chain = _broker_chain(layers, synonym)
        else:
            value = to_text(GROUP.default(key.name))
            chain = [Synonym(key.name, value, ConfigSource.DEFAULT_CONFIG)]
        if key.name in overrides:
            value = _shown(GROUP, key.name, overrides[key.name])
            own = Synonym(key.name, value, ConfigSource.GROUP_CONFIG)
            chain = [own, *chain]
        entries.append(Entry(key.name, value, chain[0].source, key.type, synonyms=tuple(chain)))
    return entries


def describe_client_metrics(overrides: Mapping[str, str], names: Collection[str] | None = None) -> list[Entry]:
    """A client metrics subscription."""
    entries = []
    for key in CLIENT_METRICS:
        if names is not None and key.name not in names:
            continue
        if key.name in overrides:
            value = _shown(CLIENT_METRICS, key.name, overrides[key.name])
            chain: tuple[Synonym, ...] = (Synonym(key.name, value, ConfigSource.CLIENT_METRICS_CONFIG),)
            entries.append(Entry(key.name, value, ConfigSource.CLIENT_METRICS_CONFIG, key.type, synonyms=chain))
        else:
            value = to_text(CLIENT_METRICS.default(key.name))
            entries.append(Entry(key.name, value, ConfigSource.DEFAULT_CONFIG, key.type))
    return entries


def documentation(kind: str, name: str) -> str | None:
    """The line on a key of a `topic`, `broker`, `group` or `client_metrics` resource, where there is one."""
    from kalda.base.configs import documentation as texts

    table: dict[str, dict[str, str]] = {
        "topic": texts.TOPIC,
        "broker": texts.BROKER,
        "group": texts.GROUP,
        "client_metrics": texts.CLIENT_METRICS,
    }
    if kind == "broker":
        key = find_key(name)
        name = key.name if key is not None else name
    return table[kind].get(name)


def _broker_entry(layers: Layers, name: str, value: Value) -> Entry:
    key = find_key(name)
    sensitive = is_sensitive(name)
    chain = _broker_chain(layers, name)
    return Entry(
        name,
        None if sensitive else to_text(value),
        chain[0].source if chain else ConfigSource.DEFAULT_CONFIG,
        key.type if key is not None else Type.UNKNOWN,
        read_only=not is_dynamic(name),
        sensitive=sensitive,
        synonyms=tuple(chain),
    )


def _broker_chain(layers: Layers, name: str) -> list[Synonym]:
    """Every place where a broker's value is set, down to its default, from the first place with the name itself on.

    Synonyms before the name itself are left out, as Kafka leaves them out.
    """
    names = synonyms(name)
    chain: list[Synonym] = []
    for layer, source in layers._replace(static=with_node_id_synonyms(layers.static)).in_order():
        for synonym in names:
            text = layer.get(synonym)
            if text is not None:
                chain.append(Synonym(synonym, None if is_sensitive(name) else text, source))
    for synonym in names:
        table = BROKER if synonym in BROKER else DYNAMIC_ONLY
        default = to_text(table.default(synonym)) if synonym in table and synonym not in DYNAMIC_ONLY else None
        if default is not None:
            chain.append(Synonym(synonym, None if is_sensitive(name) else default, ConfigSource.DEFAULT_CONFIG))
    while chain and chain[0].name != name:
        chain.pop(0)
    return chain


def _parsed(name: str, text: str) -> Value:
    key = find_key(name)
    assert key is not None
    try:
        return key.parse(text)
    except InvalidConfig:
        return text


def _shown(table: Definition, name: str, text: str) -> str | None:
    """A stored text in the form in which Kafka writes the value; unchanged where it is no longer valid."""
    try:
        return to_text(table[name].parse(text))
    except InvalidConfig:
        return text
