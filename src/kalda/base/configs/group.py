"""Group configs (KIP-848, KIP-932, KIP-1071): keys, the broker keys that bound them, and checks across several keys."""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.configs.definition import (
    BOOLEAN,
    INT,
    STRING,
    AtLeast,
    Definition,
    InvalidConfig,
    Key,
    OffsetReset,
    OneOf,
    Value,
)

GROUP_KEYS = (
    Key("consumer.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("consumer.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("consumer.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("share.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("share.auto.offset.reset", STRING, "latest", OffsetReset()),
    Key("share.delivery.count.limit", INT, 5, AtLeast(2)),
    Key("share.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("share.isolation.level", STRING, "read_uncommitted", OneOf("read_committed", "read_uncommitted")),
    Key("share.partition.max.record.locks", INT, 2000, AtLeast(100)),
    Key("share.record.lock.duration.ms", INT, 30_000, AtLeast(1000)),
    Key("share.renew.acknowledge.enable", BOOLEAN, True),
    Key("share.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("streams.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("streams.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("streams.initial.rebalance.delay.ms", INT, 3000, AtLeast(0)),
    Key("streams.num.standby.replicas", INT, 0, AtLeast(0)),
    Key("streams.session.timeout.ms", INT, 45_000, AtLeast(1)),
)

BROKER_SYNONYMS = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
}
"""For each group key, the broker key whose value is its default."""

GROUP = Definition(GROUP_KEYS)

_BOUNDED_BELOW = (
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "consumer.assignment.interval.ms",
    "share.heartbeat.interval.ms",
    "share.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
    "streams.assignment.interval.ms",
)
_BOUNDED_ABOVE = (*_BOUNDED_BELOW, "streams.num.standby.replicas")
_PROTOCOLS = ("consumer", "share", "streams")


def bound_key(name: str, end: str) -> str:
    """The broker key that bounds a group key. `end` is `min` or `max`; it follows the protocol in the name, or
    precedes `standby`."""
    if name == "streams.num.standby.replicas":
        return f"group.streams.{end}.standby.replicas"
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.{end}.{rest}"


def validate(overrides: Mapping[str, str | None], broker: Mapping[str, Value]) -> dict[str, Value]:
    """Check a group's configs against the broker's bounds; returns the values that are set. Raises `InvalidConfig`."""
    for name in overrides:
        if name not in GROUP:
            raise InvalidConfig(f"Unknown group config name: {name}")
    parsed: dict[str, Value] = {}
    for name, text in overrides.items():
        if text is None:
            raise InvalidConfig(f"Null value not supported for group configs: {name}")
        parsed[name] = GROUP[name].parse(text)
    effective = effective_values(parsed, broker)
    for name in _BOUNDED_ABOVE:
        value = parsed.get(name)
        if value is None:
            continue
        assert isinstance(value, int)
        lowest, highest = broker.get(bound_key(name, "min")), broker[bound_key(name, "max")]
        if name in _BOUNDED_BELOW and isinstance(lowest, int) and value < lowest:
            raise InvalidConfig(f"{name} must be greater than or equal to {bound_key(name, 'min')}")
        if isinstance(highest, int) and value > highest:
            raise InvalidConfig(f"{name} must be less than or equal to {bound_key(name, 'max')}")
    for protocol in _PROTOCOLS:
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if (session in parsed or heartbeat in parsed) and not _less(effective[heartbeat], effective[session]):
            raise InvalidConfig(f"{session} must be greater than {heartbeat}")
    return parsed


def effective_values(parsed: Mapping[str, Value], broker: Mapping[str, Value]) -> dict[str, Value]:
    """Every group key's value: the group's, else the broker's, else the default."""
    values: dict[str, Value] = {}
    for key in GROUP:
        synonym = BROKER_SYNONYMS.get(key.name)
        if key.name in parsed:
            values[key.name] = parsed[key.name]
        elif synonym is not None:
            values[key.name] = broker[synonym]
        else:
            values[key.name] = GROUP.default(key.name)
    return values


def _less(one: Value, other: Value) -> bool:
    assert isinstance(one, int)
    assert isinstance(other, int)
    return one < other
