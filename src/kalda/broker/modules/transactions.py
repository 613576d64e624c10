"""The transaction coordinator: transactional producers and the outcome of their transactions, in `__transaction_state`.

Serves InitProducerId (for idempotent producers too) and the APIs of transactions. Each transactional id belongs to one
partition of the topic, and the leader of that partition coordinates it: the module `partitions` calls the table of
coordinators when this broker starts or stops to lead one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.broker.channels.broker_channels import BrokerChannels
from kalda.broker.handlers.transactions import TransactionHandlers
from kalda.broker.modules.coordinator_table import Coordinators, add_load_times
from kalda.broker.modules.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.modules.producer_ids import ProducerIds
from kalda.broker.modules.transaction_markers import TransactionMarkers
from kalda.broker.requests.rows import Row
from kalda.coordinator.internal_topics import GROUPS, TRANSACTIONS
from kalda.coordinator.transactions.config import TransactionConfig
from kalda.coordinator.transactions.markers import NO_LEADER
from kalda.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from kalda.metadata.features import TRANSACTION_VERSION
from kalda.metadata.manifest import Publisher
from kalda.replication.markers import MarkerWriter

_METRICS = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager"


class TransactionsModule(Module):
    """Rests on the table of coordinators, to which it adds its own; on producer ids; on what writes markers into
    the partitions of this broker."""

    def __init__(
        self,
        context: BrokerContext,
        coordinators: Coordinators,
        ids: ProducerIds,
        writer: MarkerWriter,
    ) -> None:
        cache, clock = context.cache, context.host.clock
        self._channels = BrokerChannels(
            "markers", context.config, cache, context.host.rng.random, context.host.route, context.to_brokers
        )
        self._markers = TransactionMarkers(
            context.config.node_id,
            lambda topic, partition: leader_of(cache, topic, partition),
            self._channels.send,
            writer.write,
            clock,
            context.timers,
        )
        coordinator = TransactionCoordinator(
            TransactionConfig.from_properties(context.config.values),
            coordinators.log(TRANSACTIONS),
            self._markers,
            ids,
            lambda: cache.image.features.level(TRANSACTION_VERSION),
            lambda: coordinators.partition_count(TRANSACTIONS),
            clock.wall_ms,
        )
        context.sensors.gauge(_METRICS, "UnknownDestinationQueueSize", read=lambda: self._markers.retries)
        context.sensors.gauge(_METRICS, "LogAppendRetryQueueSize", read=lambda: coordinator.unwritten)
        add_load_times(context.sensors, "kafka.server:type=transaction-coordinator-metrics", coordinator.runtime)
        shell = coordinators.add(TRANSACTIONS, coordinator.runtime)
        coordinator.rearm = shell.arm
        self.handlers = TransactionHandlers(
            coordinator,
            clock,
            lambda topic, partition: leader_of(cache, topic, partition) is not None,
            lambda: coordinators.partition_count(GROUPS) or context.config[GROUPS.partitions_key],
            shell.arm,
        )

    def rows(self) -> list[Row]:
        """The APIs of the coordinator."""
        return self.handlers.rows()

    def publishers(self) -> Sequence[Publisher]:
        """The channels to other brokers, which are closed when a broker is fenced."""
        return (self._channels,)

    async def close(self) -> None:
        """Send no more markers."""
        self._markers.close()
        await self._channels.close()


def leader_of(cache: MetadataCache, topic: str, partition: int) -> int | None:
    """The broker that leads a partition, `NO_LEADER` while none does, None where the partition does not exist."""
    found = cache.topic(topic)
    registration = None if found is None else found.partitions.get(partition)
    if registration is None:
        return None
    return registration.leader if registration.has_leader else NO_LEADER
