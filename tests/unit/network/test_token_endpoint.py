"""Tokens from an endpoint, by each grant, and what happens where it fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from form_server import Form, FormServer

from kalda.base.errors import ApiError
from kalda.network.client.security import ClientSecurity
from kalda.network.login.token_validation import Refused, retrying, signed_tokens
from kalda.security.jaas import OAUTHBEARER_MODULE
from kalda.security.oauthbearer import InvalidToken, split_token, unsecured_token

JwtBearer = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
SECRET = "pl4nted/secret"


class Endpoint(FormServer):
    """Answers with what the test has put into `answers`, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        """The next ones; without one, a valid token."""
        self.seen: list[tuple[Mapping[str, str], Form]] = []
        """Headers and form of each POST."""
        super().__init__("/oauth?tenant=a", self._answer)

    def _answer(self, headers: Mapping[str, str], form: Form) -> tuple[int, str]:
        if form:
            self.seen.append((headers, form))
        token = unsecured_token({"sub": "alice", "exp": time.time() + 3600})
        return self.answers.pop(0) if self.answers else (200, json.dumps({"access_token": token}))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def security_of(endpoint: Endpoint, **keys: Any) -> ClientSecurity:
    values: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "kalda.sasl.oauthbearer.allowed.urls": endpoint.url,
        "sasl.login.retry.backoff.ms": 1,
    }
    oauth = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in keys.items() if "." not in name}
    security = ClientSecurity.of(values | oauth | {name: value for name, value in keys.items() if "." in name})
    assert security is not None
    return security


def with_secret(endpoint: Endpoint, **keys: Any) -> ClientSecurity:
    known = {"client_credentials_client_id": "the client", "client_credentials_client_secret": SECRET}
    return security_of(endpoint, **(known | keys))


def log_in(security: ClientSecurity) -> None:
    assert security.login("localhost") is not None


def key_in(directory: Path, passphrase: bytes | None = None) -> tuple[str, Any]:
    """A file with a private key, and its public key."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    how = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    path = directory / "key.pem"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    return str(path), key.public_key()


@pytest.mark.parametrize(
    ("is_encoded", "credentials"), [(False, f"the client:{SECRET}"), (True, "the+client:pl4nted%2Fsecret")]
)
def test_client_credentials(endpoint: Endpoint, is_encoded: bool, credentials: str) -> None:
    import base64

    security = with_secret(endpoint, scope="read write", header_urlencode=is_encoded)
    log_in(security)
    log_in(security)
    [(headers, form)] = endpoint.seen
    assert form == {"grant_type": "client_credentials", "scope": "read write"}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == credentials


def test_an_assertion_of_a_key(endpoint: Endpoint, tmp_path: Path) -> None:
    """The grant jwt-bearer; what the template has takes the place of the keys' claims, the times that of its own."""
    jwt = pytest.importorskip("jwt")
    key, public = key_in(tmp_path, b"pl4nted-passphrase")
    template = tmp_path / "template.json"
    template.write_text('{"header": {"kid": "k1", "alg": "none"}, "payload": {"sub": "me", "exp": 1, "team": 7}}')
    keys = {
        "assertion_algorithm": "es256",
        "assertion_claim_aud": "endpoint",
        "assertion_claim_iss": "client",
        "assertion_claim_sub": "not me",
        "assertion_claim_jti_include": "true",
        "assertion_private_key_file": key,
        "assertion_private_key_passphrase": "pl4nted-passphrase",
        "assertion_template_file": str(template),
        "scope": "read",
        "kalda.sasl.oauthbearer.allowed.files": [key, str(template)],
    }
    log_in(security_of(endpoint, jwt_retriever_class=JwtBearer, **keys))
    [(headers, form)] = endpoint.seen
    assertion = form.pop("assertion")
    assert form == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "read"}
    assert "Authorization" not in headers
    claims = jwt.decode(assertion, public, algorithms=["ES256"], audience="endpoint")
    assert (claims["iss"], claims["sub"], claims["team"]) == ("client", "me", 7)
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"], len(claims["jti"])) == (300, 60, 36)
    assert jwt.get_unverified_header(assertion) == {"alg": "ES256", "typ": "JWT", "kid": "k1"}
    # The default retriever sends it in place of the client secret.
    log_in(security_of(endpoint, client_credentials_client_id="it", **keys))
    form = endpoint.seen[1][1]
    assert split_token(form.pop("client_assertion"))[1]["iss"] == "client"
    assert form == {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "grant_type": "client_credentials",
        "client_id": "it",
        "scope": "read",
    }
    with pytest.raises(ApiError, match=f"the private key in {key} cannot be read: ") as refused:
        log_in(security_of(endpoint, **(keys | {"assertion_private_key_passphrase": "pl4nted-wrong"})))
    assert "pl4nted" not in str(refused.value)


def test_an_assertion_in_a_file(endpoint: Endpoint, tmp_path: Path) -> None:
    """The file is read for each request. Only files that are allowed are read (CVE-2025-27817)."""
    file = tmp_path / "assertion"
    file.write_text("a.b.c")
    how = {"jwt_retriever_class": JwtBearer, "assertion_file": str(file)}
    with pytest.raises(ValueError, match=r"assertion.file=.* is not allowed; add it to kalda.*allowed.files"):
        security_of(endpoint, **how)
    security = security_of(endpoint, **how, **{"kalda.sasl.oauthbearer.allowed.files": str(file)})
    with pytest.raises(ApiError, match="Malformed JWT"):
        log_in(security)
    file.write_text(unsecured_token({"iss": "client"}) + "\n")
    log_in(security)
    assert endpoint.seen[0][1]["assertion"] == unsecured_token({"iss": "client"})


def test_a_request_is_repeated_where_the_endpoint_fails_and_not_where_it_refuses(endpoint: Endpoint) -> None:
    endpoint.answers = [
        (503, ""),
        (500, "{"),
        (200, '{"id_token": " ' + unsecured_token({"sub": "a", "exp": 2**40}) + '"}'),
    ]
    log_in(with_secret(endpoint))
    assert len(endpoint.seen) == 3
    endpoint.answers = [(401, json.dumps({"error": "invalid_client", "error_description": "who\nare you"}))]
    with pytest.raises(ApiError, match=r"status 401: invalid_client - who\\nare you"):
        log_in(with_secret(endpoint))
    for content, why in (("{}", "no access_token"), ('{"access_token": "pl4nted"}', "Malformed JWT")):
        endpoint.answers = [(200, content)]
        with pytest.raises(ApiError, match=why) as failed:
            log_in(with_secret(endpoint))
        assert "pl4nted" not in str(failed.value)
    assert len(endpoint.seen) == 6


def test_the_times_between_attempts() -> None:
    now_s, slept, error = 5.0, [], OSError("first")

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(round(seconds, 3))
        now_s += seconds

    def fail() -> None:
        raise error if not slept else OSError("later")

    with pytest.raises(OSError, match="first"):
        retrying(fail, 100, 1_000, lambda: now_s, sleep)
    assert slept == [0.1, 0.2, 0.4, 0.3]
    error = Refused("at once")
    slept.clear()
    with pytest.raises(Refused):
        retrying(fail, 100, 1_000, lambda: now_s, sleep)
    assert slept == []


@pytest.mark.parametrize("claims", [{"sub": "a"}, {"exp": 2**40}, {"sub": " ", "exp": 2**40}, {"sub": "a", "exp": "x"}])
def test_a_token_without_what_a_login_needs_is_not_used(endpoint: Endpoint, claims: dict[str, Any]) -> None:
    endpoint.answers = [(200, json.dumps({"access_token": unsecured_token(claims)}))]
    with pytest.raises(ApiError, match="the claim"):
        log_in(with_secret(endpoint))


def test_keys_of_signatures_are_read_anew_while_those_that_are_known_are_used(endpoint: Endpoint) -> None:
    jwt = pytest.importorskip("jwt")
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("k1", "k2")}

    def published(*names: str) -> str:
        public = [json.loads(jwt.algorithms.ECAlgorithm.to_jwk(keys[name].public_key())) for name in names]
        return json.dumps({"keys": [each | {"kid": name} for name, each in zip(names, public, strict=True)]})

    def token(name: str) -> str:
        claims = {"sub": "alice", "exp": int(time.time()) + 60}
        made: str = jwt.encode(claims, keys[name], "ES256", headers={"kid": name})
        return made

    values: dict[str, object] = {"jwks.endpoint.url": endpoint.url}
    values |= {"jwks.endpoint.refresh.ms": 1, "jwks.endpoint.retry.backoff.ms": 1}
    for claim in ("audience", "issuer"):
        with pytest.raises(ValueError, match=f"expected.{claim} is not set"):
            signed_tokens({f"sasl.oauthbearer.{name}": value for name, value in values.items()}.get, [endpoint.url])
        values[f"allow.unverified.{claim}"] = True
    tokens = signed_tokens({f"sasl.oauthbearer.{name}": value for name, value in values.items()}.get, [endpoint.url])
    endpoint.answers = [(200, published("k1"))]
    assert tokens.validate(token("k1")).principal_name == "alice"
    with pytest.raises(InvalidToken, match="not in the set of keys"):
        tokens.validate(token("k2"))
    endpoint.answers = [(503, "")] * 3 + [(200, published("k1", "k2"))] * 1_000
    deadline_s = time.monotonic() + 60
    while tokens._find("k2") is None:
        tokens.validate(token("k1"))
        assert time.monotonic() < deadline_s
    assert tokens.validate(token("k2")).principal_name == "alice"
    for thread in threading.enumerate():
        if thread.name == "oauth-keys":
            thread.join()
