"""Limits on peers: sizes, counts, rates and times, with Kafka's defaults.

Values only, and the look-up of names of hosts in them. A field's docstring names the config key that it comes from;
fields without one are constants.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import MappingProxyType
from typing import NamedTuple

from kalda.base.configs.server import ServerConfig
from kalda.base.stats import MetricConfig

UNLIMITED = 2**31 - 1
_RATE_CONFIG = MetricConfig(1_000, 11)
MIN_REQUEST_BYTES = 8
"""API key, version and correlation id: the smallest request."""


_MOST_FILES = 1_000
_FILES_SHARE = 8


def descriptors_for_connections() -> int:
    """A connection whose descriptor has this number or a higher one is refused: almost all lower ones are open, and
    the rest are left for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return UNLIMITED
    return soft - min(_MOST_FILES, soft // _FILES_SHARE)


class Limits(NamedTuple):
    """Limits of one listener and its connections."""

    max_request_bytes: int = 104_857_600
    """socket.request.max.bytes"""
    idle_ms: int = 600_000
    """connections.max.idle.ms; negative: never"""
    slow_frame_ms: int = 30_000
    """A frame must arrive within this time plus the time that its size takes at `slow_frame_bytes_per_s`."""
    slow_frame_bytes_per_s: int = 16 * 1024
    closing_ms: int = 5_000
    """How long a closed connection may take to flush its last answers."""
    write_high_bytes: int = 512 * 1024
    """Above this many unsent bytes no request of the connection is served, until `write_low_bytes` is reached."""
    write_low_bytes: int = 128 * 1024
    max_unanswered: int = 100
    """Unanswered requests of a connection at which reading pauses."""
    max_unanswered_bytes: int = 64 * 1024 * 1024
    send_buffer_bytes: int = 102_400
    """socket.send.buffer.bytes; -1: the system's default"""
    receive_buffer_bytes: int = 102_400
    """socket.receive.buffer.bytes; -1: the system's default"""
    follower_send_buffer_bytes: int = 1024 * 1024
    """Of a connection over which a follower fetches, where `send_buffer_bytes` sets a smaller one: its responses have
    up to `replica.fetch.max.bytes` of a partition. Through a buffer of 100 KB a megabyte leaves in some ten turns of
    the loop, and the follower wakes up for each."""
    backlog: int = 50
    """socket.listen.backlog.size; also how many connections may wait for admission"""
    max_connections: int = UNLIMITED
    """max.connections"""
    max_creation_rate: int = UNLIMITED
    """max.connection.creation.rate"""

    @classmethod
    def of(cls, config: ServerConfig, listener: str) -> Limits:
        """The limits of a listener in a node's configuration. As in Kafka, each listener has the limits on connections
        that `listener.name.X.` sets, else those that limit all listeners of its role together."""
        return cls(
            max_request_bytes=config.for_listener(listener, "socket.request.max.bytes"),
            idle_ms=config.for_listener(listener, "connections.max.idle.ms"),
            send_buffer_bytes=config.for_listener(listener, "socket.send.buffer.bytes"),
            receive_buffer_bytes=config.for_listener(listener, "socket.receive.buffer.bytes"),
            backlog=config.for_listener(listener, "socket.listen.backlog.size"),
            max_connections=config.for_listener(listener, "max.connections"),
            max_creation_rate=config.for_listener(listener, "max.connection.creation.rate"),
        )


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits of all listeners of a role together, and of the node."""

    max_connections: int = UNLIMITED
    """max.connections"""
    max_connections_per_ip: int = UNLIMITED
    """max.connections.per.ip"""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """max.connections.per.ip.overrides, by address"""
    max_creation_rate: int = UNLIMITED
    """max.connection.creation.rate, connections a second"""
    rate_config: MetricConfig = _RATE_CONFIG
    """quota.window.size.seconds and quota.window.num: how far rates look back; fixed at the start"""
    queued_max_request_bytes: int = -1
    """queued.max.request.bytes: size of the requests of all connections, arriving or unanswered; -1: unlimited"""
    max_unread_bytes: int = 256 * 1024 * 1024
    """Of answers in memory that peers have not read, of all connections; see `peer_memory`."""
    max_logins: int = 1_000
    """kalda.max.unauthenticated.connections"""
    login_timeout_ms: int = 30_000
    """kalda.authentication.timeout.ms"""
    descriptors: int = field(default_factory=descriptors_for_connections)

    @classmethod
    def of(cls, config: ServerConfig, overrides: Mapping[str, int]) -> NodeLimits:
        """The limits of a node in its configuration. `overrides`: `max.connections.per.ip.overrides` by address."""
        return cls(
            max_connections=config["max.connections"],
            max_connections_per_ip=config["max.connections.per.ip"],
            max_connections_per_ip_overrides=MappingProxyType(dict(overrides)),
            max_creation_rate=config["max.connection.creation.rate"],
            rate_config=MetricConfig(config["quota.window.size.seconds"] * 1000, config["quota.window.num"]),
            queued_max_request_bytes=config["queued.max.request.bytes"],
            max_logins=config["kalda.max.unauthenticated.connections"],
            login_timeout_ms=config["kalda.authentication.timeout.ms"],
        )


def by_address(overrides: Mapping[str, int]) -> dict[str, int]:
    """`max.connections.per.ip.overrides`, which may name hosts, by all addresses of each. Raises `ValueError` for a
    name without one. Looks names up, which may block."""
    return {address: count for host, count in overrides.items() for address in _addresses(host)}


def _addresses(host: str) -> set[str]:
    try:
        return {str(ip_address(host.strip("[]")))}
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"max.connections.per.ip.overrides: the host {host} has no address ({error}). Correct its name, or write an"
            " address."
        ) from error
    return {str(name[0]) for _, _, _, _, name in found}
