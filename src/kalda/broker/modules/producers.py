"""Producer ids, for idempotent producers. Serves InitProducerId."""

from __future__ import annotations

from kalda.broker.handlers.producers import ProducerHandlers, ProducerIds
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.rows import Row


class ProducersModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        ids = ProducerIds(context.config.node_id, context.broker_epoch, context.channel.send)
        self._handlers = ProducerHandlers(ids)

    def rows(self) -> list[Row]:
        """Ids from the blocks that the controller allocates."""
        return self._handlers.rows()
