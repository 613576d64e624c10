"""The admin client's config keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from kalda.base.configs import client
from kalda.base.configs.definition import INT, LIST, AtLeast, Definition, InvalidConfig, Items, Key, Value

KEYS = (
    Key("bootstrap.controllers", LIST, (), Items()),
    Key("default.api.timeout.ms", INT, 60_000, AtLeast(0)),
    Key("retries", INT, 2**31 - 1, AtLeast(0)),
)
ADMIN = Definition(sorted((*client.KEYS, *KEYS)))


class AdminConfig(NamedTuple):
    """An admin client's configuration; times in ms. Fields have the names of Kafka's keys."""

    bootstrap_servers: tuple[str, ...]
    bootstrap_controllers: tuple[str, ...]
    """Where it is not empty, the client connects to controllers (KIP-919), and `bootstrap_servers` is empty."""
    client_id: str
    connections_max_idle_ms: int
    default_api_timeout_ms: int
    enable_metrics_push: bool
    metadata_max_age_ms: int
    rebootstrap_trigger_ms: int
    may_rebootstrap: bool
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    connection_setup_timeout_ms: int
    connection_setup_timeout_max_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    values: Mapping[str, Value]
    """All keys."""


def admin_config(given: Mapping[str, object] | None, keywords: Mapping[str, object]) -> AdminConfig:
    """The configuration of a mapping and keywords. Raises `InvalidConfig`."""
    values, _ = client.gather(ADMIN, given, keywords)
    at = cast(Mapping[str, Any], values)
    if at["bootstrap.controllers"] and at["bootstrap.servers"]:
        raise InvalidConfig("bootstrap.servers and bootstrap.controllers exclude each other; give one of them")
    if not at["bootstrap.servers"] and not at["bootstrap.controllers"]:
        raise InvalidConfig("bootstrap.servers is missing: host:port pairs of some brokers are expected")
    return AdminConfig(
        bootstrap_servers=at["bootstrap.servers"],
        bootstrap_controllers=at["bootstrap.controllers"],
        client_id=at["client.id"],
        connections_max_idle_ms=at["connections.max.idle.ms"],
        default_api_timeout_ms=at["default.api.timeout.ms"],
        enable_metrics_push=at["enable.metrics.push"],
        metadata_max_age_ms=at["metadata.max.age.ms"],
        rebootstrap_trigger_ms=at["metadata.recovery.rebootstrap.trigger.ms"],
        may_rebootstrap=at["metadata.recovery.strategy"].lower() == "rebootstrap",
        reconnect_backoff_ms=at["reconnect.backoff.ms"],
        reconnect_backoff_max_ms=at["reconnect.backoff.max.ms"],
        request_timeout_ms=at["request.timeout.ms"],
        retry_backoff_ms=at["retry.backoff.ms"],
        retry_backoff_max_ms=at["retry.backoff.max.ms"],
        connection_setup_timeout_ms=at["socket.connection.setup.timeout.ms"],
        connection_setup_timeout_max_ms=at["socket.connection.setup.timeout.max.ms"],
        send_buffer_bytes=at["send.buffer.bytes"],
        receive_buffer_bytes=at["receive.buffer.bytes"],
        values=values,
    )
