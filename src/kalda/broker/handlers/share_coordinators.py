"""How the share partitions and the groups of this broker reach what is elsewhere: the share coordinators of their
state, and the leaders that know the ends of partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kalda.broker.channels.auto_topics import AutoTopics
from kalda.broker.channels.broker_channels import BrokerChannels
from kalda.broker.channels.latest_offsets import LatestOffsetsOfLeaders
from kalda.broker.channels.share_persister import SharePersister, StateRequest
from kalda.broker.handlers.transactions import leader_of
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import coordinator_lookup
from kalda.coordinator.internal_topics import SHARE_STATE


class ShareCoordinators(Module):
    """Of one broker."""

    def __init__(
        self, context: BrokerContext, handle_here: Callable[[StateRequest], Any], auto_topics: AutoTopics
    ) -> None:
        """`handle_here` is the share coordinator of this broker; `auto_topics` creates the topic of share coordinators
        where it is missing."""
        cache = context.cache
        self.channels = BrokerChannels("share-persister", context.config, cache, context.to_brokers)
        coordinator_of = coordinator_lookup(context.config, cache, SHARE_STATE.name)
        self.persister = SharePersister(
            context.config.node_id,
            lambda key: coordinator_of(key.coordinator_key),
            self.channels.send,
            handle_here,
            context.timers,
            lambda: auto_topics.create([SHARE_STATE.name]),
        )
        """Of the share partitions that are led here, and of the groups that are coordinated here."""
        self.latest = LatestOffsetsOfLeaders(partial(leader_of, cache), self.channels.send)

    async def close(self) -> None:
        """Write nothing more."""
        self.persister.close()
        await self.channels.close()
