"""Producer ids, for idempotent producers. Serves InitProducerId."""

from __future__ import annotations

from kalda.broker.handlers.producers import ProducerHandlers, ProducerIds
from kalda.broker.modules.module import BrokerContext, Handlers, Module
from kalda.protocol.apis import ApiKey


class ProducersModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        ids = ProducerIds(context.config.node_id, context.broker_epoch, context.channel.send)
        self._handlers = ProducerHandlers(ids)

    def handlers(self) -> Handlers:
        """Ids from the blocks that the controller allocates."""
        return {ApiKey.INIT_PRODUCER_ID: self._handlers.init_producer_id}
