"""The recording on a terminal: one screen of 80 columns and 24 lines, drawn anew four times a second. Elsewhere plain
lines: each step, each mark, and the numbers every two seconds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from kalda.cli.common.output import counted
from kalda.cli.demo.nodes import NODES, PARTITIONS
from kalda.cli.demo.recording import Count, Mark, Recording, rate_of
from kalda.cli.demo.scene import Scene, amount, listed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

WIDTH = 80
_MARKS = 6
_EVERY_S = 2.0
_REPORTED_S = 0.4
"""Rates are those of so long ago: what was done since may not have been reported."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLOURS = {"orders": "cyan", "member": "magenta", "node": "red", "spark": "yellow"}


class Screen:
    """A context: the live screen is taken away at its end."""

    def __init__(self, console: Console, scene: Scene) -> None:
        self._console = console
        self._scene = scene
        self._step = (0, 0, "", "")
        self._idle = ""
        self._now = 0.0
        self._shown_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, get_renderable=self._render, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, number: int, steps: int, title: str, text: str) -> None:
        self._step = (number, steps, title, text)
        if self._live is None:
            self._print(f"{number}/{steps}  {title}: {text}", "     ")

    def mark(self, mark: Mark) -> None:
        if self._live is None:
            self._print(f"{mark.at:5.1f} s  {mark.text}", " " * 9)

    def refresh(self, now: float, idle: str = "") -> None:
        """Show the numbers; `idle` says what is waited for."""
        self._now, self._idle = now, idle
        if self._live is None and now - self._shown_at >= _EVERY_S:
            self._shown_at = now
            self._print(f"{now:5.1f} s  {numbers(self._scene.recording, now)}{f'; {idle}' if idle else ''}", " " * 9)

    def _print(self, text: str, indent: str) -> None:
        for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        has_blocks = (self._console.encoding or "").lower().replace("-", "") == "utf8"
        return picture_of(self._scene, self._step, self._now, self._idle, has_blocks)


def numbers(recording: Recording, now: float) -> str:
    """The numbers in one line, from one sample: so that no more is read than was made."""
    if not recording.samples:
        return "nothing was made yet"
    sample, now = recording.samples[-1], now - _REPORTED_S
    parts = [
        f"made {sample.made:,} ({rate_of(recording.made, now):,.0f}/s)",
        f"billed {sample.read:,} ({sum(rate_of(each, now) for each in recording.read.values()):,.0f}/s)",
        f"lag {sample.lag:,}",
    ]
    if recording.windows:
        parts.append(f"in windows {recording.windowed:,}")
    return ", ".join(parts)


def picture_of(
    scene: Scene, step: tuple[int, int, str, str], now: float, idle: str, has_blocks: bool
) -> RenderableType:
    """One screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    recording = scene.recording
    number, steps, title, text = step
    head = Text.assemble(("Kalda demo", "bold"), f"  step {number} of {steps}, {now:.0f} s ", style="reverse")
    head.truncate(WIDTH, pad=True)
    lines: list[RenderableType] = [head, Text(f"{title}.", "bold yellow")]
    explained = textwrap.wrap(text, WIDTH - 2)[:3]
    lines += [Text(line) for line in [*explained, *[""] * (4 - len(explained))]]
    lines += _totals(recording, now, has_blocks)
    tables = Table.grid(padding=(0, 4))
    tables.add_row(_members(scene, now), _nodes(scene))
    lines += [Text(""), tables, Text("")]
    lines += _windows(scene) if scene.spark is not None else []
    lines.append(Text(idle, "italic"))
    for mark in recording.marks[-_MARKS:]:
        line = Text.assemble((f"{mark.at:5.1f} s  ", "dim"), (mark.text, _COLOURS[mark.kind]))
        line.truncate(WIDTH)
        lines.append(line)
    return Group(*lines)


def _totals(recording: Recording, now: float, has_blocks: bool) -> list[RenderableType]:
    from rich.text import Text

    if not recording.samples:
        return [Text("waiting for the first order"), Text(""), Text("")]
    sample, now = recording.samples[-1], now - _REPORTED_S

    def billed(at: float) -> float:
        return sum(rate_of(each, at) for each in recording.read.values())

    def made(at: float) -> float:
        return rate_of(recording.made, at)

    def line(name: str, total: int, rate: Callable[[float], float], style: str) -> Text:
        bars = _bars([rate(now - 30 + second) for second in range(31)]) if has_blocks else ""
        return Text.assemble(f"{name:16}", (f"{total:>9,}", "bold"), f"  {rate(now):>6,.0f}/s  ", (bars, style))

    behind = f"{'lag (not billed)':16}{sample.lag:>9,}  orders"
    return [
        line("orders made", sample.made, made, "cyan"),
        line("orders billed", sample.read, billed, "magenta"),
        Text(behind),
    ]


def _bars(values: list[float]) -> str:
    """Values as blocks, the highest of them eight high."""
    top = max(values) or 1.0
    return "".join(_BLOCKS[min(7, int(8 * value / top))] if value else " " for value in values)


def _members(scene: Scene, now: float) -> RenderableType:
    from rich.table import Table

    recording = scene.recording
    table = Table("member", "partitions", "billed/s", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, child in scene.members.items():
        counts: list[Count] = recording.read[name]
        held = "[red]killed[/]" if child.was_killed else listed(recording.partitions.get(name, []))
        table.add_row(name, held, f"{rate_of(counts, now - _REPORTED_S):>8,.0f}")
    for _ in range(2 - len(scene.members)):
        table.add_row("", "", "")
    return table


def _nodes(scene: Scene) -> RenderableType:
    from rich.table import Table

    recording = scene.recording
    table = Table("node", "leads", "in sync", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for node in range(1, NODES + 1):
        led = [partition for partition, leader in recording.leaders.items() if leader == node]
        in_sync = f"{recording.in_sync.get(node, 0)} of {PARTITIONS}"
        if node in scene.nodes.is_killed:
            table.add_row(str(node), "[red]killed[/]", in_sync)
        else:
            table.add_row(str(node), listed(led), in_sync)
    return table


def _windows(scene: Scene) -> list[RenderableType]:
    from rich.text import Text

    rows = scene.recording.windows
    if not rows:
        return [Text(f"Spark: {'its query begins' if scene.is_spark_up else 'Java starts'}", "yellow"), Text("")]
    count = len({slot.partition(" ")[0] for slot in rows})
    newest = max(rows).partition(" ")[0]
    orders = sum(row["orders"] for slot, row in rows.items() if slot.startswith(newest))
    cents = sum(row["cents"] for slot, row in rows.items() if slot.startswith(newest))
    return [
        Text(
            f"Spark: {counted(count, 'window')} of 5 s, with {scene.recording.windowed:,} orders, each once;", "yellow"
        ),
        Text(f"       since {newest} UTC {orders:,} orders, {amount(cents)}", "yellow"),
    ]
