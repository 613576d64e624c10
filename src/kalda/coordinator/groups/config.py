"""The broker configs of the group coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    """Values of the broker keys named beside each field, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_group_size: int = 2**31 - 1  # group.max.size
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    offsets_retention_ms: int = 10_080 * _MINUTE_MS  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """A new member whose JoinGroup waits longer than this is removed: its client may have closed the connection, which
    nothing reports while the request is parked. Not configurable, as in Kafka."""

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> GroupCoordinatorConfig:
        """From parsed broker configs (`{"group.max.size": 10, …}`); keys that are absent keep Kafka's defaults."""
        default = cls()

        def value(key: str, fallback: int) -> int:
            return int(values.get(key, fallback))

        return cls(
            min_session_timeout_ms=value("group.min.session.timeout.ms", default.min_session_timeout_ms),
            max_session_timeout_ms=value("group.max.session.timeout.ms", default.max_session_timeout_ms),
            max_group_size=value("group.max.size", default.max_group_size),
            initial_rebalance_delay_ms=value("group.initial.rebalance.delay.ms", default.initial_rebalance_delay_ms),
            offset_metadata_max_bytes=value("offset.metadata.max.bytes", default.offset_metadata_max_bytes),
            commit_timeout_ms=value("offsets.commit.timeout.ms", default.commit_timeout_ms),
            offsets_retention_ms=value("offsets.retention.minutes", default.offsets_retention_ms // _MINUTE_MS)
            * _MINUTE_MS,
            retention_check_interval_ms=value(
                "offsets.retention.check.interval.ms", default.retention_check_interval_ms
            ),
        )
