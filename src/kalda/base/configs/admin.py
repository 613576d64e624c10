"""The admin client's config keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kalda.base.configs import client
from kalda.base.configs.definition import INT, LIST, AtLeast, Definition, InvalidConfig, Items, Key

KEYS = (
    Key("bootstrap.controllers", LIST, (), Items()),
    Key("default.api.timeout.ms", INT, 60_000, AtLeast(0)),
    Key("retries", INT, 2**31 - 1, AtLeast(0)),
)
ADMIN = Definition(sorted((*client.KEYS, *KEYS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(client.ClientConfig):
    """An admin client's configuration; times in ms. Fields have the names of Kafka's keys."""

    bootstrap_controllers: tuple[str, ...]
    """Where it is not empty, the client connects to controllers (KIP-919), and `bootstrap_servers` is empty."""
    default_api_timeout_ms: int


def admin_config(given: Mapping[str, object] | None, keywords: Mapping[str, object]) -> AdminConfig:
    """The configuration of a mapping and keywords. Raises `InvalidConfig`."""
    values, _ = client.gather(ADMIN, given, keywords)
    at = cast(Mapping[str, Any], values)
    if at["bootstrap.controllers"] and at["bootstrap.servers"]:
        raise InvalidConfig("bootstrap.servers and bootstrap.controllers exclude each other; give one of them")
    if not at["bootstrap.servers"] and not at["bootstrap.controllers"]:
        raise InvalidConfig("bootstrap.servers is missing: host:port pairs of some brokers are expected")
    return client.made(
        AdminConfig,
        values,
    )
