"""The configs of streams groups: those of the broker, and those that one group has instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kalda.assignors.task_assignor import TaskAssignor
from kalda.base.configs.group import BROKER_SYNONYMS
from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.streams.group import STREAMS
from kalda.coordinator.groups.topic_catalog import TopicCatalog


class StreamsGroupConfig(KindConfig):
    """Values as they are now."""

    kind = STREAMS
    defaults: Mapping[str, Any] = {
        "group.streams.session.timeout.ms": 45_000,
        "group.streams.min.session.timeout.ms": 45_000,
        "group.streams.max.session.timeout.ms": 60_000,
        "group.streams.heartbeat.interval.ms": 5_000,
        "group.streams.min.heartbeat.interval.ms": 5_000,
        "group.streams.max.heartbeat.interval.ms": 15_000,
        "group.streams.assignment.interval.ms": 1_000,
        "group.streams.min.assignment.interval.ms": 0,
        "group.streams.max.assignment.interval.ms": 15_000,
        "group.streams.max.size": 2**31 - 1,
        "group.streams.initial.rebalance.delay.ms": 3_000,
        "group.streams.num.standby.replicas": 0,
        "group.streams.max.standby.replicas": 2,
        "group.streams.rack.aware.assignment.tags": (),
        "group.streams.task.offset.interval.ms": 60_000,
        "group.streams.min.task.offset.interval.ms": 15_000,
        "group.streams.acceptable.recovery.lag": 10_000,
    }

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        """How long a new group waits for more members before the first assignment."""
        return int(self._text(group_id, "streams.initial.rebalance.delay.ms"))

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """What assignments depend on, by name in ascending order, as the group's record has it."""
        replicas = min(self.num_standby_replicas(group_id), int(self._values["group.streams.max.standby.replicas"]))
        configs = {"num.standby.replicas": str(replicas)}
        tags = self.rack_aware_assignment_tags(group_id)
        if tags:
            configs["rack.aware.assignment.tags"] = ",".join(tags)
        return configs

    def num_standby_replicas(self, group_id: str) -> int:
        """How many standby copies the tasks of stateful subtopologies have."""
        return int(self._text(group_id, "streams.num.standby.replicas"))

    def rack_aware_assignment_tags(self, group_id: str) -> tuple[str, ...]:
        """Client tags that members must have, over whose values standby copies are spread."""
        value = self._text(group_id, "streams.rack.aware.assignment.tags")
        listed = value.split(",") if isinstance(value, str) else value
        return tuple(tag.strip() for tag in listed if tag.strip())

    def task_offset_interval_ms(self, group_id: str) -> int:
        """How often members report how far the state of their tasks is."""
        lowest = int(self._values["group.streams.min.task.offset.interval.ms"])
        return max(int(self._text(group_id, "streams.task.offset.interval.ms")), lowest)

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """With how much state to restore a copy of a task counts as caught up."""
        return int(self._text(group_id, "streams.acceptable.recovery.lag"))

    def assignor_name(self, group_id: str) -> str | None:
        """The assignor that the group has been given; None for the default."""
        return self._overrides(group_id).get("streams.assignor.name")

    def _text(self, group_id: str, name: str) -> Any:
        """The group's value as text, or the broker's."""
        text = self._overrides(group_id).get(name)
        return self._values[BROKER_SYNONYMS[name]] if text is None else text


class StreamsServices(NamedTuple):
    """What streams groups need of a broker besides what all groups do."""

    config: StreamsGroupConfig
    assignors: Mapping[str, TaskAssignor]


class StreamsSettings(NamedTuple):
    """What the streams groups of all shards share."""

    config: StreamsGroupConfig
    catalog: TopicCatalog
    assignors: Mapping[str, TaskAssignor]
    """By name, the default first."""

    def assignor(self, group_id: str) -> TaskAssignor:
        """That of a group; the default where it names one that this broker does not have."""
        named = self.assignors.get(self.config.assignor_name(group_id) or "")
        return next(iter(self.assignors.values())) if named is None else named
