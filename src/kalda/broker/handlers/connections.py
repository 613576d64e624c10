"""Limits and security of listeners and connections, as dynamic configs change them; SaslHandshake (17) and
SaslAuthenticate (36) on connections that are authenticated already, or need not be.

The node sets the limits of the start when it opens its listeners. A login is answered before requests reach a pipeline
(`kalda.broker.process.listener_security`). What comes here begins a re-authentication (KIP-368), or is out of place:
ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.metadata.image import MetadataImage
from kalda.network.server.limits import Limits, NodeLimits, by_address
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

log = logging.getLogger("kalda.broker")


class ConnectionsModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self._server = context.server
        self._security = context.security
        self._jobs = context.jobs
        self._named = context.config.connections_per_ip_overrides()
        """The newest `max.connections.per.ip.overrides`, in which hosts may be named; those of the start are resolved
        and in effect."""
        self._overrides: Mapping[str, int] = context.server.limits.max_connections_per_ip_overrides
        """The ones in effect, by address."""

    def rows(self) -> Sequence[Row]:
        """SaslHandshake, SaslAuthenticate."""
        return ROWS

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the limits of the node, and of each listener."""
        self._server.update_limits(NodeLimits.of(current, self._overrides))
        for name in self._server.listeners:
            self._server.update_listener_limits(name, Limits.of(current, name))
        if self._security is not None:
            self._security.on_config(current)
        named = current.connections_per_ip_overrides()
        if named == self._named:
            return
        self._named = named

        def finish(overrides: Mapping[str, int] | None, failure: BaseException | None) -> None:
            if self._named is not named:
                return  # there are newer ones
            if overrides is None:
                log.error("%s The previous overrides stay in effect.", failure)
                return
            self._overrides = overrides
            self._server.update_limits(replace(self._server.limits, max_connections_per_ip_overrides=overrides))

        self._jobs.run(lambda: by_address(named), finish)


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


ROWS = (
    Row(ApiKey.SASL_HANDSHAKE, handshake, error_on_top, Authorization.ANYONE),
    Row(ApiKey.SASL_AUTHENTICATE, authenticate, error_on_top, Authorization.ANYONE),
)
