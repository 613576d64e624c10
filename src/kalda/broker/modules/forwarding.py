"""Requests that only the active controller answers: this broker forwards the request, and returns the response."""

from __future__ import annotations

from kalda.base.durations import quantile_sensors
from kalda.base.sensors import NO_TAGS
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.forwarded import forwarded_rows
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row

_METRICS = "kafka.server:type=ForwardingManager"


class ForwardingModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        node_id = context.config.node_id
        self.forwarding = Forwarding(
            context.channel.beside(f"broker-{node_id}-forwarding"),
            context.host.clock.mono_ms,
            context.channel.beside(f"broker-{node_id}-voters"),
        )
        context.sensors.gauge(_METRICS, "QueueLength", read=lambda: self.forwarding.under_way)
        times = self.forwarding.times
        context.sensors.add_source(lambda: quantile_sensors(_METRICS, "RemoteTimeMs", NO_TAGS, times))
        self._tokens = TokenHandlers(
            self.forwarding,
            context.config["delegation.token.secret.key"],
            lambda: context.cache.image.delegation_tokens.tokens.values(),
        )

    def rows(self) -> list[Row]:
        """The APIs that are forwarded without a check of this broker, and those of delegation tokens."""
        return [*forwarded_rows(self.forwarding), *self._tokens.rows()]
