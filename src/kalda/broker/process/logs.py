"""The format of log lines: text for people, or JSON for machines.

Messages name what clients have sent. Control characters in them are escaped here, for all lines, and what follows the
first line of an exception is indented: no client can forge a line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from types import TracebackType

from kalda.base.texts import printable, printable_json

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
