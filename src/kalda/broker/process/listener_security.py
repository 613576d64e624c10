"""What a listener does with its connections: TLS, the SASL login, the principal. One of PLAINTEXT has it where its
principals are made by an own class.

`ListenerSecurity` is the `Security` (`kalda.network.server`) of one listener. While a connection logs in, its frames
go to its `PeerSession`; once it is authenticated, they go to the listener's own handler, and a request costs nothing
more than on a listener without SASL. A session with a limited life is the exception: the time is compared with its end
on each request (KIP-368). SaslHandshake on an authenticated connection begins a re-authentication.

A failed login is logged with its reason, the user's name and the address, never with what was presented as a secret;
the connection is closed after `connection.failed.authentication.delay.ms`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from kalda.base.errors import ApiError
from kalda.base.scheduling import Jobs, Pending
from kalda.metadata.delegation_tokens import token_hmac
from kalda.metadata.image import MetadataImage
from kalda.network.server.connection import Answer as NetworkAnswer
from kalda.network.server.connection import Buffer, Connection, FrameHandler
from kalda.network.server.limits import MIN_REQUEST_BYTES
from kalda.network.server.server import Listener
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import decode_request_header
from kalda.security.mechanisms import (
    CheckPassword,
    CheckToken,
    FindScram,
    LoginOutcome,
    Negotiate,
    Question,
    SaslFailed,
    ServerMechanism,
    is_password,
)
from kalda.security.oauthbearer import InvalidToken, ValidToken
from kalda.security.principals import AuthenticationContext, BadCertificate, PrincipalBuilder, identity_of
from kalda.security.scram import MECHANISMS, ScramSecret, credential_of
from kalda.security.server_login import (
    Authenticated,
    Failed,
    LoginAnswer,
    LoginQuestion,
    LoginRules,
    PassOn,
    Reaction,
    ServerLogin,
)

log = logging.getLogger("kalda.authentication")

_LINGER_MS = 100
"""Between the answer to a failed login and the end of the connection."""
_MIN_REAUTHENTICATION_MS = 1_000
"""A re-authentication that begins sooner after the one before is refused, as in Kafka."""


class Answers(Protocol):
    """Answers the questions of mechanisms."""

    def find(self, mechanism: str, question: Question) -> Any | Pending[Any]:
        """The answer, or a `Pending` of it where it takes long."""
        ...


class SaslSettings(NamedTuple):
    """SASL on one listener, as of the newest configuration."""

    mechanisms: Mapping[str, Callable[[], ServerMechanism]]
    answers: Answers
    max_reauth_ms: Mapping[str, int]
    """By mechanism; 0: sessions do not end."""
    max_receive_bytes: int
    """`sasl.server.max.receive.size`"""


class ListenerSecurity:
    """One listener's. Its attributes without an underscore are replaced when the configuration changes; connections
    that are authenticated keep what they have."""

    def __init__(
        self,
        security_protocol: str,
        listener_name: str,
        tls: ssl.SSLContext | None,
        sasl: SaslSettings | None,
        principals: PrincipalBuilder,
        failure_delay_ms: int,
        wall_ms: Callable[[], int],
    ) -> None:
        """`wall_ms` is the wall clock."""
        self.security_protocol = security_protocol
        self.listener_name = listener_name
        self.tls = tls
        self.sasl = sasl
        """None without SASL."""
        self.principals = principals
        self.failure_delay_ms = failure_delay_ms
        self.wall_ms = wall_ms

    def begin(self, connection: Connection, listener: Listener) -> None:
        """A connection was made."""
        session = connection.session = PeerSession(self, connection, listener)
        if self.sasl is not None:
            session.begin(None)

    def on_admitted(self, connection: Connection) -> None:
        """PLAINTEXT has no handshake: its peers are authenticated by what they are."""
        session = connection.session
        assert isinstance(session, PeerSession)
        if self.tls is None and self.sasl is None:
            session.set_principal()

    def on_secured(self, connection: Connection, certificate: bytes | None, error: str | None) -> None:
        """The handshake of TLS has ended."""
        session = connection.session
        assert isinstance(session, PeerSession)
        if error is None and certificate is not None:
            try:
                session.subject = identity_of(certificate).subject
            except BadCertificate as bad:
                error = f"the certificate of the client cannot be read: {bad}"
        if error is not None:
            session.report(f"SSL handshake failed: {error}")
            connection.close()
        elif self.sasl is None and session.set_principal():
            session.count_login()


class PeerSession:
    """The security state of one connection: its login, and when it ends."""

    def __init__(self, security: ListenerSecurity, connection: Connection, listener: Listener) -> None:
        self.authenticated: Authenticated | None = None
        """The last successful SASL login."""
        self.subject: str | None = None
        """The distinguished name of the peer's certificate."""
        self._security = security
        self._connection = connection
        self._listener = listener
        self._login: ServerLogin | None = None
        """None once the connection is authenticated."""
        self._expires_at_ms: int | None = None
        """When the session ends, by the server's monotonic clock; None: never."""
        self._has_failed = False
        """Whether a login has failed: the connection is closed soon."""
        self._renewed_ms = -_MIN_REAUTHENTICATION_MS
        """When the last re-authentication began."""

    # -- without SASL

    def set_principal(self) -> bool:
        """Set the principal of a connection that has completed its TLS handshake, or needs none. False where it is
        refused, and closed."""
        try:
            self._connection.principal = self._principal(None, None)
        except Exception as error:
            self._refuse_principal(error)
            self._connection.close()
            return False
        self._listener.login_ended(self._connection)
        return True

    def count_login(self) -> None:
        """The handshake counts as an authentication; PLAINTEXT has none."""
        self._listener.counts.logins += 1

    def _principal(self, mechanism: str | None, outcome: LoginOutcome | None) -> str:
        return self._security.principals.build(
            AuthenticationContext(
                self._security.security_protocol,
                self._listener.name,
                self._connection.peer_host,
                self.subject,
                mechanism,
                None if outcome is None else outcome.authorization_id,
            )
        )

    def _refuse_principal(self, error: Exception) -> None:
        if not isinstance(error, ValueError):
            log.exception("the principal builder of listener %s failed", self._listener.name)
        self.report(str(error))

    # -- SASL

    def begin(self, before: Authenticated | None) -> ServerLogin:
        """Begin a login; `before`: the one that it renews."""
        security = self._security
        assert security.sasl is not None
        sasl = security.sasl
        rules = LoginRules(
            sasl.mechanisms,
            self._principal_of,
            lambda mechanism: sasl.max_reauth_ms.get(mechanism, 0),
            security.wall_ms,
        )
        login = self._login = ServerLogin(rules, before)
        self._connection.hand_over(self._on_frame, 0, sasl.max_receive_bytes)
        return login

    def _principal_of(self, mechanism: str, outcome: LoginOutcome) -> str:
        try:
            return self._principal(mechanism, outcome)
        except ValueError:
            raise
        except Exception as error:
            log.exception("the principal builder of listener %s failed", self._listener.name)
            raise ValueError(f"the principal builder failed: {error!r}") from error

    def _on_frame(self, connection: Connection, frame: memoryview) -> NetworkAnswer:
        assert self._login is not None
        if self._has_failed:
            return None
        return self._react(self._login.on_frame(frame), frame)

    def renew(self, frame: memoryview) -> list[Buffer] | Pending[list[Buffer]] | None:
        """SaslHandshake on an authenticated connection. None where it may not be renewed now; as in Kafka, a session
        that does not end is never renewed."""
        now_ms = self._listener.now_ms()
        is_soon = now_ms - self._renewed_ms < _MIN_REAUTHENTICATION_MS
        if self._security.sasl is None or self._expires_at_ms is None or self._login is not None or is_soon:
            return None
        assert self.authenticated is not None, "it has a session"
        self._renewed_ms = now_ms
        reaction = self.begin(self.authenticated).on_frame(frame)
        assert isinstance(reaction, LoginAnswer), "a handshake is answered at once"
        return self._finish(reaction)

    def _react(self, reaction: Reaction, frame: memoryview) -> NetworkAnswer:
        if isinstance(reaction, PassOn):
            return self._listener.handler(self._connection, frame)
        while isinstance(reaction, LoginQuestion):
            sasl = self._security.sasl
            assert sasl is not None
            assert self._login is not None
            found = sasl.answers.find(self._login.mechanism, reaction.question)
            if isinstance(found, Pending):
                self._connection.answer_alone()
                return self._when_found(found, reaction)
            reaction = reaction.then(found)
        assert isinstance(reaction, LoginAnswer)
        return self._finish(reaction)

    def _when_found(self, found: Pending[Any], ask: LoginQuestion) -> Pending[list[Buffer]]:
        answer: Pending[list[Buffer]] = Pending()
        answer.on_abandoned = found.abandon

        def go_on(value: Any, error: ApiError | None) -> None:
            if self._connection.closed:
                return
            if error is not None:
                answer.fail(error)
                return
            done = self._react(ask.then(value), memoryview(b""))
            if isinstance(done, Pending):
                done.then(answer.settle)
            elif isinstance(done, list):
                answer.complete(done)

        found.then(go_on)
        return answer

    def _finish(self, answer: LoginAnswer) -> list[Buffer] | Pending[list[Buffer]]:
        if isinstance(answer.end, Failed):
            return self._fail(answer.end.why, answer.buffers)
        if isinstance(answer.end, Authenticated):
            self._complete(answer.end)
        return answer.buffers

    def _complete(self, done: Authenticated) -> None:
        connection, listener = self._connection, self._listener
        if self.authenticated is None:
            listener.counts.logins += 1
        else:
            listener.counts.renewals += 1
        self.authenticated, self._login = done, None
        connection.principal = done.principal
        connection.token_authenticated = done.outcome.is_by_token
        limits = listener.limits
        handler = listener.handler
        self._expires_at_ms = None
        if done.session_lifetime_ms > 0:
            self._expires_at_ms = listener.now_ms() + done.session_lifetime_ms
            handler = partial(self._until_expiry, handler)
        connection.hand_over(handler, MIN_REQUEST_BYTES, limits.max_request_bytes)
        listener.login_ended(connection)
        log.debug("%s is %s by %s", connection, done.principal, done.mechanism)

    def _until_expiry(self, handler: FrameHandler, connection: Connection, frame: memoryview) -> NetworkAnswer:
        """Answer a request of a session that ends: after its end, only one that renews it."""
        assert self._expires_at_ms is not None
        is_over = self._listener.now_ms() >= self._expires_at_ms
        if is_over and decode_request_header(frame).api_key != ApiKey.SASL_HANDSHAKE:
            self._listener.counts.expired += 1
            self._listener.log_peer("closing %s: its session of %s has expired", connection, connection.principal)
            connection.close()
            return None
        return handler(connection, frame)

    def _fail(self, why: str, buffers: list[Buffer]) -> Pending[list[Buffer]]:
        """Answer after the delay that slows down guessing, then close. Some clients drop an answer that comes together
        with the end of the connection, so that comes a little later."""
        self.report(why)
        self._has_failed = True
        answer: Pending[list[Buffer]] = Pending()
        connection = self._connection

        def end() -> None:
            if connection.closed:
                return
            answer.complete(buffers)
            if buffers:
                self._listener.call_later_ms(_LINGER_MS, connection.close)
            else:
                connection.close()

        connection.answer_alone()
        self._listener.call_later_ms(self._security.failure_delay_ms, end)
        return answer

    def report(self, why: str) -> None:
        """Log a failed login."""
        connection, counts = self._connection, self._listener.counts
        kind = "authentication" if self.authenticated is None else "re-authentication"
        if self.authenticated is None:
            counts.failed_logins += 1
        else:
            counts.failed_renewals += 1
        self._listener.log_peer(
            "Failed %s with /%s (channelId=%s-%s:%d-%d) (%s)",
            kind,
            connection.peer_host,
            self._listener.name,
            connection.peer_host,
            connection.peer_port,
            connection.id,
            why,
        )


# What a node answers to the questions of SASL mechanisms: credentials of users, delegation tokens, OAuth tokens.
#
# SCRAM credentials are those of the newest metadata image, so an altered password counts for the next login. A
# delegation token's credential is derived from its HMAC, which is computed with `delegation.token.secret.key`
# (KIP-48).
#
# `sasl.server.callback.handler.class` names a Python class instead, for one mechanism of one listener. It is called
# on a thread, and may wait:
#
# ```python
# class OurUsers:
#     def configure(self, configs):                       # optional: the node's properties
#         ...
#
#     def check_password(self, user, password):           # PLAIN: True where it is right
#         ...
#
#     def validate_token(self, token, extensions):        # OAUTHBEARER: (principal's name, expiry in ms since 1970)
#         ...                                             # raises ValueError with what the client may read
# ```

_MAX_TOKEN_SECRETS = 10_000
_MAX_CHECKS = 1_000
"""Questions that wait for a thread, on one listener; more fail."""


class TokenValidator(Protocol):
    """Validates OAuth tokens."""

    def validate(self, token: str) -> ValidToken:
        """Runs on a thread where `is_quick` is False. Raises `InvalidToken`."""
        ...

    @property
    def is_quick(self) -> bool:
        """Whether `validate` waits for nothing."""
        ...


class ScramSecrets:
    """The SCRAM credentials of users and of the bearers of delegation tokens."""

    def __init__(self, image: Callable[[], MetadataImage], secret_key: str | None) -> None:
        """`secret_key`: None where delegation tokens are disabled."""
        self._image = image
        self._secret_key = secret_key
        self._of_tokens: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """Credentials by mechanism and token id, in order of their last use: each takes milliseconds to derive."""

    def find(self, question: FindScram) -> ScramSecret | None:
        """None where there is none."""
        mechanism = MECHANISMS[question.mechanism]
        if not question.is_token:
            credential = self._image().scram.get(mechanism, question.user)
            return None if credential is None else ScramSecret(credential)
        token = self._image().delegation_tokens.tokens.get(question.user)
        if token is None or self._secret_key is None:
            return None
        key = (question.mechanism, token.token_id)
        credential = self._of_tokens.pop(key, None)
        if credential is None:
            secret = token_hmac(self._secret_key, token.token_id)
            # Any salt will do, as the password is random; a fixed one is the same on all nodes.
            salt = hashlib.sha256(b"salt of " + token.token_id.encode()).digest()
            credential = credential_of(mechanism, base64.b64encode(secret).decode(), salt, mechanism.min_iterations)
        self._of_tokens[key] = credential
        if len(self._of_tokens) > _MAX_TOKEN_SECRETS:
            self._of_tokens.popitem(last=False)
        return ScramSecret(credential, token.owner.partition(":")[2], token.expiration_timestamp)


class ListenerAnswers:
    """The answers of one listener."""

    def __init__(
        self,
        scram: ScramSecrets,
        plain_users: Mapping[str, str],
        tokens: TokenValidator | None,
        handlers: Mapping[str, Any],
        jobs: Jobs,
    ) -> None:
        """`plain_users`: passwords by user. `tokens`: None without OAUTHBEARER. `handlers`: the operator's own, by
        mechanism."""
        self._scram = scram
        self._plain_users = dict(plain_users)
        self._tokens = tokens
        self._handlers = handlers
        self._jobs = jobs
        self._checks = 0
        """Questions that are answered on threads now."""

    def find(self, mechanism: str, question: Question) -> Any | Pending[Any]:
        """The answer, or a `Pending` of it."""
        handler = self._handlers.get(mechanism)
        if isinstance(question, FindScram):
            return self._scram.find(question)
        if isinstance(question, CheckPassword):
            if handler is None:
                return is_password(self._plain_users, question.user, question.password)
            return self._on_thread(lambda: bool(handler.check_password(question.user, question.password)), False)
        if isinstance(question, Negotiate):
            return self._on_thread(question.step, SaslFailed(f"a step of {mechanism} has failed"))
        assert isinstance(question, CheckToken)
        failed = InvalidToken("the token could not be validated")
        if handler is not None:
            extensions = dict(question.extensions)
            return self._on_thread(lambda: _validated(handler.validate_token(question.token, extensions)), failed)
        tokens = self._tokens
        assert tokens is not None, "OAUTHBEARER is enabled, so it has a validator"
        if not tokens.is_quick:
            return self._on_thread(lambda: tokens.validate(question.token), failed)
        try:
            return tokens.validate(question.token)
        except InvalidToken as error:
            return error

    def _on_thread(self, check: Callable[[], Any], if_failed: Any) -> Pending[Any]:
        """The result of `check`; a `SaslFailed` that it raises; `if_failed` where it fails otherwise."""
        pending: Pending[Any] = Pending()
        if self._checks >= _MAX_CHECKS:
            log.warning("a login is refused: %d logins are being checked", self._checks)
            pending.complete(if_failed)
            return pending
        self._checks += 1

        def finish(value: Any, error: BaseException | None) -> None:
            self._checks -= 1
            if isinstance(error, SaslFailed):
                value = error
            elif isinstance(error, ValueError) and isinstance(if_failed, InvalidToken):
                value = InvalidToken(str(error))
            elif error is not None:
                # Its text may contain what was presented.
                log.error("a callback handler has failed with %s", type(error).__qualname__)
                value = if_failed
            pending.complete(value)

        self._jobs.run(check, finish)
        return pending


def _validated(found: Any) -> ValidToken:
    name, expires_at_ms = found
    return ValidToken(str(name), int(expires_at_ms))
