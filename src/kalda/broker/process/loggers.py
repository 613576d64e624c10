"""The loggers of a node: the format of their lines, and their levels as a config resource (KIP-412).

Each logger of this process is a key, and its level the value. Changes last until the process ends. The names of the
levels are Kafka's: TRACE is below DEBUG, and FATAL is the highest.

Tools and clients know the names of Apache Kafka's loggers. Those in `ALIASES` are keys too: each stands for the logger
here that reports the same.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple

from kalda.base.configs.resources import ConfigOperation
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.texts import printable, printable_json

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


# The format of log lines: text for people, or JSON for machines.
#
# Messages name what clients have sent. Control characters in them are escaped here, for all lines, and what follows
# the first line of an exception is indented: no client can forge a line.

_WATCHDOG = "kalda.watchdog"
_MAX_FILE_BYTES = 16 * 1024 * 1024
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextFormatter(logging.Formatter):
    """`[2026-01-31 12:00:00,123] INFO message (logger)`, the default layout of Kafka."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(levelname)s %(message)s (%(name)s)")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the base class's
        """One line."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """`Traceback`, and indented lines."""
        return "\n  ".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds since the epoch), level, logger, message, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False))


def set_up(level: str, as_json: bool) -> None:
    """Send all of Kalda's log lines to standard output, and those of the audit log, which has Kafka's name. A line that
    cannot be written, as to a full disk, is left out: `logging` would print a traceback for it."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    for root in _roots():
        root.handlers[:] = [handler]
        root.setLevel(level)
        root.propagate = False


def _not_of_watchdog(record: logging.LogRecord) -> bool:
    return record.name != _WATCHDOG


def write_to(path: str, as_json: bool) -> None:
    """Write lines of INFO and above to a file too, and those of the watchdog to it alone: on the machine of a developer
    other programs delay the node all the time. The file is bounded: what is older is in `path.1`, and dropped after
    that. Raises `OSError`."""
    from logging.handlers import RotatingFileHandler

    file = RotatingFileHandler(path, maxBytes=_MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(JsonFormatter() if as_json else TextFormatter())
    for root in _roots():
        for handler in root.handlers:
            handler.setLevel(root.level)
            handler.addFilter(_not_of_watchdog)
        root.handlers.append(file)
        root.setLevel(logging.INFO)


def _roots() -> tuple[logging.Logger, ...]:
    return logging.getLogger("kalda"), logging.getLogger("kafka.authorizer.logger")


def started_ms_ago() -> int:
    """Milliseconds since this process was started; its CPU time where the system does not report the start."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/uptime", encoding="ascii") as uptime:
            up = float(uptime.read().split()[0])
    except (OSError, ValueError, IndexError):
        return int(time.process_time() * 1000)
    import os

    return int((up - ticks / os.sysconf("SC_CLK_TCK")) * 1000)
