"""Which internal topic belongs to which coordinator: one row a kind.

A row says what a broker must know of a coordinator besides its requests: which keys of FindCoordinator it answers for,
and how its topic is made. A row takes effect where a broker has a coordinator for it (`kalda.broker.coordinators`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.protocol.messages.groups import CoordinatorType


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A coordinator's topic. Fields that end in `_key` name a broker config."""

    name: str
    key_type: CoordinatorType
    """That of the FindCoordinator requests which this topic's leaders are the answer to."""
    partitions_key: str
    replication_factor_key: str
    topic_configs: Mapping[str, str]
    """Configs that the topic is made with, whatever the broker's are."""
    topic_config_keys: Mapping[str, str]
    """Configs that the topic is made with, each with the broker config that has its value."""
    compression_key: str | None = None
    """The codec of batches that the coordinator appends; they are not compressed where it is None."""

    def configs(self, broker_configs: Mapping[str, Any]) -> dict[str, str]:
        """The configs that the topic is made with."""
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
