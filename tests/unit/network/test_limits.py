"""Limits come from the node's configuration; those of a listener come before those of the node."""

from __future__ import annotations

import socket

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.network.server.limits import Limits, NodeLimits, by_address

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}


def test_defaults_are_kafkas() -> None:
    config = ServerConfig(NODE)
    assert Limits.of(config, "PLAINTEXT") == Limits()
    assert NodeLimits.of(config, {}) == NodeLimits()


def test_a_listener_has_limits_of_its_own() -> None:
    config = ServerConfig(
        {
            **NODE,
            "max.connections": "100",
            "listener.name.plaintext.max.connections": "7",
            "listener.name.plaintext.connections.max.idle.ms": "5",
            "max.connections.per.ip.overrides": "10.0.0.1:3, ::1:4",
        }
    )
    limits = Limits.of(config, "PLAINTEXT")
    assert (limits.max_connections, limits.idle_ms) == (7, 5)
    assert Limits.of(config, "CONTROLLER").max_connections == 100, "as in Kafka"
    node = NodeLimits.of(config, by_address(config.connections_per_ip_overrides()))
    assert node.max_connections == 100
    assert dict(node.max_connections_per_ip_overrides) == {"10.0.0.1": 3, "::1": 4}


def test_overrides_name_hosts_and_addresses_in_any_notation(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: None, **_: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host != "gateway.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (family, socket.SOCK_STREAM, 0, "", (address, 0))
            for family, address in ((socket.AF_INET6, "2001:db8::7"), (socket.AF_INET, "10.0.0.7"))
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    overrides = {"gateway.example": 5, "0:0:0:0:0:0:0:1": 4, "10.0.0.1": 3}
    assert by_address(overrides) == {"2001:db8::7": 5, "10.0.0.7": 5, "::1": 4, "10.0.0.1": 3}
    with pytest.raises(ValueError, match=r"the host nowhere\.example has no address"):
        by_address({"nowhere.example": 1})
