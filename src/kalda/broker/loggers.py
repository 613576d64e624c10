"""The loggers of a broker as a config resource (KIP-412).

Each logger of this process is a key, and its level the value. Changes last until the process ends. The names of the
levels are Kafka's: TRACE is below DEBUG, and FATAL is the highest.
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


class LoggerChange(NamedTuple):
    """One key of an incremental alteration."""

    name: str
    operation: int
    level: str | None


def logger_levels(names: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Loggers by name, each with its effective level; all, or those in `names`."""
    known = [ROOT, *sorted(name for name, each in _loggers().items() if isinstance(each, logging.Logger))]
    return [(name, _level(name)) for name in known if names is None or name in names]


def alter_loggers(changes: Iterable[LoggerChange], validate_only: bool) -> None:
    """Set and unset levels: all changes, or none where one is refused. Raises `ApiError`."""
    changes = list(changes)
    for change in changes:
        _check(change)
    if not validate_only:
        for change in changes:
            level = _LEVELS[change.level or ""] if change.operation == ConfigOperation.SET else logging.NOTSET
            _logger(change.name).setLevel(level)


def _check(change: LoggerChange) -> None:
    if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        raise ApiError(ErrorCode.INVALID_REQUEST, "The level of a logger is one value: it is set or deleted")
    if change.name != ROOT and not isinstance(_loggers().get(change.name), logging.Logger):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.operation == ConfigOperation.DELETE and change.name == ROOT:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if change.operation == ConfigOperation.SET and change.level not in _LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.level!r}: it is one of {', '.join(_LEVELS)}",
        )


def _loggers() -> Mapping[str, object]:
    return logging.Logger.manager.loggerDict


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _level(name: str) -> str:
    effective = _logger(name).getEffectiveLevel()
    fitting = [word for word, level in _LEVELS.items() if level <= effective]
    return fitting[-1] if fitting else "TRACE"
