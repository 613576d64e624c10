"""Plain text at a listener with TLS, and TLS at one without: every client's own error says so, and at once where it is
certain."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import kalda.aio
from kalda import Admin, Consumer, Producer
from kalda.base.errors import ApiError
from kalda.cli.commands import cli
from kalda.security.certificates import Authority

ALERT = bytes.fromhex("15030300020250")
"""How Apache Kafka answers plain text at such a listener. Kalda closes without an answer, as OpenSSL does."""
SPEAKS_TLS = r"it speaks TLS, which this side does not: set security\.protocol"


class OneProtocol:
    """A listener that speaks TLS, or that closes each connection whose first bytes are not a small frame's size."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                with suppress(OSError), peer:
                    if self._context is None:
                        peer.recv(4)
                    else:
                        self._shake_hands(self._context, peer)

    @staticmethod
    def _shake_hands(context: ssl.SSLContext, peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False) as tls:
            try:
                tls.do_handshake()
            except ssl.SSLError:
                os.read(tls.fileno(), 4096)  # else a reset follows
                os.write(tls.fileno(), ALERT)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProtocol]:
    issued = Authority("CN=authority", datetime.datetime.now(datetime.UTC)).issue("CN=node", ("127.0.0.1",))
    store = Path(tmp_path_factory.mktemp("tls") / "node.pem")
    store.write_text(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(store)
    listener = OneProtocol(context)
    yield listener
    listener.close()


def produce(address: str, **keys: object) -> None:
    with Producer(bootstrap_servers=address, **keys) as made:
        made.send("t", b"v").result(60)


def consume(address: str, **keys: object) -> None:
    with Consumer(bootstrap_servers=address, **keys) as made:
        made.assign([("t", 0)])
        made.poll(60)


def administer(address: str, **keys: object) -> None:
    with Admin(bootstrap_servers=address, **keys) as made:
        made.list_topics()


def produce_asyncio(address: str, **keys: object) -> None:
    async def work() -> None:
        async with kalda.aio.Producer(bootstrap_servers=address, **keys) as made:
            await (await made.send("t", b"v"))

    asyncio.run(work())


ALL = (produce, consume, administer, produce_asyncio)


@pytest.mark.parametrize("client", ALL)
def test_plain_text_at_a_listener_with_tls(with_tls: OneProtocol, client: Callable[..., None]) -> None:
    """No time is given to any client: each would try for a minute."""
    with pytest.raises(ApiError, match=SPEAKS_TLS):
        client(with_tls.address)


def test_the_command_line_says_it_too(with_tls: OneProtocol) -> None:
    done = CliRunner().invoke(cli, ["topics", "list", "--bootstrap-server", with_tls.address])
    assert "it speaks TLS, which this side does not: set security.protocol" in done.output


@pytest.mark.parametrize("client", [produce, administer])
def test_a_connection_closed_before_its_first_answer(client: Callable[..., None]) -> None:
    listener = OneProtocol(None)
    times = {"default_api_timeout_ms": 500} if client is administer else {"max_block_ms": 500}
    with pytest.raises(ApiError, match=r"closed the connection before its first answer: a listener with TLS does so"):
        client(listener.address, **times)
    listener.close()


@pytest.mark.parametrize("client", [produce, administer])
def test_tls_at_a_listener_without(client: Callable[..., None]) -> None:
    listener = OneProtocol(None)
    times = {"default_api_timeout_ms": 500} if client is administer else {"max_block_ms": 500}
    with pytest.raises(ApiError, match=r"closed the connection in the TLS handshake: does its listener have TLS\?"):
        client(listener.address, security_protocol="SSL", **times)
    listener.close()


def test_an_untrusted_certificate_ends_an_administrative_call_at_once(with_tls: OneProtocol) -> None:
    """Its deadline is a minute away."""
    with pytest.raises(ApiError, match="SSL handshake failed: the certificate of"):
        administer(with_tls.address, security_protocol="SSL")
