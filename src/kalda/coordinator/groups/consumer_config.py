"""The configs of consumer groups: those of the broker, and those that one group has instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kalda.assignors.server_assignor import ServerAssignor
from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.consumer_group import CONSUMER
from kalda.coordinator.groups.topic_catalog import TopicCatalog

_BIDIRECTIONAL: Final = "bidirectional"


class ConsumerGroupConfig(KindConfig):
    """Values as they are now."""

    kind = CONSUMER
    defaults: Mapping[str, Any] = {
        "group.consumer.session.timeout.ms": 45_000,
        "group.consumer.min.session.timeout.ms": 45_000,
        "group.consumer.max.session.timeout.ms": 60_000,
        "group.consumer.heartbeat.interval.ms": 5_000,
        "group.consumer.min.heartbeat.interval.ms": 5_000,
        "group.consumer.max.heartbeat.interval.ms": 15_000,
        "group.consumer.assignment.interval.ms": 1_000,
        "group.consumer.min.assignment.interval.ms": 0,
        "group.consumer.max.assignment.interval.ms": 15_000,
        "group.consumer.max.size": 2**31 - 1,
        "group.consumer.regex.refresh.interval.ms": 600_000,
        "group.consumer.migration.policy": _BIDIRECTIONAL,
    }

    @property
    def _policy(self) -> str:
        return str(self._values["group.consumer.migration.policy"]).lower()

    @property
    def allows_upgrade(self) -> bool:
        """Whether a classic group becomes a consumer group when a member of the consumer protocol joins it."""
        return self._policy in ("upgrade", _BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic group when only members of the classic protocol are left."""
        return self._policy in ("downgrade", _BIDIRECTIONAL)

    @property
    def allows_classic_members(self) -> bool:
        """Whether members may join a consumer group by the classic protocol."""
        return self._policy != "disabled"

    @property
    def regex_refresh_interval_ms(self) -> int:
        """After how long regular expressions are resolved anew, whatever happens."""
        return int(self._values["group.consumer.regex.refresh.interval.ms"])


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What the consumer groups of all shards share."""

    config: ConsumerGroupConfig
    catalog: TopicCatalog
    assignors: Mapping[str, ServerAssignor]
    """By name, the default first."""
