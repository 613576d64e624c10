"""Times that people write mean the same on every machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kalda.base.texts import parse_moment_ms
from kalda.cli.common.times import parse_time_ms
from kalda.cli.records.places import PlaceKind, parse_place

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00", NOON_MS),
        ("2026-01-31 12:00", NOON_MS),
        ("2026-01-31", NOON_MS - 43_200_000),
        ("2026-01-31T12:00:00.000Z", NOON_MS),
        ("2026-01-31t12:00:00z", NOON_MS),
        ("2026-01-31T13:00:00.001Z", NOON_MS + 3_600_001),
        ("2026-01-31T17:30:00.000+05:30", NOON_MS),
        ("2026-01-31T17:30:00+0530", NOON_MS),
        ("2026-01-31T08:00:00-04", NOON_MS),
        ("1769860800000", NOON_MS),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_a_time(zone: str, text: str, expected: int) -> None:
    assert parse_moment_ms(text) == expected, zone


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-02-30", "2026-01-31T25:00", "\u00b2", "9" * 30, "2026-W05", "12:00"]
)
def test_what_is_no_time(text: str) -> None:
    assert parse_moment_ms(text) is None


def test_options_without_a_zone(zone: str) -> None:
    assert parse_time_ms("--timestamp", "2026-01-31T12:00:00") == NOON_MS, zone
    assert parse_place("--from", "2026-01-31T12:00:00", 0) == (PlaceKind.TIME, NOON_MS, None)
