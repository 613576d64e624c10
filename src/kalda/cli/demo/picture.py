"""The picture of a run: a page that shows and replays it, and a PNG of the same where matplotlib is installed.

A `Chart` has its values, from a recording: rates on one grid of times, the lag, who ran when, windows, marks. Times are
seconds since the story began, rates are orders a second, over the second before.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kalda.cli.demo.proof import Found
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


_INK, _PALE, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_MADE, _LAG = "#0f766e", "#b45309"
_OF_RUNS = ("#7c3aed", "#2563eb")
"""Of the members, in their order."""
_OF_NODES = "#475569"
_OF_MARKS = {"orders": _MADE, "member": "#7c3aed", "node": "#dc2626", "spark": _LAG}
_OF_KINDS = ("#0ea5e9", "#f59e0b", "#10b981", "#f43f5e")
PROVEN = "A run of Kalda: no order was lost, and none was counted twice"
UNPROVEN = "A run of Kalda: the places do not have the same orders"


def save_page(path: Path, title: str, chart: Chart, found: Sequence[Found]) -> None:
    """Write the page: one file that loads no other."""
    template = files("kalda.cli.demo").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps({**chart.as_json(), "window": WINDOW_S}, separators=(",", ":")).replace("<", "\\u003c")
    rows = "".join(
        f"<tr><td>{html.escape(each.place)}</td><td>{each.orders:,}</td><td>{each.cents / 100:,.2f}</td>"
        f"<td>{_count(each.lost)}</td><td>{_count(each.twice)}</td></tr>"
        for each in found
    )
    page = template.replace("{{title}}", html.escape(title)).replace("{{rows}}", rows).replace("{{data}}", data)
    path.write_text(page, encoding="utf-8")


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def save_png(path: Path, title: str, chart: Chart) -> bool:
    """Draw the picture; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        return False
    heights = [3.2, 1.7, 1.5] + ([1.7] if chart.windows else [])
    figure = Figure(
        figsize=(12, sum(heights) + 1.1 + 0.21 * len(chart.marks)), layout=ConstrainedLayoutEngine(h_pad=0.08)
    )
    axes = list(figure.subplots(len(heights) + 1, 1, height_ratios=[*heights, 0.21 * len(chart.marks) + 0.2]))
    figure.suptitle(title, x=0.012, ha="left", fontsize=15, fontweight="bold", color=_INK)
    *panels, texts = axes
    _draw_rates(panels[0], chart)
    _draw_lag(panels[1], chart)
    _draw_runs(panels[2], chart)
    if chart.windows:
        _draw_windows(panels[3], chart)
    for panel in panels:
        _prepare(panel, chart, is_last=panel is panels[-1])
    _draw_texts(texts, chart)
    figure.savefig(path, dpi=130)
    return True


def _prepare(panel: Any, chart: Chart, *, is_last: bool) -> None:
    """One axis of times for all panels, and the marks as lines through them."""
    panel.set_xlim(0, chart.end)
    panel.tick_params(colors=_PALE, labelbottom=is_last, length=3)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(_GRID)
    panel.set_axisbelow(True)
    for mark in chart.marks:
        panel.axvline(mark.at, color=_OF_MARKS[mark.kind], linewidth=0.8, linestyle=(0, (3, 3)), alpha=0.7, zorder=0.5)
    if is_last:
        panel.set_xlabel("seconds since the first step", color=_PALE)


def _title(panel: Any, text: str) -> None:
    panel.set_title(text, loc="left", fontsize=11, color=_INK, pad=6)


def _legend(panel: Any) -> None:
    panel.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=9, frameon=False, labelcolor=_INK)


def _numbers(panel: Any) -> None:
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_rates(panel: Any, chart: Chart) -> None:
    """The top panel, with the marks' numbers above it."""
    panel.set_title("orders a second\n\n", loc="left", fontsize=11, color=_INK, pad=8)
    names = list(chart.billed)
    panel.stackplot(
        chart.times,
        *chart.billed.values(),
        labels=[f"billed by {name}" for name in names],
        colors=_OF_RUNS[: len(names)],
        alpha=0.55,
        linewidth=0,
    )
    panel.plot(chart.times, chart.made, color=_MADE, linewidth=2.2, label="made")
    _numbers(panel)
    _legend(panel)
    last = [-1.0, -1.0]
    for number, mark in enumerate(chart.marks, 1):
        row = 0 if mark.at - last[0] > 0.02 * chart.end else 1
        last[row] = mark.at
        panel.annotate(
            str(number),
            (mark.at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 8 + 15 * row),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            color="white",
            fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.22", "color": _OF_MARKS[mark.kind]},
            annotation_clip=False,
        )


def _draw_lag(panel: Any, chart: Chart) -> None:
    _title(panel, "lag: orders that are not billed yet")
    times, lags = [at for at, _ in chart.lag], [lag for _, lag in chart.lag]
    panel.fill_between(times, lags, color=_LAG, alpha=0.25, linewidth=0)
    panel.plot(times, lags, color=_LAG, linewidth=1.8)
    _numbers(panel)


def _draw_runs(panel: Any, chart: Chart) -> None:
    _title(panel, "who ran")
    names = list(chart.runs)
    colours = iter(_OF_RUNS)
    for row, name in enumerate(names):
        colour = _OF_NODES if name.startswith("node") else next(colours)
        spans = [(since, until - since) for since, until in chart.runs[name]]
        panel.broken_barh(spans, (row - 0.3, 0.6), color=colour, alpha=0.75)
        for (_, until), following in zip(chart.runs[name], [*chart.runs[name][1:], None], strict=True):
            if until < chart.end:
                panel.plot([until], [row], marker="x", color="#dc2626", markersize=7, markeredgewidth=2.2)
            if following is not None:
                panel.text(
                    (until + following[0]) / 2, row, "killed", ha="center", va="center", fontsize=8, color="#dc2626"
                )
    panel.set_yticks(range(len(names)), names, color=_INK)
    panel.set_ylim(len(names) - 0.4, -0.6)


def _draw_windows(panel: Any, chart: Chart) -> None:
    _title(panel, f"orders in Spark's windows of {WINDOW_S} s, by kind")
    below: dict[float, int] = {}
    for (kind, bars), colour in zip(chart.windows.items(), _OF_KINDS, strict=True):
        starts = [at for at, _ in bars]
        panel.bar(
            starts,
            [orders for _, orders in bars],
            width=WINDOW_S * 0.94,
            bottom=[below.get(at, 0) for at in starts],
            align="edge",
            color=colour,
            alpha=0.8,
            label=kind,
        )
        for at, orders in bars:
            below[at] = below.get(at, 0) + orders
    _numbers(panel)
    _legend(panel)


def _draw_texts(panel: Any, chart: Chart) -> None:
    """The marks' texts, by their numbers."""
    panel.set_axis_off()
    count = len(chart.marks)
    panel.set_ylim(count, 0)
    panel.set_xlim(0, 1)
    for row, mark in enumerate(chart.marks):
        place = {"va": "center", "fontsize": 9.5, "color": _INK}
        panel.text(
            0.012, row + 0.5, str(row + 1), ha="center", fontweight="bold", **{**place, "color": _OF_MARKS[mark.kind]}
        )
        panel.text(0.065, row + 0.5, f"{mark.at:.1f} s", ha="right", **{**place, "color": _PALE})
        panel.text(0.08, row + 0.5, mark.text, ha="left", **place)
