"""Limits and security of listeners and connections. The node sets them when it opens its listeners; dynamic configs
change them. SaslHandshake and SaslAuthenticate of connections that are authenticated already."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kalda.base.configs.server import ServerConfig
from kalda.broker.handlers.sasl import ROWS
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row
from kalda.metadata.image import MetadataImage
from kalda.network.limits import Limits, NodeLimits, by_address

log = logging.getLogger("kalda.broker")


class ConnectionsModule(Module):
    """Serves the requests of SASL that come after a login; see `kalda.broker.handlers.sasl`."""

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
