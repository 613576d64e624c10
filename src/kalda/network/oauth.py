"""OAuth tokens: the validation of signed ones with a set of keys (JWKS), and where clients get theirs.

A URL is used only where `kalda.sasl.oauthbearer.allowed.urls` (for nodes) or the system property of the same meaning in
Apache Kafka allows it: a configuration that a client may set must not make this process read any file or address
(CVE-2025-27817). Everything here blocks, and is called on threads. No text contains a token or a secret.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kalda.security.jwt import ClaimRules, split_token, unsecured_claims, validate
from kalda.security.oauthbearer import InvalidToken, ValidToken

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by asymmetric keys. A shared secret in a set of public keys would be no secret."""
_SIGNATURE_ONLY: Any = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False
    ),
}
"""Kafka's rules for claims differ from PyJWT's; see `kalda.security.jwt`."""
_MAX_BYTES = 1024 * 1024
_TIMEOUT_S = 10.0
_MIN_REFRESH_S = 10.0
"""A token with an unknown key makes the keys be read again, not more often than this."""


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
        with Path(urllib.request.url2pathname(parts.path)).open("rb") as file:
            return file.read(_MAX_BYTES)
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(request or url, timeout=_TIMEOUT_S) as response:
        content: bytes = response.read(_MAX_BYTES)
        return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


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

    def __init__(self, url: str, rules: ClaimRules, refresh_ms: int) -> None:
        """Raises `ValueError` where PyJWT is missing."""
        try:
            import jwt  # noqa: F401
        except ImportError:
            raise ValueError("signed OAuth tokens need the package PyJWT: pip install 'kalda[security]'") from None
        self._url = url
        self._rules = rules
        self._refresh_s = refresh_ms / 1000
        self._lock = threading.Lock()
        self._keys: dict[str | None, Any] = {}
        """By key id."""
        self._read_at_s = -1e9
        """When the keys were last read, by the monotonic clock."""

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
        with self._lock:
            age_s = time.monotonic() - self._read_at_s
            known = key_id if isinstance(key_id, str) else None
            if age_s >= self._refresh_s or (known not in self._keys and age_s >= _MIN_REFRESH_S):
                self._read()
            if known in self._keys:
                return self._keys[known]
            if known is None and len(self._keys) == 1:
                return next(iter(self._keys.values()))
        raise InvalidToken("the token was signed by a key that is not in the set of keys")

    def _read(self) -> None:
        import jwt

        self._read_at_s = time.monotonic()
        try:
            keys = jwt.PyJWKSet.from_json(read_url(self._url).decode())
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if self._keys:
                return
            raise InvalidToken(f"the keys for tokens cannot be read: {type(error).__name__}") from error
        self._keys = {each.key_id: each for each in keys.keys if each.public_key_use in (None, "sig")}


def fetch_token(url: str, client_id: str, client_secret: str, scope: str | None) -> str:
    """A token for client credentials (RFC 6749, section 4.4); the content of the file for a file URL. Raises
    `OSError`, `ValueError`."""
    if urllib.parse.urlsplit(url).scheme == "file":
        return read_url(url).decode().strip()
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    credentials = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
    request = urllib.request.Request(
        url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        method="POST",
    )
    answer: Mapping[str, Any] = json.loads(read_url(url, request))
    token = answer.get("access_token")
    if not isinstance(token, str) or not token:
        raise ValueError("the answer of the token endpoint has no access_token")
    return token
