"""A server's part of a login: which frames a connection may send in which state, and how each is answered.

    HANDSHAKE       ApiVersions once (passed on to the listener's own handler), then SaslHandshake
    AUTHENTICATE    SaslAuthenticate, after SaslHandshake v1
    TOKENS          bare tokens in frames without a header, after SaslHandshake v0
    COMPLETE, FAILED

`on_frame` returns what to do: pass the frame on, answer it, or find the answer to a question of the mechanism and call
`LoginQuestion.then` with it. An answer may end the login. A request that the state does not allow ends it, as in
Kafka. The same machine serves the first login and each re-authentication (KIP-368), which may change neither the
mechanism nor the principal.

Bounds: a frame is bounded by its caller; an exchange has at most `MAX_TOKENS` tokens, and ApiVersions is passed on at
most `MAX_API_VERSIONS` times in versions that are not supported. No text contains anything that the client has
presented but user names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from kalda.base.errors import ErrorCode, InvalidRequest
from kalda.protocol.apis import API, ApiKey, request_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import RequestHeader, decode_request_header, encode_response
from kalda.protocol.messages.metadata import ApiVersionsResponse
from kalda.protocol.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse
from kalda.protocol.notation import Buffer
from kalda.security.mechanisms import LoginOutcome, Lookup, Question, SaslFailed, ServerMechanism, Step

MAX_TOKENS = 10
MAX_API_VERSIONS = 5


class Authenticated(NamedTuple):
    """The login is complete."""

    mechanism: str
    outcome: LoginOutcome
    principal: str
    session_lifetime_ms: int
    """0: the session does not end."""


class Failed(NamedTuple):
    """The login has failed: the connection has to be closed after the answer, if there is one, was sent."""

    why: str
    """For the log."""


class PassOn(NamedTuple):
    """The listener's own handler answers this frame."""


class LoginAnswer(NamedTuple):
    """Send these buffers; without one, nothing."""

    buffers: list[Buffer]
    end: Authenticated | Failed | None = None
    """Whether the login ends with it."""


@dataclass(frozen=True, slots=True)
class LoginQuestion:
    """Find the answer to `question`, and call `then` with it."""

    question: Question
    then: Callable[[Any], Reaction]


Reaction: TypeAlias = PassOn | LoginAnswer | LoginQuestion


class State(Enum):
    """What a connection may send."""

    HANDSHAKE = "handshake"
    AUTHENTICATE = "authentication"
    TOKENS = "tokens"
    COMPLETE = "complete"
    FAILED = "failed"


class LoginRules(NamedTuple):
    """The rules of one listener."""

    mechanisms: Mapping[str, Callable[[], ServerMechanism]]
    """Those that are enabled, in order, each with what begins an exchange."""
    principal_of: Callable[[str, LoginOutcome], str]
    """The principal of a mechanism's outcome. Raises `ValueError` where there is none."""
    max_reauth_ms: Callable[[str], int]
    """`connections.max.reauth.ms` of a mechanism; 0: a session does not end."""
    now_ms: Callable[[], int]
    """The wall clock."""


class ServerLogin:
    """One login of one connection."""

    def __init__(self, rules: LoginRules, before: Authenticated | None = None) -> None:
        """`before`: the login that this one renews."""
        self.state = State.HANDSHAKE
        self._rules = rules
        self._before = before
        self.mechanism = ""
        """The one that the client has chosen; empty before."""
        self._exchange: ServerMechanism | None = None
        self._tokens = 0
        """Tokens that the client has sent."""
        self._api_versions = 0
        """Requests for versions in a version that is not supported."""
        self._has_listed_versions = False

    def on_frame(self, frame: Buffer) -> Reaction:
        """A frame has come, and no question is open."""
        if self.state is State.TOKENS:
            return self._on_token(bytes(frame), None)
        try:
            header = decode_request_header(frame)
            if self.state is State.HANDSHAKE:
                return self._on_handshake_frame(header, frame)
            if self.state is State.AUTHENTICATE:
                return self._on_authenticate_frame(header, frame)
        except InvalidRequest as error:
            return self._fail(f"an invalid request during SASL {self.state.value}: {error.message}")
        return self._fail(f"a request came after the SASL login, in the state {self.state.name}")

    def _on_handshake_frame(self, header: RequestHeader, frame: Buffer) -> Reaction:
        may_list = not self._has_listed_versions and self._api_versions < MAX_API_VERSIONS
        if header.api_key == ApiKey.API_VERSIONS and may_list:
            api = API[ApiKey.API_VERSIONS]
            self._has_listed_versions = api.lowest <= header.api_version <= api.highest
            self._api_versions += 1
            return PassOn()
        if header.api_key != ApiKey.SASL_HANDSHAKE:
            name = ApiKey(header.api_key).name
            return self._fail(f"Unexpected Kafka request of type {name} during SASL handshake.")
        request = self._decode(header, frame)
        enabled = list(self._rules.mechanisms)
        mechanism: str = request.mechanism
        correlation_id, version = header.correlation_id, header.api_version
        before = self._before
        if mechanism not in self._rules.mechanisms or (before is not None and mechanism != before.mechanism):
            self.state = State.FAILED
            response = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled)
            why = f"Unsupported SASL mechanism {_printable(mechanism)}"
            if before is not None and mechanism in self._rules.mechanisms:
                why = (
                    f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                    f"mechanism '{before.mechanism}'"
                )
            return LoginAnswer(encode_response(correlation_id, response, version), Failed(why))
        self.mechanism = mechanism
        self._exchange = self._rules.mechanisms[mechanism]()
        self.state = State.TOKENS if version == 0 else State.AUTHENTICATE
        return LoginAnswer(encode_response(correlation_id, SaslHandshakeResponse(mechanisms=enabled), version))

    def _on_authenticate_frame(self, header: RequestHeader, frame: Buffer) -> Reaction:
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            name = ApiKey(header.api_key).name
            return self._fail(
                f"Unexpected Kafka request of type {name} during SASL authentication.", _out_of_place(header)
            )
        return self._on_token(bytes(self._decode(header, frame).auth_bytes), header)

    @staticmethod
    def _decode(header: RequestHeader, frame: Buffer) -> Any:
        """Raises `InvalidRequest`."""
        api = API[ApiKey(header.api_key)]
        if not api.lowest <= header.api_version <= api.highest:
            raise InvalidRequest(f"{api.name} has no version {header.api_version}")
        return decode(request_class(api.key), frame, header.api_version, header.body_at)

    def _on_token(self, token: bytes, header: RequestHeader | None) -> Reaction:
        """`header`: of the SaslAuthenticate that the token came in; None for a bare one."""
        exchange = self._exchange
        assert exchange is not None, "a mechanism was chosen by the handshake"
        self._tokens += 1
        if self._tokens > MAX_TOKENS:
            return self._fail(f"more than {MAX_TOKENS} SASL tokens")
        return self._guarded(lambda: exchange.on_token(token), header)

    def _guarded(self, step: Callable[[], Step], header: RequestHeader | None) -> Reaction:
        try:
            done = step()
            if isinstance(done, Lookup):
                then = done.then
                return LoginQuestion(done.question, lambda answer: self._guarded(lambda: then(answer), header))
            if isinstance(done, LoginOutcome):
                return self._complete(done, header)
        except SaslFailed as error:
            return self._refuse(error, header)
        return LoginAnswer(_token_answer(done, header))

    def _complete(self, outcome: LoginOutcome, header: RequestHeader | None) -> LoginAnswer:
        rules, before = self._rules, self._before
        try:
            principal = rules.principal_of(self.mechanism, outcome)
        except ValueError as error:
            raise SaslFailed(
                f"no principal can be made of user {_printable(outcome.authorization_id)}: {error}"
            ) from error
        if before is not None and principal != before.principal:
            names = (each.replace(":", ".", 1) for each in (before.principal, principal))  # Kafka's text
            raise SaslFailed(f"Cannot change principals during re-authentication from {': '.join(names)}", True)
        now_ms, max_ms = rules.now_ms(), rules.max_reauth_ms(self.mechanism)
        lifetimes = [outcome.expires_at_ms - now_ms] if outcome.expires_at_ms is not None else []
        lifetimes += [max_ms] if max_ms > 0 else []
        lifetime_ms = max(0, min(lifetimes)) if lifetimes else 0
        if lifetimes and not lifetime_ms:
            raise SaslFailed("what the client has presented has expired", True)
        self.state = State.COMPLETE
        end = Authenticated(self.mechanism, outcome, principal, lifetime_ms)
        return LoginAnswer(_token_answer(outcome.token, header, lifetime_ms), end)

    def _refuse(self, error: SaslFailed, header: RequestHeader | None) -> LoginAnswer:
        self.state = State.FAILED
        kind = "authentication" if self._before is None else "re-authentication"
        message = (
            error.message
            if error.is_for_client
            else f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self.mechanism}"
        )
        why = error.message if error.is_for_client else f"{message}: {error.message}"
        if header is None:  # a bare token has no place for an error
            return LoginAnswer([], Failed(why))
        response = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)
        return LoginAnswer(encode_response(header.correlation_id, response, header.api_version), Failed(why))

    def _fail(self, why: str, buffers: list[Buffer] | None = None) -> LoginAnswer:
        self.state = State.FAILED
        return LoginAnswer(buffers or [], Failed(why))


def _out_of_place(header: RequestHeader) -> list[Buffer]:
    """The answer to a request that comes in place of a token; empty for an API that clients do not send then."""
    code = ErrorCode.ILLEGAL_SASL_STATE
    if header.api_key == ApiKey.SASL_HANDSHAKE:
        return encode_response(header.correlation_id, SaslHandshakeResponse(error_code=code), header.api_version)
    if header.api_key == ApiKey.API_VERSIONS:
        return encode_response(header.correlation_id, ApiVersionsResponse(error_code=code), header.api_version)
    return []


def _token_answer(token: bytes | None, header: RequestHeader | None, lifetime_ms: int = 0) -> list[Buffer]:
    """`token`: None for none. Only a SaslAuthenticate is answered then."""
    if header is None:
        return [] if token is None else [token]
    response = SaslAuthenticateResponse(auth_bytes=token or b"", session_lifetime_ms=lifetime_ms)
    return encode_response(header.correlation_id, response, header.api_version)


def _printable(text: str) -> str:
    """At most 100 characters, without those that would begin a new line in the log."""
    return "".join(each if each.isprintable() else "?" for each in text[:100])
