"""What a group coordinator has counted, under Kafka's names. A store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kalda.base.sensors import Measurable, SensorName
from kalda.base.stats import Meter

GROUP_METRICS: Final = "kafka.server:type=group-coordinator-metrics"


class GroupCounters:
    """Of all groups that one broker coordinates."""

    def __init__(self) -> None:
        self.completed_rebalances = Meter()
        """Generations whose assignment was committed."""
        self.offset_commits = Meter()
        """Offsets, also those in transactions, as they are committed."""
        self.offset_expirations = Meter()
        self.offset_deletions = Meter()
        """By OffsetDelete. As in Kafka, those that are deleted with their group or their topic do not count."""

    def sensors(self) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        for name, meter in (
            ("group-completed-rebalance", self.completed_rebalances),
            ("offset-commit", self.offset_commits),
            ("offset-expiration", self.offset_expirations),
            ("offset-deletion", self.offset_deletions),
        ):
            yield SensorName(GROUP_METRICS, f"{name}-rate"), meter.rate
            yield SensorName(GROUP_METRICS, f"{name}-count"), meter.total
