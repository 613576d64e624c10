"""What has configs, where a value comes from, and how one is altered: by Kafka's names and numbers.

The same numbers stand in requests, in answers and in the metadata log.
"""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """What can be configured."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from, the most specific first in a list of synonyms. Of a newer broker it may be UNKNOWN."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource | None:
        return cls.UNKNOWN if isinstance(value, int) else None


class ConfigOperation(IntEnum):
    """What an incremental alteration does with a key (KIP-339); the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
