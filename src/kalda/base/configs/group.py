"""Group configs (KIP-848, KIP-932, KIP-1071): keys, the broker keys that bound them, and checks across several keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kalda.base.configs.definition import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    STRING,
    AtLeast,
    Definition,
    InvalidConfig,
    Items,
    Key,
    OffsetReset,
    OneOf,
    Value,
)

GROUP_KEYS = (
    Key("consumer.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("consumer.assignor.offload.enable", BOOLEAN, True, internal=True),
    Key("consumer.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("consumer.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("errors.deadletterqueue.copy.record.enable", BOOLEAN, False),
    Key("errors.deadletterqueue.topic.name", STRING, ""),
    Key("share.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("share.assignor.offload.enable", BOOLEAN, True, internal=True),
    Key("share.auto.offset.reset", STRING, "latest", OffsetReset()),
    Key("share.delivery.count.limit", INT, 5, AtLeast(2)),
    Key("share.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("share.isolation.level", STRING, "read_uncommitted", OneOf("read_committed", "read_uncommitted")),
    Key("share.partition.max.record.locks", INT, 2000, AtLeast(100)),
    Key("share.record.lock.duration.ms", INT, 30_000, AtLeast(1000)),
    Key("share.renew.acknowledge.enable", BOOLEAN, True),
    Key("share.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("streams.acceptable.recovery.lag", LONG, 10_000, AtLeast(0), internal=True),
    Key("streams.assignment.interval.ms", INT, 1000, AtLeast(0)),
    Key("streams.assignor.name", STRING, None),
    Key("streams.assignor.offload.enable", BOOLEAN, True, internal=True),
    Key("streams.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("streams.initial.rebalance.delay.ms", INT, 3000, AtLeast(0)),
    Key("streams.num.standby.replicas", INT, 0, AtLeast(0)),
    Key("streams.num.warmup.replicas", INT, 2, AtLeast(0), internal=True),
    Key("streams.rack.aware.assignment.tags", LIST, (), Items()),
    Key("streams.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("streams.task.offset.interval.ms", INT, 60_000, AtLeast(1), internal=True),
)

BROKER_SYNONYMS = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.assignor.offload.enable": "group.consumer.assignor.offload.enable",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.assignor.offload.enable": "group.share.assignor.offload.enable",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.acceptable.recovery.lag": "group.streams.acceptable.recovery.lag",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.assignor.name": "group.streams.assignors",
    "streams.assignor.offload.enable": "group.streams.assignor.offload.enable",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.num.warmup.replicas": "group.streams.num.warmup.replicas",
    "streams.rack.aware.assignment.tags": "group.streams.rack.aware.assignment.tags",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
    "streams.task.offset.interval.ms": "group.streams.task.offset.interval.ms",
}
"""For each group key, the broker key that its default comes from. That of `streams.assignor.name` is the name of the
first of the assignors."""

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
_BOUNDED = (
    *_BOUNDED_BELOW,
    "streams.num.standby.replicas",
    "streams.num.warmup.replicas",
    "streams.task.offset.interval.ms",
)
_DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
_STREAMS_ASSIGNOR = "streams.assignor.name"
_PROTOCOLS = ("consumer", "share", "streams")


def bound_key(name: str, end: str) -> str:
    """The broker key that bounds a group key. `end` is `min` or `max`; it follows the protocol in the name, or
    precedes `standby` and `warmup`."""
    if name in ("streams.num.standby.replicas", "streams.num.warmup.replicas"):
        return f"group.streams.{end}.{name.removeprefix('streams.num.')}"
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.{end}.{rest}"


def validate(
    overrides: Mapping[str, str | None], broker: Mapping[str, Value], task_assignors: Callable[[], Collection[str]]
) -> dict[str, Value]:
    """Check a group's configs against the broker's bounds; returns the values that are set. `task_assignors` returns
    the names of those that `group.streams.assignors` has. Raises `InvalidConfig`."""
    for name in overrides:
        if name not in GROUP:
            raise InvalidConfig(f"Unknown group config name: {name}")
    parsed: dict[str, Value] = {}
    for name, text in overrides.items():
        if text is None:
            raise InvalidConfig(f"Null value not supported for group configs: {name}")
        parsed[name] = GROUP[name].parse(text)
    effective = effective_values(parsed, broker)
    for name in _BOUNDED:
        value = parsed.get(name)
        if value is None:
            continue
        assert isinstance(value, int)
        lowest, highest = broker.get(bound_key(name, "min")), broker.get(bound_key(name, "max"))
        if isinstance(lowest, int) and value < lowest:
            raise InvalidConfig(f"{name} must be greater than or equal to {bound_key(name, 'min')}")
        if isinstance(highest, int) and value > highest:
            raise InvalidConfig(f"{name} must be less than or equal to {bound_key(name, 'max')}")
    for protocol in _PROTOCOLS:
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if (session in parsed or heartbeat in parsed) and not _less(effective[heartbeat], effective[session]):
            raise InvalidConfig(f"{session} must be greater than {heartbeat}")
    assignor = parsed.get(_STREAMS_ASSIGNOR)
    if assignor is not None and assignor not in task_assignors():
        known = f"Registered assignors are: [{', '.join(task_assignors())}]."
        raise InvalidConfig(f"{_STREAMS_ASSIGNOR} '{assignor}' is not a registered task assignor. {known}")
    if str(parsed.get(_DEAD_LETTER_TOPIC, "")).startswith("__"):
        raise InvalidConfig(f"{_DEAD_LETTER_TOPIC}: DLQ topic name must not start with '__'")
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
