"""A client's part of a SASL login over Kafka's requests (KIP-43, KIP-152): requests out, responses in.

    first() -> SaslHandshake     on_response(...) -> SaslAuthenticate, ... or None when the login is complete

The same machine renews a session (KIP-368). A refusal is an `ApiError` that no retry mends.
"""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kalda.protocol.notation import Request
from kalda.security.mechanisms import ClientMechanism, SaslFailed

_MAX_STEPS = 10


class ClientLogin:
    """One login."""

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
