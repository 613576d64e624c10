"""The group coordinator: consumer groups and their committed offsets, in `__consumer_offsets`.

Serves the group APIs. Each group belongs to one partition of the topic, and the leader of that partition coordinates
it: the module `partitions` calls the table of coordinators when this broker starts or stops to lead one.
"""

from __future__ import annotations

from kalda.base.ids import Uuid
from kalda.broker.coordinators import Coordinators
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.rows import Row
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.coordinator.internal_topics import GROUPS


class GroupsModule(Module):
    """Rests on the table of coordinators, to which it adds its own."""

    def __init__(self, context: BrokerContext, coordinators: Coordinators) -> None:
        clock = context.host.clock
        coordinator = GroupCoordinator(
            GroupCoordinatorConfig.from_properties(context.config.values),
            coordinators.log(GROUPS),
            TopicNames(context.cache),
            context.host.new_uuid,
            lambda: coordinators.partition_count(GROUPS),
            clock.wall_ms,
        )
        shell = coordinators.add(GROUPS, coordinator.runtime)
        self._handlers = GroupHandlers(coordinator, clock, shell.arm)

    def rows(self) -> list[Row]:
        """The group APIs."""
        return self._handlers.rows()


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
