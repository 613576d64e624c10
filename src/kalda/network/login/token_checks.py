"""Checks of a token that a client has got, before it is used: Kafka's `JwtValidator`s (KIP-1139).

`sasl.oauthbearer.jwt.validator.class` names one of them, or a Python class whose method `validate(token)` raises where
the token must not be used:

- `ClientJwtValidator`: the claims that a login needs are there. The signature is not verified: brokers do that
- `BrokerJwtValidator`: as brokers do it, with the keys of `sasl.oauthbearer.jwks.endpoint.url`
- `DefaultJwtValidator`: the second where that URL is set, else the first
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kalda.network.login.token_validation import check_url, signed_tokens
from kalda.network.python_classes import make
from kalda.security.oauthbearer import InvalidToken, split_token

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
    """What the configuration says about tokens."""

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
