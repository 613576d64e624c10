"""What a broker serves clients with: replicas, coordinator, metadata, and the handlers over them, wired.

It is there before the broker is registered, and knows nothing of how that goes; its publisher brings it up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kalda.base.configs.definition import to_text
from kalda.base.configs.dynamic import Layers, effective
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.without_effect import idle_changes, idle_topic_changes
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Timers
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.broker.api_versions import Features
from kalda.broker.assignments import DirectoryAssignments
from kalda.broker.auto_topics import AutoTopics, TopicPlan
from kalda.broker.controller_channel import ControllerChannel
from kalda.broker.coordinator_shell import GroupCoordinatorShell, GroupLog
from kalda.broker.forwarding import Forwarding
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.log_dirs import LogDirHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.producers import ProducerHandlers, ProducerIds
from kalda.broker.handlers.table import broker_rows
from kalda.broker.lifecycle import BrokerLifecycle
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.peers import BrokerPeers, ReplicaFetcherManager
from kalda.broker.pipeline import RequestPipeline
from kalda.broker.publisher import BrokerPublisher
from kalda.broker.shell import Host
from kalda.coordinator.config import GroupCoordinatorConfig
from kalda.coordinator.group_coordinator import GroupCoordinator
from kalda.coordinator.routing import coordinator_partition
from kalda.metadata.configs import ConfigResource, broker_resource
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.records.compression import Compression
from kalda.replication.dir_moves import DirMoves
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.partition import Partition
from kalda.replication.read_replica import RACK_AWARE, RackAwareSelector
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.config import LogConfig
from kalda.storage.log_manager import LogManager

log = logging.getLogger("kalda.broker")

_UNLIMITED = 2**62
_NAMED = 5
_INTERNAL = {"cleanup.policy": "compact", "compression.type": "producer"}


class TopicNames:
    """Topic ids and names, as the coordinator asks for them."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def id_of(self, name: str) -> Uuid | None:
        """The id of a topic that exists."""
        return self._cache.topic_id(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of a topic that exists."""
        return self._cache.topic_name(topic_id)

    def has_partition(self, name: str, partition: int) -> bool:
        """Whether the topic exists and has that partition."""
        topic = self._cache.topic(name)
        return topic is not None and partition in topic.partitions


class Services:
    """Everything that serves clients."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        channel: ControllerChannel,
        lifecycle: BrokerLifecycle,
        logs: LogManager,
        host: Host,
        timers: Timers,
        jobs: Jobs,
        features: Callable[[], Features],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` is told why this broker cannot go on."""
        clock = host.clock
        self._config = config
        self._cordoned = config.cordoned_log_dirs
        self._lifecycle = lifecycle
        self.logs = logs
        self.cache = MetadataCache(timers)
        self._peers = BrokerPeers(config, self.cache, channel, lambda: lifecycle.broker_epoch, clock, timers)
        self.replicas = ReplicaManager(
            config.node_id, timers, jobs, config["fetch.max.bytes"], self.cache.topic_exists, self._peers
        )
        self._fetchers = self._make_fetchers(cluster_id, host, jobs, on_fatal)
        self.replicas.following = self._fetchers
        self._peers.watch(self.replicas)
        coordinator = self._make_coordinator(host)
        self.groups = GroupCoordinatorShell(coordinator, self.replicas, clock, timers, jobs)
        auto_topics = self._auto_topics(channel)
        self.configs = ConfigHandlers(config.node_id, config, self.cache)
        self._assignments = DirectoryAssignments(
            config.node_id, lambda: lifecycle.broker_epoch, channel.send, timers, self._is_misplaced
        )
        self.moves = self._make_moves(host, timers, jobs)
        rows = broker_rows(
            self._data_handlers(host),
            OffsetHandlers(self.replicas),
            self._metadata_handlers(cluster_id, auto_topics),
            GroupHandlers(coordinator, clock, self.groups.arm),
            self.configs,
            DescribeHandlers(self.replicas, self.cache),
            LogDirHandlers(logs, self.moves, jobs),
            ProducerHandlers(ProducerIds(config.node_id, lambda: lifecycle.broker_epoch, channel.send)),
            Forwarding(channel),
        )
        self.pipeline = RequestPipeline(
            rows,
            features,
            lambda step: timers.call_later_ms(0, step),
            unstable_versions=config["unstable.api.versions.enable"],
        )
        self.publisher = BrokerPublisher(
            config.node_id,
            self.cache,
            self.replicas,
            logs,
            self.log_config,
            self._on_configs,
            self.groups,
            clock.wall_ms,
            self._assignments.placed,
            timers,
            jobs,
        )
        self.on_config: Callable[[ServerConfig], None] = _nothing
        """Told of this broker's effective configuration when dynamic configs have changed it."""
        self._defaults: dict[str, str] = self._topic_defaults(config)

    def _make_fetchers(
        self, cluster_id: str, host: Host, jobs: Jobs, on_fatal: Callable[[str], None]
    ) -> ReplicaFetcherManager:
        config = self._config
        return ReplicaFetcherManager(
            config,
            cluster_id,
            self.cache,
            lambda: self._lifecycle.broker_epoch,
            host.clock,
            jobs,
            host.rng.random,
            on_fatal,
            host.is_refused if config["kalda.dead.process.detection.enable"] else None,
        )

    def _make_moves(self, host: Host, timers: Timers, jobs: Jobs) -> DirMoves:
        config = self._config
        moves = DirMoves(
            self.replicas,
            self.logs,
            jobs,
            timers,
            host.clock.mono_ms,
            self._assignments.placed,
            at_a_time=config["num.replica.alter.log.dirs.threads"] or len(config.log_dirs),
        )
        _limit_moves(moves, config)
        return moves

    def _make_coordinator(self, host: Host) -> GroupCoordinator:
        return GroupCoordinator(
            GroupCoordinatorConfig.from_properties(self._config.values),
            GroupLog(self.replicas, Compression(self._config["offsets.topic.compression.codec"])),
            TopicNames(self.cache),
            host.new_uuid,
            self._offsets_partitions,
            host.clock.wall_ms,
        )

    def _metadata_handlers(self, cluster_id: str, auto_topics: AutoTopics) -> MetadataHandlers:
        limit = self._config["max.request.partition.size.limit"]
        return MetadataHandlers(self.cache, cluster_id, auto_topics, coordinator_partition, limit)

    def _data_handlers(self, host: Host) -> DataHandlers:
        sessions = FetchSessionCache(self._config["max.incremental.fetch.session.cache.slots"], host.rng.randint)
        return DataHandlers(self.replicas, self.cache, sessions, host.clock, self._read_replica_selector())

    def _auto_topics(self, channel: ControllerChannel) -> AutoTopics:
        config = self._config
        offsets = TopicPlan(
            config["offsets.topic.num.partitions"],
            config["offsets.topic.replication.factor"],
            {**_INTERNAL, "segment.bytes": str(config["offsets.topic.segment.bytes"])},
        )
        return AutoTopics(
            channel, config["auto.create.topics.enable"], {OFFSETS_TOPIC: offsets}, config["request.timeout.ms"]
        )

    def _read_replica_selector(self) -> Callable[[Partition, int, str], int] | None:
        """What `replica.selector.class` names; no other class than Kafka's rack-aware one is known."""
        name = self._config["replica.selector.class"]
        if not name:
            return None
        if name != RACK_AWARE:
            log.warning("replica.selector.class %s is not known: consumers read from leaders", name)
            return None

        def rack_of(broker_id: int) -> str | None:
            broker = self.cache.image.cluster.brokers.get(broker_id)
            return None if broker is None or broker.fenced else broker.rack

        return RackAwareSelector(self._config.node_id, rack_of).select

    def placed(self, topic_partition: TopicPartition, topic_id: Uuid | None, image: MetadataImage) -> Uuid | None:
        """In which directory `image` has this broker's replica of that topic; None where it has none."""
        topic = None if topic_id is None else image.topics.by_id.get(topic_id)
        if topic is None or topic.name != topic_partition.topic:
            return None
        registration = topic.partitions.get(topic_partition.partition)
        return None if registration is None else registration.directory(self._config.node_id)

    def _is_misplaced(self, topic_id: Uuid, partition: int, directory: Uuid) -> bool:
        """Whether the metadata has this broker's replica elsewhere than in that directory."""
        topic = self.cache.topic_by_id(topic_id)
        registration = None if topic is None else topic.partitions.get(partition)
        known = None if registration is None else registration.directory(self._config.node_id)
        return known is not None and known != directory

    def _offsets_partitions(self) -> int:
        topic = self.cache.topic(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    # -- configs

    def log_config(self, topic: str, image: MetadataImage) -> LogConfig:
        """A topic's effective config: its own, over the cluster's and this broker's defaults."""
        return LogConfig.from_dict({**self._defaults, **image.configs.of_topic(topic)})

    def _topic_defaults(self, config: ServerConfig) -> dict[str, str]:
        return {name: text for name, value in config.topic_defaults().items() if (text := to_text(value)) is not None}

    def _on_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Dynamic configs of this broker, or of all, take effect."""
        changes = {} if delta.configs is None else delta.configs.changes
        _warn_of_changes(changes, self._config.node_id)
        if any(resource.type == ConfigResourceType.BROKER for resource in changes):
            self._take_config(image)
        self._cordon(image)

    def _take_config(self, image: MetadataImage) -> None:
        configs = image.configs
        layers = Layers(
            self._config.properties, configs.of(broker_resource(None)), configs.of_broker(self._config.node_id)
        )
        current, faults = effective(layers)
        for fault in faults:
            log.warning("a dynamic config is left out: %s", fault.message)
        self._defaults = self._topic_defaults(current)
        self.replicas.fetch_max_bytes = current["fetch.max.bytes"]
        self._fetchers.resize(current["num.replica.fetchers"])
        _limit_moves(self.moves, current)
        self._cordoned = current.cordoned_log_dirs
        self.on_config(current)

    def _cordon(self, image: MetadataImage) -> None:
        """Log directories that take no new replicas: here, and by what the controller is told (KIP-1066)."""
        version = image.features.metadata_version
        is_known = version is not None and version.is_cordoned_log_dirs_supported
        for directory in self.logs.dirs:
            directory.cordoned = is_known and directory.path in self._cordoned
        cordoned = [each.directory_id for each in self.logs.dirs if each.cordoned and each.directory_id is not None]
        self._lifecycle.set_cordoned_dirs(cordoned if is_known else None)

    # -- the end

    async def close(self) -> None:
        """Stop what runs by itself; the logs are closed by their manager."""
        self.publisher.close()
        self.groups.close()
        self.moves.close()
        self._assignments.close()
        self._peers.close()
        await self._fetchers.close()


def _warn_of_changes(changes: Mapping[ConfigResource, Mapping[str, str | None]], node_id: int) -> None:
    """Say which of the altered configs do nothing. Of topics that share a reason, a few are named."""
    topics: dict[tuple[str, ...], list[str]] = {}
    for resource, changed in changes.items():
        if resource.type == ConfigResourceType.TOPIC:
            for why, names in idle_topic_changes(changed).items():
                topics.setdefault((why, *names), []).append(resource.name)
        elif resource.type == ConfigResourceType.BROKER and resource.name in ("", str(node_id)):
            for why, names in idle_changes(changed).items():
                log.warning("dynamic config %s: no effect, because %s", ", ".join(names), why)
    for (why, *names), found in topics.items():
        of = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
        log.warning("config %s of topic %s: no effect, because %s", ", ".join(names), of, why)


def _limit_moves(moves: DirMoves, config: ServerConfig) -> None:
    limit = config["replica.alter.log.dirs.io.max.bytes.per.second"]
    moves.bytes_per_second = None if limit >= _UNLIMITED else limit


def _nothing(config: ServerConfig) -> None:
    return None
