"""The values of the picture, from a recording: rates on one grid of times, the lag, who ran when, windows, marks.

Times are seconds since the story began, rates are orders a second, over the second before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kalda.cli.demo.recording import Mark, Recording, rate_of
from kalda.cli.demo.shop import PRICES

STEP_S = 0.5
_RATE_SPAN_S = 1.0
_AFTER_S = 2.0
WINDOW_S = 5


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. All lists of rates are as long as `times`."""

    times: list[float]
    made: list[float]
    billed: dict[str, list[float]]
    """By member."""
    lag: list[tuple[float, int]]
    runs: dict[str, list[tuple[float, float]]]
    """From when to when each member and node ran."""
    windows: dict[str, list[tuple[float, int]]]
    """By kind: when each window begins, and its orders. Empty without Spark."""
    marks: list[Mark]
    end: float

    def as_json(self) -> dict[str, Any]:
        """For the page; rounded, which is what makes it small."""
        return {
            "times": self.times,
            "made": [round(rate) for rate in self.made],
            "billed": {name: [round(rate) for rate in rates] for name, rates in self.billed.items()},
            "lag": [[round(at, 1), lag] for at, lag in self.lag],
            "runs": {
                name: [[round(since, 1), round(until, 1)] for since, until in runs] for name, runs in self.runs.items()
            },
            "windows": {kind: [[round(at, 1), orders] for at, orders in bars] for kind, bars in self.windows.items()},
            "marks": [{"at": round(mark.at, 1), "kind": mark.kind, "text": mark.text} for mark in self.marks],
            "end": round(self.end, 1),
        }


def chart_of(recording: Recording) -> Chart:
    """The chart of a recording that has at least one mark. It ends shortly after the last mark, or the last order that
    waited: what follows are the proof's quiet seconds."""
    waits = [each.at for each in recording.samples if each.lag]
    end = max(mark.at for mark in recording.marks)
    end = max([end, *waits]) + _AFTER_S
    times = [number * STEP_S for number in range(int(end / STEP_S) + 1)]
    return Chart(
        times=times,
        made=[rate_of(recording.made, at, _RATE_SPAN_S) for at in times],
        billed={name: [rate_of(each, at, _RATE_SPAN_S) for at in times] for name, each in recording.read.items()},
        lag=[(each.at, each.lag) for each in recording.samples if each.at <= end],
        runs={
            name: [(max(0.0, since), end if until is None else until) for since, until in runs]
            for name, runs in recording.runs.items()
        },
        windows=_windows(recording.windows, recording.zero),
        marks=list(recording.marks),
        end=end,
    )


def _windows(rows: Mapping[str, Mapping[str, int]], zero: float) -> dict[str, list[tuple[float, int]]]:
    """The windows by kind, in the order of `PRICES`. A window's name is the UTC time of day of its begin."""
    found: dict[str, list[tuple[float, int]]] = {}
    for slot, row in rows.items():
        clock, _, kind = slot.partition(" ")
        hours, minutes, seconds = map(int, clock.split(":"))
        since_midnight = zero % 86_400
        at = (hours * 3600 + minutes * 60 + seconds) - since_midnight
        if at < -43_200:  # the run went over midnight
            at += 86_400
        found.setdefault(kind, []).append((at, row["orders"]))
    return {kind: sorted(found[kind]) for kind in PRICES if kind in found}
