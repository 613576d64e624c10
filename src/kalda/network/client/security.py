"""The security of a client's connections: its TLS context, and a login for each connection.

Made of the keys that Kafka's clients have, or by a node for its connections to other nodes. What a login needs may come
from the network, a file or a class of the operator: where `blocks` is true, `login` may wait for it, and an event loop
must call it on a thread.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kalda.base.configs.client import LOGIN
from kalda.base.errors import ApiError
from kalda.network.named_files import CLIENT_SECTION, find_entry
from kalda.network.python_classes import make
from kalda.security.jaas import BadJaas, JaasEntry, parse_jaas
from kalda.security.mechanisms import ClientLogin, ClientMechanism, PlainClient, SaslFailed, authentication_failed
from kalda.security.oauthbearer import OAuthBearerClient, split_token
from kalda.security.scram import MECHANISMS as SCRAM_MECHANISMS
from kalda.security.scram import NONCE_BYTES, ScramClient
from kalda.security.tls_settings import TlsSettings

if TYPE_CHECKING:
    from kalda.network.login.kerberos import Kerberos

# Where the logins of a client get their OAuth token, or their user name and password, besides the login line.
#
# Three keys may name a Python class, as `package.module:Class`. Its optional method `configure(configs)` is called
# once with the configuration. For OAUTHBEARER its method `token()` returns a token (a signed JWT, as text); for PLAIN
# and SCRAM `credentials()` returns user name and password.
#
# - `sasl.login.callback.handler.class`, of OAUTHBEARER alone: a token is requested when the first one is needed, and
#   is used for all connections until the time that the keys `sasl.login.refresh.*` determine. Then a thread requests a
#   new one. Where none can be got, the former one is used while it is valid, and the request is repeated.
# - `sasl.login.class` and `sasl.client.callback.handler.class`: called for each login, and renew what they return by
#   themselves. The second counts where both are set.
#
# The names of Kafka's own classes are accepted, and stand for what Kafka does by them. The methods of a class may
# block: they are called on a thread by clients of asyncio, and in the thread of a blocking client. No text of an error
# contains what they return or raise.

log = logging.getLogger("kalda.authentication")

LOGIN_HANDLER = "sasl.login.callback.handler.class"
_OWN_AT_EACH_LOGIN = ("sasl.client.callback.handler.class", "sasl.login.class")
"""The keys of classes that are called for each login; the first that is set counts."""
_KAFKA = "org.apache.kafka.common.security."
UNSECURED_HANDLER = _KAFKA + "oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
"""Makes tokens without a signature by the options of the login line."""
SECURED_HANDLERS = (
    _KAFKA + "oauthbearer.OAuthBearerLoginCallbackHandler",
    _KAFKA + "oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
"""Get tokens from `sasl.oauthbearer.token.endpoint.url`."""
_DEFAULTS = (
    _KAFKA + "authenticator.DefaultLogin",
    _KAFKA + "authenticator.SaslClientCallbackHandler",
    _KAFKA + "kerberos.KerberosLogin",
    _KAFKA + "oauthbearer.internals.OAuthBearerRefreshingLogin",
    _KAFKA + "oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
)
_RETRY_S = 10.0
"""After this time a token is requested again that could not be renewed, or was no longer valid when it came."""
_MIN_PERIOD_S = 1.0
"""Tokens that are valid for less must not make an endpoint be called without end."""


def own_at_each_login(
    mechanism: str, value_of: Callable[[str], Any], configs: Mapping[str, Any]
) -> Callable[[], Any] | None:
    """The method of the operator's class that is called for each login; None without such a class. Raises
    `ValueError`."""
    for key in _OWN_AT_EACH_LOGIN:
        path = value_of(key)
        if not path or path in _DEFAULTS:
            continue
        if mechanism == "GSSAPI":
            raise ValueError(f"{key}={path}: logins by GSSAPI use the tickets of Kerberos, and no class")
        method = "token" if mechanism == "OAUTHBEARER" else "credentials"
        called: Callable[[], Any] = getattr(make(key, str(path), configs, method), method)
        return called
    return None


def own_login_handler(value_of: Callable[[str], Any], configs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """The method of the operator's class that returns tokens which are kept; None without such a class. Raises
    `ValueError`."""
    path = value_of(LOGIN_HANDLER)
    if not path or path in (UNSECURED_HANDLER, *SECURED_HANDLERS):
        return None
    called: Callable[[], Any] = make(LOGIN_HANDLER, str(path), configs, "token").token
    return called


def token_of(called: Callable[[], Any]) -> str:
    """What the operator's method returns. Raises `ApiError`."""
    found = _called(called)
    if not isinstance(found, str) or not found:
        raise authentication_failed("the class for logins has returned no token")
    return found


def credentials_of(called: Callable[[], Any]) -> tuple[str, str]:
    """User name and password that the operator's method returns. Raises `ApiError`."""
    found = _called(called)
    if not isinstance(found, tuple | list) or len(found) != 2 or not all(isinstance(each, str) for each in found):
        raise authentication_failed("the class for logins has not returned a user name and a password")
    return found[0], found[1]


def _called(called: Callable[[], Any]) -> Any:
    try:
        return called()
    except Exception as error:  # its text may contain a secret
        failure = authentication_failed(f"the class for logins has failed: {type(error).__name__}")
    raise failure


class RefreshWindow(NamedTuple):
    """When a token is requested anew, by the keys `sasl.login.refresh.*`."""

    factor: float
    jitter: float
    min_period_s: float
    buffer_s: float

    @classmethod
    def of(cls, value_of: Callable[[str], Any]) -> RefreshWindow:
        """Raises `ValueError`."""
        found = []
        for key, default in (
            ("sasl.login.refresh.window.factor", 0.8),
            ("sasl.login.refresh.window.jitter", 0.05),
            ("sasl.login.refresh.min.period.seconds", 60),
            ("sasl.login.refresh.buffer.seconds", 300),
        ):
            value = value_of(key)
            try:
                found.append(float(default if value is None else value))
            except (TypeError, ValueError):
                raise ValueError(f"{key}={value} is not a number") from None
        return cls(*found)

    def refresh_after_s(self, age_s: float, left_s: float, random_share: float) -> float:
        """After how many seconds to request a new token, as Kafka computes it. The token was issued `age_s` ago and is
        valid for `left_s` more; `random_share` is between 0 and 1."""
        share = self.factor + self.jitter * random_share
        if self.min_period_s + self.buffer_s > left_s:
            return left_s * share
        proposed_s = (age_s + left_s) * share - age_s
        return max(self.min_period_s, min(proposed_s, left_s - self.buffer_s))


class KeptToken:
    """The token of all logins of a client, requested anew in the background when it is due. Used by several threads."""

    def __init__(
        self,
        request: Callable[[], str],
        window: Callable[[], RefreshWindow],
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        random_share: Callable[[], float] = random.random,
        timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        """`request()` returns a token, and raises `OSError`, `ValueError`, `SaslFailed` or `ApiError`. `timer` makes a
        thread that calls a function after so many seconds, once it is started."""
        self._request = request
        self._window = window
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._random_share = random_share
        self._timer = timer
        self._lock = threading.Lock()
        self._token: str | None = None
        self._expires_at_s = 0.0
        """By the monotonic clock."""
        self._end_of_timer: weakref.finalize[[], KeptToken] | None = None
        """Cancels the timer for the next request, when this object is not in use any more. None before the first."""

    @property
    def is_missing(self) -> bool:
        """Whether `token` has to wait for one."""
        return self._token is None or self._monotonic_s() >= self._expires_at_s

    def token(self) -> str:
        """The token; requests one where there is none that is valid. Raises `ApiError`."""
        with self._lock:
            if self.is_missing:
                try:
                    self._renew()
                except Exception as error:
                    raise authentication_failed(f"no OAuth token could be got: {_why(error)}") from error
            assert self._token is not None
            return self._token

    def _renew(self) -> None:
        """Request a token, and begin the time after which the next one is requested."""
        token = self._request()
        claims = split_token(token)[1]
        expires_s, issued_s = float(claims.get("exp") or 0.0), claims.get("iat")
        now_s, wall_s = self._monotonic_s(), self._wall_s()
        left_s = max(0.0, expires_s - wall_s)
        age_s = max(0.0, wall_s - issued_s) if isinstance(issued_s, int | float) else 0.0
        self._token = token
        self._expires_at_s = now_s + left_s
        after_s = self._window().refresh_after_s(age_s, left_s, self._random_share()) if left_s > 0 else _RETRY_S
        self._renew_after(max(_MIN_PERIOD_S, min(after_s, threading.TIMEOUT_MAX)))

    def _renew_after(self, delay_s: float) -> None:
        if self._end_of_timer is not None:
            self._end_of_timer()
        # The thread of the timer must not keep this object, and with it a client that was closed, in use.
        timer = self._timer(delay_s, partial(_renew_in_background, weakref.ref(self)))
        timer.daemon = True
        self._end_of_timer = weakref.finalize(self, timer.cancel)
        timer.start()

    def renew_in_background(self) -> None:
        """Called by the timer: where no token is got, the former one is used while it is valid."""
        with self._lock:
            try:
                self._renew()
            except Exception as error:
                log.warning(
                    "no new OAuth token could be got (%s): the former one is used, which is valid for %d s more",
                    _why(error),
                    max(0.0, self._expires_at_s - self._monotonic_s()),
                )
                self._renew_after(_RETRY_S)


def _renew_in_background(reference: weakref.ref[KeptToken]) -> None:
    kept = reference()
    if kept is not None:
        kept.renew_in_background()


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_ALLOWED_URLS = "kalda.sasl.oauthbearer.allowed.urls"
_ALLOWED_FILES = "kalda.sasl.oauthbearer.allowed.files"
_OF_PASSWORDS = ("PLAIN", *SCRAM_MECHANISMS)
_TICKET_SHARE = 0.8
"""Credentials of Kerberos are used until this share of their life has passed."""


class ClientSecurity:
    """What all connections of one client to one kind of listener have in common."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        mechanism: str | None,
        jaas: JaasEntry | None,
        value_of: Callable[[str], Any],
        allowed_urls: Collection[str],
        configs: Mapping[str, Any] | None = None,
        allowed_files: Collection[str] = (),
    ) -> None:
        """`mechanism` and `jaas`: None without SASL. `value_of(key)` is the value of a `sasl.*` key, called whenever it
        is needed. `configs` is what the operator's classes are configured with. Raises `ValueError`."""
        self.tls = tls
        """None without TLS. May be replaced: new connections use the new one."""
        self.mechanism = mechanism
        self._options: Mapping[str, str] = {} if jaas is None else jaas.options
        self._value_of = value_of
        self._allowed_urls = tuple(allowed_urls)
        self._allowed_files = tuple(allowed_files)
        self._lock = threading.Lock()
        self._kerberos: Kerberos | None = None
        """For GSSAPI."""
        self._credentials: tuple[Any, float] | None = None
        """For GSSAPI: what tickets are requested with, and when to get it anew, by the monotonic clock."""
        self._own: Callable[[], Any] | None = None
        """The method of the operator's class that is called for each login."""
        self._kept: KeptToken | None = None
        """The OAuth token of all logins."""
        if mechanism is not None:
            self._prepare(mechanism, configs or {})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ClientSecurity | None:
        """By the keys of a client's configuration; None for PLAINTEXT. Raises `ValueError`."""
        protocol = str(values.get("security.protocol") or "PLAINTEXT").upper()
        if protocol == "PLAINTEXT":
            return None
        tls = mechanism = jaas = None
        if protocol.endswith("SSL"):
            from kalda.network.tls.contexts import TlsFailed, client_context, read_stores

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
                raise BadJaas(f"sasl.jaas.config is not set: security.protocol={protocol} needs it; {LOGIN}")
        urls, files = _listed(values.get(_ALLOWED_URLS)), _listed(values.get(_ALLOWED_FILES))
        return cls(tls, mechanism, jaas, values.get, urls, values, files)

    def replace_options(self, jaas: JaasEntry | None) -> None:
        """Log in with the user and the password of another login line from now on; connections that are open keep their
        login. For PLAIN and SCRAM: the login lines of the other mechanisms count from the start. Raises `BadJaas`."""
        if self._own is not None or self.mechanism not in _OF_PASSWORDS or jaas is None:
            return
        _require_password(jaas.options)
        self._options = jaas.options

    @property
    def blocks(self) -> bool:
        """Whether `login` may have to wait for the network, a file, or a class of the operator."""
        if self.mechanism == "GSSAPI" or self._own is not None:
            return True
        return self._kept is not None and self._kept.is_missing

    def login(self, host: str) -> ClientLogin | None:
        """The login of a new connection to that host, or of one to be renewed; None without SASL. Raises `ApiError`."""
        if self.mechanism is None:
            return None
        try:
            return ClientLogin(self.mechanism, self._exchange(self.mechanism, host))
        except (SaslFailed, ValueError) as error:
            raise authentication_failed(str(error)) from error

    # -- mechanisms

    def _prepare(self, mechanism: str, configs: Mapping[str, Any]) -> None:
        """Find out where logins get what they need. Raises `ValueError` where none can be made at all."""
        _require_known(mechanism)
        self._own = own_at_each_login(mechanism, self._value_of, configs)
        if mechanism == "GSSAPI":
            from kalda.network.login.kerberos import Kerberos

            self._service()
            self._kerberos = Kerberos(dict(self._options))
            return
        if self._own is not None:
            return
        if mechanism == "OAUTHBEARER":
            handler = own_login_handler(self._value_of, configs)
            request: Callable[[], str]
            if handler is not None:
                request = partial(token_of, handler)
            elif self._is_unsecured:
                return
            else:
                request = self._requests(configs)
            RefreshWindow.of(self._value_of)
            self._kept = KeptToken(request, partial(RefreshWindow.of, self._value_of))
            return
        _require_password(self._options)

    def _exchange(self, mechanism: str, host: str) -> ClientMechanism:
        options = self._options
        if mechanism == "GSSAPI":
            return self._kerberos_exchange(host)
        if mechanism != "OAUTHBEARER":
            own = self._own
            user, password = credentials_of(own) if own is not None else (options["username"], options["password"])
        if mechanism == "PLAIN":
            return PlainClient(user, password)
        if mechanism in SCRAM_MECHANISMS:
            is_token = options.get("tokenauth", "").lower() == "true"
            nonce = os.urandom(NONCE_BYTES).hex()
            return ScramClient(mechanism, user, password, nonce, is_token)
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

    def _kerberos_exchange(self, host: str) -> ClientMechanism:
        """Raises `SaslFailed`, `ValueError`."""
        from kalda.network.login.kerberos import GssapiClient

        assert self._kerberos is not None, "made for GSSAPI"
        with self._lock:
            now_s = time.monotonic()
            if self._credentials is None or now_s >= self._credentials[1]:
                credentials = self._kerberos.initiating()
                share = float(self._value_of("sasl.kerberos.ticket.renew.window.factor") or _TICKET_SHARE)
                self._credentials = credentials, now_s + (credentials.lifetime or 0) * share
            found = self._credentials[0]
        return GssapiClient(found, self._service(), host)

    # -- OAUTHBEARER

    @property
    def _is_unsecured(self) -> bool:
        """Whether tokens are made here, without a signature: with the options for it, unless another handler is
        named."""
        handler = self._value_of(LOGIN_HANDLER)
        if handler:
            return bool(handler == UNSECURED_HANDLER)
        return any(name.startswith("unsecuredLoginStringClaim_") for name in self._options)

    def _bearer_token(self) -> str:
        """Raises `ApiError`, `ValueError`."""
        if self._own is not None:
            return token_of(self._own)
        if self._kept is not None:
            return self._kept.token()
        from kalda.security.oauthbearer import claims_of_options, unsecured_token

        claims = claims_of_options(self._options, time.time())
        if claims is None:
            raise BadJaas("sasl.jaas.config has no option unsecuredLoginStringClaim_sub")
        return unsecured_token(claims)

    def _requests(self, configs: Mapping[str, Any]) -> Callable[[], str]:
        """What requests a token, and checks it before it is used. Raises `ValueError`."""
        from kalda.network.login.token_endpoint import retriever_of
        from kalda.network.login.token_validation import TokenSettings, check_of

        settings = TokenSettings(self._value_of, self._options, self._allowed_urls, self._allowed_files)
        retrieve, check = retriever_of(settings, configs), check_of(settings, configs)

        def request() -> str:
            token = retrieve()
            check(token)
            return token

        return request


def _listed(value: Any) -> list[str]:
    """The items of a list in a configuration, where it may be text."""
    items = value.split(",") if isinstance(value, str) else value or ()
    return [item.strip() for item in items if item.strip()]


def _require_password(options: Mapping[str, str]) -> None:
    for option in ("username", "password"):
        if option not in options:
            raise BadJaas(f"sasl.jaas.config: the option {option} of the login module is missing")


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
