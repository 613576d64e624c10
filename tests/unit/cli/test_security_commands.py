"""`kalda acls`, `users`, `tokens` and `explain access`, and the admin clients' calls for tokens, on one node."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from harness.blocking import BlockingConnection

import kalda
import kalda.aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.commands import cli
from kalda.network.client.security import ClientSecurity
from kalda.network.free_ports import free_ports
from kalda.security.jaas import SCRAM_MODULE
from kalda.testing import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With an authorizer, and tokens."""
    config = {
        "authorizer.class.name": STANDARD,
        "delegation.token.secret.key": "of-the-cluster",
        "connection.failed.authentication.delay.ms": 5,
        "kalda.metrics.listener": f"127.0.0.1:{free_ports(1)[0]}",
    }
    with Cluster(security="SASL_PLAINTEXT", config=config) as running:
        running.create_topic("orders")
        yield running


class Shell:
    """Runs `kalda` in this process, as admin or as another user."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory

    def run(self, *arguments: str, code: int = 0, user: str = "admin", typed: str | None = None) -> Result:
        properties = self._directory / f"{user}.properties"
        keys = self._cluster.client_config(user)
        properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        group, command, *others = arguments
        result = CliRunner().invoke(
            cli,
            [group, command, *others, "--command-config", str(properties)],
            prog_name="kalda",
            input=typed,
            env={"KALDA_BOOTSTRAP_SERVER": self._cluster.bootstrap_servers},
        )
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
        return result

    def json(self, *arguments: str, user: str = "admin") -> Any:
        return json.loads(self.run(*arguments, "--json", user=user).stdout)

    def json_when(self, is_right: Callable[[Any], bool], *arguments: str) -> Any:
        """The output once the broker has replayed the records that make it right."""
        deadline = time.monotonic() + 60
        while not is_right(found := self.json(*arguments)):
            assert time.monotonic() < deadline, found
        return found


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


def log_in(cluster: Cluster, user: str, password: str, *options: str) -> None:
    """Raises `ApiError`."""
    line = " ".join([f'{SCRAM_MODULE} required username="{user}" password="{password}"', *options]) + ";"
    keys = {**cluster.client_config(), "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": line}
    host, port = cluster.address(1).rsplit(":", 1)
    BlockingConnection(host, int(port), security=ClientSecurity.of(keys), timeout_ms=30_000).close()


def logs_in_soon(cluster: Cluster, user: str, password: str, *options: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return log_in(cluster, user, password, *options)
        except ApiError:
            assert time.monotonic() < deadline, f"{user} cannot log in"


def test_acls(shell: Shell) -> None:
    """Added, listed, explained, removed; what alice may do is what they say."""
    shell.run("topics", "describe", "orders", user="alice", code=1)
    shell.run("acls", "add", "--topic", "orders", "--operation", "Describe", "--allow-principal", "User:alice")
    shell.run(
        "acls", "add", "--topic", "ord", "--resource-pattern-type", "prefixed", "--operation", "Write",
        "--deny-principal", "User:alice", "--deny-host", "10.0.0.1",
    )  # fmt: skip
    found = shell.json_when(lambda rows: len(rows) == 2, "acls", "list", "--principal", "User:alice")
    assert sorted(found, key=str) == [
        {
            "resource_type": "TOPIC", "resource_name": "ord", "pattern_type": "PREFIXED", "principal": "User:alice",
            "host": "10.0.0.1", "operation": "WRITE", "permission": "DENY",
        },
        {
            "resource_type": "TOPIC", "resource_name": "orders", "pattern_type": "LITERAL", "principal": "User:alice",
            "host": "*", "operation": "DESCRIBE", "permission": "ALLOW",
        },
    ]  # fmt: skip
    shell.run("topics", "describe", "orders", user="alice")
    asked = ["explain", "access", "--principal", "User:alice", "--resource", "topic:orders", "--operation"]
    strange = shell.run("explain", "access", "--principal", "User:\x07", "--resource", "topic:o", "--operation", "Read")
    assert "\x07" not in strange.output
    assert [shell.json(*asked, each)[0]["allowed"] for each in ("Describe", "Read")] == [True, False]
    shell.run("acls", "list", user="alice", code=1)  # needs DESCRIBE of the cluster
    shell.run("acls", "remove", "--topic", "orders", "--yes")
    shell.json_when(lambda rows: len(rows) == 1, "acls", "list", "--topic", "ord", "--resource-pattern-type", "any")
    shell.run("topics", "describe", "orders", user="alice", code=1)
    shell.run("acls", "add", "--topic", "orders", code=2)


def test_users(cluster: Cluster, shell: Shell) -> None:
    """A user can log in with the newest password, until it is removed."""
    for password in ("first-secret", "second-secret"):
        shown = shell.run("users", "set", "dora", "--mechanism", "SCRAM-SHA-512", "--password", password)
        assert "secret" not in shown.output
        logs_in_soon(cluster, "dora", password)
    with pytest.raises(ApiError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        log_in(cluster, "dora", "first-secret")
    assert shell.json("users", "list", "dora") == [
        {"user": "dora", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    shell.run("users", "remove", "dora", "--mechanism", "SCRAM-SHA-512", "--yes")
    shell.json_when(lambda rows: "dora" not in [each["user"] for each in rows], "users", "list")
    with pytest.raises(ApiError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        log_in(cluster, "dora", "second-secret")


def test_tokens(cluster: Cluster, shell: Shell) -> None:
    [made] = shell.json("tokens", "create", "--renewer", "User:admin", "--max-life-time-ms", "3600000", user="alice")
    assert (made["owner"], made["renewers"]) == ("User:alice", ["User:admin"])
    logs_in_soon(cluster, made["token_id"], made["hmac"], "tokenauth=true")
    [listed] = shell.json_when(bool, "tokens", "list", "--owner", "User:alice")
    assert "hmac" not in listed
    assert made["hmac"] not in shell.run("tokens", "list").output
    renewed = shell.run("tokens", "renew", "--hmac", made["hmac"], "--renew-time-period-ms", "60000").output
    assert "The token expires at" in renewed
    assert made["hmac"] not in shell.run("tokens", "expire", "--yes", typed=made["hmac"] + "\n").output
    shell.json_when(lambda rows: not rows, "tokens", "list")
    with pytest.raises(ApiError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        log_in(cluster, made["token_id"], made["hmac"], "tokenauth=true")
    wrong = shell.run("tokens", "renew", "--hmac", "not base64!", code=2).output
    assert "not base64!" not in wrong


def test_tokens_of_the_admin_clients(cluster: Cluster) -> None:
    keys = cluster.client_config()

    def is_live(token_id: str, found: list[Any]) -> bool:
        return token_id in [each.token_id for each in found]

    with kalda.Admin(keys) as admin:
        token = admin.create_delegation_token(owner="User:alice", renewers=["User:admin"], max_lifetime_ms=3_600_000)
        assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:admin", ("User:admin",))
        assert base64.b64encode(token.hmac).decode() not in repr(token)
        deadline = time.monotonic() + 60
        while not is_live(token.token_id, admin.describe_delegation_tokens(["User:alice"])):
            assert time.monotonic() < deadline
        with pytest.raises(ApiError) as refused:
            admin.renew_delegation_token(b"another")
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND

    async def expire() -> list[Any]:
        async with kalda.aio.Admin(keys) as admin:
            made = await admin.create_delegation_token()
            while not is_live(made.token_id, await admin.describe_delegation_tokens()):
                assert time.monotonic() < deadline
            assert await admin.renew_delegation_token(made.hmac, period_ms=60_000) < made.expires_ms
            for each in (made, token):
                await admin.expire_delegation_token(each.hmac)
            while found := await admin.describe_delegation_tokens():
                assert time.monotonic() < deadline
            return found

    assert asyncio.run(expire()) == []
