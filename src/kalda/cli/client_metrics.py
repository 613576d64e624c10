"""`kalda client-metrics`: which clients push which of their metrics, how often, and what they push (KIP-714)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, is_json, print_json, print_table, report_option, say, yes_option
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

_KEYS = ("interval.ms", "match", "metrics")


@click.group("client-metrics", cls=Noun)
def client_metrics() -> None:
    """Which clients push which of their metrics to the brokers, how often, and what they push.

    Clients with KIP-714 push by themselves what is subscribed here: no agent,
    and no change of a client. What they push is in the topic __client_metrics,
    and on the page /client-metrics of kalda.metrics.listener; Spark reads the
    topic as a table (kalda.spark.client_metrics). Brokers announce that they take
    metrics while there is a subscription or a plugin: clients that connected
    before the first one learn of it when they connect again, some when they start.

    \b
    Examples:
      kalda client-metrics alter --name producers --metrics org.apache.kafka.producer. --interval 60000
      kalda client-metrics tail --client-id loader
    """


@client_metrics.command("list")
@json_option
@with_cluster
def list_command(admin: CommandAdmin) -> None:
    """List the names of all subscriptions.

    \b
    Example:
      kalda client-metrics list
    """
    names = _names(admin)
    if is_json():
        print_json(names)
    else:
        click.echo("\n".join(names) if names else "There are no subscriptions.")


@client_metrics.command("describe")
@click.option("--name", metavar="NAME", help="Only this subscription.")
@json_option
@with_cluster
def describe_command(admin: CommandAdmin, name: str | None) -> None:
    """Describe all subscriptions, or one: interval, patterns that clients must match, prefixes of metrics.

    \b
    Example:
      kalda client-metrics describe --name slow-clients
    """
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.client.admin.configs import ConfigResource

    rows = []
    for each in [name] if name is not None else _names(admin):
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, each)
        values = {key: entry.value or "" for key, entry in admin.describe_configs([resource]).value(resource).items()}
        rows.append({"name": each, **{key: values.get(key, "") for key in _KEYS}})
    if is_json():
        print_json(rows)
    elif not rows:
        click.echo("There are no subscriptions.")
    else:
        print_table(
            ("NAME", "INTERVAL-MS", "MATCH", "METRICS"),
            [(row["name"], row["interval.ms"], row["match"] or "all clients", row["metrics"]) for row in rows],
        )


@client_metrics.command("alter")
@click.option("--name", metavar="NAME", required=True, help="The subscription.")
@click.option("--metrics", metavar="PREFIX,...", help="Prefixes of the names of metrics; * for all of them.")
@click.option("--interval", "interval_ms", metavar="MS", help="How often they are pushed: 100 to 3600000.")
@click.option("--match", metavar="PROPERTY=PATTERN,...", help="What clients must match, all of it.")
@click.option("--delete", "delete", is_flag=True, help="Delete the subscription.")
@click.option("--dry-run", is_flag=True, help="Check the change, and do not make it.")
@yes_option
@report_option
@with_cluster
def alter_command(
    admin: CommandAdmin,
    name: str,
    metrics: str | None,
    interval_ms: str | None,
    match: str | None,
    delete: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make, change or delete a subscription. Clients take it over with their next request.

    \b
    Properties: client_id, client_instance_id, client_software_name,
    client_software_version, client_source_address, client_source_port. A
    pattern is a regular expression for the whole value.

    \b
    Examples:
      kalda client-metrics alter --name all --metrics '*' --interval 30000
      kalda client-metrics alter --name slow --metrics org.apache.kafka.consumer. --match 'client_id=loader.*'
      kalda client-metrics alter --name slow --delete --yes
    """
    from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
    from kalda.client.admin.configs import Alteration, ConfigResource

    values = {"metrics": metrics, "interval.ms": interval_ms, "match": match}
    given = {key: value for key, value in values.items() if value is not None}
    if delete == bool(given):
        raise click.UsageError("give --delete, or at least one of --metrics, --interval and --match")
    if delete:
        confirm(f"Delete the subscription {name}?", yes or dry_run)
        alterations = [Alteration(key, ConfigOperation.DELETE) for key in _KEYS]
    else:
        alterations = [Alteration(key, ConfigOperation.SET, value) for key, value in given.items()]
    resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, name)
    admin.alter_configs({resource: alterations}, validate_only=dry_run).check()
    done = "deleted" if delete else "altered"
    say(f"Client-metrics subscription {name} {f'can be {done}' if dry_run else f'was {done}'}.")


@client_metrics.command("tail")
@click.option("--client-id", "client_id", metavar="ID", help="Only of clients with this client id.")
@click.option("--metric", metavar="PREFIX", default="", help="Only metrics whose names begin so.")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest that the topic holds.")
@click.option("--max-messages", type=click.IntRange(1), metavar="COUNT", help="End after so many.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.1), metavar="SECONDS", help="End after so long.")
@json_option
@with_cluster
def tail_command(
    admin: CommandAdmin,
    client_id: str | None,
    metric: str,
    from_beginning: bool,
    max_messages: int | None,
    timeout_s: float | None,
) -> None:
    """Print what clients push, as it arrives, a data point a line, until Ctrl-C.

    \b
    Example:
      kalda client-metrics tail --client-id loader --metric org.apache.kafka.producer.record.
    """
    from kalda.base.configs.consumer import CONSUMER
    from kalda.base.ids import CLIENT_METRICS_TOPIC
    from kalda.base.texts import printable, printable_json
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.transport.config_files import keys_of

    left = max_messages
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    partitions = [(each.topic, each.partition) for each in admin.partitions(CLIENT_METRICS_TOPIC)]
    settings = {"auto.offset.reset": "earliest" if from_beginning else "latest", "enable.metrics.push": False}
    with Consumer({**keys_of(CONSUMER, admin.config), **settings}) as consumer:
        consumer.assign(partitions)
        while (deadline_s is None or time.monotonic() < deadline_s) and left != 0:
            for record in consumer.poll(0.5, left):
                row = _row(record.key, record.value)
                if not str(row["name"]).startswith(metric) or (client_id is not None and row["client_id"] != client_id):
                    continue
                if is_json():
                    click.echo(printable_json(json.dumps(row)))
                else:
                    labels = ",".join(f"{key}={value}" for key, value in row["attributes"].items())
                    shown = f"{row['time_ms']}  {row['client_id']}  {row['name']}{{{labels}}}  {row['value']}"
                    click.echo(printable(shown))
                left = None if left is None else left - 1


def _row(key: object, value: object) -> dict[str, Any]:
    """The fields of a record in either form."""
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    if value[:1] == b"{":
        row: dict[str, Any] = json.loads(value)
        return row
    from kalda.telemetry.otlp import decode

    (point,) = decode(value)
    resource = dict(point.resource)
    return {
        "time_ms": point.time_ns // 1_000_000,
        "client_instance_id": key.decode(),
        "client_id": resource.get("client_id", ""),
        "name": point.name,
        "value": point.value,
        "attributes": dict(point.attributes),
        "resource": resource,
    }


def _names(admin: CommandAdmin) -> list[str]:
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.client.admin.configs import list_config_resources

    what = "the names of client-metrics subscriptions"
    plan = list_config_resources([ConfigResourceType.CLIENT_METRICS], what)
    return [resource.name for resource in admin.run("listing config resources", plan)]
