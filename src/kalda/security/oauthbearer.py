r"""OAUTHBEARER (RFC 7628; KIP-255): the client's first token carries a bearer token and extensions.

    n,[a=authzid],\x01auth=Bearer <token>\x01[name=value\x01...]\x01

A server that refuses it answers with a JSON text, which the client acknowledges by the byte 0x01; only then does the
exchange fail. Which tokens are valid is decided elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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


# Claims of OAuth tokens (RFC 7519) as Kafka checks them, and the tokens without a signature that tests use.
#
# Signatures are verified by PyJWT, in `kalda.network.login.token_validation`: what is here gets claims with a good
# signature, or which have none where the operator allows that. No text of an error contains the token.


class ClaimRules(NamedTuple):
    """What the claims of a token must fulfil; the names are those of `sasl.oauthbearer.*`."""

    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"
    clock_skew_seconds: int = 30
    expected_audience: tuple[str, ...] = ()
    expected_issuer: str | None = None
    required_scope: tuple[str, ...] = ()
    """`unsecuredValidatorRequiredScope` of a JAAS line."""


def split_token(token: str) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Header and claims of a compact token, and whether it has a signature; nothing is verified. Raises
    `InvalidToken`."""
    parts = token.split(".")
    if len(parts) != 3:
        raise InvalidToken("Malformed JWT provided: three sections are expected")
    return _json_of(parts[0]), _json_of(parts[1]), bool(parts[2])


def _json_of(part: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidToken("Malformed JWT provided: a section is not JSON in base 64")
    return found


def unsecured_claims(token: str) -> dict[str, Any]:
    """The claims of a token without a signature (`alg` none). Raises `InvalidToken`."""
    header, claims, is_signed = split_token(token)
    if header.get("alg") != "none" or is_signed:
        raise InvalidToken("the token is signed, and this listener accepts only tokens without a signature")
    return claims


def validate(claims: Mapping[str, Any], rules: ClaimRules, now_s: float) -> ValidToken:
    """The principal and the expiry of a token whose claims hold at this time. Raises `InvalidToken`."""
    name = claims.get(rules.sub_claim_name)
    if not isinstance(name, str) or not name.strip():
        raise InvalidToken(f"the claim {rules.sub_claim_name} is missing, empty or no text")
    expires = _time(claims, "exp")
    if expires is None:
        raise InvalidToken("the claim exp is missing")
    skew = rules.clock_skew_seconds
    if now_s - skew >= expires:
        raise InvalidToken(f"the token has expired: exp is {expires:.0f}, it is {now_s:.0f}")
    issued, not_before = _time(claims, "iat"), _time(claims, "nbf")
    if issued is not None and issued > now_s + skew:
        raise InvalidToken(f"the token was issued in the future: iat is {issued:.0f}, it is {now_s:.0f}")
    if not_before is not None and not_before > now_s + skew:
        raise InvalidToken(f"the token is not valid yet: nbf is {not_before:.0f}, it is {now_s:.0f}")
    if rules.expected_issuer is not None and claims.get("iss") != rules.expected_issuer:
        raise InvalidToken(f"the claim iss is not {rules.expected_issuer}")
    if rules.expected_audience:
        audience = claims.get("aud")
        found = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        if not set(rules.expected_audience) & {each for each in found if isinstance(each, str)}:
            raise InvalidToken(f"the claim aud names none of {', '.join(rules.expected_audience)}")
    scope = _scope(claims.get(rules.scope_claim_name))
    missing = [each for each in rules.required_scope if each not in scope]
    if missing:
        raise InvalidToken(
            f"the scope lacks {', '.join(missing)}", "insufficient_scope", " ".join(rules.required_scope)
        )
    return ValidToken(name.strip(), int(expires * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise InvalidToken(f"the claim {name} is not a number of seconds")
    return float(value)


def _scope(value: object) -> set[str]:
    if isinstance(value, str):
        return set(value.split())
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """A token with these claims and no signature."""
    parts = [json.dumps(part, separators=(",", ":")).encode() for part in ({"alg": "none"}, dict(claims))]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def claims_of_options(options: Mapping[str, str], now_s: float) -> dict[str, Any] | None:
    """The claims that the options of a client's login line ask for, as `unsecuredLoginStringClaim_sub="alice"`; None
    where they ask for no token without a signature. Raises `ValueError`."""
    prefix = "unsecuredLogin"
    if not any(name.startswith(f"{prefix}StringClaim_") for name in options):
        return None
    claims: dict[str, Any] = {}
    for name, text in options.items():
        kind, _, claim = name.removeprefix(prefix).partition("_")
        if not name.startswith(prefix) or not claim:
            continue
        if kind == "StringClaim":
            claims[claim] = text
        elif kind == "NumberClaim":
            claims[claim] = float(text)
        elif kind == "ListClaim" and text:
            claims[claim] = text[1:].split(text[0])
    lifetime_s = float(options.get(f"{prefix}LifetimeSeconds", "3600"))
    principal = options.get(f"{prefix}PrincipalClaimName", "sub")
    if not claims.get(principal):
        raise ValueError(f"the login line sets no claim {principal}")
    claims.setdefault("iat", now_s)
    claims.setdefault("exp", now_s + lifetime_s)
    return claims
