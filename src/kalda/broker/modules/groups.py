"""The group coordinator: consumer groups and their committed offsets, in `__consumer_offsets`.

Serves the group APIs. Each group belongs to one partition of the topic, and the leader of that partition coordinates
it: the module `partitions` calls `shell` when this broker starts or stops to lead one.
"""

from __future__ import annotations

from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.broker.auto_topics import TopicPlan
from kalda.broker.coordinator_shell import GroupCoordinatorShell, GroupLog
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Handlers, Module
from kalda.coordinator.config import GroupCoordinatorConfig
from kalda.coordinator.group_coordinator import GroupCoordinator
from kalda.records.compression import Compression
from kalda.replication.replica_manager import ReplicaManager


class GroupsModule(Module):
    """Rests on the replicas."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager) -> None:
        config, clock = context.config, context.host.clock
        self._cache = context.cache
        coordinator = GroupCoordinator(
            GroupCoordinatorConfig.from_properties(config.values),
            GroupLog(replicas, Compression(config["offsets.topic.compression.codec"])),
            TopicNames(context.cache),
            context.host.new_uuid,
            self._offsets_partitions,
            clock.wall_ms,
        )
        self.shell = GroupCoordinatorShell(coordinator, replicas, clock, context.timers, context.jobs)
        self.topic_plans = {OFFSETS_TOPIC: _offsets_topic(config)}
        """How `__consumer_offsets` is created, when the first client looks for its coordinator."""
        self._handlers = GroupHandlers(coordinator, clock, self.shell.arm)

    def handlers(self) -> Handlers:
        """The group APIs."""
        return self._handlers.table()

    async def close(self) -> None:
        """Stop the timer."""
        self.shell.close()

    def _offsets_partitions(self) -> int:
        """The number of partitions of `__consumer_offsets`; 0 before it is created."""
        topic = self._cache.topic(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)


class TopicNames:
    """Topic ids and names, as the coordinator looks them up."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def id_of(self, name: str) -> Uuid | None:
        """The id of a topic; None where the topic does not exist."""
        return self._cache.topic_id(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of a topic; None where the topic does not exist."""
        return self._cache.topic_name(topic_id)

    def has_partition(self, name: str, partition: int) -> bool:
        """Whether the topic exists and has that partition."""
        topic = self._cache.topic(name)
        return topic is not None and partition in topic.partitions


def _offsets_topic(config: ServerConfig) -> TopicPlan:
    return TopicPlan(
        config["offsets.topic.num.partitions"],
        config["offsets.topic.replication.factor"],
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )
