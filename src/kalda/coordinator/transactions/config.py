"""The broker configs of the transaction coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_DAY_MS = 86_400_000


class TransactionConfig(NamedTuple):
    """Values of the broker keys named beside each field, with Kafka's defaults."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    abort_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiration_ms: int = 7 * _DAY_MS  # transactional.id.expiration.ms
    expiration_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    two_phase_commit: bool = False  # transaction.two.phase.commit.enable
    write_timeout_ms: int = 30_000  # request.timeout.ms

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> TransactionConfig:
        """From parsed broker configs; keys that are absent keep Kafka's defaults."""
        default = cls()

        def value(key: str, fallback: int) -> int:
            return int(values.get(key, fallback))

        return cls(
            max_timeout_ms=value("transaction.max.timeout.ms", default.max_timeout_ms),
            abort_interval_ms=value(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms", default.abort_interval_ms
            ),
            expiration_ms=value("transactional.id.expiration.ms", default.expiration_ms),
            expiration_interval_ms=value(
                "transaction.remove.expired.transaction.cleanup.interval.ms", default.expiration_interval_ms
            ),
            two_phase_commit=bool(values.get("transaction.two.phase.commit.enable", default.two_phase_commit)),
            write_timeout_ms=value("request.timeout.ms", default.write_timeout_ms),
        )
