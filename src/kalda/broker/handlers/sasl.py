"""SaslHandshake and SaslAuthenticate on connections that are authenticated already, or need not be.

A login is answered before requests reach a pipeline (`kalda.broker.process.listener_security`). What comes here begins
a re-authentication (KIP-368), or is out of place: ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import Authorization, Row, message_of
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_LATE = "SaslAuthenticate request received after successful authentication"


def handshake(
    context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse | Encoded | Pending[Encoded]:
    """Begin to renew the session of this connection."""
    renew = getattr(context.connection.session, "renew", None)
    answer = None if renew is None or context.forwarded_by is not None else renew(context.frame)
    if answer is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    if isinstance(answer, list):
        return Encoded(answer)
    later: Pending[Encoded] = Pending()
    answer.then(lambda buffers, error: later.settle(None if buffers is None else Encoded(buffers), error))
    return later


def authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse: a token without a handshake."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_LATE)


def _handshake_failed(request: SaslHandshakeRequest, version: int, error: ApiError) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error.code)


def _authenticate_failed(request: SaslAuthenticateRequest, version: int, error: ApiError) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.code, error_message=message_of(error))


ROWS = (
    Row(ApiKey.SASL_HANDSHAKE, handshake, _handshake_failed, Authorization.ANYONE),
    Row(ApiKey.SASL_AUTHENTICATE, authenticate, _authenticate_failed, Authorization.ANYONE),
)
