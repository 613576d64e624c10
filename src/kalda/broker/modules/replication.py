"""The replicas of this broker, and all that reads and writes them.

Serves Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords. Fetches the partitions that this broker
follows, and proposes ISRs of those that it leads. The module `partitions` opens and deletes replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.base.configs.server import ServerConfig
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.peers import BrokerPeers, ReplicaFetcherManager
from kalda.broker.rows import Row
from kalda.metadata.image import MetadataImage
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.partition import Partition
from kalda.replication.read_replica import RACK_AWARE, RackAwareSelector
from kalda.replication.replica_manager import ReplicaManager

log = logging.getLogger("kalda.broker")


class ReplicationModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        config, cache, host = context.config, context.cache, context.host
        self._peers = BrokerPeers(config, cache, context.channel, context.broker_epoch, host.clock, context.timers)
        self._fetchers = ReplicaFetcherManager(
            config,
            context.cluster_id,
            cache,
            context.broker_epoch,
            host.clock,
            context.jobs,
            host.rng.random,
            context.on_fatal,
            host.is_refused if config["kalda.dead.process.detection.enable"] else None,
            host.route,
        )
        self.replicas = ReplicaManager(
            config.node_id,
            context.timers,
            context.jobs,
            config["fetch.max.bytes"],
            cache.topic_exists,
            self._peers,
            self._fetchers,
            context.sensors,
        )
        sessions = FetchSessionCache(
            config["max.incremental.fetch.session.cache.slots"],
            host.rng.randint,
            config["kalda.fetch.session.cache.bytes"],
        )
        self._data = DataHandlers(
            self.replicas, cache, sessions, host.clock, _replica_selector(config, cache), context.opening
        )
        self._offsets = OffsetHandlers(self.replicas, context.opening)

    def rows(self) -> list[Row]:
        """Reads and writes of partitions."""
        return [*self._data.rows(), *self._offsets.rows()]

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the number of fetchers for each leader. `fetch.max.bytes` cannot be altered dynamically."""
        self._fetchers.resize(current["num.replica.fetchers"])

    def start(self) -> None:
        """Shrink ISRs from now on, where followers do not keep pace."""
        self._peers.start_shrinking_isrs(self.replicas)

    async def close(self) -> None:
        """Propose and fetch nothing more."""
        self._peers.close()
        await self._fetchers.close()


def _replica_selector(config: ServerConfig, cache: MetadataCache) -> Callable[[Partition, int, str], int] | None:
    """The selector that `replica.selector.class` names; None where it names none, or one other than Kafka's rack-aware
    one, which is the only one that is supported. `select(partition, offset, rack)` returns a broker id."""
    name = config["replica.selector.class"]
    if not name:
        return None
    if name != RACK_AWARE:
        log.warning("replica.selector.class %s is not known: consumers read from leaders", name)
        return None

    def rack_of(broker_id: int) -> str | None:
        broker = cache.image.cluster.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack

    return RackAwareSelector(config.node_id, rack_of).select
