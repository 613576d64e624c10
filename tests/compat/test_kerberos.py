"""GSSAPI against a KDC: MIT Kerberos, as Debian has it (`apt-get install krb5-kdc krb5-admin-server`)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocking import BlockingConnection

import kalda
import kalda.aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.network.client.security import ClientSecurity
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.security import SaslHandshakeRequest
from kalda.security.jaas import KERBEROS_MODULE
from kalda.testing import Cluster

pytestmark = pytest.mark.compat

REALM = "KALDA.TEST"
SERVICE = f"kafka/localhost@{REALM}"
WAIT_S = 30


def _tool(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the key tables of the node and of alice, whose realm is that of this process."""
    pytest.importorskip("gssapi", reason="needs gssapi: pip install 'kalda[kerberos]'")
    tools = [_tool(name) for name in ("kdb5_util", "kadmin.local", "krb5kdc")]
    if None in tools:
        pytest.skip("needs a KDC: apt-get install krb5-kdc krb5-admin-server")
    make, admin, serve = map(str, tools)
    home = tmp_path_factory.mktemp("kdc")
    [port] = free_ports(1)
    (home / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_canonicalize_hostname = false\n"
        f" rdns = false\n udp_preference_limit = 1\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        f"[domain_realm]\n localhost = {REALM}\n"
    )
    (home / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_ports = {port}\n kdc_tcp_ports = {port}\n[realms]\n {REALM} = {{\n"
        f"  database_name = {home}/principals\n  key_stash_file = {home}/stash\n  acl_file = {home}/acl\n }}\n"
    )
    own = {"KRB5_CONFIG": str(home / "krb5.conf"), "KRB5_KDC_PROFILE": str(home / "kdc.conf")}
    environment = {**os.environ, **own}

    def run(*command: str) -> None:
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=WAIT_S)

    run(make, "create", "-s", "-r", REALM, "-P", "master")
    for principal, table in ((SERVICE, "node"), (f"alice@{REALM}", "alice")):
        run(admin, "-q", f"addprinc -randkey {principal}")
        run(admin, "-q", f"ktadd -k {home}/{table}.keytab {principal}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        server = subprocess.Popen([serve, "-n"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert server.stdout is not None
        try:
            assert b"starting" in server.stdout.readline()
            yield home
        finally:
            server.terminate()
            server.wait(WAIT_S)


def line(home: Path, table: str, principal: str) -> str:
    return (
        f'{KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="{home}/{table}.keytab" '
        f'principal="{principal}";'
    )


@pytest.fixture(scope="module")
def cluster(kdc: Path) -> Iterator[Cluster]:
    """A node whose login line is in a JAAS file, as Apache Kafka's scripts pass it, and which logs in to itself."""
    (kdc / "jaas.conf").write_text(f"KafkaServer {{ {line(kdc, 'node', SERVICE)} }};")
    config = {
        "sasl.enabled.mechanisms": "GSSAPI,PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](ali.*)s/^/krb-/,DEFAULT",
        "connection.failed.authentication.delay.ms": 5,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_OPTS", f"-Xmx1G -Djava.security.auth.login.config={kdc}/jaas.conf")
        made = Cluster(security="SASL_PLAINTEXT", config=config).start()
    try:
        made.create_topic("t")
        yield made
    finally:
        made.stop()


def keys(cluster: Cluster, kdc: Path) -> dict[str, str]:
    return {
        "bootstrap.servers": f"localhost:{cluster.address(1).rpartition(':')[2]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": line(kdc, "alice", f"alice@{REALM}"),
    }


def connect(keys: dict[str, str]) -> BlockingConnection:
    host, port = keys["bootstrap.servers"].split(":")
    return BlockingConnection(host, int(port), security=ClientSecurity.of(keys), timeout_ms=10_000)


def test_a_ticket_logs_in(cluster: Cluster, kdc: Path) -> None:
    """The principal is made by the rules."""
    with connect(keys(cluster, kdc)) as connection:
        assert connection.request(MetadataRequest(topics=None)).brokers
        server = cluster.nodes[1].running.listeners.server
        assert server is not None
        assert "User:krb-alice" in [each.principal for each in list(server.connections.values())]


def test_old_clients_send_bare_tokens(cluster: Cluster, kdc: Path) -> None:
    """SaslHandshake v0: the client's last token has no answer, so the next frame is that of its first request."""
    config = keys(cluster, kdc)
    security = ClientSecurity.of(config)
    assert security is not None
    with BlockingConnection("localhost", int(config["bootstrap.servers"].rpartition(":")[2]), timeout_ms=10_000) as old:
        assert old.request(SaslHandshakeRequest(mechanism="GSSAPI"), 0).error_code == 0
        exchange, stream = security._exchange("GSSAPI", "localhost"), old._socket.makefile("rwb")
        token = exchange.first()
        for _ in range(2):
            stream.write(len(token).to_bytes(4, "big") + token)
            stream.flush()
            answer = exchange.on_challenge(stream.read(int.from_bytes(stream.read(4), "big")))
            assert answer is not None
            token = answer
        stream.write(len(token).to_bytes(4, "big") + token)
        stream.flush()
        assert old.request(MetadataRequest(topics=None)).brokers


def test_a_login_that_fails(cluster: Cluster, kdc: Path) -> None:
    good = keys(cluster, kdc)
    for wrong, why in (
        ({"sasl.kerberos.service.name": "other"}, "no Kerberos ticket for other/localhost: .*not found in Kerberos"),
        ({"sasl.jaas.config": line(kdc, "node", f"alice@{REALM}")}, f"no Kerberos credentials for alice@{REALM}"),
    ):
        with pytest.raises(ApiError, match=why) as refused:
            connect({**good, **wrong})
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    with pytest.raises(ValueError, match="No serviceName defined in either JAAS or Kafka config"):
        ClientSecurity.of({**good, "sasl.kerberos.service.name": None})


def test_the_clients_connect_in_the_background(cluster: Cluster, kdc: Path) -> None:
    """Metadata names the node by its address, for which there is no ticket: only the first connection is by name."""
    with kalda.Admin(keys(cluster, kdc)) as admin:
        assert admin.describe_cluster().nodes

    async def run() -> int:
        async with kalda.aio.Admin(keys(cluster, kdc)) as admin:
            return len((await admin.describe_cluster()).nodes)

    assert asyncio.run(run()) == 1
