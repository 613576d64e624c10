"""What commands print: tables, JSON, and a progress line.

A table is drawn by rich on a terminal only. Elsewhere it is plain columns, which `awk` can take apart; so rich is not
loaded where nobody would see it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import click

_PROGRESS_S: Final = 0.2
NOTHING: Final = "-"


def print_json(value: object) -> None:
    """One document, indented on a terminal."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Rows under headings; numbers to the right. None is shown as a dash, a list with commas."""
    texts = [[_text(value) for value in row] for row in rows]
    numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, texts, numeric, title)
        return
    if title is not None:
        click.echo(title)
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for line in [list(columns), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _is_numeric(column: list[object]) -> bool:
    """Numbers, and perhaps gaps among them."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _text(value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or NOTHING
    return str(value)


def _print_rich(columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


class Progress:
    """One line on stderr that is written over, while a terminal is there to see it."""

    def __init__(self, describe: Callable[[float], str]) -> None:
        """`describe(seconds)` gives the line."""
        self._describe = describe
        self._started = time.monotonic()
        self._shown = self._started
        self._visible = sys.stderr.isatty()
        self._width = 0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)

    def step(self) -> None:
        """Something has moved; most calls show nothing."""
        if self._visible and time.monotonic() - self._shown >= _PROGRESS_S:
            self._shown = time.monotonic()
            line = self._describe(self.seconds)
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0
