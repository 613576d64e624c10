"""The producer's config keys, and its configuration as values, checked across keys as Kafka checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kalda.base.configs import client
from kalda.base.configs.definition import (
    BOOLEAN,
    CLASS,
    INT,
    INT_MAX,
    LONG,
    STRING,
    AtLeast,
    Between,
    Definition,
    GzipLevel,
    InvalidConfig,
    Key,
    NonEmpty,
    OneOf,
    OneOfAnyCase,
)

KEYS = (
    Key("acks", STRING, "all", OneOf("all", "-1", "0", "1")),
    Key("batch.size", INT, 16_384, AtLeast(0)),
    Key("buffer.memory", LONG, 32 * 1024 * 1024, AtLeast(0)),
    Key("buffer.memory.allocation.strategy", STRING, "full", OneOfAnyCase("FULL", "INCREMENTAL")),
    Key("compression.gzip.level", INT, -1, GzipLevel()),
    Key("compression.lz4.level", INT, 9, Between(1, 17)),
    Key("compression.type", STRING, "none", OneOf("none", "gzip", "snappy", "lz4", "zstd")),
    Key("compression.zstd.level", INT, 3, Between(-131_072, 22)),
    Key("delivery.timeout.ms", INT, 120_000, AtLeast(0)),
    *(Key(f"default.list.{part}.serde.{what}", CLASS, None) for part in ("key", "value") for what in ("inner", "type")),
    Key("enable.idempotence", BOOLEAN, True),
    Key("key.serializer", CLASS, "bytes"),
    Key("linger.ms", LONG, 5, AtLeast(0)),
    Key("max.block.ms", LONG, 60_000, AtLeast(0)),
    Key("max.in.flight.requests.per.connection", INT, 5, AtLeast(1)),
    Key("max.request.size", INT, 1_048_576, AtLeast(0)),
    Key("metadata.max.idle.ms", LONG, 300_000, AtLeast(5_000)),
    Key("partitioner.adaptive.partitioning.enable", BOOLEAN, True),
    Key("partitioner.availability.timeout.ms", LONG, 0, AtLeast(0)),
    Key("partitioner.class", CLASS, None),
    Key("partitioner.ignore.keys", BOOLEAN, False),
    Key("partitioner.rack.aware", BOOLEAN, False),
    Key("retries", INT, INT_MAX, Between(0, INT_MAX)),
    Key("transaction.timeout.ms", INT, 60_000),
    Key("transaction.two.phase.commit.enable", BOOLEAN, False),
    Key("transactional.id", STRING, None, NonEmpty()),
    Key("value.serializer", CLASS, "bytes"),
)
PRODUCER = Definition(sorted((*client.KEYS, *KEYS)))
MAX_IN_FLIGHT_IDEMPOTENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(client.ClientConfig):
    """A producer's configuration; sizes in bytes, times in ms. Fields have the names of Kafka's keys."""

    client_rack: str
    acks: int
    """-1 (all), 0 or 1."""
    batch_size: int
    """At least 1."""
    buffer_memory: int
    grows_batches: bool
    """`buffer.memory.allocation.strategy=incremental`."""
    compression_type: str
    compression_level: int | None
    delivery_timeout_ms: int
    enable_idempotence: bool
    linger_ms: int
    max_block_ms: int
    max_in_flight: int
    max_request_size: int
    metadata_max_idle_ms: int
    adaptive_partitioning: bool
    availability_timeout_ms: int
    ignore_keys: bool
    rack_aware: bool
    retries: int
    transactional_id: str | None
    transaction_timeout_ms: int
    two_phase_commit: bool
    """Transactions never expire, and may be prepared (KIP-939)."""
    given: Mapping[str, object]
    """The keys that were given, with the values as they were given: objects for serializers and the like."""


def producer_config(given: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ProducerConfig:
    """The configuration of a mapping and keywords. Raises `InvalidConfig`."""
    values, raw = client.gather(PRODUCER, given, keywords)
    at = cast(Mapping[str, Any], values)
    if not at["bootstrap.servers"]:
        raise InvalidConfig("bootstrap.servers is missing: host:port pairs of some brokers are expected")
    acks = -1 if at["acks"] == "all" else int(at["acks"])
    codec = at["compression.type"]
    return client.made(
        ProducerConfig,
        values,
        acks=acks,
        batch_size=max(1, at["batch.size"]),
        grows_batches=at["buffer.memory.allocation.strategy"].lower() == "incremental",
        compression_level=at.get(f"compression.{codec}.level"),
        delivery_timeout_ms=_delivery_timeout(at, raw),
        enable_idempotence=_idempotence(at, raw, acks),
        max_in_flight=at["max.in.flight.requests.per.connection"],
        adaptive_partitioning=at["partitioner.adaptive.partitioning.enable"] and at["partitioner.class"] is None,
        availability_timeout_ms=at["partitioner.availability.timeout.ms"],
        ignore_keys=at["partitioner.ignore.keys"],
        rack_aware=at["partitioner.rack.aware"],
        two_phase_commit=_two_phase_commit(at, raw),
        given=raw,
    )


def _delivery_timeout(at: Mapping[str, Any], raw: Mapping[str, object]) -> int:
    """At least `linger.ms` + `request.timeout.ms`; the default grows with them, another value is refused."""
    timeout_ms: int = at["delivery.timeout.ms"]
    shortest_ms: int = min(at["linger.ms"] + at["request.timeout.ms"], INT_MAX)
    if timeout_ms < shortest_ms:
        if "delivery.timeout.ms" in raw:
            raise InvalidConfig(
                "delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms: it is "
                f"{timeout_ms}, they are {at['linger.ms']} + {at['request.timeout.ms']}"
            )
        return shortest_ms
    return timeout_ms


def _two_phase_commit(at: Mapping[str, Any], raw: Mapping[str, object]) -> bool:
    is_enabled: bool = at["transaction.two.phase.commit.enable"]
    if is_enabled and "transaction.timeout.ms" in raw:
        raise InvalidConfig(
            "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true. Transactions "
            "will not expire with two-phase commit enabled."
        )
    return is_enabled


def _idempotence(at: Mapping[str, Any], raw: Mapping[str, object], acks: int) -> bool:
    """Whether the producer is idempotent. By default it is, unless `acks` or `retries` were given and exclude it; asked
    for, or with a transactional id, what excludes it is refused (KIP-679)."""
    asked = raw.get("enable.idempotence") is not None
    wanted: bool = at["enable.idempotence"]
    transactional = at["transactional.id"] is not None
    if transactional and not wanted:
        raise InvalidConfig("Cannot set a transactional.id without also enabling idempotence.")
    if not wanted:
        return False
    in_flight = at["max.in.flight.requests.per.connection"]
    if in_flight > MAX_IN_FLIGHT_IDEMPOTENT:
        raise InvalidConfig(
            "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer: it is "
            f"{in_flight}"
        )
    for excluded, key, remedy in ((at["retries"] == 0, "retries", "non-zero"), (acks != -1, "acks", "all")):
        if excluded and (asked or transactional):
            raise InvalidConfig(f"Must set {key} to {remedy} in order to use the idempotent producer: it is {at[key]}")
        if excluded:
            return False
    return True
