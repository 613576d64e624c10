"""Limits of listeners and connections. The node sets them when it opens its listeners; dynamic configs change them."""

from __future__ import annotations

from kalda.base.configs.server import ServerConfig
from kalda.broker.modules.module import BrokerContext, Module
from kalda.metadata.image import MetadataImage
from kalda.network.limits import Limits, NodeLimits


class ConnectionsModule(Module):
    """Serves no API."""

    def __init__(self, context: BrokerContext) -> None:
        self._server = context.server

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the limits of the node, and of each listener."""
        self._server.update_limits(NodeLimits.of(current))
        for name in self._server.listeners:
            self._server.update_listener_limits(name, Limits.of(current, name))
