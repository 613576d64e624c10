"""Ports for servers that are not running yet."""

from __future__ import annotations

import socket

import pytest

from kalda.network.free_ports import LOOPBACK, free_ports, is_free


def test_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(15_000 <= port < 32_000 for port in ports)
    assert is_free(ports[0])


@pytest.mark.parametrize("host", [LOOPBACK, "localhost", "0.0.0.0"])
def test_a_port_with_a_listener_is_not_free(host: str) -> None:
    (port,) = free_ports(1)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port, host)
    assert is_free(port, host)


def test_a_host_that_is_not_this_one() -> None:
    with pytest.raises(OSError, match="assign"):
        free_ports(1, "192.0.2.1")
