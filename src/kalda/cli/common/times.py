"""Times and durations of the command line: ISO 8601, milliseconds since 1970, or numbers with a unit."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import click

from kalda.base.configs.definition import parse_duration_ms
from kalda.base.texts import parse_moment_ms

_WITH_UNITS = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+", re.ASCII)
_WITH_UNIT = re.compile(r"([0-9.]+)(ms|[smhd])", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Seconds(click.FloatRange):
    """An option's duration in seconds: a finite number of seconds, or 500ms, 30s, 5m, 1h30m, 2d, or PT1H30M."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str):
            value = _seconds_of(value)
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def _seconds_of(text: str) -> str | float:
    """The seconds of a text with units; the text itself where it has none."""
    if _WITH_UNITS.fullmatch(text):
        return sum(float(number) * _UNIT_S[unit] for number, unit in _WITH_UNIT.findall(text))
    duration_ms = parse_duration_ms(text)
    return text if duration_ms is None else duration_ms / 1000


def parse_time_ms(option: str, text: str) -> int:
    """A time in milliseconds since 1970. Raises `click.UsageError`."""
    time_ms = parse_moment_ms(text)
    if time_ms is None or not 0 <= time_ms < 2**63:
        raise click.UsageError(
            f"{option} {text}: a time like 2026-01-31T12:00:00Z (UTC without a zone), or milliseconds since 1970, is "
            "expected"
        )
    return time_ms


def moment_ago_ms(option: str, text: str, now_ms: int) -> int:
    """The time a duration before `now_ms`, in milliseconds since 1970; 0 where that would be before 1970."""
    duration_ms = parse_duration_ms(text)
    if duration_ms is None:
        raise click.UsageError(f"{option} {text}: a duration like PT15M, PT1H30M or P2D is expected")
    return max(0, now_ms - duration_ms)


def show_time(timestamp_ms: int) -> str | None:
    """A timestamp in UTC; None for a negative one, or one beyond the year 9999."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None
