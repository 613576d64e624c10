"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677; KIP-84), with Kafka's extension `tokenauth` (KIP-48).

    client                                        server
    n,[a=authzid],n=user,r=C[,tokenauth=true] ->
                                               <- r=CS,s=salt,i=iterations
    c=biws,r=CS,p=proof                       ->
                                               <- v=signature

C and S are the nonces. The server compares the whole nonce of the last message with its own (CVE-2024-56128: Kafka once
compared only the end of it). There is no channel binding, as in Kafka.

User names are compared as they are sent: Kafka applies no SASLprep to them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

from kalda.metadata.scram import ScramMechanism, StoredScramCredential
from kalda.security.mechanisms import FindScram, LoginOutcome, Lookup, SaslFailed, Step

MECHANISMS = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}
NONCE_BYTES = 20
"""Random bytes in a nonce: 160 bits, written in base 36 by Kafka, in hex here."""
TOKEN_AUTH = "tokenauth"
_MAX_ITERATIONS = 1_000_000
"""A client derives no key with more: a hostile server could keep it busy."""

_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|[^\x00-\x7f]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]*)*"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,(?:m=[^,]*,)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>{_EXTENSIONS})"
)
_SERVER_FIRST = re.compile(
    rf"(?:m=[^,]*,)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(rf"c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS},p=(?P<proof>{_BASE64})")
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>[^,]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ScramSecret(NamedTuple):
    """What a server needs to authenticate a user, or the bearer of a delegation token."""

    credential: StoredScramCredential
    owner: str | None = None
    """The name of the token's owner; None for a user's own credential."""
    expires_at_ms: int | None = None
    """When the token expires."""

    def __repr__(self) -> str:
        return f"ScramSecret(owner={self.owner!r})"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's Hi()."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> StoredScramCredential:
    """What a server stores of a password."""
    salted = salted_password(mechanism, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return StoredScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.digest), iterations)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _escape(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _extensions(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if part)


def _parse(pattern: re.Pattern[str], token: bytes, what: str) -> re.Match[str]:
    try:
        found = pattern.fullmatch(token.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslFailed(f"Invalid SCRAM {what} message format")
    return found


class ScramServer:
    """One exchange, seen by the server."""

    def __init__(self, mechanism: str, server_nonce: str) -> None:
        """`server_nonce`: printable, new for each exchange, not to be guessed."""
        self._mechanism = MECHANISMS[mechanism]
        self._server_nonce = server_nonce
        self._nonce = ""
        """Of both sides; empty before the client's first message."""
        self._gs2_header = b""
        """What the client's last message repeats in base 64."""
        self._signed = ""
        """The messages so far that both sides sign."""
        self._user = ""
        self._secret: ScramSecret | None = None

    def on_token(self, token: bytes) -> Step:
        """Raises `SaslFailed`."""
        return self._on_first(token) if not self._nonce else self._on_final(token)

    def _on_first(self, token: bytes) -> Step:
        found = _parse(_CLIENT_FIRST, token, "client first")
        text = found.group()
        bare_at = text.index(",", 2) + 1
        self._gs2_header = text[:bare_at].encode()
        self._signed = text[bare_at:]
        self._nonce = found["nonce"] + self._server_nonce
        user = self._user = _unescape(found["name"])
        authorization_id = _unescape(found["authzid"] or "")
        is_token = _extensions(found["extensions"]).get(TOKEN_AUTH, "").lower() == "true"

        def then(secret: ScramSecret | None) -> Step:
            if secret is None and is_token:
                raise SaslFailed(f"Token Authentication failed: Invalid tokenId : {user}")
            if secret is None:
                raise SaslFailed("Authentication failed: Invalid user credentials")
            if authorization_id and authorization_id != user:
                raise SaslFailed(
                    "Authentication failed: Client requested an authorization id that is different from username", True
                )
            credential = secret.credential
            if credential.iterations < self._mechanism.min_iterations:
                raise SaslFailed(
                    f"Iterations {credential.iterations} is less than the minimum {self._mechanism.min_iterations} "
                    f"for {self._mechanism.name}"
                )
            self._secret = secret
            salt = base64.b64encode(credential.salt).decode()
            answer = f"r={self._nonce},s={salt},i={credential.iterations}"
            self._signed += "," + answer
            return answer.encode()

        return Lookup(FindScram(self._mechanism.mechanism_name, user, is_token), then)

    def _on_final(self, token: bytes) -> LoginOutcome:
        secret, digest = self._secret, self._mechanism.digest
        if secret is None:
            raise SaslFailed("a SCRAM message came before the one before it was answered")
        found = _parse(_CLIENT_FINAL, token, "client final")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise SaslFailed("Invalid client nonce in the final client message.")
        if base64.b64decode(found["channel"]) != self._gs2_header:
            raise SaslFailed("Invalid channel binding in the final client message.")
        signed = f"{self._signed},{found.group()[: found.start('proof') - len(',p=')]}".encode()
        credential = secret.credential
        proof = base64.b64decode(found["proof"])
        signature = hmac.digest(credential.stored_key, signed, digest)
        if len(proof) != len(signature):
            raise SaslFailed("Invalid client credentials")
        if not hmac.compare_digest(hashlib.new(digest, _xor(proof, signature)).digest(), credential.stored_key):
            raise SaslFailed("Invalid client credentials")
        answer = b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest))
        owner = secret.owner if secret.owner is not None else self._user
        return LoginOutcome(owner, answer, secret.expires_at_ms, is_by_token=secret.owner is not None)


class ScramClient:
    """One exchange, seen by the client."""

    def __init__(self, mechanism: str, user: str, password: str, client_nonce: str, is_token: bool = False) -> None:
        """`client_nonce`: printable, new for each exchange. `is_token`: user and password are the id and the HMAC of a
        delegation token."""
        self._mechanism = MECHANISMS[mechanism]
        self._password = password
        self._client_nonce = client_nonce
        self._bare = f"n={_escape(user)},r={client_nonce}" + (f",{TOKEN_AUTH}=true" if is_token else "")
        self._server_signature: bytes | None = None
        """What the server has to prove that it has the credential; None before its first message."""

    def first(self) -> bytes:
        """The name and the nonce."""
        return f"n,,{self._bare}".encode()

    def on_challenge(self, token: bytes) -> bytes | None:
        """Raises `SaslFailed`, also where the server does not prove that it has the credential."""
        if self._server_signature is None:
            return self._prove(token)
        found = _parse(_SERVER_FINAL, token, "server final")
        if found["error"] is not None:
            raise SaslFailed(f"Sasl authentication using {self._mechanism.mechanism_name} failed: {found['error']}")
        if not hmac.compare_digest(base64.b64decode(found["signature"]), self._server_signature):
            raise SaslFailed("Invalid server signature in server final message")
        return None

    def _prove(self, token: bytes) -> bytes:
        found, digest = _parse(_SERVER_FIRST, token, "server first"), self._mechanism.digest
        if not found["nonce"].startswith(self._client_nonce) or found["nonce"] == self._client_nonce:
            raise SaslFailed("Invalid server nonce: does not start with client nonce")
        iterations = int(found["iterations"])
        if not self._mechanism.min_iterations <= iterations <= _MAX_ITERATIONS:
            raise SaslFailed(
                f"Requested iterations {iterations} is less than the minimum {self._mechanism.min_iterations} or more "
                f"than {_MAX_ITERATIONS} for {self._mechanism.mechanism_name}"
            )
        salt = base64.b64decode(found["salt"])
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={found['nonce']}"
        signed = f"{self._bare},{found.group()},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        proof = base64.b64encode(_xor(client_key, signature)).decode()
        return f"{without_proof},p={proof}".encode()
