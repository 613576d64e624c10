"""The consumer's config keys, and its configuration as values, checked across keys as Kafka checks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kalda.base.configs import client
from kalda.base.configs.client import offset_reset_counterpart
from kalda.base.configs.definition import (
    BOOLEAN,
    CLASS,
    INT,
    LIST,
    STRING,
    AtLeast,
    Definition,
    InvalidConfig,
    Items,
    Key,
    NonEmpty,
    OneOfAnyCase,
)

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
KEYS = (
    Key("allow.auto.create.topics", BOOLEAN, True),
    Key("auto.commit.interval.ms", INT, 5_000, AtLeast(0)),
    Key("auto.offset.reset", STRING, "latest"),
    Key("check.crcs", BOOLEAN, True),
    Key("default.api.timeout.ms", INT, 60_000, AtLeast(0)),
    *(Key(f"default.list.{part}.serde.{what}", CLASS, None) for part in ("key", "value") for what in ("inner", "type")),
    Key("enable.auto.commit", BOOLEAN, True),
    Key("exclude.internal.topics", BOOLEAN, True),
    Key("fetch.max.bytes", INT, 50 * 1024 * 1024, AtLeast(0)),
    Key("fetch.max.wait.ms", INT, 500, AtLeast(0)),
    Key("fetch.min.bytes", INT, 1, AtLeast(0)),
    Key("group.id", STRING, None, NonEmpty()),
    Key("group.instance.id", STRING, None, NonEmpty()),
    Key("group.protocol", STRING, "classic", OneOfAnyCase("CLASSIC", "CONSUMER")),
    Key("group.remote.assignor", STRING, None),
    Key("heartbeat.interval.ms", INT, 3_000),
    Key("isolation.level", STRING, "read_uncommitted", OneOfAnyCase("READ_COMMITTED", "READ_UNCOMMITTED")),
    Key("key.deserializer", CLASS, "bytes"),
    Key("max.partition.fetch.bytes", INT, 1024 * 1024, AtLeast(0)),
    Key("max.poll.interval.ms", INT, 300_000, AtLeast(1)),
    Key("max.poll.records", INT, 500, AtLeast(1)),
    Key("partition.assignment.strategy", LIST, ("range", "cooperative-sticky"), Items()),
    Key("session.timeout.ms", INT, 45_000),
    Key("value.deserializer", CLASS, "bytes"),
)
_RECEIVE_BUFFER = Key("receive.buffer.bytes", INT, -1, AtLeast(-1))
"""The system tunes the buffer. Kafka's default of 64 KiB would end that: on loopback, `poll_arrow` returned a quarter
fewer records a second with it, at 1.4 times the CPU, since each read takes less from the kernel; and over a link with a
long round trip it bounds the rate to 64 KiB a round trip."""
CONSUMER = Definition(sorted((*(k for k in client.KEYS if k.name != _RECEIVE_BUFFER.name), _RECEIVE_BUFFER, *KEYS)))
_ONLY_CLASSIC = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(client.ClientConfig):
    """A consumer's configuration; sizes in bytes, times in ms. Fields have the names of Kafka's keys."""

    client_rack: str
    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    """`earliest`, `latest`, `none` or `by_duration`."""
    reset_duration_ms: int | None
    check_crcs: bool
    default_api_timeout_ms: int
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str | None
    group_instance_id: str | None
    is_consumer_protocol: bool
    """`group.protocol=consumer` (KIP-848)."""
    group_remote_assignor: str | None
    heartbeat_interval_ms: int
    read_committed: bool
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    assignors: tuple[object, ...]
    """Names, or objects that assign."""
    session_timeout_ms: int
    given: Mapping[str, object]
    """The keys that were given, with the values as they were given: objects for deserializers and the like."""


def consumer_config(given: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ConsumerConfig:
    """The configuration of a mapping and keywords. Raises `InvalidConfig`."""
    strategy = (given or {}).get("partition.assignment.strategy", keywords.get("partition_assignment_strategy"))
    values, raw = client.gather(CONSUMER, given, keywords)
    at = cast(Mapping[str, Any], values)
    if not at["bootstrap.servers"]:
        raise InvalidConfig("bootstrap.servers is missing: host:port pairs of some brokers are expected")
    is_consumer = at["group.protocol"].upper() == "CONSUMER"
    reset, duration_ms = _reset(at["auto.offset.reset"])
    _check_group(at, raw, is_consumer)
    return client.made(
        ConsumerConfig,
        values,
        auto_offset_reset=reset,
        reset_duration_ms=duration_ms,
        enable_auto_commit=at["enable.auto.commit"] and at["group.id"] is not None,
        is_consumer_protocol=is_consumer,
        read_committed=at["isolation.level"].upper() == "READ_COMMITTED",
        assignors=_assignors(at["partition.assignment.strategy"] if strategy is None else strategy),
        given=raw,
    )


def _check_group(at: Mapping[str, Any], raw: Mapping[str, object], is_consumer: bool) -> None:
    if at["group.id"] is None:
        if raw.get("enable.auto.commit") is not None and at["enable.auto.commit"]:
            raise InvalidConfig("enable.auto.commit cannot be set to true when default group id (null) is used.")
        if at["group.instance.id"] is not None:
            raise InvalidConfig("group.instance.id needs a group.id")
    if is_consumer:
        for key in _ONLY_CLASSIC:
            if raw.get(key) is not None:
                raise InvalidConfig(f"{key} cannot be set when group.protocol=CONSUMER: the broker's group decides it")
    elif at["group.remote.assignor"] is not None:
        raise InvalidConfig("group.remote.assignor cannot be set when group.protocol=CLASSIC")
    if not is_consumer and at["heartbeat.interval.ms"] >= at["session.timeout.ms"]:
        raise InvalidConfig(
            f"heartbeat.interval.ms must be lower than session.timeout.ms: they are {at['heartbeat.interval.ms']} and "
            f"{at['session.timeout.ms']}"
        )


def _reset(text: str) -> tuple[str, int | None]:
    policy, _, duration = text.partition(":")
    policy = policy.strip().lower()
    if policy == "by_duration":
        matched = _DURATION.fullmatch(duration.strip())
        if matched is None or not any(matched.groupdict().values()):
            raise InvalidConfig(
                f"Invalid value {text} for configuration auto.offset.reset: by_duration:PnDTnHnMn.nS is expected"
            )
        parts = {name: float(value or 0) for name, value in matched.groupdict().items()}
        seconds = ((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts["seconds"]
        return policy, int(seconds * 1000)
    if (here := offset_reset_counterpart(policy)) is not None:
        raise InvalidConfig(
            f"Invalid value {text} for configuration auto.offset.reset: it is librdkafka's name for {here}"
        )
    if policy not in ("earliest", "latest", "none") or duration:
        raise InvalidConfig(
            f"Invalid value {text} for configuration auto.offset.reset: earliest, latest, none or "
            f"by_duration:<ISO 8601 duration> is expected"
        )
    return policy, None


def _assignors(strategy: object) -> tuple[object, ...]:
    items: tuple[object, ...]
    if isinstance(strategy, str):
        items = tuple(item.strip() for item in strategy.split(",") if item.strip())
    elif isinstance(strategy, list | tuple):
        items = tuple(strategy)
    else:
        items = (strategy,)
    for item in items:
        if isinstance(item, str) and item not in ASSIGNORS:
            raise InvalidConfig(
                f"Invalid value {item} for configuration partition.assignment.strategy: {', '.join(ASSIGNORS)} or an "
                f"object that assigns is expected"
            )
    if not items:
        raise InvalidConfig("partition.assignment.strategy is empty: at least one assignor is expected")
    return items
