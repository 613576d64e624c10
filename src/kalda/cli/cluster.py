"""`kalda cluster`: a cluster's id, brokers, registrations and log directories; and clusters of processes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.cluster_local import down_command, logs_command, status_command
from kalda.cli.cluster_up import up_command
from kalda.cli.failures import failure_of
from kalda.cli.output import print_json, print_table
from kalda.cli.session import MAX_INT32, json_option, with_cluster, with_cluster_or_controllers

if TYPE_CHECKING:
    from kalda.cli.command_admin import CommandAdmin


@click.group()
def cluster() -> None:
    """A cluster's id, brokers and log directories; clusters of processes on this host."""


for _command in (up_command, status_command, logs_command, down_command):
    cluster.add_command(_command)


@cluster.command("id")
@json_option
@with_cluster_or_controllers
def id_command(admin: CommandAdmin, as_json: bool) -> None:
    """Print the cluster's id.

    \b
    Example:
      kalda cluster id
    """
    cluster_id = admin.describe_cluster().cluster_id
    if as_json:
        print_json({"cluster_id": cluster_id})
    else:
        click.echo(cluster_id)


@cluster.command("describe")
@click.option("--include-fenced-brokers", is_flag=True, help="Show brokers too that are registered but fenced.")
@json_option
@with_cluster_or_controllers
def describe_command(admin: CommandAdmin, include_fenced_brokers: bool, as_json: bool) -> None:
    """Describe the cluster's brokers; with --bootstrap-controller, its controllers.

    \b
    Examples:
      kalda cluster describe
      kalda cluster describe --include-fenced-brokers --json
      kalda cluster describe --bootstrap-controller localhost:9093
    """
    found = admin.describe_cluster(fenced=include_fenced_brokers)
    if as_json:
        print_json({**found._asdict(), "nodes": [node._asdict() for node in found.nodes]})
        return
    click.echo(f"ClusterId: {found.cluster_id}")
    rows = [(node.node_id, node.host, node.port, node.rack, "fenced" if node.is_fenced else "") for node in found.nodes]
    columns = ("NODE", "HOST", "PORT", "RACK", "STATE")
    print_table(
        columns if include_fenced_brokers else columns[:-1], rows if include_fenced_brokers else [r[:-1] for r in rows]
    )


@cluster.command("unregister")
@click.option(
    "-i",
    "--id",
    "broker_id",
    type=click.IntRange(0, MAX_INT32),
    required=True,
    help="The id of the broker.",
)
@with_cluster_or_controllers
def unregister_command(admin: CommandAdmin, broker_id: int) -> None:
    """Remove the registration of a broker that was taken out of service for good.

    Move its replicas away before, with kalda reassign: partitions with replicas on it keep these, and lack them. A
    broker that still runs serves nothing from then on, and registers again only when it is restarted.

    \b
    Examples:
      kalda cluster unregister --id 3
      kalda cluster unregister --id 3 --bootstrap-controller localhost:9093
    """
    try:
        admin.unregister_broker(broker_id)
    except ApiError as error:
        if error.code is ErrorCode.BROKER_ID_NOT_REGISTERED:
            note = "kalda cluster describe --include-fenced-brokers lists the brokers that are registered"
            raise failure_of(error).also(note) from error
        raise
    click.echo(f"Broker {broker_id} is no longer registered.")


@cluster.command("log-dirs")
@click.option(
    "--broker", "broker_ids", type=int, multiple=True, help="Only this broker. May be repeated. [default: all]"
)
@click.option("--partitions", "show_partitions", is_flag=True, help="Print a row for each partition in a directory.")
@json_option
@with_cluster
def log_dirs_command(admin: CommandAdmin, broker_ids: tuple[int, ...], show_partitions: bool, as_json: bool) -> None:
    """Describe the brokers' log directories and the partitions in them.

    \b
    Examples:
      kalda cluster log-dirs
      kalda cluster log-dirs --broker 1 --partitions
    """
    chosen = list(broker_ids or admin.live_brokers())
    described = admin.describe_log_dirs(chosen)
    found = [log_dir for broker_id in chosen for log_dir in described.value(broker_id)]
    if as_json:
        print_json(
            [
                {
                    **log_dir._asdict(),
                    "partitions": [{**p._asdict(), "size_bytes": size} for p, size in log_dir.partitions.items()],
                }
                for log_dir in found
            ]
        )
    elif show_partitions:
        rows = [
            (log_dir.broker_id, log_dir.path, *partition, size)
            for log_dir in found
            for partition, size in sorted(log_dir.partitions.items())
        ]
        print_table(("BROKER", "LOG-DIR", "TOPIC", "PARTITION", "SIZE-BYTES"), rows)
    else:
        print_table(
            ("BROKER", "LOG-DIR", "STATE", "PARTITIONS", "SIZE-BYTES", "USABLE-BYTES", "TOTAL-BYTES"),
            [
                (
                    d.broker_id,
                    d.path,
                    _state(d.error_code, d.is_cordoned),
                    len(d.partitions),
                    sum(d.partitions.values()),
                    d.usable_bytes,
                    d.total_bytes,
                )
                for d in found
            ],
        )


def _state(error_code: int, is_cordoned: bool) -> str:
    if error_code:
        known = ErrorCode(error_code)
        return known.name if known == error_code else f"error {error_code}"
    return "cordoned" if is_cordoned else "online"
