"""What a SASL mechanism is, on both sides, and the mechanism PLAIN (RFC 4616).

A server's mechanism gets the bytes of a client one token at a time. It returns the next challenge; a `LoginOutcome`
when the client is authenticated; or a `Lookup`, where the answer to a question has to be found first: the caller
answers it by `Lookup.then`, which continues the exchange. Nothing here waits.

A failure is a `SaslFailed`. Its text is Kafka's, is sent to the client where `is_for_client`, and never contains a
password, a token or a key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from kalda.base.errors import ApiError, ErrorCode, Portable
from kalda.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kalda.protocol.notation import Request


class SaslFailed(Portable, Exception):
    """The peer is not authenticated."""

    def __init__(self, message: str, is_for_client: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_for_client = is_for_client
        """Whether the client gets this text. Otherwise it is only logged, and the client gets a general one."""


class LoginOutcome(NamedTuple):
    """The end of a successful exchange."""

    authorization_id: str
    token: bytes | None = b""
    """The server's last token; None where the mechanism has none after the client's last one."""
    expires_at_ms: int | None = None
    """When what the client has presented expires, in wall-clock time; None: never."""
    extensions: tuple[tuple[str, str], ...] = ()
    is_by_token: bool = False
    """Whether a delegation token was presented."""


class FindScram(NamedTuple):
    """The SCRAM credential of a user is needed; `then` gets a `ScramSecret`, or None where there is none."""

    mechanism: str
    user: str
    is_token: bool
    """`user` is the id of a delegation token."""


class CheckPassword(NamedTuple):
    """Whether the password is the user's is needed; `then` gets a bool."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"CheckPassword({self.user!r})"


class CheckToken(NamedTuple):
    """An OAuth token has to be validated; `then` gets a `ValidToken`, or a `SaslFailed`."""

    token: str
    extensions: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return "CheckToken()"


class Negotiate(NamedTuple):
    """A step of the exchange that may wait for a file; `then` gets its result, or a `SaslFailed`."""

    step: Callable[[], Any]


Question: TypeAlias = FindScram | CheckPassword | CheckToken | Negotiate


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question, and how the exchange goes on with its answer."""

    question: Question
    then: Callable[[Any], Step]
    """Raises `SaslFailed`."""


Step: TypeAlias = bytes | LoginOutcome | Lookup


class ServerMechanism(Protocol):
    """One exchange, seen by the server."""

    def on_token(self, token: bytes) -> Step:
        """The client has sent a token. Raises `SaslFailed`."""
        ...


class ClientMechanism(Protocol):
    """One exchange, seen by the client."""

    def first(self) -> bytes:
        """The first token."""
        ...

    def on_challenge(self, token: bytes) -> bytes | None:
        """The server has sent a token. Returns the next one, or None when the exchange is complete. Raises
        `SaslFailed`."""
        ...


class PlainServer:
    """`[authorization id] NUL user NUL password` in one token."""

    def on_token(self, token: bytes) -> Step:
        """Ask whether the password is the user's. Raises `SaslFailed`."""
        parts = token.decode(errors="replace").split("\0")
        if len(parts) != 3:
            raise SaslFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}", True)
        authorization_id, user, password = parts
        if not user:
            raise SaslFailed("Authentication failed: username not specified", True)
        if not password:
            raise SaslFailed("Authentication failed: password not specified", True)

        def then(is_right: bool) -> Step:
            if not is_right:
                raise SaslFailed("Authentication failed: Invalid username or password", True)
            if authorization_id and authorization_id != user:
                raise SaslFailed(
                    "Authentication failed: Client requested an authorization id that is different from username", True
                )
            return LoginOutcome(user)

        return Lookup(CheckPassword(user, password), then)


class PlainClient:
    """Sends user and password."""

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """The only token."""
        return self._token

    def on_challenge(self, token: bytes) -> bytes | None:
        """The server accepts with an empty token."""
        if token:
            raise SaslFailed("the server has sent a challenge where PLAIN has none")
        return None


def plain_users(options: dict[str, str]) -> dict[str, str]:
    """Passwords by user, out of the options of a server's PlainLoginModule: `user_alice="secret"`."""
    prefix = "user_"
    return {name.removeprefix(prefix): text for name, text in options.items() if name.startswith(prefix)}


def is_password(users: dict[str, str], user: str, password: str) -> bool:
    """Whether `users` has that password for the user; compared in a time that does not depend on how much is right."""
    expected = users.get(user)
    return expected is not None and hmac.compare_digest(expected.encode(), password.encode())


_MAX_STEPS = 10


class ClientLogin:
    """A client's part of a SASL login over Kafka's requests (KIP-43, KIP-152): requests out, responses in.

        first() -> SaslHandshake     on_response(...) -> SaslAuthenticate, ... or None when the login is complete

    The same machine renews a session (KIP-368). A refusal is an `ApiError` that no retry mends.

    One login.
    """

    def __init__(self, mechanism: str, exchange: ClientMechanism) -> None:
        self.session_lifetime_ms = 0
        """When complete: after so long the server closes the connection, unless it is renewed; 0: never."""
        self._mechanism = mechanism
        self._exchange = exchange
        self._steps = 0

    def first(self) -> Request:
        """Name the mechanism."""
        return SaslHandshakeRequest(mechanism=self._mechanism)

    def on_response(self, response: Any) -> Request | None:
        """The next request; None when the login is complete. Raises `ApiError`."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise authentication_failed(f"{self._mechanism}: the server sends too many challenges")
        if self._steps == 1:
            if response.error_code:
                enabled = ", ".join(response.mechanisms)
                raise ApiError(
                    ErrorCode(response.error_code),
                    f"Client SASL mechanism '{self._mechanism}' not enabled in the server, enabled mechanisms are "
                    f"[{enabled}]",
                )
            return SaslAuthenticateRequest(auth_bytes=self._exchange.first())
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code), response.error_message or "Authentication failed")
        try:
            token = self._exchange.on_challenge(bytes(response.auth_bytes))
        except SaslFailed as error:
            raise authentication_failed(error.message) from error
        if token is not None:
            return SaslAuthenticateRequest(auth_bytes=token)
        self.session_lifetime_ms = response.session_lifetime_ms
        return None


def authentication_failed(why: str) -> ApiError:
    """The error of a login that failed on this side."""
    return ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
