"""`kalda doctor`: what an experienced operator checks first, with a mend for each finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import counted, is_json, print_json
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.cli.health.findings import Finding

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@click.command("doctor", cls=KaldaCommand)
@click.option(
    "--config", "path", metavar="FILE", type=click.Path(dir_okay=False),
    help="The server.properties of a node of this host: its keys, ports and directories are examined too.",
)  # fmt: skip
@click.option("--no-cluster", is_flag=True, help="Examine only this host, and --config.")
@json_option
@with_cluster
def doctor(admin: CommandAdmin, path: str | None, no_cluster: bool) -> None:
    """Examine a cluster, of Kalda or of Apache Kafka, and say what is wrong and what mends it.

    Names and ports, as this host sees them; TLS and login; brokers, partitions, quorum, versions, disks and clocks, as
    the cluster reports them. For a cluster on this host, or with --config, the limits of this host too. Nothing is
    changed. Exits with 1 where something does not work.

    \b
    Examples:
      kalda doctor
      kalda doctor --bootstrap-server kafka-1:9093 --command-config admin.properties
      kalda doctor --config /etc/kalda/server.properties --no-cluster --json
    """
    found = []
    for finding in _examine(admin, path, no_cluster):
        found.append(finding)
        if not is_json():
            _show(finding)
    errors = sum(each.severity.value == "error" for each in found)
    warnings = sum(each.severity.value == "warning" for each in found)
    if is_json():
        print_json([{**each._asdict(), "severity": each.severity.value} for each in found])
    else:
        click.echo(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}, {counted(len(found), 'check')}.")
    sys.exit(1 if errors else 0)


def _examine(admin: CommandAdmin, path: str | None, no_cluster: bool) -> Iterator[Finding]:
    from kalda.cli.health.cluster import examine_cluster
    from kalda.cli.health.findings import is_loopback
    from kalda.cli.health.host import examine_limits, examine_properties
    from kalda.clientcore.connections.metadata import parse_bootstrap

    servers = admin.config.get("bootstrap.servers") or admin.config["bootstrap.controllers"]
    bootstrap = [(address.host, address.port) for address in parse_bootstrap(str(servers))]
    if path is not None:
        yield from examine_properties(path)
    if path is not None or no_cluster or all(is_loopback(host) for host, _ in bootstrap):
        yield from examine_limits()
    if not no_cluster:
        yield from examine_cluster(admin, bootstrap)


def _show(finding: Finding) -> None:
    word, colour = _MARKS[finding.severity.value]
    click.echo(click.style(f"{word:<8}", fg=colour) + f"{finding.check}: {finding.text}")
    if finding.mend:
        click.echo(f"{'':<8}  mend: {finding.mend}")
