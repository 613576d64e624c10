"""Assertions: signed tokens by which a client asks for a token (RFC 7523, KIP-1139), in place of a secret.

An assertion is the content of `sasl.oauthbearer.assertion.file`, or it is made anew for each request. Then its claims
are those of the keys `sasl.oauthbearer.assertion.claim.*`; what the template file has takes the place of their `aud`,
`iss` and `sub`, and the times take the place of the template's. Files are read for each request, since they are
replaced while a client runs. No text of an error contains a key or an assertion.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from kalda.network.named_files import read_named_file, read_named_text
from kalda.network.token_settings import TokenSettings
from kalda.security.jwt import split_token

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
