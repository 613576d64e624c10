"""`kalda quotas`: describe, alter and watch the quotas of users, client ids and addresses."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.common.metrics_pages import addresses, node_option, read
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import is_json, print_json, print_table, report_option, say, shortened
from kalda.cli.common.session import json_option, parse_pairs, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

_TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
_PLAIN = re.compile(r"[^<'\",\s][^,\s]*")


@click.group(cls=Noun)
def quotas() -> None:
    """Describe, alter and watch the quotas of users, client ids and addresses.

    \b
    Examples:
      kalda quotas alter --client-id loader --set producer_byte_rate=5000000
      kalda quotas describe
      kalda quotas top --watch 2
    """


def _entity_options(command: Any) -> Any:
    for name, what in (("--ip", "address"), ("--client-id", "client id"), ("--user", "user")):
        default = f"{name}-default"
        command = click.option(default, is_flag=True, help=f"The default, for every {what} without its own.")(command)
        command = click.option(name, metavar="NAME", help=f"The {what} with this name.")(command)
    return command


def _entity(options: dict[str, Any]) -> dict[str, str | None]:
    """Names by type; None is the default. Raises `click.UsageError`."""
    entity: dict[str, str | None] = {}
    for option, kind in _TYPES.items():
        name, is_default = options[option], options[f"{option}_default"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --{kind}-default exclude each other")
        if name is not None:
            entity[kind] = name
        elif is_default:
            entity[kind] = None
    return entity


def _show(entity: dict[str, str | None]) -> str:
    """A name that looks like the default, or like more than a name, is quoted, as Kafka's tool quotes all names."""
    return ", ".join(
        f"{kind} {'<default>' if name is None else name if _PLAIN.fullmatch(name) else repr(name)}"
        for kind, name in sorted(entity.items())
    )


@quotas.command("describe")
@_entity_options
@click.option("--strict", is_flag=True, help="Only entities that have no other type.")
@json_option
@with_cluster
def describe_command(admin: CommandAdmin, /, strict: bool, **options: Any) -> None:
    """Describe the quotas of all entities, or of those that match.

    \b
    Examples:
      kalda quotas describe
      kalda quotas describe --user alice
    """
    described = admin.describe_client_quotas(_entity(options), strict=strict)
    found = [(dict(entity), described[entity]) for entity in sorted(described, key=repr)]
    if is_json():
        print_json([{"entity": entity, "quotas": values} for entity, values in found])
    elif not found:
        click.echo("There are no quotas.")
    else:
        rows = [
            (_show(entity), key, f"{value:.15g}") for entity, values in found for key, value in sorted(values.items())
        ]
        print_table(("ENTITY", "QUOTA", "VALUE"), rows)


@quotas.command("alter")
@_entity_options
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Set a quota. May be repeated.")
@click.option("--remove", "removed", metavar="KEY", multiple=True, help="Remove a quota. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Check the change, and do not make it.")
@report_option
@with_cluster
def alter_command(
    admin: CommandAdmin, /, values: tuple[str, ...], removed: tuple[str, ...], dry_run: bool, **options: Any
) -> None:
    """Set and remove quotas of one entity. They take effect at once, also on open connections.

    \b
    Keys: producer_byte_rate, consumer_byte_rate (bytes a second, on each
    broker), request_percentage (of the time of a broker's event loop),
    controller_mutation_rate (partitions a second); of an address
    connection_creation_rate (connections a second).

    \b
    Examples:
      kalda quotas alter --user alice --client-id loader --set producer_byte_rate=5000000
      kalda quotas alter --client-id-default --set request_percentage=20
      kalda quotas alter --ip-default --remove connection_creation_rate
    """
    entity = _entity(options)
    if not entity:
        raise click.UsageError("name an entity, by --user, --client-id or --ip, or the default of one of them")
    changes: dict[str, float | None] = dict.fromkeys(removed)
    for key, text in parse_pairs("--set", values).items():
        if key in changes:
            raise click.UsageError(f"{key} is both set and removed")
        try:
            changes[key] = float(text)
        except ValueError as error:
            raise click.UsageError(f"--set {key}={text}: a number is expected") from error
    if not changes:
        raise click.UsageError("nothing to change: give --set or --remove")
    admin.alter_client_quotas({tuple(sorted(entity.items())): changes}, validate_only=dry_run).check()
    say(f"Quotas of {_show(entity)} {'can be' if dry_run else 'were'} altered.")


@quotas.command("top")
@node_option
@click.option("--watch", "watch_s", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Repeat until Ctrl-C.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Rows to print.")
@json_option
@with_cluster
def top_command(admin: CommandAdmin, node_id: int | None, watch_s: float | None, limit: int) -> None:
    """Show who uses how much of which quota now, the one nearest to its limit first.

    A quota holds on each broker by itself, so each is a row. The brokers need `kalda.metrics.listener`.

    \b
    Example:
      kalda quotas top --watch 2
    """
    found = addresses(admin, node_id)
    while True:
        rows = [{"node": each.node_id, **row} for each in found for row in read(each, "/quotas")["usage"]]
        rows.sort(key=lambda row: -_share(row))
        if is_json():
            print_json(rows[:limit])
        else:
            if watch_s is not None:
                click.clear()
            _print_top(rows[:limit])
        if watch_s is None:
            return
        time.sleep(watch_s)


def _share(row: dict[str, Any]) -> float:
    used = row["observed"] if "observed" in row else max(0.0, -(row["tokens"] or 0.0))
    return float(used / row["limit"]) if row["limit"] else 0.0


def _print_top(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("No client has used a quota.")
        return
    print_table(
        ("NODE", "CLIENT", "QUOTA", "USED", "LIMIT", "PERCENT", "PAUSE-MS", "REQUESTS"),
        [
            (
                row["node"],
                ", ".join(f"{kind} {shortened(name)}" for kind, name in row["tags"].items() if name),
                row["quota"],
                f"{row['observed']:.6g}" if "observed" in row else f"{row['tokens']:.6g} tokens left",
                f"{row['limit']:.15g}",
                round(_share(row) * 100),
                row["throttle_ms"],
                row["requests"],
            )
            for row in rows
        ],
    )
