"""TLS of listeners: requests and slices of files, handshakes that do not end, peers that do not speak it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kalda.base.disk import FileSlice
from kalda.broker.system_clock import SystemClock
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.limits import Limits, NodeLimits
from kalda.network.server.server import Listener, Server
from kalda.network.tls.contexts import TlsFailed, client_context, handshake_failure, read_stores, server_context
from kalda.network.tls.transport import TlsTransport
from kalda.security.certificates import Authority, Issued
from kalda.security.principals import identity_of
from kalda.security.tls_settings import TlsSettings

AUTHORITY = Authority("a CA", datetime.datetime.now(datetime.UTC))
NODE = AUTHORITY.issue("CN=node", ["localhost", "127.0.0.1"])
CLIENT = AUTHORITY.issue("CN=client")
STORES = Path(__file__).parents[2] / "golden" / "keystores"


def settings(own: Issued | None, client_auth: str = "none", **more: object) -> TlsSettings:
    values: dict[str, object] = {
        "ssl.truststore.certificates": AUTHORITY.issued.certificate,
        "ssl.truststore.type": "PEM",
    }
    if own is not None:
        values |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": own.key}
        values["ssl.keystore.certificate.chain"] = own.certificate
    values["ssl.endpoint.identification.algorithm"] = "https"
    values |= {name.replace("_", "."): value for name, value in more.items()}
    return TlsSettings.of(values.get, client_auth)


class Guard:
    """A listener's security without SASL."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.ended: list[str | None] = []
        """The subject of each client, or why its handshake has failed."""

    def begin(self, connection: Connection, listener: Listener) -> None:
        connection.session = listener

    def on_secured(self, connection: Connection, certificate: bytes | None, error: str | None) -> None:
        self.ended.append(error if certificate is None else identity_of(certificate).subject)
        listener = connection.session
        assert isinstance(listener, Listener)
        if error is None:
            listener.login_ended(connection)


@contextlib.asynccontextmanager
async def served(
    guard: Guard, handler: Callable[[Connection, memoryview], Answer], limits: NodeLimits | None = None
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(SystemClock(), limits)
    listener = await server.listen("L", "127.0.0.1", 0, handler, Limits(), security_protocol="SSL", security=guard)
    try:
        yield server, listener.port
    finally:
        await server.stop(100)


def echo(connection: Connection, frame: memoryview) -> Answer:
    return [bytes(frame)]


async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(len(request).to_bytes(4, "big") + request)
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_requests_of_all_sizes_are_answered(versions: str, client_auth: str) -> None:
    async def work() -> None:
        guard = Guard(server_context(settings(NODE, client_auth, ssl_enabled_protocols=(versions,)), {}))
        tls = client_context(settings(None if client_auth == "none" else CLIENT), {})
        async with served(guard, echo) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            for size in (8, 16_384, 16_385, 70_000, 3_000_000):
                request = os.urandom(size)
                assert await call(reader, writer, request) == request
            assert writer.get_extra_info("ssl_object").version() == versions.replace("TLSv1", "TLSv1")
            assert not server._logins
            writer.close()
        assert guard.ended == [None if client_auth == "none" else "CN=client"]

    run(work)


def test_many_requests_in_one_write_are_answered_in_order_while_the_peer_reads_slowly() -> None:
    async def work() -> None:
        guard = Guard(server_context(settings(NODE), {}))
        async with served(guard, lambda connection, frame: [bytes(frame), bytes(20_000)]) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(settings(None), {}))
            writer.write(b"".join((8).to_bytes(4, "big") + number.to_bytes(8, "big") for number in range(500)))
            for number in range(500):
                assert int.from_bytes(await reader.readexactly(4), "big") == 20_008
                assert await reader.readexactly(20_008) == number.to_bytes(8, "big") + bytes(20_000)
            writer.close()

    run(work)


def test_slices_of_files_are_sent(tmp_path: Path) -> None:
    content = os.urandom(2_500_000)
    (tmp_path / "log").write_bytes(content)

    async def work() -> None:
        guard = Guard(server_context(settings(NODE), {}))
        with contextlib.closing(OpenFile(tmp_path / "log")) as file:
            slices = made_slices(file.descriptor, len(content))
            async with served(guard, lambda connection, frame: [b"head", *slices()]) as (_, port):
                tls = client_context(settings(None), {})
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                for _ in range(2):
                    assert await call(reader, writer, bytes(8)) == b"head" + content
                writer.close()

    run(work)


class OpenFile:
    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.descriptor)


def made_slices(descriptor: int, size: int) -> Callable[[], list[FileSlice]]:
    class Whole(FileSlice):
        """All of the file, from the page cache."""

        def __init__(self) -> None:
            self.at = 0

        def __len__(self) -> int:
            return size

        def read(self, limit: int, when_ready: Callable[[], None]) -> bytes:
            piece = os.pread(descriptor, limit, self.at)
            self.at += len(piece)
            return piece

    return lambda: [Whole()]


def test_who_does_not_speak_tls_is_closed() -> None:
    async def work() -> None:
        guard = Guard(server_context(settings(NODE), {}))
        openings = (bytes(12), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), os.urandom(500))
        async with served(guard, echo) as (_, port):
            for opening in openings:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(opening)
                writer.write_eof()
                await reader.read()
                writer.close()
            tls = client_context(settings(None), {})
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            assert await call(reader, writer, bytes(8)) == bytes(8)
            writer.close()
        for ended in guard.ended[:2]:
            assert ended == "the client has sent no TLS handshake: does its security.protocol fit this listener?"

    run(work)


@pytest.mark.parametrize("at", [0, 3, 60, 200])
def test_a_handshake_that_stops_anywhere_is_closed_in_time(at: int) -> None:
    """`at`: bytes of the client's first message that are sent."""

    async def work() -> None:
        guard = Guard(server_context(settings(NODE), {}))
        async with served(guard, echo, NodeLimits(login_timeout_ms=300)) as (server, port):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            hello = client_context(settings(None), {}).wrap_bio(incoming, outgoing, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                hello.do_handshake()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(outgoing.read()[:at])
            with contextlib.suppress(ConnectionError):
                await reader.read()
            assert not server._logins
            writer.close()

    run(work)


def test_a_handshake_byte_by_byte_costs_one_step_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it ends: as with one write for each flight. With TLS 1.2 a client's second flight has several records."""
    steps = []
    step = TlsTransport.step

    def counted(transport: TlsTransport) -> Exception | None:
        steps.append(transport)
        return step(transport)

    monkeypatch.setattr(TlsTransport, "step", counted)

    async def work() -> None:
        guard = Guard(server_context(settings(NODE, ssl_enabled_protocols=("TLSv1.2",)), {}))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(settings(None), {}).wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with served(guard, echo) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while not guard.ended:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                flight = outgoing.read()
                for at in range(len(flight)):
                    writer.write(flight[at : at + 1])
                    await writer.drain()
                    await asyncio.sleep(0)
                if not guard.ended:
                    incoming.write(await reader.read(65_536))
            writer.close()
        assert guard.ended == [None]
        assert len(steps) <= 4, "the hello, the key, the change of cipher, the end"

    run(work)


def test_too_many_handshakes_close_the_oldest_and_others_are_served() -> None:
    async def work() -> None:
        guard = Guard(server_context(settings(NODE), {}))
        async with served(guard, echo, NodeLimits(max_logins=20)) as (server, port):
            stuck = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            tls = client_context(settings(None), {})
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            assert await call(reader, writer, bytes(8)) == bytes(8)
            assert len(server._logins) <= 20
            with contextlib.suppress(ConnectionError):
                assert await stuck[0][0].read() == b""
            for _, each in [*stuck, (reader, writer)]:
                each.close()

    run(work)


def test_a_client_without_its_certificate_or_with_a_strange_one_is_refused() -> None:
    strange = Authority("another CA", datetime.datetime.now(datetime.UTC)).issue("CN=client")
    expired = AUTHORITY.issue(
        "CN=client", days=1, not_before=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9)
    )

    async def work() -> None:
        guard = Guard(server_context(settings(NODE, "required"), {}))
        async with served(guard, echo) as (_, port):
            for own in (None, strange, expired):
                tls = client_context(settings(own), {})
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await call(*await asyncio.open_connection("127.0.0.1", port, ssl=tls), bytes(8))
        assert [ended is not None and "certificate" in ended for ended in guard.ended] == [True] * 3

    run(work)


def test_a_server_with_another_name_or_an_old_certificate_is_refused() -> None:
    other = AUTHORITY.issue("CN=node", ["other.example"])
    expired = AUTHORITY.issue(
        "CN=node", ["127.0.0.1"], 1, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9)
    )

    async def work() -> None:
        for own, why in ((other, "mismatch"), (expired, "expired")):
            async with served(Guard(server_context(settings(own), {})), echo) as (_, port):
                with pytest.raises(ssl.SSLCertVerificationError, match=why):
                    await asyncio.open_connection("127.0.0.1", port, ssl=client_context(settings(None), {}))
        unchecked = client_context(settings(None, ssl_endpoint_identification_algorithm=""), {})
        async with served(Guard(server_context(settings(other), {})), echo) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=unchecked)
            assert await call(reader, writer, bytes(8)) == bytes(8)
            writer.close()

    run(work)


# -- contexts


def test_stores_in_files_and_encrypted_keys(tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(NODE.key.encode(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret).decode()
    store = tmp_path / "node.pem"
    store.write_text(encrypted + NODE.certificate)
    values = {"ssl.keystore.location": str(store), "ssl.keystore.type": "PEM", "ssl.key.password": "secret"}
    made = TlsSettings.of(values.get)
    assert server_context(made, read_stores(made)).verify_mode is ssl.CERT_NONE
    for wrong in ("hush", None):
        bad = TlsSettings.of({**values, "ssl.key.password": wrong}.get)
        with pytest.raises(TlsFailed, match=r"ssl\.key\.password is missing or wrong") as raised:
            server_context(bad, read_stores(bad))
        assert str(store) in str(raised.value)
        assert "hush" not in str(raised.value)
    assert "secret" not in repr(made)
    missing = TlsSettings.of({**values, "ssl.keystore.location": str(tmp_path / "none")}.get)
    with pytest.raises(TlsFailed, match="cannot be read"):
        read_stores(missing)


@pytest.mark.parametrize("kind", ["sha1", "small"])
def test_old_certificates_that_java_takes_are_taken_with_a_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Signed with SHA-1, or with keys of 1,024 bits, in stores that are encrypted as keytool did before 2021."""
    own = {
        "ssl.keystore.location": f"{STORES}/{kind}.p12",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "secret",
    }
    trust = {"ssl.truststore.location": f"{STORES}/{kind}-authority.pem", "ssl.truststore.type": "PEM"}
    node = TlsSettings.of((own | trust).get, "required")
    client = TlsSettings.of((own | trust | {"ssl.endpoint.identification.algorithm": "https"}).get)
    server = server_context(node, read_stores(node))
    assert handshake_failure(client_context(client, read_stores(client)), server) is None
    assert f"a certificate in {STORES}/{kind}.p12, {STORES}/{kind}-authority.pem is signed with SHA-1" in caplog.text
    assert server_context(settings(NODE), {}).get_ciphers() == server.get_ciphers(), "no weaker cipher suites"


def test_the_reason_of_openssl_is_named() -> None:
    other = NODE._replace(key=NODE.key.replace("M", "N", 1))
    with pytest.raises(TlsFailed, match=r"missing or wrong \(OpenSSL: .+\)"):
        server_context(settings(other), {})


def test_cipher_suites_decide_about_protocols() -> None:
    old = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)
    only_1_2 = server_context(settings(NODE, ssl_cipher_suites=old), {})
    assert only_1_2.maximum_version is ssl.TLSVersion.TLSv1_2
    assert server_context(settings(NODE, ssl_cipher_suites=("TLS_AES_128_GCM_SHA256",)), {}).minimum_version is (
        ssl.TLSVersion.TLSv1_3
    )
    with pytest.raises(TlsFailed, match=r"ssl.cipher.suites has none of ssl.enabled.protocols=TLSv1.3"):
        server_context(settings(NODE, ssl_cipher_suites=old, ssl_enabled_protocols=("TLSv1.3",)), {})


def test_a_certificate_is_trusted_without_its_issuer() -> None:
    """As in Java: a trust store may have the certificate of the node alone."""
    server = server_context(settings(NODE), {})
    alone = client_context(settings(None, ssl_truststore_certificates=NODE.certificate), {})
    assert handshake_failure(alone, server) is None
    other = client_context(settings(None, ssl_truststore_certificates=CLIENT.certificate), {})
    assert "a handshake with the stores in use fails" in str(handshake_failure(other, server))


def test_a_certificate_of_another_key_is_refused() -> None:
    with pytest.raises(TlsFailed, match="the first certificate of the key store is not that of its private key"):
        server_context(settings(NODE._replace(certificate=CLIENT.certificate)), {})


def test_a_listener_needs_a_key() -> None:
    with pytest.raises(TlsFailed, match=r"needs ssl.keystore.location"):
        server_context(settings(None), {})
    with pytest.raises(ValueError, match=r"ssl.engine.factory.class"):
        settings(NODE, ssl_engine_factory_class="a.B")
