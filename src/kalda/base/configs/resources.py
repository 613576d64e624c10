"""Kinds of resources with configs, sources of values, operations of alterations: by Kafka's names and numbers.

Requests, responses and the metadata log use the same numbers.
"""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The kinds of resources that have configs."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value was set. A number that this table lacks, as a newer broker may send, is read as UNKNOWN."""

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
    """What an incremental alteration does with a key (KIP-339). APPEND and SUBTRACT apply to lists only."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
