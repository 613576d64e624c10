"""Configs of client metrics subscriptions (KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.configs.definition import INT, LIST, Definition, InvalidConfig, Items, Key, Value
from kalda.base.errors import ErrorCode
from kalda.base.patterns import BadPattern, Pattern, java_pattern

KEYS = (
    Key("interval.ms", INT, 300_000),
    Key("match", LIST, (), Items()),
    Key("metrics", LIST, (), Items()),
)
CLIENT_METRICS = Definition(KEYS)
MATCH_PROPERTIES = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_MIN_INTERVAL_MS = 100
_MAX_INTERVAL_MS = 3_600_000


def validate(subscription: str, overrides: Mapping[str, str | None]) -> dict[str, Value]:
    """Check a subscription; returns its effective values. Raises `InvalidConfig`, with INVALID_REQUEST where Kafka
    does."""
    if not subscription:
        raise InvalidConfig("Subscription name can't be empty", ErrorCode.INVALID_REQUEST)
    texts: dict[str, str] = {}
    for name, text in overrides.items():
        if name not in CLIENT_METRICS:
            raise InvalidConfig(f"Unknown client metrics configuration: {name}", ErrorCode.INVALID_REQUEST)
        if text is None:
            raise InvalidConfig(f"Null value not supported for client metrics configs: {name}")
        texts[name] = text
    values = CLIENT_METRICS.parse(texts)
    interval_ms = values["interval.ms"]
    assert isinstance(interval_ms, int)
    if not _MIN_INTERVAL_MS <= interval_ms <= _MAX_INTERVAL_MS:
        raise InvalidConfig(
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            ErrorCode.INVALID_REQUEST,
        )
    patterns = values["match"]
    assert isinstance(patterns, tuple)
    parse_match(patterns)
    return values


def parse_match(entries: tuple[str, ...]) -> dict[str, Pattern]:
    """The patterns of the key `match`, by client property. Raises `InvalidConfig`."""
    patterns: dict[str, Pattern] = {}
    for entry in entries:
        parts = [part.strip() for part in entry.split("=")]
        illegal = InvalidConfig(f"Illegal client matching pattern: {entry}")
        if len(parts) != 2 or parts[0] not in MATCH_PROPERTIES:
            raise illegal
        try:
            patterns[parts[0]] = java_pattern(parts[1])
        except BadPattern:
            raise illegal from None
    return patterns
