"""A connection is refused only where no process listens."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from kalda.base.errors import ApiError
from kalda.network.client.addresses import is_refused
from kalda.network.client.client import RpcConnection
from kalda.network.free_ports import free_ports

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket on which no connection is accepted, as in a paused process."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, free_ports(1)[0]))
        made.listen(1)
        yield made


def probe(host: str, port: int, timeout_ms: int = 5_000) -> bool:
    return asyncio.run(is_refused(host, port, timeout_ms))


def test_a_port_without_a_listener() -> None:
    assert probe(HOST, free_ports(1)[0])
    assert probe("localhost", free_ports(1)[0]), "none of its addresses"


def test_a_process_that_does_not_accept(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert not probe(HOST, port)


def test_a_backlog_that_is_full(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with contextlib.ExitStack() as waiting:
        for _ in range(8):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((HOST, port))
        assert not probe(HOST, port, timeout_ms=100)


def test_a_listener_that_has_just_been_closed(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert not probe(HOST, port)
    listener.close()
    assert probe(HOST, port)


def test_a_name_with_a_listener_on_one_of_its_addresses(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = listener.getsockname()[1]
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    monkeypatch.setattr(
        asyncio.base_events.BaseEventLoop,
        "getaddrinfo",
        lambda *_, **__: _soon([(*stream, ("127.0.0.2", port)), (*stream, (HOST, port))]),
    )
    assert not probe("two.addresses", port)
    listener.close()
    assert probe("two.addresses", port)


async def _soon(value: object) -> object:
    return value


def test_a_name_without_an_address() -> None:
    assert not probe("no-such-host.invalid", 9092)


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_cannot_be_a_host_name(host: str) -> None:
    assert not probe(host, 1), "no address has refused"
    with pytest.raises(ApiError, match="cannot connect"):
        asyncio.run(RpcConnection.connect(host, 1))
