"""The broker configs of the share coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    """Values of the broker keys named beside each field, with Kafka's defaults."""

    updates_per_snapshot: int = 500  # share.coordinator.snapshot.update.records.per.snapshot
    cold_snapshot_interval_ms: int = 300_000  # share.coordinator.cold.partition.snapshot.interval.ms
    prune_interval_ms: int = 300_000  # share.coordinator.state.topic.prune.interval.ms
    write_timeout_ms: int = 5_000  # share.coordinator.write.timeout.ms

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> ShareCoordinatorConfig:
        """From parsed broker configs."""
        return cls(
            updates_per_snapshot=values["share.coordinator.snapshot.update.records.per.snapshot"],
            cold_snapshot_interval_ms=values["share.coordinator.cold.partition.snapshot.interval.ms"],
            prune_interval_ms=values["share.coordinator.state.topic.prune.interval.ms"],
            write_timeout_ms=values["share.coordinator.write.timeout.ms"],
        )
