"""Times and durations as people write them, in ISO 8601 or as milliseconds since 1970."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_DURATION = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse_time_ms(option: str, text: str) -> int:
    """Milliseconds since 1970 of a time; without a zone it is local time."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text}: a time like 2026-01-31T12:00:00Z, or milliseconds since 1970, is expected"
        ) from None
    return int(moment.timestamp() * 1000)


def parse_duration_ms(option: str, text: str) -> int:
    """Milliseconds since 1970 of the moment so long ago."""
    match = _DURATION.fullmatch(text.upper())
    if match is None or not any(match.groups()):
        raise click.UsageError(f"{option} {text}: a duration like PT15M, PT1H30M or P2D is expected")
    seconds = sum(float(match[unit]) * size for unit, size in _SECONDS.items() if match[unit])
    return int((time.time() - seconds) * 1000)


def show_time(timestamp_ms: int) -> str | None:
    """A timestamp in UTC; None for none, or for one that no calendar has."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None
