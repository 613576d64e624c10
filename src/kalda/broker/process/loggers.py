"""The loggers of a broker as a config resource (KIP-412).

Each logger of this process is a key, and its level the value. Changes last until the process ends. The names of the
levels are Kafka's: TRACE is below DEBUG, and FATAL is the highest.

Tools and clients know the names of Apache Kafka's loggers. Those in `ALIASES` are keys too: each stands for the logger
here that reports the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kalda.base.configs.resources import ConfigOperation
from kalda.base.errors import ApiError, ErrorCode

ROOT = "root"
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


ALIASES: Mapping[str, str] = {
    "kafka": "kalda",
    "kafka.cluster.Partition": "kalda.isr",
    "kafka.controller": "kalda.controller",
    "kafka.controller.KafkaController": "kalda.controller",
    "kafka.coordinator.group": "kalda.coordinator",
    "kafka.log": "kalda.logs",
    "kafka.log.LogCleaner": "kalda.logs",
    "kafka.log.LogManager": "kalda.logs",
    "kafka.network.Processor": "kalda.network",
    "kafka.network.RequestChannel$": "kalda.requests",
    "kafka.network.SocketServer": "kalda.network",
    "kafka.raft": "kalda.raft",
    "kafka.request.logger": "kalda.requests",
    "kafka.server": "kalda.broker",
    "kafka.server.BrokerLifecycleManager": "kalda.lifecycle",
    "kafka.server.BrokerServer": "kalda.broker",
    "kafka.server.ControllerServer": "kalda.quorum",
    "kafka.server.KafkaApis": "kalda.requests",
    "kafka.server.KafkaRaftServer": "kalda.node",
    "kafka.server.ReplicaFetcherThread": "kalda.fetcher",
    "kafka.server.ReplicaManager": "kalda.replication",
    "kafka.server.metadata.BrokerMetadataPublisher": "kalda.publisher",
    "org.apache.kafka": "kalda",
    "org.apache.kafka.controller": "kalda.controller",
    "org.apache.kafka.controller.QuorumController": "kalda.controller.quorum_controller",
    "org.apache.kafka.coordinator.group": "kalda.coordinator",
    "org.apache.kafka.image": "kalda.metadata",
    "org.apache.kafka.image.loader.MetadataLoader": "kalda.metadata.loader",
    "org.apache.kafka.raft": "kalda.raft",
    "org.apache.kafka.storage.internals.log": "kalda.logs",
    "org.apache.kafka.storage.internals.log.LogCleaner": "kalda.logs",
    "state.change.logger": "kalda.isr",
}
"""The logger here for each of Apache Kafka's: those of its log4j2.yaml, of its packages, and of the classes that
operators raise the level of."""


class LoggerChange(NamedTuple):
    """One key of an incremental alteration."""

    name: str
    operation: int
    level: str | None


def logger_levels(names: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Loggers by name, each with its effective level; all, aliases included, or those in `names`."""
    own = (name for name, each in _loggers().items() if isinstance(each, logging.Logger))
    known = [ROOT, *sorted({*own, *ALIASES})]
    return [(name, _level(name)) for name in known if names is None or name in names]


def alter_loggers(changes: Iterable[LoggerChange], validate_only: bool) -> None:
    """Set and unset levels: all changes, or none where one is refused. Raises `ApiError`."""
    changes = list(changes)
    for change in changes:
        _check(change)
    if len({change.name for change in changes}) < len(changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if not validate_only:
        for change in changes:
            level = _LEVELS[change.level or ""] if change.operation == ConfigOperation.SET else logging.NOTSET
            _logger(change.name).setLevel(level)


def _check(change: LoggerChange) -> None:
    if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        word = f"Unknown operation type {change.operation} is"
        if change.operation in ConfigOperation.__members__.values():
            word = f"{ConfigOperation(change.operation).name} operation is"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{word} not allowed for the BROKER_LOGGER resource")
    is_known = change.name == ROOT or change.name in ALIASES
    if not is_known and not isinstance(_loggers().get(change.name), logging.Logger):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.operation == ConfigOperation.DELETE and change.name == ROOT:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if change.operation == ConfigOperation.SET and change.level not in _LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.level} as it is not a supported log level. Valid "
            f"log levels are {', '.join(sorted(_LEVELS))}",
        )


def _loggers() -> Mapping[str, object]:
    return logging.Logger.manager.loggerDict


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(ALIASES.get(name, name))


def _level(name: str) -> str:
    effective = _logger(name).getEffectiveLevel()
    fitting = [word for word, level in _LEVELS.items() if level <= effective]
    return fitting[-1] if fitting else "TRACE"
