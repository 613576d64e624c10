"""The replicas of this broker, and all that reads and writes them.

Serves Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords. Verifies transactions with their coordinators.
Fetches the partitions that this broker follows, and proposes ISRs of those that it leads. The module `partitions` opens
and deletes replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kalda.base.configs.server import ServerConfig
from kalda.base.sensors import SensorName, counted
from kalda.base.topic_names import TRANSACTIONS_TOPIC
from kalda.broker.channels.broker_channels import BrokerChannels
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.modules.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.replicas.peers import BrokerPeers, ReplicaFetcherManager
from kalda.broker.replicas.replication_throttles import ReplicationThrottles
from kalda.broker.requests.rows import Row
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.metadata.image import MetadataImage
from kalda.metadata.manifest import Publisher
from kalda.replication.counters import (
    BROKER_TOPIC,
    FETCH_SESSIONS,
    FETCHERS,
    REPLICA_MANAGER,
)
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.gauges import lag_sensors, partition_sensors
from kalda.replication.partition import Partition
from kalda.replication.read_replica import RACK_AWARE, RackAwareSelector
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.verification import TransactionVerifier

log = logging.getLogger("kalda.broker")


class ReplicationModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        config, cache, host = context.config, context.cache, context.host
        self._throttles = ReplicationThrottles(config.node_id, config, context.sensors)
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
            self._throttles.follower,
            host.route,
            context.to_brokers,
        )
        self.replicas = ReplicaManager(
            config.node_id,
            context.timers,
            context.jobs,
            context.background,
            config["fetch.max.bytes"],
            cache.topic_exists,
            self._peers,
            self._fetchers,
            context.sensors,
        )
        self.replicas.throttle = self._throttles.leader
        sessions = FetchSessionCache(
            config["max.incremental.fetch.session.cache.slots"],
            host.rng.randint,
            config["kalda.fetch.session.cache.bytes"],
        )
        self._measure(context, sessions)
        self._clock = host.clock
        self._max_transaction_ms: int = config["transaction.max.timeout.ms"]
        self._channels = BrokerChannels("verification", config, cache, host.rng.random, host.route, context.to_brokers)
        self.verifier = TransactionVerifier(
            config.node_id,
            _coordinators_of_transactions(config, cache),
            self._channels.send,
            host.clock.mono_ms,
            context.sensors,
            retry_backoff_ms=config["add.partitions.to.txn.retry.backoff.ms"],
            retry_max_ms=min(config["add.partitions.to.txn.retry.backoff.max.ms"], config["request.timeout.ms"]),
        )
        """Verifies transactions before their first append to a partition."""
        self._data = DataHandlers(
            self.replicas,
            cache,
            sessions,
            host.clock,
            self.verifier,
            _replica_selector(config, cache),
            context.opening,
        )
        self._offsets = OffsetHandlers(self.replicas, context.opening)

    def _measure(self, context: BrokerContext, sessions: FetchSessionCache) -> None:
        sensors, config = context.sensors, context.config
        sensors.gauge(FETCH_SESSIONS, "NumIncrementalFetchSessions", read=lambda: len(sessions))
        sensors.gauge(FETCH_SESSIONS, "NumIncrementalFetchPartitionsCached", read=lambda: sessions.partition_count)
        evictions = SensorName(FETCH_SESSIONS, "IncrementalFetchSessionEvictionsPerSec")
        sensors.add_source(lambda: [(evictions, counted(sessions.evictions))])
        sensors.gauge(REPLICA_MANAGER, "PartitionsWithLateTransactionsCount", read=self._late_transactions)
        sensors.gauge(REPLICA_MANAGER, "ReassigningPartitions", read=lambda: context.cache.reassigning(config.node_id))
        sensors.gauge(FETCHERS, "MaxLag", (("clientId", "Replica"),), lambda: self._fetchers.max_lag)
        sensors.gauge(FETCHERS, "FailedPartitionsCount", (("clientId", "Replica"),), lambda: self._fetchers.failed)
        most: int = config["kalda.metrics.logs.max"]
        sensors.add_source(lambda: partition_sensors(self.replicas, most))
        sensors.add_source(lambda: lag_sensors(self._fetchers.lags()) if len(self.replicas) <= most else ())
        conversions = SensorName(BROKER_TOPIC, "ProduceMessageConversionsPerSec")
        sensors.add_source(lambda: [(conversions, context.logs.conversions)])

    def rows(self) -> list[Row]:
        """Reads and writes of partitions."""
        return [*self._data.rows(), *self._offsets.rows()]

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the number of fetchers for each leader, whether transactions are verified, and the rates of throttled
        replicas. `fetch.max.bytes` cannot be altered dynamically."""
        self._fetchers.resize(current["num.replica.fetchers"])
        self.verifier.is_enabled = current["transaction.partition.verification.enable"]
        self._throttles.set_rates(current)

    def publishers(self) -> Sequence[Publisher]:
        """Connections to brokers that were fenced are closed; throttled replicas are named by the configs of topics."""
        return (self._channels, self._throttles)

    def _late_transactions(self) -> int:
        """Partitions led here in which a transaction may be hanging."""
        now_ms, max_ms = self._clock.wall_ms(), self._max_transaction_ms
        return sum(
            each.is_leader and each.log.producer_states.has_late_transaction(now_ms, max_ms) for each in self.replicas
        )

    def start(self) -> None:
        """Shrink ISRs from now on, where followers do not keep pace."""
        self._peers.start_shrinking_isrs(self.replicas)

    async def close(self) -> None:
        """Propose and fetch nothing more."""
        self._peers.close()
        await self._channels.close()
        await self._fetchers.close()


def _coordinators_of_transactions(config: ServerConfig, cache: MetadataCache) -> Callable[[str], int | None]:
    """The broker that coordinates a transactional id; None where there is none that could be sent a request."""
    listener = config.inter_broker_listener_name

    def coordinator_of(transactional_id: str) -> int | None:
        topic = cache.topic(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return None
        partition = topic.partitions.get(coordinator_partition(transactional_id, len(topic.partitions)))
        broker = None if partition is None else cache.image.cluster.brokers.get(partition.leader)
        return None if broker is None or broker.fenced or listener not in broker.listeners else broker.id

    return coordinator_of


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
