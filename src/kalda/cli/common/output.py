"""What commands print: tables, JSON, and a progress line.

On a terminal, rich draws tables. Elsewhere they are plain columns, which `awk` can split, and rich is not loaded.
Control characters are escaped: the names of groups, members and hosts are what clients have sent.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

import click

from kalda.base.texts import printable, printable_json
from kalda.cli.common.failures import Failure

F = TypeVar("F", bound=Callable[..., Any] | click.Command)
_PROGRESS_S: Final = 0.2
_LINE_S: Final = 5.0
_JSON: Final = "kalda.json"
_REPORT: Final = "kalda.report"
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


def json_option_of(text: str = "Print JSON, for programs.", **more: object) -> Callable[[F], F]:
    """The option, with this help; `more` is kept in the context where it is given."""

    def note(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given:
            ctx.meta.update({_JSON: True, **more})

    return click.option("--json", is_flag=True, expose_value=False, callback=note, help=text)


report_option = json_option_of("Print JSON, for programs: a list of objects with `message`.", **{_REPORT: []})
"""For commands that print sentences: with `say`, instead of `click.echo`."""


def is_json() -> bool:
    """Whether the command line has --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str = "") -> None:
    """Print rows: with --json as a list of objects, else under the columns' names in capitals, or `nothing` in place of
    a table without rows."""
    if is_json():
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows or not nothing:
        print_table(headings(columns), rows)
    else:
        click.echo(nothing)


def headings(columns: Sequence[str]) -> list[str]:
    """`TOPIC-PARTITION` for `topic_partition`."""
    return [column.upper().replace("_", "-") for column in columns]


def say(message: str, **fields: object) -> None:
    """Print a sentence; with --json, add it with the fields to the document that `print_report` prints."""
    report = click.get_current_context().meta.get(_REPORT)
    if report is None:
        click.echo(message)
    else:
        report.append({"message": message, **fields})


def print_report(ctx: click.Context) -> None:
    """Print what was said, where the command line has --json and `report_option`."""
    report = ctx.meta.pop(_REPORT, None)
    if report is not None:
        print_json(report)


def counted(number: int, noun: str, plural: str | None = None, *, form: str = "") -> str:
    """`1 record`, `2 records`; with the form `,` also `2,000 records`."""
    return f"{number:{form}} {noun if number == 1 else plural or noun + 's'}"


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, is_agreed: bool) -> None:
    """Ask before something is deleted, unless --yes is given. Raises `Failure` where there is no terminal to ask at."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise Failure(f"nothing was done: there is no terminal for the question `{question}`; --yes answers it")
    click.confirm(question, abort=True, err=True)


class ProgressLine:
    """A line on stderr about work that takes long: on a terminal it is overwritten by each update, elsewhere a new one
    is printed every `_LINE_S`, so that a log shows that the work goes on."""

    def __init__(self, describe: Callable[[float], str]) -> None:
        """`describe(seconds)` returns the line."""
        self._describe = describe
        self._started = time.monotonic()
        self._shown = self._started
        self._is_terminal = sys.stderr.isatty()
        self._pause_s = _PROGRESS_S if self._is_terminal else _LINE_S
        self._width = 0
        self._lock = Lock()
        """Held while a line is printed: `ticking` has a thread of its own."""

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)

    def step(self) -> None:
        """Update the line, but not more often than each `_PROGRESS_S`, or each `_LINE_S` without a terminal."""
        if time.monotonic() - self._shown < self._pause_s:
            return
        with self._lock:
            self._shown = time.monotonic()
            line = printable(self._describe(self.seconds))
            if not self._is_terminal:
                click.echo(line, err=True)
                return
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)

    def clear(self) -> None:
        """Erase the line."""
        with self._lock:
            if self._width:
                click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
                self._width = 0

    @contextmanager
    def ticking(self) -> Iterator[ProgressLine]:
        """Update the line by itself meanwhile, for work that does not call `step`; erase it at the end."""
        ended = Event()

        def tick() -> None:
            while not ended.wait(_PROGRESS_S):
                self.step()

        thread = Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()
            self.clear()
