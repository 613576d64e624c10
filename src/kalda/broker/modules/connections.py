"""Limits and security of listeners and connections. The node sets them when it opens its listeners; dynamic configs
change them. SaslHandshake and SaslAuthenticate of connections that are authenticated already."""

from __future__ import annotations

from collections.abc import Sequence

from kalda.base.configs.server import ServerConfig
from kalda.broker.handlers.sasl import ROWS
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.rows import Row
from kalda.metadata.image import MetadataImage
from kalda.network.limits import Limits, NodeLimits


class ConnectionsModule(Module):
    """Serves the requests of SASL that come after a login; see `kalda.broker.handlers.sasl`."""

    def __init__(self, context: BrokerContext) -> None:
        self._server = context.server
        self._security = context.security

    def rows(self) -> Sequence[Row]:
        """SaslHandshake, SaslAuthenticate."""
        return ROWS

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the limits of the node, and of each listener."""
        self._server.update_limits(NodeLimits.of(current))
        for name in self._server.listeners:
            self._server.update_listener_limits(name, Limits.of(current, name))
        if self._security is not None:
            self._security.on_config(current)
