"""Which internal topic belongs to which coordinator, one row a kind; and which partition of it coordinates a key.

A row has what a broker needs for a coordinator besides the handlers of its requests: the key type of FindCoordinator,
and how the topic is created. It takes effect where a broker adds a coordinator for it
(`kalda.broker.replicas.coordinators`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kalda.base.ids import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kalda.protocol.messages.groups import CoordinatorType


class InternalTopic(NamedTuple):
    """A coordinator's topic. Fields that end in `_key` or `_keys` name broker configs."""

    name: str
    key_type: CoordinatorType
    """FindCoordinator requests of this type are answered with the leader of a partition of this topic."""
    partitions_key: str
    replication_factor_key: str
    topic_configs: Mapping[str, str]
    """Configs that the topic is created with, whatever the broker's are."""
    topic_config_keys: Mapping[str, str]
    """Configs that the topic is created with, each with the broker config that has its value."""
    compression_key: str | None = None
    """Has the codec of batches that the coordinator appends; they are not compressed where it is None."""

    def configs(self, broker_configs: Mapping[str, Any]) -> dict[str, str]:
        """The configs that the topic is created with."""
        return {
            **self.topic_configs,
            **{name: str(broker_configs[key]) for name, key in self.topic_config_keys.items()},
        }


GROUPS = InternalTopic(
    OFFSETS_TOPIC,
    CoordinatorType.GROUP,
    partitions_key="offsets.topic.num.partitions",
    replication_factor_key="offsets.topic.replication.factor",
    topic_configs={"cleanup.policy": "compact", "compression.type": "producer"},
    topic_config_keys={"segment.bytes": "offsets.topic.segment.bytes"},
    compression_key="offsets.topic.compression.codec",
)

TRANSACTIONS = InternalTopic(
    TRANSACTIONS_TOPIC,
    CoordinatorType.TRANSACTION,
    partitions_key="transaction.state.log.num.partitions",
    replication_factor_key="transaction.state.log.replication.factor",
    topic_configs={
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": "false",
    },
    topic_config_keys={
        "min.insync.replicas": "transaction.state.log.min.isr",
        "segment.bytes": "transaction.state.log.segment.bytes",
    },
)

SHARE_STATE = InternalTopic(
    SHARE_STATE_TOPIC,
    CoordinatorType.SHARE,
    partitions_key="share.coordinator.state.topic.num.partitions",
    replication_factor_key="share.coordinator.state.topic.replication.factor",
    # Not compacted: an update record adds to the snapshot before it. The coordinator deletes what is redundant.
    topic_configs={"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"},
    topic_config_keys={
        "min.insync.replicas": "share.coordinator.state.topic.min.isr",
        "segment.bytes": "share.coordinator.state.topic.segment.bytes",
    },
    compression_key="share.coordinator.state.topic.compression.codec",
)


_CACHED_LENGTH = 256
"""Hashes of longer keys are not cached: such keys are legal and rare, and thousands of them would fill memory."""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units: a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_cached_hash = lru_cache(maxsize=4_096)(java_hash)


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of a key among `partitions`: of a group id, a transactional id, or a share partition's key.

    It is the remainder of the hash's absolute value, not of its lower 31 bits; Java's least integer, which has no
    absolute value, counts as 0.
    """
    value = _cached_hash(key) if len(key) <= _CACHED_LENGTH else java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions
