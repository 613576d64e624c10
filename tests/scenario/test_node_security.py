"""A node with TLS and SASL: rotation of keys and passwords, sessions that end, the operator's classes, secrets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from harness.blocking import BlockingConnection

import kalda
import kalda.aio
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.broker.process.node import Node, StartError
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.network.client.security import ClientSecurity
from kalda.network.server.server import SOCKET_SERVER
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialUpsertion,
)
from kalda.security.certificates import Authority, Issued
from kalda.security.jaas import OAUTHBEARER_MODULE, SCRAM_MODULE
from kalda.security.oauthbearer import unsecured_token
from kalda.security.scram import MECHANISMS, salted_password
from kalda.testing import Cluster
from waiting import wait_until

PAUSE = threading.Event()
"""Never set."""
SASL_LISTENER = "listener.name.sasl_ssl."


class Handler:
    """The operator's own check of passwords and tokens."""

    class Failing:
        """A class for logins that fails."""

        def credentials(self) -> tuple[str, str]:
            raise OSError("planted-secret")

    def check_password(self, user: str, password: str) -> bool:
        if user == "broken":
            raise RuntimeError(f"the directory refused {password}")
        return (user, password) == ("carol", "of-the-directory")


class Builder:
    """The operator's own principals."""

    def build(self, context: Any) -> str:
        if context.authorization_id == "nobody":
            raise ValueError("nobody has no principal")
        return f"Group:{context.listener_name}-{context.authorization_id or context.subject}"


class NodeToken:
    """The operator's own token for connections of a node to controllers."""

    made = 0

    def token(self) -> str:
        type(self).made += 1
        return unsecured_token({"sub": "node", "exp": int(time.time()) + 3_600})


class SlowLogin:
    """The operator's own password, which comes only while the event loop of the client goes on."""

    loop: asyncio.AbstractEventLoop
    logins = 0

    def credentials(self) -> tuple[str, str]:
        has_gone_on = threading.Event()
        self.loop.call_soon_threadsafe(has_gone_on.set)
        if not has_gone_on.wait(60):
            raise RuntimeError("the loop stands")
        type(self).logins += 1
        return "alice", "alice-secret"


def own(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(
        Handler=Handler, Builder=Builder, PlainBuilder=PlainBuilder, NodeToken=NodeToken, SlowLogin=SlowLogin
    )
    return module


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node of SASL_SSL whose sessions by SCRAM-SHA-256 last 1.5 seconds, and whose stores are looked at often."""
    config = {
        f"{SASL_LISTENER}scram-sha-256.connections.max.reauth.ms": 1_500,
        "connection.failed.authentication.delay.ms": 5,
        "kalda.ssl.reload.interval.ms": 50,
        "sasl.server.max.receive.size": 4_000,
    }
    with Cluster(security="SASL_SSL", config=config, directory=tmp_path_factory.mktemp("secure")) as made:
        made.create_topic("t")
        yield made


def connect(cluster: Cluster, **who: Any) -> BlockingConnection:
    host, port = cluster.address(1).rsplit(":", 1)
    config = cluster.client_config(**who)
    return BlockingConnection(host, int(port), security=ClientSecurity.of(config), timeout_ms=10_000)


def bare(cluster: Cluster, negotiate: bool = True) -> BlockingConnection:
    """TLS without a login."""
    host, port = cluster.address(1).rsplit(":", 1)
    security = ClientSecurity.of({**cluster.client_config(), "security.protocol": "SSL"})
    return BlockingConnection(host, int(port), security=security, negotiate=negotiate, timeout_ms=10_000)


def principal_of(cluster: Cluster, connection: BlockingConnection) -> str:
    port = connection._socket.getsockname()[1]
    server = cluster.nodes[1].running.listeners.server
    assert server is not None
    [found] = [each.principal for each in list(server.connections.values()) if each.peer_port == port]
    return found


def serves(connection: BlockingConnection) -> bool:
    return bool(connection.request(MetadataRequest(topics=None)).brokers)


# -- before and after the login


def test_connections_made_after_the_start_do_not_pass_the_gate(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    with connect(cluster) as connection:
        assert serves(connection)
        port = connection._socket.getsockname()[1]
        [made] = [each for each in list(node.running.listeners.server.connections.values()) if each.peer_port == port]
        assert made._handler not in node.running.listeners.gates.values()


def test_nothing_but_the_login_is_answered_before_it(cluster: Cluster) -> None:
    with bare(cluster) as connection, pytest.raises(ApiError) as raised:
        connection.request(MetadataRequest(topics=None))
    assert raised.value.code is ErrorCode.NETWORK_EXCEPTION
    with bare(cluster) as connection:
        assert connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        with pytest.raises(ApiError):
            connection.request(SaslAuthenticateRequest(auth_bytes=bytes(5_000)), 1)


def test_a_large_frame_before_the_login_closes_the_connection(cluster: Cluster) -> None:
    config = cluster.client_config()
    tls = ssl.create_default_context(cafile=str(config["ssl.truststore.location"]))
    host, port = cluster.address(1).rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as raw, tls.wrap_socket(raw, server_hostname=host) as peer:
        peer.sendall((4_001).to_bytes(4, "big") + bytes(100))
        with contextlib.suppress(ConnectionError):
            assert peer.recv(100) == b""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_old_clients_send_bare_tokens(cluster: Cluster, mechanism: str) -> None:
    """SaslHandshake v0, as kafkajs does: tokens in frames of their own, of which an empty one accepts. A refusal closes
    the connection without an answer."""

    def log_in(connection: BlockingConnection, **who: Any) -> bool:
        security = ClientSecurity.of(cluster.client_config("alice", mechanism, **who))
        assert security is not None
        exchange, stream = security._exchange(mechanism, "localhost"), connection._socket
        assert connection.request(SaslHandshakeRequest(mechanism=mechanism), 0).error_code == 0
        token: bytes | None = exchange.first()
        while token is not None:
            stream.sendall(len(token).to_bytes(4, "big") + token)
            size = stream.recv(4)
            if not size:
                return False
            length = int.from_bytes(size, "big")
            token = exchange.on_challenge(stream.recv(length) if length else b"")
        return True

    with bare(cluster) as connection:
        assert log_in(connection)
        assert serves(connection)
        assert principal_of(cluster, connection) == "User:alice"
    if mechanism != "OAUTHBEARER":
        with bare(cluster) as connection:
            assert not log_in(connection, password="wrong")


def test_requests_of_a_login_are_out_of_place_after_it(cluster: Cluster) -> None:
    with connect(cluster, user="alice") as connection:
        late = connection.request(SaslAuthenticateRequest(auth_bytes=b"x"), 1)
        assert late.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert late.error_message == "SaslAuthenticate request received after successful authentication"
        assert serves(connection)
        renewed = connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert renewed.error_code == ErrorCode.ILLEGAL_SASL_STATE, "its session does not end"
        assert serves(connection)


def test_a_session_is_renewed_at_most_once_a_second_and_by_the_same_principal(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def exchange(connection: BlockingConnection, user: str) -> Any:
        security = ClientSecurity.of(cluster.client_config(user, "SCRAM-SHA-256"))
        assert security is not None
        login = security.login("localhost")
        assert login is not None
        answer = connection.request(login.first(), 1)
        while answer.error_code == ErrorCode.NONE and (following := login.on_response(answer)) is not None:
            answer = connection.request(following, 1)
        return answer

    with connect(cluster, user="alice", mechanism="SCRAM-SHA-256") as connection:
        assert exchange(connection, "alice").session_lifetime_ms == 1_500
        assert exchange(connection, "alice").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert serves(connection)
    with connect(cluster, user="alice", mechanism="SCRAM-SHA-256") as connection:
        refused = exchange(connection, "admin")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert refused.error_message == "Cannot change principals during re-authentication from User.alice: User.admin"
    assert "Failed re-authentication with /127.0.0.1" in caplog.text


def test_the_time_of_requests_after_a_login_is_charged_to_its_user(cluster: Cluster) -> None:
    """ApiVersions before it, over the same connection, is charged to ANONYMOUS."""
    quotas = cluster.nodes[1].running.parts.quotas
    assert quotas is not None
    times = quotas.managers.request
    with CommandAdmin(cluster.bootstrap_servers, config=cluster.client_config()) as client:
        client.alter_client_quotas({(("user", None),): {"request_percentage": 1e9}}).check()
        wait_until(lambda: times.is_enabled)
        try:
            with connect(cluster, user="alice") as connection:
                connection.negotiate()
            requests = {dict(each.tags)["user"]: each.requests for each in times.each_sensors()}
        finally:
            client.alter_client_quotas({(("user", None),): {"request_percentage": None}}).check()
    assert requests.get("alice", 0) >= 1, requests


# -- sessions


def test_a_session_that_ends_is_renewed_by_the_client(cluster: Cluster) -> None:
    with connect(cluster, user="alice", mechanism="SCRAM-SHA-256") as connection:
        port = connection._socket.getsockname()[1]
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert serves(connection)
            PAUSE.wait(0.05)
        assert connection._socket.getsockname()[1] == port
        assert principal_of(cluster, connection) == "User:alice"


def test_a_login_of_asyncio_does_not_hold_the_loop(cluster: Cluster) -> None:
    """Neither the first one nor a renewal."""
    keys = {
        **cluster.client_config(mechanism="SCRAM-SHA-256"),
        "sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "sasl.login.class": own("SlowLogin"),
    }

    async def run() -> None:
        SlowLogin.loop, SlowLogin.logins = asyncio.get_running_loop(), 0
        async with kalda.aio.Producer(keys) as producer, asyncio.timeout(60):
            await (await producer.send("t", b"first"))
            at_first = SlowLogin.logins
            assert at_first
            while SlowLogin.logins < at_first + 2:
                await (await producer.send("t", b"next"))
                await asyncio.sleep(0.05)

    asyncio.run(run())


def test_a_login_of_asyncio_that_fails_is_reported(cluster: Cluster) -> None:
    keys = {
        **cluster.client_config(mechanism="SCRAM-SHA-256"),
        "sasl.login.class": own("Handler.Failing"),
    }

    async def run() -> None:
        async with asyncio.timeout(60), kalda.aio.Producer(keys) as producer:
            with pytest.raises(ApiError, match="the class for logins has failed: OSError"):
                await (await producer.send("t", b"first"))

    asyncio.run(run())


def test_a_session_that_is_not_renewed_ends(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with connect(cluster, user="alice", mechanism="SCRAM-SHA-256") as connection:
        connection._renew_at_s = None
        wait_until(lambda: not still_serves(connection))
    wait_until(lambda: "its session of User:alice has expired" in caplog.text)
    found = {
        (name.name, value)
        for node in cluster.nodes.values()
        for name, sensor in node.sensors.everything()
        if name.group == SOCKET_SERVER and (value := sensor.measure(0))
    }
    assert ("expired-connections-killed-count", 1) in found
    assert any(name == "successful-authentication-total" and value >= 1 for name, value in found)


# -- rotation


def test_a_scram_password_is_altered_while_connections_are_open(cluster: Cluster) -> None:
    mechanism = MECHANISMS["SCRAM-SHA-512"]
    salted = salted_password(mechanism, "new-secret", b"salt", 4096)
    upsertion = ScramCredentialUpsertion(
        name="alice", mechanism=mechanism.value, iterations=4096, salt=b"salt", salted_password=salted
    )
    with connect(cluster, user="alice", mechanism="SCRAM-SHA-512") as before, connect(cluster) as admin:
        answer = admin.request(AlterUserScramCredentialsRequest(upsertions=[upsertion]))
        assert [result.error_code for result in answer.results] == [0]
        assert serves(before)
        for _ in range(100):  # until the broker has applied the record
            with contextlib.suppress(ApiError):
                connect(cluster, user="alice", mechanism="SCRAM-SHA-512", password="new-secret").close()
                break
        with pytest.raises(ApiError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
            connect(cluster, user="alice", mechanism="SCRAM-SHA-512")


def replace(path: str, issued: Issued) -> None:
    temporary = Path(path + ".new")
    temporary.write_text(issued.key + issued.certificate)
    os.replace(temporary, path)


def test_new_certificates_are_used_without_a_restart(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """One with another owner is refused (KIP-978). Connections that are open stay."""
    caplog.set_level(logging.INFO, "kalda.authentication")
    home = cluster.directory(1).parent / "certificates"
    authority = Authority("a new CA", datetime.datetime.now(datetime.UTC))
    node = cluster.nodes[1].config["ssl.keystore.location"]
    kept = Path(node).read_text()
    with connect(cluster) as before:
        replace(node, authority.issue("CN=another", ["127.0.0.1", "localhost"]))
        wait_until(lambda: "Keystore DistinguishedName does not match" in caplog.text)
        connect(cluster).close()
        replace(node, authority.issue("CN=node", ["localhost"]))
        wait_until(lambda: "Keystore SubjectAltNames does not match" in caplog.text)
        replace(node, authority.issue("CN=node", ["127.0.0.1", "localhost"]))
        wait_until(lambda: "listener SASL_SSL: new connections" in caplog.text.replace("  ", " "))
        with pytest.raises(ApiError, match=r"certificate verify failed"):
            connect(cluster)
        (home / "new.pem").write_text(authority.issued.certificate)
        config = {**cluster.client_config(), "ssl.truststore.location": str(home / "new.pem")}
        host, port = cluster.address(1).rsplit(":", 1)
        BlockingConnection(host, int(port), security=ClientSecurity.of(config)).close()
        assert serves(before)
    Path(node + ".new").write_text(kept)
    os.replace(node + ".new", node)
    wait_until(lambda: can_connect(cluster))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"ssl.keystore.location": "/nowhere.pem"}, "/nowhere.pem cannot be read: No such file"),
        ({"ssl.truststore.location": "{another}"}, "a handshake with the stores in use fails: "),
        ({"ssl.keystore.location": "{another}"}, "Keystore DistinguishedName does not match: existing=CN=node"),
        ({"ssl.keystore.location": "{other_authority}"}, "a handshake with the stores in use fails: "),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1: only TLSv1.2 and TLSv1.3 are served"),
        ({"principal.builder.class": "no.such.Builder"}, "no.such.Builder cannot be imported"),
        ({"ssl.keystore.location": "{node}"}, None),
    ],
)
def test_stores_that_cannot_be_used_are_refused_when_they_are_altered(
    cluster: Cluster, tmp_path: Path, keys: dict[str, str], why: str | None
) -> None:
    """As in Kafka: what the node cannot use, or not together with the other nodes' stores, is not written."""
    now = datetime.datetime.now(datetime.UTC)
    issued = {
        "another": Authority("CN=x", now).issue("CN=another", ["127.0.0.1", "localhost"]),
        "other_authority": Authority("CN=x", now).issue("CN=node", ["127.0.0.1", "localhost"]),
    }
    paths = {name: str(tmp_path / f"{name}.pem") for name in issued}
    for name, each in issued.items():
        Path(paths[name]).write_text(each.key + each.certificate)
    paths["node"] = cluster.nodes[1].config["ssl.keystore.location"]
    altered = [
        IncrementalAlterConfigsRequestAlterableConfig(name=SASL_LISTENER + key, value=value.format(**paths))
        for key, value in keys.items()
    ]
    resources = [
        IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name="1", configs=altered),
        IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name="t"),
    ]
    with connect(cluster) as admin:
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=True)
        answer, of_topic = admin.request(request).responses
    assert of_topic.error_code == ErrorCode.NONE
    assert answer.error_code == (ErrorCode.INVALID_REQUEST if why else ErrorCode.NONE)
    assert (why or "") in (answer.error_message or "")


def test_rotation_under_load_drops_no_request(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While a client produces and reads its records, the certificate, its authority and the client's password are
    replaced. Every request is answered; new connections use what is new."""
    node, trusted = (Path(cluster.nodes[1].config[f"ssl.{each}store.location"]) for each in ("key", "trust"))
    kept = node.read_text(), trusted.read_text()
    authority = Authority("CN=next CA", datetime.datetime.now(datetime.UTC))
    issued = authority.issue("CN=node", ["127.0.0.1", "localhost"])

    def put(path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, path)

    def served_by(ca: str) -> bool:
        own = tmp_path / "ca.pem"
        own.write_text(ca)
        host, port = cluster.address(1).rsplit(":", 1)
        keys = {**cluster.client_config(), "ssl.truststore.location": str(own)}
        with contextlib.suppress(ApiError):
            BlockingConnection(host, int(port), security=ClientSecurity.of(keys)).close()
            return True
        return False

    set_password(cluster, "mallory", "0ld-secret")
    cluster.create_topic("rotated")
    config = cluster.client_config("mallory", "SCRAM-SHA-512", "0ld-secret")
    wait_until(lambda: logs_in(cluster, "mallory", "0ld-secret"))
    caplog.set_level(logging.INFO, "kalda.authentication")
    caplog.clear()
    with (
        kalda.Producer(config, retries=0) as producer,
        kalda.Consumer(config, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("rotated", 0)])
        sent = 0

        def use() -> None:
            nonlocal sent
            for each in [producer.send("rotated", b"%d" % (sent + number)) for number in range(20)]:
                each.result(60)
                assert next(iter(consumer)).value == b"%d" % sent
                sent += 1

        use()
        put(trusted, kept[1] + authority.issued.certificate)
        use()
        set_password(cluster, "mallory", "n3w-secret")
        wait_until(lambda: caplog.text.count("new own connections use new keys") >= 2)  # to brokers, to controllers
        put(node, issued.key + issued.certificate)
        wait_until(lambda: use() is None and served_by(authority.issued.certificate))
        wait_until(lambda: use() is None and logs_in(cluster, "mallory", "n3w-secret", authority.issued.certificate))
        assert not logs_in(cluster, "mallory", "0ld-secret", authority.issued.certificate)
        put(node, kept[0])
        wait_until(lambda: use() is None and served_by(kept[1]))
        put(trusted, kept[1])
        use()


def test_login_lines_are_altered_while_the_node_runs(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Those of users, and that of the node's own connections. What does not concern SASL leaves a listener as it is,
    and a line that cannot be used leaves the former one in use."""
    security = cluster.nodes[1].running.parts.security
    assert security is not None
    listener, own = security._listeners["SASL_SSL"], security._clients["SASL_SSL"]
    key = f"{SASL_LISTENER}plain.sasl.jaas.config"
    line = cluster.nodes[1].config[key]

    def user_is(name: str) -> bool:
        return own._options["username"] == name

    before = listener.sasl
    alter_config(cluster, "max.connections", "1000000")
    wait_until(lambda: security._config["max.connections"] == 1_000_000)
    assert listener.sasl is before
    alter_config(
        cluster, key, line.replace('username="node"', 'username="zoe"').replace(";", ' user_zoe="node-secret";')
    )
    wait_until(lambda: user_is("zoe"))
    connect(cluster, user="zoe", password="node-secret").close()
    alter_config(cluster, key, line.replace("username=", "name="))
    wait_until(
        lambda: "own logins go on with the former login line: sasl.jaas.config: the option username" in caplog.text
    )
    assert user_is("zoe")
    alter_config(cluster, key, line)
    wait_until(lambda: user_is("node"))
    with pytest.raises(ApiError, match="Invalid username or password"):
        connect(cluster, user="zoe", password="node-secret")
    assert "node-secret" not in caplog.text


def alter_config(cluster: Cluster, name: str, value: str) -> None:
    config = IncrementalAlterConfigsRequestAlterableConfig(name=name, value=value)
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
    with connect(cluster) as admin:
        [answer] = admin.request(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def set_password(cluster: Cluster, user: str, password: str) -> None:
    mechanism = MECHANISMS["SCRAM-SHA-512"]
    salted = salted_password(mechanism, password, b"salt", 4096)
    upsertion = ScramCredentialUpsertion(
        name=user, mechanism=mechanism.value, iterations=4096, salt=b"salt", salted_password=salted
    )
    with connect(cluster) as admin:
        answer = admin.request(AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    assert [result.error_code for result in answer.results] == [0]


def logs_in(cluster: Cluster, user: str, password: str, authority: str | None = None) -> bool:
    keys = cluster.client_config(user, "SCRAM-SHA-512", password)
    if authority is not None:
        location = cluster.directory(1).parent / "logs-in.pem"
        location.write_text(authority)
        keys["ssl.truststore.location"] = str(location)
    host, port = cluster.address(1).rsplit(":", 1)
    with contextlib.suppress(ApiError):
        BlockingConnection(host, int(port), security=ClientSecurity.of(keys), timeout_ms=10_000).close()
        return True
    return False


def still_serves(connection: BlockingConnection) -> bool:
    try:
        return serves(connection)
    except ApiError:
        return False


def can_connect(cluster: Cluster) -> bool:
    try:
        connect(cluster).close()
    except ApiError:
        return False
    return True


# -- the operator's classes


def test_the_operators_classes() -> None:
    config = {
        f"{SASL_LISTENER}plain.sasl.server.callback.handler.class": own("Handler"),
        f"{SASL_LISTENER}principal.builder.class": own("Builder"),
        "listener.name.sasl_ssl.ssl.client.auth": "requested",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "listener.name.controller.oauthbearer.sasl.login.callback.handler.class": own("NodeToken"),
        "connection.failed.authentication.delay.ms": 0,
    }
    with Cluster(security="SASL_SSL", config=config) as cluster:
        with connect(cluster, user="carol", password="of-the-directory") as connection:
            assert principal_of(cluster, connection) == "Group:SASL_SSL-carol"
        assert NodeToken.made == 1, "all connections to controllers use one token"
        for user in ("carol", "broken"):
            with pytest.raises(ApiError, match="Invalid username or password"):
                connect(cluster, user=user, password="hush-hush")
        with pytest.raises(ApiError, match="invalid credentials with SASL mechanism OAUTHBEARER"):
            connect(cluster, user="nobody", mechanism="OAUTHBEARER")


class PlainBuilder:
    """Principals of peers that show nothing."""

    seen: ClassVar[set[tuple[str, str, str]]] = set()
    refuses = False

    def build(self, context: Any) -> str:
        type(self).seen.add((context.security_protocol, context.listener_name, context.client_host))
        if self.refuses and context.listener_name == "PLAINTEXT":
            raise RuntimeError("no principal for you")
        return f"User:of-{context.listener_name}"


def test_the_operators_principals_on_plaintext_listeners() -> None:
    """On every listener, the controller's too. Where there is none, the connection is closed."""
    with Cluster(config={"principal.builder.class": own("PlainBuilder")}) as cluster:
        host, port = cluster.address(1).rsplit(":", 1)
        with BlockingConnection(host, int(port), timeout_ms=10_000) as connection:
            assert principal_of(cluster, connection) == "User:of-PLAINTEXT"
            PlainBuilder.refuses = True
            with pytest.raises((ApiError, OSError)):
                BlockingConnection(host, int(port), timeout_ms=10_000)
            connection.request(MetadataRequest(topics=[]))
    assert {("PLAINTEXT", name, "127.0.0.1") for name in ("PLAINTEXT", "CONTROLLER")} <= PlainBuilder.seen


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"sasl.enabled.mechanisms": "NTLM"}, "NTLM is not one of GSSAPI, PLAIN"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI needs the principal of this node"),
        ({f"{SASL_LISTENER}plain.sasl.jaas.config": "a.B required;"}, "login module a.B is not allowed"),
        ({"ssl.keystore.location": "/nowhere.pem"}, r"/nowhere.pem cannot be read"),
        ({"ssl.principal.mapping.rules": "oops"}, "Invalid rule"),
        ({f"{SASL_LISTENER}principal.builder.class": "no.such.Builder"}, "cannot be imported"),
        (
            {
                f"{SASL_LISTENER}oauthbearer.sasl.server.callback.handler.class": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
                ),
                "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/passwd",
            },
            r"jwks.endpoint.url=file:///etc/passwd is not allowed",
        ),
        (
            {
                f"{SASL_LISTENER}oauthbearer.sasl.server.callback.handler.class": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
                ),
                "sasl.oauthbearer.jwt.validator.class": (
                    "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator"
                ),
            },
            r"ClientJwtValidator: a listener validates tokens by",
        ),
    ],
)
def test_what_stops_a_start(keys: dict[str, str], why: str) -> None:
    with pytest.raises(StartError, match=why), Cluster(security="SASL_SSL", config=keys):
        pass


# -- signed tokens


def test_signed_tokens(tmp_path: Path) -> None:
    jwt = pytest.importorskip("jwt")
    from cryptography.hazmat.primitives.asymmetric import ec

    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "k1", "use": "sig"}
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [public]}))
    config = {
        f"{SASL_LISTENER}oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "kalda.sasl.oauthbearer.allowed.urls": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kalda",
        "sasl.oauthbearer.expected.issuer": "tests",
        "connection.failed.authentication.delay.ms": 0,
    }
    with Cluster(security="SASL_SSL", config=config) as cluster:
        good = {"sub": "dave", "aud": "kalda", "iss": "tests", "exp": int(time.time()) + 60}

        def log_in(claims: dict[str, Any], signed_by: Any = key, **how: Any) -> BlockingConnection:
            file = tmp_path / "token"
            file.write_text(jwt.encode(claims, signed_by, how.pop("algorithm", "ES256"), headers={"kid": "k1", **how}))
            client = {
                **cluster.client_config(mechanism="OAUTHBEARER"),
                "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
                "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
                "kalda.sasl.oauthbearer.allowed.urls": [file.as_uri()],
            }
            host, port = cluster.address(1).rsplit(":", 1)
            return BlockingConnection(host, int(port), security=ClientSecurity.of(client), timeout_ms=10_000)

        with log_in(good) as connection:
            assert principal_of(cluster, connection) == "User:dave"
        for claims, how in (
            ({**good, "exp": 1}, {}),
            ({**good, "aud": "others"}, {}),
            ({**good, "iss": "others"}, {}),
            (good, {"signed_by": other}),
            (good, {"kid": "unknown"}),
            (good, {"signed_by": "a shared secret of 32 bytes, yes!", "algorithm": "HS256"}),
            (good, {"signed_by": None, "algorithm": "none"}),
        ):
            with pytest.raises(ApiError, match="invalid_token"):
                log_in(claims, **how)


def test_a_client_reads_tokens_from_allowed_urls_alone() -> None:
    """CVE-2025-27817: a configuration that somebody else may set must not make this process read any file."""
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
    }
    with pytest.raises(ValueError, match=r"token.endpoint.url=file:///etc/passwd is not allowed"):
        ClientSecurity.of(keys)


# -- secrets


def test_no_secret_is_ever_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a node logs at its most talkative, and what it answers about its configs, has no password, key or token."""
    caplog.set_level(logging.DEBUG)
    users = {"admin": "Pl4nted-admin", "eve": "Pl4nted-eve"}
    config = {
        "delegation.token.secret.key": "Pl4nted-master",
        "listener.name.unused.gssapi.sasl.jaas.config": 'com.sun.Krb5LoginModule required password="Pl4nted-kerberos";',
        "listener.name.unused.ssl.key.password": "Pl4nted-key",
        "sasl.oauthbearer.assertion.private.key.passphrase": "Pl4nted-phrase",
        "sasl.oauthbearer.client.credentials.client.secret": "Pl4nted-client",
    }
    with Cluster(security="SASL_SSL", users=users, config=config, directory=tmp_path) as cluster:
        cluster.create_topic("t")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
            connect(cluster, user="eve", mechanism=mechanism).close()
            if mechanism != "OAUTHBEARER":
                with pytest.raises(ApiError) as refused:
                    connect(cluster, user="eve", mechanism=mechanism, password="Pl4nted-wrong")
                assert "Pl4nted" not in str(refused.value)
        with bare(cluster) as connection:
            connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            with contextlib.suppress(ApiError):
                connection.request(SaslAuthenticateRequest(auth_bytes=b"Pl4nted-malformed"), 1)
        node: Node = cluster.nodes[1]
        with CommandAdmin(cluster.bootstrap_servers, config=cluster.client_config()) as client:
            described = repr(client.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")]).check())
            hmac = client.create_delegation_token().hmac
        # The metadata log has these, and nothing else: no line of the log, no answer.
        line = f"{SASL_LISTENER}scram-sha-512.sasl.jaas.config"
        alter_config(cluster, line, f'{SCRAM_MODULE} required password="Alt3red";')
        alter_config(cluster, line, "Alt3red required;")
        alter_config(cluster, f"{SASL_LISTENER}unknown", "Alt3red")
        wait_until(lambda: "a login module, package.Class, is expected first" in caplog.text)
        with CommandAdmin(cluster.bootstrap_servers, config=cluster.client_config()) as client:
            described += repr(client.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")]).check())
    key = (tmp_path / "certificates" / "node.pem").read_text().splitlines()[1]
    written = caplog.text + described + repr(vars(node)) + "".join(map(repr, caplog.records))
    assert "Alt3red" not in written
    for planted in ("Pl4nted", "node-secret", key, base64.b64encode(hmac).decode(), hmac.hex(), repr(hmac)[2:-1]):
        assert planted not in written
        files = [each for each in cluster.directory(1).rglob("*") if each.is_file()]
        assert any(each.suffix == ".log" for each in files)
        assert [each for each in files if planted.encode() in each.read_bytes()] == []
    assert [each for each in files if hmac in each.read_bytes()] == []


def test_a_plaintext_node_imports_nothing_of_it() -> None:
    """Start time and memory of a node without TLS and SASL stay as they were."""
    program = (
        "import sys\n"
        "from kalda.testing import Cluster\n"
        "Cluster().start().stop()\n"
        "heavy = ('cryptography', 'jwt', 'kalda.security.scram', 'kalda.security.server_login')\n"
        "heavy += ('kalda.network.tls.transport', 'kalda.network.client.security')\n"
        "heavy += ('kalda.network.login.token_validation',)\n"
        "heavy += ('kalda.broker.process.node_security',)\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
