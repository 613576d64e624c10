"""Durations of options: numbers of seconds, numbers with units, ISO 8601."""

from __future__ import annotations

import click
import pytest

from kalda.cli.common.times import Seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0.5", 0.5), ("500ms", 0.5), ("30s", 30), ("1.5s", 1.5), ("5m", 300), ("1h", 3_600),
        ("1h30m", 5_400), ("2d", 172_800), ("PT1M30S", 90), ("pt2h", 7_200),
    ],
)  # fmt: skip
def test_a_duration(text: str, seconds: float) -> None:
    assert Seconds(min=0).convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5 m", "5M", "-5m", "5m30", "1x", "nan", "inf", "1e400", "٣s", "9" * 400 + "d"]
)
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds(min=0).convert(text, None, None)


def test_a_duration_below_the_least() -> None:
    with pytest.raises(click.BadParameter, match="the range"):
        Seconds(min=1).convert("200ms", None, None)
