"""The security of a client's connections: its TLS context, and a login for each connection.

Made of the keys that Kafka's clients have, or by a node for its connections to other nodes. A token for OAUTHBEARER may
come from the network: `prepare` blocks, and is called on a thread before `login` where `blocks` says so.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError
from kalda.network.jaas_file import CLIENT_SECTION, find_entry
from kalda.security.jaas import BadJaas, JaasEntry, parse_jaas
from kalda.security.login import ClientLogin, authentication_failed
from kalda.security.mechanisms import ClientMechanism, PlainClient, SaslFailed
from kalda.security.oauthbearer import OAuthBearerClient
from kalda.security.scram import MECHANISMS as SCRAM_MECHANISMS
from kalda.security.scram import NONCE_BYTES, ScramClient
from kalda.security.tls_settings import TlsSettings

if TYPE_CHECKING:
    from kalda.network.kerberos import Kerberos

_ALLOWED_URLS = "kalda.sasl.oauthbearer.allowed.urls"
_PREPARED_S = 60.0
_TOKEN_SHARE = 0.8
"""A token is used until this share of its life has passed."""


class ClientSecurity:
    """What all connections of one client to one kind of listener have in common."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        mechanism: str | None,
        jaas: JaasEntry | None,
        value_of: Callable[[str], Any],
        allowed_urls: Collection[str],
    ) -> None:
        """`mechanism` and `jaas`: None without SASL. `value_of(key)` is the value of a `sasl.oauthbearer.*` key. Raises
        `ValueError`."""
        self.tls = tls
        """None without TLS. May be replaced: new connections use the new one."""
        self.mechanism = mechanism
        self._options: Mapping[str, str] = {} if jaas is None else jaas.options
        self._value_of = value_of
        self._allowed_urls = tuple(allowed_urls)
        self._lock = threading.Lock()
        self._kerberos: Kerberos | None = None
        """For GSSAPI."""
        self._credentials: tuple[Any, float] | None = None
        """For GSSAPI: what tickets are requested with, and when to get it anew, by the monotonic clock."""
        self._prepared: dict[str, tuple[ClientMechanism, float]] = {}
        """For GSSAPI: the exchange that `prepare` has begun, by host, and until when it is used, by the monotonic
        clock: a server refuses tickets that were presented long after they were made."""
        self._token: tuple[str, float] | None = None
        """The last OAuth token, and until when it is used, by the monotonic clock."""
        if mechanism is not None:
            self._check(mechanism)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ClientSecurity | None:
        """By the keys of a client's configuration; None for PLAINTEXT. Raises `ValueError`."""
        protocol = str(values.get("security.protocol") or "PLAINTEXT").upper()
        if protocol == "PLAINTEXT":
            return None
        tls = mechanism = jaas = None
        if protocol.endswith("SSL"):
            from kalda.network.tls_contexts import TlsFailed, client_context, read_stores

            settings = TlsSettings.of(lambda key: values.get(key, "https" if "identification" in key else None))
            try:
                tls = client_context(settings, read_stores(settings))
            except TlsFailed as error:
                raise ValueError(str(error)) from error
        if protocol.startswith("SASL"):
            mechanism = str(values.get("sasl.mechanism") or "GSSAPI")
            line = values.get("sasl.jaas.config")
            _require_known(mechanism)
            jaas = find_entry((CLIENT_SECTION,), mechanism) if line is None else parse_jaas(str(line), mechanism)
            if jaas is None:
                raise BadJaas(f"sasl.jaas.config is not set: security.protocol={protocol} needs it")
        allowed = values.get(_ALLOWED_URLS) or ()
        return cls(tls, mechanism, jaas, values.get, [allowed] if isinstance(allowed, str) else allowed)

    @property
    def blocks(self) -> bool:
        """Whether `prepare` may have to wait for the network or a file."""
        if self.mechanism == "GSSAPI":
            return True
        return self.mechanism == "OAUTHBEARER" and not self._is_unsecured and not self._has_token()

    def prepare(self, host: str) -> None:
        """Get what a login at that host needs. Raises `ApiError`."""
        if self.mechanism == "GSSAPI":
            if self._take_prepared(host, keep=True) is not None:
                return
            try:
                exchange = self._kerberos_exchange(host)
            except (SaslFailed, ValueError) as error:
                raise authentication_failed(str(error)) from error
            self._prepared[host] = exchange, time.monotonic() + _PREPARED_S
        elif self.blocks:
            self._fetch()

    def login(self, host: str) -> ClientLogin | None:
        """The login of a new connection to that host, or of one to be renewed; None without SASL. Raises `ApiError`."""
        if self.mechanism is None:
            return None
        try:
            return ClientLogin(self.mechanism, self._exchange(self.mechanism, host))
        except (SaslFailed, ValueError) as error:
            raise authentication_failed(str(error)) from error

    # -- mechanisms

    def _check(self, mechanism: str) -> None:
        """Whether a login can be made at all. Raises `ValueError`."""
        _require_known(mechanism)
        if mechanism == "GSSAPI":
            from kalda.network.kerberos import Kerberos

            self._service()
            self._kerberos = Kerberos(dict(self._options))
            return
        if mechanism == "OAUTHBEARER":
            if not self._is_unsecured:
                self._endpoint()
            return
        for option in ("username", "password"):
            if option not in self._options:
                raise BadJaas(f"sasl.jaas.config: the option {option} of the login module is missing")

    def _exchange(self, mechanism: str, host: str) -> ClientMechanism:
        options = self._options
        if mechanism == "GSSAPI":
            return self._take_prepared(host) or self._kerberos_exchange(host)
        if mechanism == "PLAIN":
            return PlainClient(options["username"], options["password"])
        if mechanism in SCRAM_MECHANISMS:
            is_token = options.get("tokenauth", "").lower() == "true"
            nonce = os.urandom(NONCE_BYTES).hex()
            return ScramClient(mechanism, options["username"], options["password"], nonce, is_token)
        prefixes = ("unsecuredLoginExtension_", "extension_")
        extensions = {
            name.removeprefix(prefix): text
            for prefix in prefixes
            for name, text in options.items()
            if name.startswith(prefix)
        }
        return OAuthBearerClient(self._bearer_token(), extensions)

    # -- GSSAPI

    def _service(self) -> str:
        """The service that a ticket is for. Raises `ValueError`."""
        key = "sasl.kerberos.service.name"
        configured, option = self._value_of(key), self._options.get("serviceName")
        if configured and option and configured != option:
            raise BadJaas(
                f"Conflicting serviceName values found in JAAS and Kafka configs value in JAAS file {option}, value in "
                f"Kafka config {configured}"
            )
        service = configured or option
        if not service:
            raise BadJaas(f"No serviceName defined in either JAAS or Kafka config: set {key}")
        return str(service)

    def _take_prepared(self, host: str, keep: bool = False) -> ClientMechanism | None:
        """The exchange that was begun for a login at that host, while its ticket is fresh."""
        with self._lock:
            exchange, until_s = self._prepared.get(host, (None, 0.0))
            is_fresh = time.monotonic() < until_s
            if not keep or not is_fresh:
                self._prepared.pop(host, None)
        return exchange if is_fresh else None

    def _kerberos_exchange(self, host: str) -> ClientMechanism:
        """Raises `SaslFailed`, `ValueError`."""
        from kalda.network.kerberos import GssapiClient

        assert self._kerberos is not None, "made for GSSAPI"
        with self._lock:
            now_s = time.monotonic()
            if self._credentials is None or now_s >= self._credentials[1]:
                credentials = self._kerberos.initiating()
                share = float(self._value_of("sasl.kerberos.ticket.renew.window.factor") or _TOKEN_SHARE)
                self._credentials = credentials, now_s + (credentials.lifetime or 0) * share
            found = self._credentials[0]
        return GssapiClient(found, self._service(), host)

    # -- OAUTHBEARER

    @property
    def _is_unsecured(self) -> bool:
        return any(name.startswith("unsecuredLoginStringClaim_") for name in self._options)

    def _has_token(self) -> bool:
        return self._token is not None and time.monotonic() < self._token[1]

    def _bearer_token(self) -> str:
        from kalda.security.jwt import claims_of_options, unsecured_token

        claims = claims_of_options(self._options, time.time())
        if claims is not None:
            return unsecured_token(claims)
        if self._token is None:
            self._fetch()
        assert self._token is not None
        return self._token[0]

    def _endpoint(self) -> str:
        """Where tokens come from. Raises `ValueError`."""
        from kalda.network.oauth import check_url

        key = "sasl.oauthbearer.token.endpoint.url"
        url = self._value_of(key)
        if not url:
            raise BadJaas(f"OAUTHBEARER needs {key}, or unsecuredLoginStringClaim_sub in sasl.jaas.config")
        return check_url(key, str(url), self._allowed_urls)

    def _fetch(self) -> None:
        """Raises `ApiError`."""
        from kalda.network.oauth import fetch_token
        from kalda.security.jwt import split_token

        def value(key: str, option: str) -> str:
            return str(self._value_of(key) or self._options.get(option) or "")

        client_id = value("sasl.oauthbearer.client.credentials.client.id", "clientId")
        client_secret = value("sasl.oauthbearer.client.credentials.client.secret", "clientSecret")

        with self._lock:
            if self._has_token():
                return
            try:
                token = fetch_token(
                    self._endpoint(),
                    client_id,
                    client_secret,
                    value("sasl.oauthbearer.scope", "scope") or None,
                )
                expires_s = float(split_token(token)[1].get("exp") or 0.0)
            except (OSError, ValueError, SaslFailed) as error:
                raise authentication_failed(f"no OAuth token could be got: {type(error).__name__}: {error}") from error
            self._token = token, time.monotonic() + max(0.0, expires_s - time.time()) * _TOKEN_SHARE


def _require_known(mechanism: str) -> None:
    known = ("GSSAPI", "PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")
    if mechanism not in known:
        raise BadJaas(f"sasl.mechanism={mechanism} is not one of {', '.join(known)}")


def require(values: Mapping[str, Any]) -> ClientSecurity | None:
    """`ClientSecurity.of`, with an `ApiError` in place of a `ValueError`: for clients."""
    from kalda.base.configs.definition import InvalidConfig

    try:
        return ClientSecurity.of(values)
    except ApiError:
        raise
    except ValueError as error:
        raise InvalidConfig(str(error)) from error
