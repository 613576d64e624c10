"""`kalda cluster`: a cluster's id, brokers, registrations and log directories; and clusters of processes here."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.cluster_local import (
    STOP_S,
    directory_option,
    down_command,
    exclusive,
    failing,
    line_printer,
    logs_command,
    status_command,
)
from kalda.cli.common.completing import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from kalda.cli.common.failures import INTERRUPTED, Failure, failure_of, interruptible
from kalda.cli.common.nouns import KaldaCommand, Noun
from kalda.cli.common.output import (
    ProgressLine,
    confirm,
    counted,
    is_json,
    print_json,
    print_table,
    report_option,
    say,
    yes_option,
)
from kalda.cli.common.session import MAX_INT32, json_option, parse_pairs, with_cluster, with_cluster_or_controllers
from kalda.cli.common.times import Seconds
from kalda.cli.local.layout import LayoutError

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.cli.local.layout import ClusterLayout, NodePlace

# `kalda cluster up`: start a cluster of processes on this host, or nodes that join a cluster of other hosts.


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options about the cluster; None where one was not given."""

    nodes: int | None
    controllers: int | None
    overrides: tuple[str, ...]
    host: str | None
    rack: str | None
    port: int | None
    bootstrap_controllers: str | None
    first_id: int | None

    @property
    def joined(self) -> tuple[str, ...] | None:
        """The controllers of the cluster to join; None: make a cluster."""
        text = self.bootstrap_controllers
        return None if text is None else tuple(server.strip() for server in text.split(","))


@click.command("up", cls=KaldaCommand)
@directory_option
@click.option(
    "-n",
    "--nodes",
    type=click.IntRange(1, 512),
    help="Number of nodes. [default: one for each core, or those of the existing cluster]",
)
@click.option(
    "--controllers",
    type=click.IntRange(min=0),
    help="Number of nodes that are controllers too. [default: 3; 1 with fewer than 3 nodes; 0 when joining]",
)
@click.option("--override", "overrides", metavar="KEY=VALUE", multiple=True, help="Set a property of all nodes.")
@click.option("--host", help="This host's name for other hosts. [default: 127.0.0.1, reached from this host only]")
@click.option("--rack", help="The nodes' broker.rack. [default: this host's name]")
@click.option("--port", type=click.IntRange(1, 65535), help="The first of consecutive ports. [default: free ones]")
@click.option(
    "--bootstrap-controllers",
    metavar="HOST:PORT,...",
    help="Start brokers that join the cluster of these controllers, instead of making a cluster.",
)
@click.option("--first-id", type=click.IntRange(min=0), help="The first node's id. [default: 1; when joining, random]")
@click.option(
    "--timeout", type=Seconds(min=1), default=120, show_default=True, help="Seconds to wait until all nodes serve."
)
@click.option("--foreground", is_flag=True, help="Show the nodes' logs; Ctrl-C stops the nodes.")
@json_option
def up_command(directory: Path, timeout: float, foreground: bool, **options: Any) -> None:
    """Start a cluster of processes on this host, and return when all of them serve.

    DIR keeps the cluster's ids, ports and options: the next `up` starts the same cluster again, or those of its nodes
    that are not running. More --nodes than before adds brokers.

    Replicas are placed on different racks first, and each host is a rack: where a cluster has nodes on enough hosts,
    no two replicas of a partition are on one host.

    \b
    Examples:
      kalda cluster up --nodes 3 --dir /tmp/trial
      kalda cluster up --override log.retention.hours=24
      kalda cluster up --host a.example.org --dir /srv/kalda            (a first host, one node a core)
      kalda cluster up --host b.example.org --dir /srv/kalda --bootstrap-controllers a.example.org:15002
    """
    from kalda.cli.local import nodes
    from kalda.cli.local.layout import check_directory

    with failing(), interruptible():
        directory = check_directory(directory)
        chosen = ClusterOptions(**options)
        started: list[NodePlace] = []
        layout = None
        try:
            with exclusive(directory):
                layout = _layout_for(directory, chosen)
                for place in layout.nodes:
                    layout.config(place)
                layout = nodes.move_from_taken_ports(layout, lambda text: click.echo(text, err=True))
                layout.save()
                if chosen.overrides:
                    _warn_of_running_nodes(layout)
                nodes.start_missing(layout, started)
                _wait(layout, timeout)
        except KeyboardInterrupt:
            if layout is not None:
                _tell("Interrupted.")
                _stop(layout, started)
            sys.exit(INTERRUPTED)
        _print_up(layout)
        if foreground:
            _follow_logs(layout, started)


def _layout_for(directory: Path, options: ClusterOptions) -> ClusterLayout:
    """The directory's layout, changed by the options, or a new layout."""
    from kalda.cli.local import layout as layouts

    changes = parse_pairs("--override", options.overrides)
    for name in changes:
        if name in layouts.FIXED:
            raise click.UsageError(f"--override {name}: this property follows from the nodes; it cannot be overridden")
    existing = layouts.load(directory)
    if existing is not None:
        return _changed(existing, options, changes)
    count = options.nodes or len(os.sched_getaffinity(0))
    given: dict[str, Any] = {
        "host": options.host or "127.0.0.1",
        "rack": options.rack or socket.gethostname(),
        "overrides": changes,
        "first_port": options.port,
    }
    first_id, controllers = options.first_id, options.controllers
    if options.bootstrap_controllers is None:
        voters = layouts.default_voters(count) if controllers is None else controllers
        if not 1 <= voters <= count:
            raise click.UsageError(
                f"--controllers {voters}: of {counted(count, 'node')}, 1 to {count} can be controllers"
            )
        return layouts.make(directory, count, voters, first_id=1 if first_id is None else first_id, **given)
    if (controllers or 0) > count:
        raise click.UsageError(f"--controllers {controllers}: more than the {counted(count, 'node')}")
    try:
        found = ask_controllers(options.bootstrap_controllers)
    except ValueError as error:
        raise click.UsageError(f"--bootstrap-controllers: {error}") from error
    first = found.first_id(count) if first_id is None else first_id
    taken = sorted(found.node_ids & set(range(first, first + count)))
    if taken:
        raise click.UsageError(
            f"--first-id {first}: the cluster has nodes {', '.join(map(str, taken))} already; choose another id"
        )
    return layouts.make(
        directory,
        count,
        controllers or 0,
        cluster_id=found.cluster_id,
        first_id=first,
        joined=options.joined or (),
        elsewhere=len(found.node_ids),
        **given,
    )


def _changed(existing: ClusterLayout, options: ClusterOptions, overrides: dict[str, str]) -> ClusterLayout:
    """The existing layout, with more nodes and with overrides. Raises `click.UsageError` for an option that would
    change what nodes with data depend on."""
    voters = sum(place.controller_port is not None for place in existing.nodes)
    for option, requested, current in (
        ("--controllers", options.controllers, voters),
        ("--host", options.host, existing.host),
        ("--rack", options.rack, existing.rack),
        ("--port", options.port, existing.nodes[0].port),
        ("--first-id", options.first_id, existing.nodes[0].node_id),
        ("--bootstrap-controllers", options.joined, existing.joined),
    ):
        if requested is not None and requested != current:
            shown = ",".join(current) or "controllers of its own" if isinstance(current, tuple) else current
            raise click.UsageError(
                f"{option}: {existing.directory} has a cluster already, with {shown}; leave the option out, or choose "
                f"another --dir"
            )
    layout = existing.grown(options.nodes) if options.nodes is not None else existing
    return replace(layout, overrides={**existing.overrides, **overrides})


def _warn_of_running_nodes(layout: ClusterLayout) -> None:
    """Overrides have no effect on nodes that are running."""
    from kalda.cli.local.nodes import process_of

    running = [str(place.node_id) for place in layout.nodes if process_of(layout, place).pid() is not None]
    if running:
        click.echo(f"Nodes that are running apply the overrides at their next start: {', '.join(running)}.", err=True)


def _wait(layout: ClusterLayout, timeout_s: float) -> None:
    from kalda.cli.local import nodes

    serving = 0

    def show(count: int) -> None:
        nonlocal serving
        serving = count
        progress.step()

    progress = ProgressLine(
        lambda seconds: f"{serving} of {counted(len(layout.nodes), 'node')} up, after {seconds:.1f} s"
    )
    try:
        nodes.wait_until_all_serve(layout, timeout_s, show)
    except nodes.StartFailure as failure:
        progress.clear()
        for line in failure.lines:
            click.echo(line, err=True)
        raise Failure(
            f"{failure} (nodes that are running were left running; kalda cluster down stops them)"
        ) from failure
    finally:
        progress.clear()


def _print_up(layout: ClusterLayout) -> None:
    if is_json():
        print_json(
            {
                "cluster_id": layout.cluster_id,
                "bootstrap_servers": layout.bootstrap_servers,
                "bootstrap_controllers": layout.bootstrap_controllers,
                "directory": str(layout.directory),
                "nodes": [
                    {
                        "node_id": place.node_id,
                        "roles": place.roles.split(","),
                        "port": place.port,
                        "controller_port": place.controller_port,
                    }
                    for place in layout.nodes
                ],
            }
        )
        return
    count = len(layout.nodes)
    click.echo(f"Cluster:            {layout.cluster_id}, {count} node{'s' * (count > 1)} here, all in service")
    click.echo(f"Bootstrap servers:  {layout.bootstrap_servers}")
    click.echo(f"Controllers:        {layout.bootstrap_controllers}")
    click.echo(f"Directory:          {layout.directory}")
    if DEFAULT_BOOTSTRAP not in layout.bootstrap_servers.split(","):
        click.echo(f"Other commands:     export {BOOTSTRAP_VARIABLE}={layout.bootstrap_servers}")


def _follow_logs(layout: ClusterLayout, started: list[NodePlace]) -> None:
    """Print the nodes' logs until all have ended. Ctrl-C, SIGTERM, SIGHUP, and an output that takes no more lines, stop
    the nodes that were started here."""
    from kalda.cli.local.log_lines import LogFollower
    from kalda.cli.local.nodes import process_of

    processes = {place.node_id: process_of(layout, place) for place in layout.nodes}
    follower = LogFollower({node_id: process.log for node_id, process in processes.items()})
    show = line_printer(layout)
    alive = set(processes)
    try:
        while alive:
            for line in follower.poll():
                show(line)
            for node_id in sorted(alive):
                if processes[node_id].pid() is None:
                    alive.discard(node_id)
                    click.echo(f"kalda: node {node_id} has ended; the others are still running.", err=True)
    except KeyboardInterrupt:
        _stop(layout, started)
        sys.exit(0)
    except OSError:
        _stop(layout, started)
        raise
    raise Failure("all nodes have ended")


def _stop(layout: ClusterLayout, places: list[NodePlace]) -> None:
    from kalda.cli.local.nodes import Stopped, stop

    def report(done: Stopped) -> None:
        _tell(f"{'Killed' if done.killed else 'Stopped'} node {done.node_id}.")

    stop(layout, places, STOP_S, report)


def _tell(line: str) -> None:
    """Print to stderr, if that takes it: nodes are stopped also where the terminal has been closed."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


# What nodes need from a cluster's controllers before they join it: the cluster's id, and the node ids in use.
#
# Two nodes with the same id would both act as the holder of its replicas. The controllers list only nodes that fetch
# metadata now, not those that are down. So the ids of joining nodes begin at a random multiple of 100 from 1000 on,
# which is unlikely to be in use.

_TIMEOUT_MS = 5_000
_FIRST_IDS = range(1_000, 100_000, 100)


class FoundCluster(NamedTuple):
    """A running cluster; `node_ids` are those of its live nodes."""

    cluster_id: str
    node_ids: frozenset[int]

    def first_id(self, count: int) -> int:
        """A random first id from which on `count` ids are not in use."""
        free = [first for first in _FIRST_IDS if self.node_ids.isdisjoint(range(first, first + count))]
        return random.choice(free)


def ask_controllers(servers: str) -> FoundCluster:
    """The cluster of the controllers that answer. Raises `LayoutError`; `ValueError` for a malformed address."""
    from kalda.cli.common.command_admin import CommandAdmin

    try:
        with CommandAdmin(
            servers, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS, of_controllers=True
        ) as admin:
            found, quorum = admin.describe_cluster(), admin.describe_quorum()
    except ApiError as error:
        raise LayoutError(f"no controller answers at {servers}: {error.message or error.code.name}") from error
    replicas = (each.node_id for each in (*quorum.voters, *quorum.observers))
    return FoundCluster(found.cluster_id, frozenset((*(node.node_id for node in found.nodes), *replicas)))


@click.group(cls=Noun)
def cluster() -> None:
    """A cluster's id, brokers and log directories; clusters of processes on this host."""


for _command in (up_command, status_command, logs_command, down_command):
    cluster.add_command(_command)


@cluster.command("id")
@json_option
@with_cluster_or_controllers
def id_command(admin: CommandAdmin) -> None:
    """Print the cluster's id.

    \b
    Example:
      kalda cluster id
    """
    cluster_id = admin.describe_cluster().cluster_id
    if is_json():
        print_json({"cluster_id": cluster_id})
    else:
        click.echo(cluster_id)


@cluster.command("describe")
@click.option("--include-fenced-brokers", is_flag=True, help="Show brokers too that are registered but fenced.")
@json_option
@with_cluster_or_controllers
def describe_command(admin: CommandAdmin, include_fenced_brokers: bool) -> None:
    """Describe the cluster's brokers; with --bootstrap-controller, its controllers.

    \b
    Examples:
      kalda cluster describe
      kalda cluster describe --include-fenced-brokers --json
      kalda cluster describe --bootstrap-controller localhost:9093
    """
    found = admin.describe_cluster(fenced=include_fenced_brokers)
    if is_json():
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
@yes_option
@report_option
@with_cluster_or_controllers
def unregister_command(admin: CommandAdmin, broker_id: int, yes: bool) -> None:
    """Remove the registration of a broker that was taken out of service for good.

    Move its replicas away before, with kalda reassign: partitions with replicas on it keep these, and lack them. A
    broker that still runs serves nothing from then on, and registers again only when it is restarted.

    \b
    Examples:
      kalda cluster unregister --id 3
      kalda cluster unregister --id 3 --yes --bootstrap-controller localhost:9093
    """
    confirm(f"Remove the registration of broker {broker_id}?", yes)
    try:
        admin.unregister_broker(broker_id)
    except ApiError as error:
        if error.code is ErrorCode.BROKER_ID_NOT_REGISTERED:
            note = "kalda cluster describe --include-fenced-brokers lists the brokers that are registered"
            raise failure_of(error).also(note) from error
        raise
    say(f"Broker {broker_id} is no longer registered.", broker=broker_id)


@cluster.command("log-dirs")
@click.option(
    "--broker", "broker_ids", type=int, multiple=True, help="Only this broker. May be repeated. [default: all]"
)
@click.option("--partitions", "show_partitions", is_flag=True, help="Print a row for each partition in a directory.")
@json_option
@with_cluster
def log_dirs_command(admin: CommandAdmin, broker_ids: tuple[int, ...], show_partitions: bool) -> None:
    """Describe the brokers' log directories and the partitions in them.

    \b
    Examples:
      kalda cluster log-dirs
      kalda cluster log-dirs --broker 1 --partitions
    """
    chosen = list(broker_ids or admin.live_brokers())
    described = admin.describe_log_dirs(chosen)
    found = [log_dir for broker_id in chosen for log_dir in described.value(broker_id)]
    if is_json():
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
