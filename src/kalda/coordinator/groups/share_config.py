"""The configs of share groups: those of the broker, and those that one group has instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.share_group import SHARE
from kalda.coordinator.groups.topic_catalog import TopicCatalog
from kalda.coordinator.share.group_states import LatestOffsets, ShareStates


class ShareGroupConfig(KindConfig):
    """Values as they are now."""

    kind = SHARE
    defaults: Mapping[str, Any] = {
        "group.share.session.timeout.ms": 45_000,
        "group.share.min.session.timeout.ms": 45_000,
        "group.share.max.session.timeout.ms": 60_000,
        "group.share.heartbeat.interval.ms": 5_000,
        "group.share.min.heartbeat.interval.ms": 5_000,
        "group.share.max.heartbeat.interval.ms": 15_000,
        "group.share.assignment.interval.ms": 1_000,
        "group.share.min.assignment.interval.ms": 0,
        "group.share.max.assignment.interval.ms": 15_000,
        "group.share.max.size": 200,
        "group.share.initialize.retry.interval.ms": 30_000,
    }

    @property
    def initialize_retry_interval_ms(self) -> int:
        """After how long partitions whose initialization has no answer are initialized again."""
        return int(self._values["group.share.initialize.retry.interval.ms"])


class ShareServices(NamedTuple):
    """What share groups need of a broker besides what all groups do."""

    config: ShareGroupConfig
    states: ShareStates
    latest: LatestOffsets


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """What the share groups of all shards share."""

    config: ShareGroupConfig
    catalog: TopicCatalog
    states: ShareStates
