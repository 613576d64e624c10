"""Where the logins of a client get their OAuth token, or their user name and password, besides the login line.

Three keys may name a Python class, as `package.module:Class`. Its optional method `configure(configs)` is called once
with the configuration. For OAUTHBEARER its method `token()` returns a token (a signed JWT, as text); for PLAIN and
SCRAM `credentials()` returns user name and password.

- `sasl.login.callback.handler.class`, of OAUTHBEARER alone: a token is requested when the first one is needed, and is
  used for all connections until the time that the keys `sasl.login.refresh.*` determine. Then a thread requests a new
  one. Where none can be got, the former one is used while it is valid, and the request is repeated.
- `sasl.login.class` and `sasl.client.callback.handler.class`: called for each login, and renew what they return by
  themselves. The second counts where both are set.

The names of Kafka's own classes are accepted, and stand for what Kafka does by them. The methods of a class may block:
they are called on a thread by clients of asyncio, and in the thread of a blocking client. No text of an error contains
what they return or raise.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kalda.network.python_classes import make
from kalda.security.jwt import split_token
from kalda.security.login import authentication_failed

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
