"""What a node answers to the questions of SASL mechanisms: credentials of users, delegation tokens, OAuth tokens.

SCRAM credentials are those of the newest metadata image, so an altered password counts for the next login. A delegation
token's credential is derived from its HMAC, which is computed with `delegation.token.secret.key` (KIP-48).

`sasl.server.callback.handler.class` names a Python class instead, for one mechanism of one listener. It is called on a
thread, and may wait:

```python
class OurUsers:
    def configure(self, configs):                       # optional: the node's properties
        ...

    def check_password(self, user, password):           # PLAIN: True where it is right
        ...

    def validate_token(self, token, extensions):        # OAUTHBEARER: (principal's name, expiry in ms since 1970)
        ...                                             # raises ValueError with what the client may read
```
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kalda.base.scheduling import Jobs, Pending
from kalda.metadata.delegation_tokens import token_hmac
from kalda.metadata.image import MetadataImage
from kalda.security.mechanisms import CheckPassword, CheckToken, FindScram, Negotiate, Question, SaslFailed, is_password
from kalda.security.oauthbearer import InvalidToken, ValidToken
from kalda.security.scram import MECHANISMS, ScramSecret, credential_of

log = logging.getLogger("kalda.authentication")

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
