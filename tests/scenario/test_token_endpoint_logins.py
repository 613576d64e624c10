"""Logins by signed tokens that a token endpoint issues: those of clients, and those of the nodes to each other."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from form_server import Form, FormServer

import kalda
import kalda.aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.acls import Acl
from kalda.protocol.messages.security import AclOperation
from kalda.security.jaas import OAUTHBEARER_MODULE
from kalda.testing import Cluster

jwt = pytest.importorskip("jwt")
SECRETS = {"node": "node-key", "admin": "admin-key", "alice": "alice-key", "bob": "bob-key"}
"""Client secrets by client id."""


class TokenEndpoint(FormServer):
    """Grants client credentials (RFC 6749, section 4.4), and publishes its keys."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self.keys = json.dumps(
            {"keys": [{**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key())), "kid": "k"}]}
        )
        """The set of keys, JWKS."""
        self.granted: Counter[str] = Counter()
        """How many tokens each client id has been granted."""
        super().__init__("/token", self._answer)

    def _answer(self, headers: Mapping[str, str], form: Form) -> tuple[int, str]:
        credentials = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
        client, _, secret = credentials.partition(":")
        if form != {"grant_type": "client_credentials", "scope": "kafka"} or SECRETS.get(client) != secret:
            return 401, json.dumps({"error": "invalid_client", "error_description": "unknown"})
        self.granted[client] += 1
        claims = {"sub": client, "aud": "kalda", "scope": "kafka", "exp": int(time.time()) + 3_600}
        return 200, json.dumps({"access_token": jwt.encode(claims, self._key, "ES256", headers={"kid": "k"})})

    def keys_of(self, client: str, secret: str | None = None) -> dict[str, str]:
        """The configuration that gets tokens here as that client."""
        return {
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.credentials.client.id": client,
            "sasl.oauthbearer.client.credentials.client.secret": SECRETS[client] if secret is None else secret,
            "sasl.oauthbearer.scope": "kafka",
            "kalda.sasl.oauthbearer.allowed.urls": self.url,
        }


@pytest.fixture(scope="module")
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(endpoint: TokenEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers whose logins to each other and to the controllers are by tokens of the endpoint."""
    published: Path = tmp_path_factory.mktemp("keys") / "jwks.json"
    published.write_text(endpoint.keys)
    config = endpoint.keys_of("node") | {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": published.as_uri(),
        "sasl.oauthbearer.expected.audience": "kalda",
        "sasl.oauthbearer.allow.unverified.issuer": "true",
        "kalda.sasl.oauthbearer.allowed.urls": f"{endpoint.url},{published.as_uri()}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "connection.failed.authentication.delay.ms": 0,
    }
    for listener in ("sasl_plaintext", "controller"):
        config[f"listener.name.{listener}.oauthbearer.sasl.server.callback.handler.class"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        )
    with Cluster(2, security="SASL_PLAINTEXT", config=config) as made:
        made.create_topic("t", replication_factor=2, configs={"min.insync.replicas": 2})
        with CommandAdmin(made.bootstrap_servers, config=made.client_config()) as admin:
            admin.create_acls([Acl(2, "t", 3, "User:alice", "*", AclOperation.WRITE, 3)]).check()
        yield made


def client_keys(cluster: Cluster, endpoint: TokenEndpoint, client: str, secret: str | None = None) -> dict[str, Any]:
    return {
        **cluster.client_config(mechanism="OAUTHBEARER"),
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        **endpoint.keys_of(client, secret),
    }


def test_brokers_log_in_to_each_other(cluster: Cluster, endpoint: TokenEndpoint) -> None:
    """A record is acknowledged once the other broker has fetched it. All logins to one listener share a token."""
    before = endpoint.granted["admin"]
    with kalda.Producer(client_keys(cluster, endpoint, "admin"), acks="all") as producer:
        producer.send("t", b"x").result(60)
    assert endpoint.granted["admin"] == before + 1
    assert 2 <= endpoint.granted["node"] <= 4


def test_a_producer(cluster: Cluster, endpoint: TokenEndpoint) -> None:
    """The principal is the token's: alice has an ACL, bob has none. Connections to both brokers use one token."""
    with kalda.Producer(client_keys(cluster, endpoint, "alice")) as producer:
        producer.send("t", b"x").result(60)
    assert endpoint.granted["alice"] >= 1
    with (
        kalda.Producer(client_keys(cluster, endpoint, "bob"), retries=0) as producer,
        pytest.raises(ApiError) as refused,
    ):
        producer.send("t", b"x").result(60)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_producer_of_asyncio(cluster: Cluster, endpoint: TokenEndpoint) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), kalda.aio.Producer(client_keys(cluster, endpoint, "alice")) as producer:
            await (await producer.send("t", b"x"))

    before = endpoint.granted["alice"]
    asyncio.run(run())
    assert endpoint.granted["alice"] == before + 1


def test_an_endpoint_that_refuses(cluster: Cluster, endpoint: TokenEndpoint) -> None:
    keys = client_keys(cluster, endpoint, "alice", "pl4nted-wrong")
    with (
        kalda.Producer(keys, retries=0) as producer,
        pytest.raises(ApiError, match="status 401: invalid_client - unknown") as refused,
    ):
        producer.send("t", b"x").result(60)
    assert "pl4nted" not in str(refused.value)
