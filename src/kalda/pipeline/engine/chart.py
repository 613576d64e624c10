"""A picture of values over time: a PNG, or one HTML file that needs no other."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kalda.base.texts import printable
from kalda.pipeline.session import PipelineError

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563")


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Values at moments (seconds since 1970)."""

    name: str
    moments: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same time."""

    title: str
    unit: str
    lines: Sequence[ChartLine]
    stacked: bool = False


def save_chart(
    path: Path,
    title: str,
    panels: Sequence[Panel],
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None,
) -> None:
    """Write the picture; the name's end decides, .png or .html. `table` (columns, rows) is below the picture in HTML.
    Raises `PipelineError`."""
    if path.suffix not in (".png", ".html"):
        raise PipelineError(f"chart {path}: the name must end in .png or .html")
    figure = _draw(title, panels)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        figure.savefig(path, dpi=130)
        return
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    svg = re.sub(r"^.*?(?=<svg)", "", drawing.getvalue(), flags=re.DOTALL)
    path.write_text(_page(title, svg, table), encoding="utf-8")


def _draw(title: str, panels: Sequence[Panel]) -> Any:
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PipelineError(f"charts are drawn by matplotlib ({error}): pip install 'kalda[pipeline]'") from None
    figure = Figure(figsize=(11, 1 + 2.9 * len(panels)), layout="constrained")
    figure.suptitle(_plain(title), fontsize=13, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for (ax,), panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel)
        locator = AutoDateLocator(minticks=4, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    return figure


def _draw_panel(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title, loc="left", fontsize=10)
    ax.set_ylabel(panel.unit)
    ax.grid(axis="y", color="#e5e7eb")
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    times = [[datetime.fromtimestamp(moment, UTC) for moment in line.moments] for line in panel.lines]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(panel.lines))]
    if panel.stacked and times:
        ax.stackplot(
            times[0],
            *(line.values for line in panel.lines),
            labels=[_plain(line.name) for line in panel.lines],
            colors=colours,
            alpha=0.85,
        )
    else:
        for line, moments, colour in zip(panel.lines, times, colours, strict=True):
            ax.plot(
                moments, line.values, color=colour, label=_plain(line.name), linewidth=1.6, marker="o", markersize=2.5
            )
    ax.set_ylim(bottom=0)
    if panel.lines:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _plain(name: str) -> str:
    """A name as matplotlib draws it letter by letter: between two `$` it would read a formula."""
    return printable(name).replace("$", r"\$")


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #111827; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem; border-bottom: 1px solid #e5e7eb; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


def _page(title: str, svg: str, table: tuple[Sequence[str], Sequence[Sequence[object]]] | None) -> str:
    rows = ""
    if table is not None:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table[0])
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>\n" for row in table[1]
        )
        rows = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{svg}\n{rows}\n</body></html>\n"
    )
