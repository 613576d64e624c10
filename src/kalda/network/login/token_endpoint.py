"""Where the OAuth tokens of a client come from: Kafka's `JwtRetriever`s (KIP-768, KIP-1139).

`sasl.oauthbearer.jwt.retriever.class` names one of them, or a Python class whose method `retrieve()` returns a token:

- `ClientCredentialsJwtRetriever`: a token endpoint, by client id and secret, or by an assertion in their place
- `JwtBearerJwtRetriever`: a token endpoint, by an assertion
- `FileJwtRetriever`: a file
- `DefaultJwtRetriever`: the file of a URL `file:`, else `ClientCredentialsJwtRetriever`

A request that fails is repeated after `sasl.login.retry.backoff.ms`, each time after twice as long, until
`sasl.login.retry.backoff.max.ms` have passed; not where the endpoint has refused it. Everything here blocks, and is
called on threads. No text of an error contains a token, a secret or an assertion.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

from kalda.base.texts import printable
from kalda.network.login.token_validation import Refused, TokenSettings, read_url, retrying
from kalda.network.named_files import read_named_file, read_named_text
from kalda.network.python_classes import make
from kalda.security.oauthbearer import split_token

# Assertions: signed tokens by which a client asks for a token (RFC 7523, KIP-1139), in place of a secret.
#
# An assertion is the content of `sasl.oauthbearer.assertion.file`, or it is made anew for each request. Then its claims
# are those of the keys `sasl.oauthbearer.assertion.claim.*`; what the template file has takes the place of their `aud`,
# `iss` and `sub`, and the times take the place of the template's. Files are read for each request, since they are
# replaced while a client runs. No text of an error contains a key or an assertion.

_CLAIMS = {
    "aud": "sasl.oauthbearer.assertion.claim.aud",
    "iss": "sasl.oauthbearer.assertion.claim.iss",
    "sub": "sasl.oauthbearer.assertion.claim.sub",
}


def assertion_of(settings: TokenSettings) -> Callable[[], str]:
    """What returns an assertion each time it is called; it raises `OSError` or `ValueError`. Raises `ValueError`."""
    if settings.text("sasl.oauthbearer.assertion.file"):
        path = settings.file("sasl.oauthbearer.assertion.file")
        return lambda: _from_file(path)
    algorithm = (settings.text("sasl.oauthbearer.assertion.algorithm") or "RS256").upper()
    if algorithm not in ("RS256", "ES256"):
        raise ValueError(f"sasl.oauthbearer.assertion.algorithm={algorithm} is not one of RS256, ES256")
    key_path = settings.file("sasl.oauthbearer.assertion.private.key.file")
    passphrase = settings.text("sasl.oauthbearer.assertion.private.key.passphrase")
    template_path = (
        settings.file("sasl.oauthbearer.assertion.template.file")
        if settings.text("sasl.oauthbearer.assertion.template.file")
        else None
    )
    claims = {name: settings.text(key) for name, key in _CLAIMS.items()}
    expires_s = settings.number("sasl.oauthbearer.assertion.claim.exp.seconds", 300)
    not_before_s = settings.number("sasl.oauthbearer.assertion.claim.nbf.seconds", 60)
    has_id = settings.text("sasl.oauthbearer.assertion.claim.jti.include").lower() == "true"
    try:
        import jwt
    except ImportError:
        raise ValueError("assertions need the package PyJWT: pip install 'kalda[security]'") from None

    def make() -> str:
        header, payload = ({}, {}) if template_path is None else _template(template_path)
        now_s = int(time.time())
        times = {"iat": now_s, "exp": now_s + expires_s, "nbf": now_s - not_before_s}
        made = {name: text for name, text in claims.items() if text} | payload | times
        if has_id:
            made["jti"] = str(uuid.uuid4())
        try:
            return jwt.encode(made, _key(key_path, passphrase), algorithm, header | {"alg": algorithm, "typ": "JWT"})
        except (jwt.PyJWTError, TypeError) as error:
            raise ValueError(f"no assertion can be made with the key in {key_path}: {type(error).__name__}") from error

    return make


def _from_file(path: str) -> str:
    assertion = read_named_text(path).strip()
    split_token(assertion)
    return assertion


def _key(path: str, passphrase: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(read_named_file(path), passphrase.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the private key in {path} cannot be read: {type(error).__name__}") from error


def _template(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims that a file sets."""
    try:
        found = json.loads(read_named_text(path))
    except (ValueError, RecursionError):
        found = None
    header, payload = (found.get("header", {}), found.get("payload", {})) if isinstance(found, dict) else (None, None)
    if not isinstance(header, dict) or not isinstance(payload, dict):
        raise ValueError(f"{path} is no template of an assertion: JSON with objects header and payload is expected")
    return header, payload


RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_KAFKA = "org.apache.kafka.common.security.oauthbearer."
_DEFAULT, _FILE = _KAFKA + "DefaultJwtRetriever", _KAFKA + "FileJwtRetriever"
_CREDENTIALS, _BEARER = _KAFKA + "ClientCredentialsJwtRetriever", _KAFKA + "JwtBearerJwtRetriever"
_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_MAX_BYTES = 1024 * 1024
_TIMEOUT_MS = 10_000
"""For connecting and for each read, where the configuration sets none."""
_REFUSALS = frozenset((400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505))
"""The statuses after which Kafka does not repeat a request."""


def retriever_of(settings: TokenSettings, configs: Mapping[str, Any]) -> Callable[[], str]:
    """What returns a token each time it is called; it raises `OSError` or `ValueError`. Raises `ValueError`."""
    path = settings.text(RETRIEVER) or _DEFAULT
    if path not in (_DEFAULT, _FILE, _CREDENTIALS, _BEARER):
        called: Callable[[], str] = make(RETRIEVER, path, configs, "retrieve").retrieve
        return called
    url = settings.url(ENDPOINT)
    if path == _FILE or (path == _DEFAULT and urllib.parse.urlsplit(url).scheme.lower() == "file"):
        return lambda: read_url(url).decode().strip()
    form = _bearer_form(settings) if path == _BEARER else _credentials_form(settings, configs)
    endpoint = _Endpoint.of(settings, url)

    def retrieve() -> str:
        body, headers = form()
        return _token_of(retrying(lambda: endpoint.post(body, headers), *endpoint.backoff_ms))

    return retrieve


# -- forms

_Form = Callable[[], tuple[str, dict[str, str]]]
"""Returns the body of a request, and its headers besides those of all requests."""


def _bearer_form(settings: TokenSettings) -> _Form:
    assertion, scope = assertion_of(settings), _scope(settings.text("sasl.oauthbearer.scope"))
    return lambda: (urllib.parse.urlencode({"grant_type": _BEARER_GRANT, "assertion": assertion()} | scope), {})


def _credentials_form(settings: TokenSettings, configs: Mapping[str, Any]) -> _Form:
    id_key = "sasl.oauthbearer.client.credentials.client.id"
    secret_key = "sasl.oauthbearer.client.credentials.client.secret"
    client_id, scope = settings.text(id_key, "clientId"), settings.text("sasl.oauthbearer.scope", "scope")
    if settings.text("sasl.oauthbearer.assertion.file") or settings.text("sasl.oauthbearer.assertion.claim.iss"):
        assertion = assertion_of(settings)
        known = {"grant_type": "client_credentials"} | ({"client_id": client_id} if client_id else {}) | _scope(scope)

        def form() -> tuple[str, dict[str, str]]:
            fields = {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion()} | known
            return urllib.parse.urlencode(fields), {}

        return form
    secret = settings.text(secret_key, "clientSecret")
    for key, value in ((id_key, client_id), (secret_key, secret)):
        if not value:
            raise ValueError(f"{key} is not set: {ENDPOINT} needs it")
    if str(configs.get("sasl.oauthbearer.header.urlencode") or "").lower() == "true":
        client_id, secret = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(secret)
    credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    body = urllib.parse.urlencode({"grant_type": "client_credentials"} | _scope(scope))
    return lambda: (body, {"Authorization": f"Basic {credentials}"})


def _scope(scope: str) -> dict[str, str]:
    return {"scope": scope} if scope else {}


# -- requests


class _Endpoint(NamedTuple):
    """A token endpoint, and how long requests to it may take."""

    parts: urllib.parse.SplitResult
    tls: ssl.SSLContext | None
    connect_s: float
    read_s: float
    backoff_ms: tuple[int, int]
    """Before the second attempt, and for all attempts."""

    @classmethod
    def of(cls, settings: TokenSettings, url: str) -> _Endpoint:
        """Raises `ValueError`."""
        parts = urllib.parse.urlsplit(url)
        first_ms = settings.number("sasl.login.retry.backoff.ms", 100)
        max_ms = settings.number("sasl.login.retry.backoff.max.ms", 10_000)
        if not 0 <= first_ms <= max_ms:
            raise ValueError(f"sasl.login.retry.backoff.ms={first_ms} is not between 0 and the maximum of {max_ms}")
        return cls(
            parts,
            _tls_of(settings.options) if parts.scheme.lower() == "https" else None,
            (settings.number("sasl.login.connect.timeout.ms", 0) or _TIMEOUT_MS) / 1000,
            (settings.number("sasl.login.read.timeout.ms", 0) or _TIMEOUT_MS) / 1000,
            (first_ms, max_ms),
        )

    def post(self, body: str, headers: Mapping[str, str]) -> bytes:
        """The content of the answer. Redirects are not followed. Raises `OSError`."""
        host, port = self.parts.hostname or "", self.parts.port
        connection = (
            HTTPConnection(host, port, timeout=self.connect_s)
            if self.tls is None
            else HTTPSConnection(host, port, timeout=self.connect_s, context=self.tls)
        )
        target = (self.parts.path or "/") + (f"?{self.parts.query}" if self.parts.query else "")
        common = {"Accept": "application/json", "Cache-Control": "no-cache"}
        common["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.connect()
            connection.sock.settimeout(self.read_s)
            connection.request("POST", target, body.encode(), common | dict(headers))
            response = connection.getresponse()
            status, content = response.status, response.read(_MAX_BYTES)
        except HTTPException as error:
            raise OSError(f"the token endpoint has not answered by HTTP: {type(error).__name__}") from error
        finally:
            connection.close()
        if status not in (200, 201):
            why = f"the token endpoint has answered with status {status}{_error_in(content)}"
            raise Refused(why) if status in _REFUSALS else OSError(why)
        return content


def _tls_of(options: Mapping[str, str]) -> ssl.SSLContext:
    """By the options `ssl.*` of the login line; without any, by the system's certificate authorities. Raises
    `ValueError`."""
    from kalda.network.tls.contexts import TlsFailed, client_context, read_stores
    from kalda.security.tls_settings import TlsSettings

    def value_of(key: str) -> Any:
        value = options.get(key, "https" if "identification" in key else None)
        return value.split(",") if value and key in ("ssl.enabled.protocols", "ssl.cipher.suites") else value

    settings = TlsSettings.of(value_of)
    try:
        return client_context(settings, read_stores(settings))
    except TlsFailed as error:
        raise ValueError(str(error)) from error


def _token_of(content: bytes) -> str:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    for name in ("access_token", "id_token"):
        token = answer.get(name) if isinstance(answer, dict) else None
        if isinstance(token, str) and token.strip():
            return token.strip()
    raise ValueError("the answer of the token endpoint has no access_token")


def _error_in(content: bytes) -> str:
    """The error that an endpoint reports (RFC 6749, section 5.2), which contains no secret; empty without one."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    for code, text in (("error", "error_description"), ("errorCode", "errorSummary")):
        if isinstance(answer, dict) and code in answer:
            return printable(f": {str(answer[code])[:100]} - {str(answer.get(text))[:500]}")
    return ""
