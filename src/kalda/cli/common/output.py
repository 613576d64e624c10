"""What commands print: tables, JSON, and a progress line.

On a terminal, rich draws tables. Elsewhere they are plain columns, which `awk` can split, and rich is not loaded.
Control characters are escaped: the names of groups, members and hosts are what clients have sent.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from kalda.base.printable import printable, printable_json

_PROGRESS_S: Final = 0.2
NOTHING: Final = "-"
_LONGEST_NAME: Final = 400
_WIDEST: Final = 1 << 20
"""More columns of characters than any table has."""


def is_stdout_closed() -> bool:
    """Whether the reading end of the stdout pipe is closed. Only a write would show it else, and on a quiet topic there
    is none for long."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def print_json(value: object) -> None:
    """Print one JSON document, indented on a terminal."""
    click.echo(printable_json(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Print rows under headings, numbers aligned right. None is printed as a dash, a list with commas."""
    texts = [[_text(value) for value in row] for row in rows]
    numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(columns))]
    title = None if title is None else printable(title)
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


def shortened(name: str) -> str:
    """A name that a client made up, cut where it would be most of what is on the screen."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _is_numeric(column: list[object]) -> bool:
    """Whether all values are numbers or None, and there is a number."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _text(value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(",".join(map(str, value))) or NOTHING
    return printable(str(value))


def _print_rich(columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str | None) -> None:
    """Names are never folded, so that they can be copied: the terminal wraps the lines that are too long for it."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    unlimited = Console(width=_WIDEST)
    natural = Measurement.get(unlimited, unlimited.options, table).maximum
    Console(width=max(natural, Console().width)).print(table)


class ProgressLine:
    """A line on stderr that is overwritten by each update; nothing where stderr is no terminal."""

    def __init__(self, describe: Callable[[float], str]) -> None:
        """`describe(seconds)` returns the line."""
        self._describe = describe
        self._started = time.monotonic()
        self._shown = self._started
        self._visible = sys.stderr.isatty()
        self._width = 0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)

    def step(self) -> None:
        """Update the line, but not more often than each `_PROGRESS_S`."""
        if self._visible and time.monotonic() - self._shown >= _PROGRESS_S:
            self._shown = time.monotonic()
            line = self._describe(self.seconds)
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)

    def clear(self) -> None:
        """Erase the line."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0
