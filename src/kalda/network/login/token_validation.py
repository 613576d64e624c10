"""OAuth tokens: the validation of signed ones with a set of keys (JWKS), and which URLs may be used.

A URL is used only where `kalda.sasl.oauthbearer.allowed.urls` (for nodes) or the system property of the same meaning in
Apache Kafka allows it: a configuration that a client may set must not make this process read any file or address
(CVE-2025-27817). Everything here blocks, and is called on threads. No text contains a token or a secret.

Not obvious:

- The timer that renews a token holds it weakly, and its finalizer cancels the timer.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from kalda.network.named_files import read_named_file
from kalda.network.python_classes import make
from kalda.security.oauthbearer import ClaimRules, InvalidToken, ValidToken, split_token, unsecured_claims, validate

log = logging.getLogger("kalda.authentication")
T = TypeVar("T")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by asymmetric keys. A shared secret in a set of public keys would be no secret."""
_SIGNATURE_ONLY: Any = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False
    ),
}
"""Kafka's rules for claims differ from PyJWT's; see `kalda.security.oauthbearer`."""
_MAX_BYTES = 1024 * 1024
_TIMEOUT_S = 10.0
_MIN_REFRESH_S = 10.0
"""A token with an unknown key makes the keys be read again, not more often than this."""


class Refused(OSError):
    """A failure that another attempt would not change."""


class NotAllowed(ValueError):
    """A URL that is not in the list of allowed ones."""


def check_url(key: str, url: str, allowed: Collection[str]) -> str:
    """The URL. Raises `NotAllowed`, `ValueError`."""
    scheme = urllib.parse.urlsplit(url).scheme.lower()
    if scheme not in ("http", "https", "file"):
        raise ValueError(f"{key}={url}: a URL with http, https or file is expected")
    if url not in allowed:
        raise NotAllowed(f"{key}={url} is not allowed; add it to kalda.sasl.oauthbearer.allowed.urls")
    return url


def read_url(url: str, request: urllib.request.Request | None = None) -> bytes:
    """The content, at most a mebibyte. Redirects are not followed. Raises `OSError`."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return read_named_file(urllib.request.url2pathname(parts.path))
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(request or url, timeout=_TIMEOUT_S) as response:
        content: bytes = response.read(_MAX_BYTES)
        return content


def retrying(
    action: Callable[[], T],
    first_ms: int,
    max_ms: int,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep_s: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `action`, which is repeated while it raises an `OSError` that is not `Refused`: after `first_ms`,
    then after twice as long each time, until `max_ms` have passed. Raises the first `OSError`."""
    end_s = monotonic_s() + max_ms / 1000
    first: OSError | None = None
    attempts = 0
    while True:
        try:
            return action()
        except Refused:
            raise
        except OSError as error:
            first = first or error
        wait_s = min(first_ms / 1000 * 2**attempts, end_s - monotonic_s())
        attempts += 1
        if wait_s <= 0:
            raise first
        sleep_s(wait_s)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def signed_tokens(value_of: Callable[[str], Any], allowed: Collection[str]) -> SignedTokens:
    """By the keys `sasl.oauthbearer.*`. Raises `ValueError`."""
    key = "sasl.oauthbearer.jwks.endpoint.url"
    if not value_of(key):
        raise ValueError(f"{key} is not set: the validation of signed tokens needs their keys")

    def or_default(name: str, default: Any) -> Any:
        value = value_of(name)
        return default if value in (None, "") else value

    url = check_url(key, str(value_of(key)), allowed)
    audience = or_default("sasl.oauthbearer.expected.audience", ())
    rules = ClaimRules(
        or_default("sasl.oauthbearer.sub.claim.name", "sub"),
        or_default("sasl.oauthbearer.scope.claim.name", "scope"),
        int(or_default("sasl.oauthbearer.clock.skew.seconds", 30)),
        tuple(audience.split(",") if isinstance(audience, str) else audience),
        or_default("sasl.oauthbearer.expected.issuer", None),
    )
    for expected, needed, instead in (
        (rules.expected_audience, "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.allow.unverified.audience"),
        (rules.expected_issuer, "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.allow.unverified.issuer"),
    ):
        if not expected and str(value_of(instead)).lower() != "true":
            raise ValueError(f"{needed} is not set: to accept signed tokens of any, set {instead}=true")
    retry_ms = (
        int(or_default("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100)),
        int(or_default("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000)),
    )
    refresh_ms = int(or_default("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000))
    return SignedTokens(url, rules, refresh_ms, retry_ms)


class UnsecuredTokens:
    """Accepts tokens without a signature. For tests: anybody can make one."""

    is_quick = True

    def __init__(self, rules: ClaimRules) -> None:
        self._rules = rules

    def validate(self, token: str) -> ValidToken:
        """Raises `InvalidToken`."""
        return validate(unsecured_claims(token), self._rules, time.time())


class SignedTokens:
    """Accepts tokens that one of the keys at a URL has signed."""

    is_quick = False

    def __init__(self, url: str, rules: ClaimRules, refresh_ms: int, retry_ms: tuple[int, int]) -> None:
        """The keys are read anew every `refresh_ms`, with attempts by `retrying`. Raises `ValueError` where PyJWT is
        missing."""
        try:
            import jwt  # noqa: F401
        except ImportError:
            raise ValueError("signed OAuth tokens need the package PyJWT: pip install 'kalda[security]'") from None
        self._url = url
        self._rules = rules
        self._refresh_s = refresh_ms / 1000
        self._retry_ms = retry_ms
        self._lock = threading.Lock()
        self._keys: dict[str | None, Any] = {}
        """By key id."""
        self._read_at_s = -1e9
        """When the keys were last read, or began to be, by the monotonic clock."""

    def validate(self, token: str) -> ValidToken:
        """Raises `InvalidToken`."""
        import jwt

        header, _, _ = split_token(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise InvalidToken("the token has no signature by an asymmetric key")
        key = self._key(header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                options=_SIGNATURE_ONLY,
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidToken(f"the token's signature or form is not valid: {type(error).__name__}") from error
        return validate(claims, self._rules, time.time())

    def _key(self, key_id: object) -> Any:
        """The key of a token. Those that are old are used while a thread reads them anew; for an unknown key they are
        read at once."""
        with self._lock:
            now_s = time.monotonic()
            age_s = now_s - self._read_at_s
            known = key_id if isinstance(key_id, str) else None
            found = self._find(known)
            if found is None and age_s >= _MIN_REFRESH_S:
                self._read_at_s = now_s
                try:
                    self._keys = self._read()
                except OSError as error:
                    if not self._keys:
                        raise InvalidToken(str(error)) from error
                    log.warning("%s: those that are known stay in use", error)
                found = self._find(known)
            elif age_s >= self._refresh_s:
                self._read_at_s = now_s
                threading.Thread(target=self._refresh, name="oauth-keys", daemon=True).start()
        if found is None:
            raise InvalidToken("the token was signed by a key that is not in the set of keys")
        return found

    def _find(self, key_id: str | None) -> Any:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _refresh(self) -> None:
        try:
            keys = retrying(self._read, *self._retry_ms)
        except OSError as error:
            log.warning("%s: those that are known stay in use", error)
            return
        with self._lock:
            self._keys = keys

    def _read(self) -> dict[str | None, Any]:
        """Raises `OSError`."""
        import jwt

        try:
            keys = jwt.PyJWKSet.from_json(read_url(self._url).decode())
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise OSError(f"the keys for tokens cannot be read: {type(error).__name__}") from error
        return {each.key_id: each for each in keys.keys if each.public_key_use in (None, "sig")}


VALIDATOR = "sasl.oauthbearer.jwt.validator.class"
_KAFKA = "org.apache.kafka.common.security.oauthbearer."
DEFAULT, BROKER, CLIENT = (f"{_KAFKA}{name}JwtValidator" for name in ("Default", "Broker", "Client"))


def check_of(settings: TokenSettings, configs: Mapping[str, Any]) -> Callable[[str], Any]:
    """What raises where a token must not be used. Raises `ValueError`."""
    path = settings.text(VALIDATOR) or DEFAULT
    if path not in (DEFAULT, BROKER, CLIENT):
        return _guarded(make(VALIDATOR, path, configs, "validate").validate)
    if path == BROKER or (path == DEFAULT and settings.text("sasl.oauthbearer.jwks.endpoint.url")):
        return signed_tokens(settings.value_of, settings.allowed_urls).validate
    subject = settings.text("sasl.oauthbearer.sub.claim.name") or "sub"
    return lambda token: _check_claims(token, subject)


def _check_claims(token: str, subject: str) -> None:
    """Raises `InvalidToken`."""
    claims = split_token(token)[1]
    expires, name = claims.get("exp"), claims.get(subject)
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires < 0:
        raise InvalidToken("the claim exp of the token is missing, or no number of seconds")
    if not isinstance(name, str) or not name.strip():
        raise InvalidToken(f"the claim {subject} of the token is missing, empty or no text")


def _guarded(validate: Callable[[str], Any]) -> Callable[[str], Any]:
    """`validate`, whose errors are reported without their text, since it may contain the token."""

    def check(token: str) -> None:
        try:
            validate(token)
        except Exception as error:
            failure = InvalidToken(f"{VALIDATOR} has refused the token: {type(error).__name__}")
        else:
            return
        raise failure

    return check


# What a configuration says about OAuth tokens: keys, options of the login line, places that are allowed.


class TokenSettings(NamedTuple):
    """Checks of a token that a client has got, before it is used: Kafka's `JwtValidator`s (KIP-1139).

    `sasl.oauthbearer.jwt.validator.class` names one of them, or a Python class whose method `validate(token)` raises
    where the token must not be used:

    - `ClientJwtValidator`: the claims that a login needs are there. The signature is not verified: brokers do that
    - `BrokerJwtValidator`: as brokers do it, with the keys of `sasl.oauthbearer.jwks.endpoint.url`
    - `DefaultJwtValidator`: the second where that URL is set, else the first

    What the configuration says about tokens.
    """

    value_of: Callable[[str], Any]
    """The value of a key, None without one."""
    options: Mapping[str, str]
    """Of the login line."""
    allowed_urls: Collection[str]
    allowed_files: Collection[str]

    def text(self, key: str, option: str = "") -> str:
        """The value of a key, else of an option of the login line; empty without both."""
        return str(self.value_of(key) or self.options.get(option) or "").strip()

    def number(self, key: str, default: int) -> int:
        """Raises `ValueError`."""
        value = self.value_of(key)
        try:
            return default if value is None else int(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key}={value} is not a number") from None

    def url(self, key: str) -> str:
        """A URL that may be used. Raises `ValueError`."""
        url = self.text(key)
        if not url:
            raise ValueError(f"OAUTHBEARER needs {key}, or unsecuredLoginStringClaim_sub in sasl.jaas.config")
        return check_url(key, url, self.allowed_urls)

    def file(self, key: str) -> str:
        """A file that may be read. Raises `ValueError`."""
        path = self.text(key)
        if not path:
            raise ValueError(f"{key} is not set")
        if path not in self.allowed_files:
            raise ValueError(f"{key}={path} is not allowed; add it to kalda.sasl.oauthbearer.allowed.files")
        return path
