"""`kalda configs`: describe and alter configs of topics, brokers, groups and client-metrics subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from kalda.cli.common.completing import complete_config, complete_group, complete_topic
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import counted, is_json, print_json, print_table, report_option, say
from kalda.cli.common.session import json_option, parse_pairs, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.configs import ConfigEntry, ConfigResource

P = ParamSpec("P")


@click.group(cls=Noun)
def configs() -> None:
    """Describe and alter configs of topics, brokers and groups."""


def _of_resource(command: Callable[Concatenate[CommandAdmin, ConfigResource, P], None]) -> Callable[..., None]:
    """Add the options that name a resource, of which exactly one must be given, and pass the resource."""

    @click.option("--topic", metavar="NAME", shell_complete=complete_topic, help="Configs of this topic.")
    @click.option("--broker", metavar="ID", type=click.IntRange(min=0), help="Configs of this broker.")
    @click.option("--broker-defaults", is_flag=True, help="Configs of all brokers, where a broker has no own value.")
    @click.option("--broker-logger", metavar="ID", type=click.IntRange(min=0), help="Log levels of this broker.")
    @click.option("--group", metavar="NAME", shell_complete=complete_group, help="Configs of this group.")
    @click.option("--client-metrics", metavar="NAME", help="Configs of this client-metrics subscription.")
    @wraps(command)
    def run(
        admin: CommandAdmin,
        topic: str | None,
        broker: int | None,
        broker_defaults: bool,
        broker_logger: int | None,
        group: str | None,
        client_metrics: str | None,
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        from kalda.base.configs.resources import ConfigResourceType
        from kalda.client.admin.configs import ConfigResource

        chosen = [
            ConfigResource(kind, str(name))
            for kind, name in (
                (ConfigResourceType.TOPIC, topic),
                (ConfigResourceType.BROKER, broker),
                (ConfigResourceType.BROKER, "" if broker_defaults else None),
                (ConfigResourceType.BROKER_LOGGER, broker_logger),
                (ConfigResourceType.GROUP, group),
                (ConfigResourceType.CLIENT_METRICS, client_metrics),
            )
            if name is not None
        ]
        if len(chosen) != 1:
            raise click.UsageError(
                "give exactly one of --topic, --broker, --broker-defaults, --broker-logger, --group, "
                f"--client-metrics; {len(chosen)} are given"
            )
        command(admin, chosen[0], *args, **options)

    return run


@configs.command("describe")
@click.argument("names", metavar="[KEY]...", nargs=-1, shell_complete=complete_config)
@click.option("--all", "show_all", is_flag=True, help="Show default values too.")
@click.option("--synonyms", is_flag=True, help="Show all values that are set for a config, in order of precedence.")
@json_option
@with_cluster
@_of_resource
def describe_command(
    admin: CommandAdmin, resource: ConfigResource, names: tuple[str, ...], show_all: bool, synonyms: bool
) -> None:
    """Describe configs: those with a value that was set, or the named KEYs.

    \b
    Examples:
      kalda configs describe --topic orders
      kalda configs describe --topic orders --all
      kalda configs describe --broker 1 log.retention.ms
    """
    described = admin.describe_configs([resource]).value(resource)
    for name in names:
        if name not in described:
            near = get_close_matches(name, described, 1)
            raise Failure(f"there is no config {name} of it{f'; did you mean {near[0]}?' if near else ''}")
    entries = sorted(entry for entry in described.values() if not names or entry.name in names)
    if not show_all and not names:
        entries = [entry for entry in entries if _is_set(entry)]
    if is_json():
        print_json([_as_json(entry) for entry in entries])
        return
    columns = ["CONFIG", "VALUE", "SOURCE", "SENSITIVE", "READ-ONLY"]
    rows: list[list[object]] = []
    for entry in entries:
        row: list[object] = [entry.name, _shown(entry), entry.source.name, entry.is_sensitive, entry.is_read_only]
        if synonyms:
            row.append(" ".join(f"{s.source.name}:{s.name}={s.value}" for s in entry.synonyms))
        rows.append(row)
    print_table([*columns, "SYNONYMS"] if synonyms else columns, rows)


def _is_set(entry: ConfigEntry) -> bool:
    from kalda.base.configs.resources import ConfigSource

    return entry.source not in (ConfigSource.DEFAULT_CONFIG, ConfigSource.STATIC_BROKER_CONFIG)


def _shown(entry: ConfigEntry) -> str | None:
    return "(hidden)" if entry.is_sensitive else entry.value


def _as_json(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "sensitive": entry.is_sensitive,
        "read_only": entry.is_read_only,
        "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms],
    }


@configs.command("alter")
@click.option(
    "--add-config",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_config,
    help="Set a config. May be repeated.",
)
@click.option(
    "--delete-config",
    metavar="KEY",
    multiple=True,
    shell_complete=complete_config,
    help="Return to the default. May be repeated.",
)
@click.option(
    "--append-config", metavar="KEY=ITEM", multiple=True, shell_complete=complete_config, help="Add an item to a list."
)
@click.option(
    "--subtract-config",
    metavar="KEY=ITEM",
    multiple=True,
    shell_complete=complete_config,
    help="Remove an item from a list.",
)
@click.option("--dry-run", "validate_only", is_flag=True, help="Check the change, and do not make it.")
@report_option
@with_cluster
@_of_resource
def alter_command(
    admin: CommandAdmin,
    resource: ConfigResource,
    add_config: tuple[str, ...],
    delete_config: tuple[str, ...],
    append_config: tuple[str, ...],
    subtract_config: tuple[str, ...],
    validate_only: bool,
) -> None:
    """Alter configs; those that are not named stay as they are.

    \b
    Examples:
      kalda configs alter --topic orders --add-config retention.ms=86400000
      kalda configs alter --topic orders --delete-config retention.ms
      kalda configs alter --broker-defaults --add-config log.cleaner.backoff.ms=5000
    """
    from kalda.base.configs.resources import ConfigOperation
    from kalda.client.admin.configs import Alteration

    changes = [
        *(Alteration(k, ConfigOperation.SET, v) for k, v in parse_pairs("--add-config", add_config).items()),
        *(Alteration(key, ConfigOperation.DELETE) for key in delete_config),
        *(Alteration(k, ConfigOperation.APPEND, v) for k, v in parse_pairs("--append-config", append_config).items()),
        *(
            Alteration(k, ConfigOperation.SUBTRACT, v)
            for k, v in parse_pairs("--subtract-config", subtract_config).items()
        ),
    ]
    if not changes:
        raise click.UsageError("nothing to alter: give --add-config KEY=VALUE or --delete-config KEY")
    admin.alter_configs({resource: changes}, validate_only=validate_only).check()
    say(f"{'Could alter' if validate_only else 'Altered'} {counted(len(changes), 'config')} of {resource}.")
