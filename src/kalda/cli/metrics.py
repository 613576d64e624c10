"""`kalda metrics`: what the brokers measure, as a table that may be live."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.common.metrics_pages import addresses, node_option, read
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_json, print_json, print_table, shortened
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

Key = tuple[int, str]


@click.command("metrics", cls=KaldaCommand)
@click.argument("pattern", required=False, metavar="[PATTERN]")
@node_option
@click.option("--watch", "watch_s", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Repeat until Ctrl-C.")
@json_option
@with_cluster
def metrics(admin: CommandAdmin, pattern: str | None, node_id: int | None, watch_s: float | None) -> None:
    """Show what the brokers measure, under Kafka's names; with --watch, counters also a second.

    PATTERN is a regular expression that the names must contain. The brokers need `kalda.metrics.listener`.

    \b
    Examples:
      kalda metrics BytesIn
      kalda metrics 'Produce.*user=alice' --watch 1
    """
    try:
        wanted = re.compile(pattern or "", re.IGNORECASE)
    except re.error as error:
        raise click.UsageError(f"PATTERN {pattern}: {error}") from error
    found = addresses(admin, node_id)
    before: dict[Key, float] = {}
    while True:
        began = time.monotonic()
        rows = [{"node": each.node_id, **row} for each in found for row in read(each, "/metrics.json")]
        rows = [row for row in rows if wanted.search(_name(row))]
        if is_json():
            print_json(rows)
        else:
            if watch_s is not None:
                click.clear()
            _print(rows, before, watch_s)
        if watch_s is None:
            return
        before = {(row["node"], _name(row)): row["value"] for row in rows if row["counter"]}
        time.sleep(max(0.0, watch_s - (time.monotonic() - began)))


def _name(row: dict[str, Any]) -> str:
    return ",".join((row["group"], f"name={row['name']}", *(f"{tag}={value}" for tag, value in row["tags"].items())))


def _print(rows: list[dict[str, Any]], before: dict[Key, float], watch_s: float | None) -> None:
    columns = ("NODE", "METRIC", "VALUE") if watch_s is None else ("NODE", "METRIC", "VALUE", "PER-SECOND")
    lines: list[tuple[object, ...]] = []
    for row in rows:
        name = _name(row)
        line = (row["node"], shortened(name), None if row["value"] is None else f"{row['value']:.10g}")
        if watch_s is None:
            lines.append(line)
            continue
        last = before.get((row["node"], name)) if row["counter"] else None
        lines.append((*line, None if last is None else f"{(row['value'] - last) / watch_s:.6g}"))
    print_table(columns, lines)
