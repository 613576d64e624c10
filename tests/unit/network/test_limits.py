"""Limits come from the node's configuration; those of a listener come before those of the node."""

from __future__ import annotations

from kalda.base.configs.server import ServerConfig
from kalda.network.limits import UNLIMITED, Limits, NodeLimits

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
    assert NodeLimits.of(config) == NodeLimits()


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
    assert Limits.of(config, "CONTROLLER").max_connections == UNLIMITED
    node = NodeLimits.of(config)
    assert node.max_connections == 100
    assert dict(node.max_connections_per_ip_overrides) == {"10.0.0.1": 3, "::1": 4}
