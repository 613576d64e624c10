"""Claims of OAuth tokens (RFC 7519) as Kafka checks them, and the tokens without a signature that tests use.

Signatures are verified by PyJWT, in `kalda.network.login.token_validation`: what is here gets claims with a good
signature, or which have none where the operator allows that. No text of an error contains the token.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from kalda.security.oauthbearer import InvalidToken, ValidToken


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
