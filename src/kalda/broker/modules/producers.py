"""Producer ids, which the module `transactions` gives out. Serves no API."""

from __future__ import annotations

from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.modules.producer_ids import ProducerIds


class ProducersModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self.ids = ProducerIds(context.config.node_id, context.broker_epoch, context.channel.send)
        """Ids from the blocks that the controller allocates."""
