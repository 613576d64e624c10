"""Topic configs: keys, checks across several keys, and the broker keys that are their defaults.

`validate` refuses what Kafka's log config refuses. A value that the topic does not set comes from the first of its
broker keys (`BROKER_SYNONYMS`) that is set, converted from that key's unit.
"""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.configs.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    AtLeast,
    Between,
    Definition,
    GzipLevel,
    InvalidConfig,
    Items,
    Key,
    OneOf,
    ThrottledReplicas,
    Value,
    invalid_value,
)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

TOPIC_KEYS = (
    Key("cleanup.policy", LIST, ("delete",), Items("compact", "delete")),
    Key("compression.gzip.level", INT, -1, GzipLevel()),
    Key("compression.lz4.level", INT, 9, Between(1, 17)),
    Key("compression.type", STRING, "producer", OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    Key("compression.zstd.level", INT, 3, Between(-131_072, 22)),
    Key("delete.retention.ms", LONG, 86_400_000, AtLeast(0)),
    Key("errors.deadletterqueue.group.enable", BOOLEAN, False),
    Key("file.delete.delay.ms", LONG, 60_000, AtLeast(0)),
    Key("flush.messages", LONG, LONG_MAX, AtLeast(1)),
    Key("flush.ms", LONG, LONG_MAX, AtLeast(0)),
    Key("follower.replication.throttled.replicas", LIST, (), ThrottledReplicas()),
    Key("index.interval.bytes", INT, 4096, AtLeast(0)),
    Key("internal.segment.bytes", INT, None, internal=True),
    Key("leader.replication.throttled.replicas", LIST, (), ThrottledReplicas()),
    Key("local.retention.bytes", LONG, -2, AtLeast(-2)),
    Key("local.retention.ms", LONG, -2, AtLeast(-2)),
    Key("max.compaction.lag.ms", LONG, LONG_MAX, AtLeast(1)),
    Key("max.decompressed.message.bytes", INT, 2_147_483_639, Between(1, 2_147_483_639)),
    Key("max.message.bytes", INT, 1_048_588, AtLeast(0)),
    Key("message.timestamp.after.max.ms", LONG, 3_600_000, AtLeast(0)),
    Key("message.timestamp.before.max.ms", LONG, LONG_MAX, AtLeast(0)),
    Key("message.timestamp.type", STRING, "CreateTime", OneOf("CreateTime", "LogAppendTime")),
    Key("min.cleanable.dirty.ratio", DOUBLE, 0.5, Between(0, 1)),
    Key("min.compaction.lag.ms", LONG, 0, AtLeast(0)),
    Key("min.insync.replicas", INT, 1, AtLeast(1)),
    Key("preallocate", BOOLEAN, False),
    Key("remote.copy.lag.bytes", LONG, -1, AtLeast(-1)),
    Key("remote.copy.lag.ms", LONG, 0, AtLeast(-1)),
    Key("remote.log.copy.disable", BOOLEAN, False),
    Key("remote.log.delete.on.disable", BOOLEAN, False),
    Key("remote.storage.enable", BOOLEAN, False),
    Key("retention.bytes", LONG, -1),
    Key("retention.ms", LONG, 604_800_000, AtLeast(-1)),
    Key("segment.bytes", INT, 1_073_741_824, AtLeast(1_048_576)),
    Key("segment.index.bytes", INT, 10_485_760, AtLeast(4)),
    Key("segment.jitter.ms", LONG, 0, AtLeast(0)),
    Key("segment.ms", LONG, 604_800_000, AtLeast(1)),
    Key("unclean.leader.election.enable", BOOLEAN, False),
)

BROKER_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (
        ("log.flush.interval.ms", 1),
        ("log.flush.scheduler.interval.ms", 1),
    ),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.decompressed.message.bytes": (("max.decompressed.message.bytes", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "remote.copy.lag.bytes": (("log.remote.copy.lag.bytes", 1),),
    "remote.copy.lag.ms": (("log.remote.copy.lag.ms", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (
        ("log.roll.jitter.ms", 1),
        ("log.roll.jitter.hours", HOUR_MS),
    ),
    "segment.ms": (
        ("log.roll.ms", 1),
        ("log.roll.hours", HOUR_MS),
    ),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}
"""For each topic key, the broker keys that are its default, in order of precedence, each with the factor that converts
its unit into the topic key's."""

TOPIC = Definition(TOPIC_KEYS)

_UNLIMITED = -1
_AS_WHOLE_LOG = -2
"""local.retention.* is the same as retention.*"""


def validate(
    overrides: Mapping[str, str | None],
    defaults: Mapping[str, Value],
    *,
    existing: Mapping[str, str] | None = None,
    remote_storage: bool = False,
) -> dict[str, Value]:
    """Check a topic's configs; returns its effective values.

    `overrides` are all configs that the topic is to have; `defaults` the broker's values by topic key (see
    `server.ServerConfig.topic_defaults`); `existing` the configs that the topic has now. Raises `InvalidConfig`.
    """
    for name in overrides:
        if name not in TOPIC:
            raise InvalidConfig(f"Unknown topic config name: {name}")
    parsed: dict[str, Value] = {}
    for name, text in overrides.items():
        if text is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {name}")
        parsed[name] = TOPIC[name].parse(text)
    values = {**defaults, **parsed}
    _check_compaction_lags(values)
    enabled = values["remote.storage.enable"] is True
    if enabled:
        _check_remote(values, remote_storage)
    elif (existing or {}).get("remote.storage.enable") == "true" and not values["remote.log.delete.on.disable"]:
        raise InvalidConfig(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote "
            "data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If "
            "you want to disable remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
    return values


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is not a whole number"
    return value


def _check_compaction_lags(values: Mapping[str, Value]) -> None:
    lowest, highest = _number(values, "min.compaction.lag.ms"), _number(values, "max.compaction.lag.ms")
    if lowest > highest:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({lowest}) > max.compaction.lag.ms ({highest})"
        )


def _check_remote(values: Mapping[str, Value], remote_storage: bool) -> None:
    if not remote_storage:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage."
        )
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise InvalidConfig(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
        )
    for unit in ("ms", "bytes"):
        if values["remote.log.copy.disable"]:
            _check_copy_disabled(values, unit)
    for unit in ("bytes", "ms"):
        _check_local_retention(values, unit)
        _check_copy_lag(values, unit)


def _check_copy_disabled(values: Mapping[str, Value], unit: str) -> None:
    local, whole = _number(values, f"local.retention.{unit}"), _number(values, f"retention.{unit}")
    if local not in (_AS_WHOLE_LOG, whole):
        raise InvalidConfig(
            f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` must "
            "be set to the identical value because there will be no more logs copied to the remote storage."
        )


def _check_local_retention(values: Mapping[str, Value], unit: str) -> None:
    local, whole = _number(values, f"local.retention.{unit}"), _number(values, f"retention.{unit}")
    if whole == _UNLIMITED or local == _AS_WHOLE_LOG:
        return
    name = f"local.retention.{unit}"
    if local == _UNLIMITED:
        raise invalid_value(name, local, f"Value must not be -1 as retention.{unit} value is set as {whole}.")
    if local > whole:
        raise invalid_value(name, local, f"Value must not be more than retention.{unit} property value: {whole}")


def _check_copy_lag(values: Mapping[str, Value], unit: str) -> None:
    local, lag = _number(values, f"local.retention.{unit}"), _number(values, f"remote.copy.lag.{unit}")
    if local == _AS_WHOLE_LOG:
        local = _number(values, f"retention.{unit}")
    if lag > local >= 0:
        reason = f"Value must not exceed local.retention.{unit} (effective value: {local})"
        raise invalid_value(f"remote.copy.lag.{unit}", lag, reason)
