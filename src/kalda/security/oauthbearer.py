"""OAUTHBEARER (RFC 7628; KIP-255): the client's first token carries a bearer token and extensions.

    n,[a=authzid],\\x01auth=Bearer <token>\\x01[name=value\\x01...]\\x01

A server that refuses it answers with a JSON text, which the client acknowledges by the byte 0x01; only then does the
exchange fail. Which tokens are valid is decided elsewhere.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from kalda.security.mechanisms import CheckToken, LoginOutcome, Lookup, SaslFailed, Step

_SEPARATOR = "\x01"
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,"
    r"\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01"
)
_BEARER = re.compile(r"(?P<scheme>[A-Za-z]+) +(?P<token>[-_.~+/A-Za-z0-9]+=*)")


class ValidToken(NamedTuple):
    """A token that was validated."""

    principal_name: str
    expires_at_ms: int


class InvalidToken(SaslFailed):
    """A token that is refused; `status` is RFC 7628's."""

    def __init__(self, message: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(message, is_for_client=True)
        self.status = status
        self.scope = scope


class OAuthBearerServer:
    """One exchange, seen by the server."""

    def __init__(self) -> None:
        self._error: str | None = None
        """The JSON text that the client was sent; None before."""

    def on_token(self, token: bytes) -> Step:
        """Raises `SaslFailed`."""
        if self._error is not None:
            if token == _SEPARATOR.encode():
                raise SaslFailed(self._error, is_for_client=True)
            raise SaslFailed("Invalid OAUTHBEARER client message: 0x01 is expected after an error")
        authorization_id, bearer, extensions = _parse_first(token)

        def then(checked: ValidToken | SaslFailed) -> Step:
            if isinstance(checked, InvalidToken):
                content = {"status": checked.status} | ({"scope": checked.scope} if checked.scope else {})
                self._error = json.dumps(content, separators=(",", ":"))
                return self._error.encode()
            if isinstance(checked, SaslFailed):
                raise checked
            if authorization_id and authorization_id != checked.principal_name:
                raise SaslFailed(
                    f"Authentication failed: Client requested an authorization id ({authorization_id}) that is "
                    f"different from the token's principal name ({checked.principal_name})",
                    True,
                )
            return LoginOutcome(checked.principal_name, b"", checked.expires_at_ms, extensions)

        return Lookup(CheckToken(bearer, extensions), then)


def _parse_first(token: bytes) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Authorization id, bearer token, extensions. Raises `SaslFailed`."""
    try:
        found = _FIRST.fullmatch(token.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslFailed("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split(_SEPARATOR) if pair)
    bearer = _BEARER.fullmatch(pairs.pop("auth", ""))
    if bearer is None:
        raise SaslFailed("Invalid OAUTHBEARER client first message: 'auth' not specified")
    if bearer["scheme"].lower() != "bearer":
        raise SaslFailed("Invalid scheme in OAUTHBEARER client first message: Bearer is expected")
    authorization_id = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, bearer["token"], tuple(pairs.items())


class OAuthBearerClient:
    """One exchange, seen by the client."""

    def __init__(self, token: str, extensions: dict[str, str] | None = None) -> None:
        """Raises `SaslFailed` for an extension that cannot be sent."""
        pairs = [f"{name}={value}" for name, value in (extensions or {}).items()]
        for name, value in (extensions or {}).items():
            if name.lower() == "auth" or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise SaslFailed(f"the SASL extension {name} has an invalid name or value")
        self._first = _SEPARATOR.join(["n,,", f"auth=Bearer {token}", *pairs, _SEPARATOR]).encode()
        self._refusal: str | None = None

    def first(self) -> bytes:
        """The token."""
        return self._first

    def on_challenge(self, token: bytes) -> bytes | None:
        """An empty challenge is success; any other is a refusal, which is acknowledged."""
        if not token:
            if self._refusal is not None:
                raise SaslFailed(f"the server has refused the token: {self._refusal}")
            return None
        self._refusal = token.decode(errors="replace")
        return _SEPARATOR.encode()
