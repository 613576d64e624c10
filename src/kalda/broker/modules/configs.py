"""Configs of topics, brokers, groups and client metrics, described and altered.

Serves DescribeConfigs, ListConfigResources, AlterConfigs, IncrementalAlterConfigs. An altered config takes effect when
this broker replays its record: through `Module.on_config`, or for a topic through the module `partitions`.
"""

from __future__ import annotations

from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row


class ConfigsModule(Module):
    """Rests on forwarding: alterations that pass this broker's checks are decided by the controller."""

    def __init__(self, context: BrokerContext, forwarding: Forwarding) -> None:
        self._configs = ConfigHandlers(
            context.config.node_id,
            context.config,
            context.cache,
            None if context.security is None else context.security.check_of,
            None if context.security is None else context.security.jobs,
        )
        self._forwarding = forwarding

    def rows(self) -> list[Row]:
        """Descriptions and alterations."""
        return self._configs.rows(self._forwarding)
