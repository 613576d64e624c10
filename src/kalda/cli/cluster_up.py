"""`kalda cluster up`: start a cluster of processes on this host, or nodes that join one."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.cluster_local import STOP_S, alone, directory_option, failing, interruptible, line_printer
from kalda.cli.failures import INTERRUPTED, Failure
from kalda.cli.output import Progress, print_json
from kalda.cli.session import json_option, parse_pairs
from kalda.cli.times import Seconds

if TYPE_CHECKING:
    from kalda.cli.local.layout import Layout, Place


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask of the cluster; None where one was left out."""

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
        """The controllers whose cluster is to be joined."""
        text = self.bootstrap_controllers
        return None if text is None else tuple(server.strip() for server in text.split(","))


@click.command("up")
@directory_option
@click.option("-n", "--nodes", type=click.IntRange(1, 512), help="How many. [default: one a core, or as before]")
@click.option(
    "--controllers",
    type=click.IntRange(min=0),
    help="How many of them are controllers too, and vote. [default: 3; 1 where there are fewer nodes; 0 when joining]",
)
@click.option("--override", "overrides", metavar="KEY=VALUE", multiple=True, help="A property of all nodes.")
@click.option("--host", help="The name that others reach this host by. [default: 127.0.0.1, from this host only]")
@click.option("--rack", help="The nodes' broker.rack. [default: this host's name]")
@click.option("--port", type=click.IntRange(1, 65535), help="The first of consecutive ports. [default: free ones]")
@click.option(
    "--bootstrap-controllers",
    metavar="HOST:PORT,...",
    help="Join the cluster of these controllers, with brokers, instead of making one.",
)
@click.option("--first-id", type=click.IntRange(min=0), help="The first node's id. [default: 1; when joining, random]")
@click.option("--timeout", type=Seconds(min=1), default=120, show_default=True, help="Seconds to wait.")
@click.option("--foreground", is_flag=True, help="Show the nodes' logs, and stop them with Ctrl-C.")
@json_option
def up_command(directory: Path, timeout: float, foreground: bool, as_json: bool, **options: Any) -> None:
    """Start a cluster of processes on this host, and return when all of them serve.

    What it chooses, ports and ids among it, is remembered in DIR: the next `up` starts the same cluster again, or
    those of its nodes that do not run. More --nodes than before adds brokers.

    Replicas are put on different racks first, and a rack is a host here: in a cluster of several hosts' nodes, no two
    replicas of a partition share a host while there are enough hosts.

    \b
    Examples:
      kalda cluster up --nodes 3 --dir /tmp/trial
      kalda cluster up --override log.retention.hours=24
      kalda cluster up --host a.example.org --dir /srv/kalda            (a first host, one node a core)
      kalda cluster up --host b.example.org --dir /srv/kalda --bootstrap-controllers a.example.org:15002
    """
    from kalda.cli.local import starting
    from kalda.cli.local.layout import check_directory

    with failing(), interruptible():
        directory = check_directory(directory)
        wanted = Wanted(**options)
        started: list[Place] = []
        layout = None
        try:
            with alone(directory):
                layout = _wanted_layout(directory, wanted)
                for place in layout.nodes:
                    layout.config(place)
                layout = starting.move_from_taken_ports(layout, lambda text: click.echo(text, err=True))
                layout.save()
                if wanted.overrides:
                    _tell_who_keeps_old_properties(layout)
                starting.start_missing(layout, started)
                _wait(layout, timeout)
        except KeyboardInterrupt:
            if layout is not None:
                click.echo("Interrupted.", err=True)
                _stop(layout, started)
            sys.exit(INTERRUPTED)
        _print_up(layout, as_json)
        if foreground:
            _stay(layout, started)


def _wanted_layout(directory: Path, wanted: Wanted) -> Layout:
    """What the directory remembers, with what is asked for, or a new layout."""
    from kalda.cli.local import joining
    from kalda.cli.local import layout as layouts

    changes = parse_pairs("--override", wanted.overrides)
    for name in changes:
        if name in layouts.FIXED:
            raise click.UsageError(f"--override {name}: this one follows from the nodes, and cannot be changed")
    known = layouts.load(directory)
    if known is not None:
        return _changed(known, wanted, changes)
    count = wanted.nodes or len(os.sched_getaffinity(0))
    given: dict[str, Any] = {
        "host": wanted.host or "127.0.0.1",
        "rack": wanted.rack or socket.gethostname(),
        "overrides": changes,
        "first_port": wanted.port,
    }
    first_id, controllers = wanted.first_id, wanted.controllers
    if wanted.bootstrap_controllers is None:
        voters = layouts.default_voters(count) if controllers is None else controllers
        if not 1 <= voters <= count:
            raise click.UsageError(f"--controllers {voters}: of {count} nodes, 1 to {count} can be controllers")
        return layouts.make(directory, count, voters, first_id=1 if first_id is None else first_id, **given)
    if (controllers or 0) > count:
        raise click.UsageError(f"--controllers {controllers}: there are {count} nodes")
    try:
        found = joining.ask_controllers(wanted.bootstrap_controllers)
    except ValueError as error:
        raise click.UsageError(f"--bootstrap-controllers: {error}") from error
    first = found.first_id(count) if first_id is None else first_id
    taken = sorted(found.node_ids & set(range(first, first + count)))
    if taken:
        raise click.UsageError(f"--first-id {first}: the cluster has nodes {', '.join(map(str, taken))} already")
    return layouts.make(
        directory,
        count,
        controllers or 0,
        cluster_id=found.cluster_id,
        first_id=first,
        joined=wanted.joined or (),
        elsewhere=len(found.node_ids),
        **given,
    )


def _changed(known: Layout, wanted: Wanted, overrides: dict[str, str]) -> Layout:
    """A layout with data in it changes only where that is safe. Raises `click.UsageError` where it is not."""
    voters = sum(place.controller_port is not None for place in known.nodes)
    for option, asked, is_now in (
        ("--controllers", wanted.controllers, voters),
        ("--host", wanted.host, known.host),
        ("--rack", wanted.rack, known.rack),
        ("--port", wanted.port, known.nodes[0].port),
        ("--first-id", wanted.first_id, known.nodes[0].node_id),
        ("--bootstrap-controllers", wanted.joined, known.joined),
    ):
        if asked is not None and asked != is_now:
            shown = ",".join(is_now) or "of its own" if isinstance(is_now, tuple) else is_now
            raise click.UsageError(
                f"{option}: {known.directory} has a cluster already, with {shown}; leave the option out, or choose "
                f"another --dir"
            )
    layout = known.grown(wanted.nodes) if wanted.nodes is not None else known
    return replace(layout, overrides={**known.overrides, **overrides})


def _tell_who_keeps_old_properties(layout: Layout) -> None:
    from kalda.cli.local.starting import process_of

    running = [str(place.node_id) for place in layout.nodes if process_of(layout, place).pid() is not None]
    if running:
        click.echo(f"Nodes that run already take the overrides at their next start: {', '.join(running)}.", err=True)


def _wait(layout: Layout, timeout_s: float) -> None:
    from kalda.cli.local import starting

    serving = 0

    def show(count: int) -> None:
        nonlocal serving
        serving = count
        progress.step()

    progress = Progress(lambda seconds: f"{serving} of {len(layout.nodes)} nodes serve, after {seconds:.1f} s")
    try:
        starting.wait_until_all_serve(layout, timeout_s, show)
    except starting.StartFailure as failure:
        progress.clear()
        for line in failure.lines:
            click.echo(line, err=True)
        raise Failure(f"{failure} (those that run go on: kalda cluster down stops them)") from failure
    finally:
        progress.clear()


def _print_up(layout: Layout, as_json: bool) -> None:
    if as_json:
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


def _stay(layout: Layout, started: list[Place]) -> None:
    """Show what the nodes say until they are told to stop, or have all ended by themselves."""
    from kalda.cli.local.log_lines import Follower
    from kalda.cli.local.starting import process_of

    processes = {place.node_id: process_of(layout, place) for place in layout.nodes}
    follower = Follower({node_id: process.log for node_id, process in processes.items()})
    show = line_printer(layout)
    alive = set(processes)
    try:
        while alive:
            for line in follower.until_quiet():
                show(line)
            for node_id in sorted(alive):
                if processes[node_id].pid() is None:
                    alive.discard(node_id)
                    click.echo(f"kalda: node {node_id} has ended; the others go on.", err=True)
    except KeyboardInterrupt:
        _stop(layout, started)
        sys.exit(0)
    raise Failure("all nodes have ended")


def _stop(layout: Layout, places: list[Place]) -> None:
    from kalda.cli.local.stopping import Stopped, stop

    def say(done: Stopped) -> None:
        click.echo(f"{'Killed' if done.killed else 'Stopped'} node {done.node_id}.", err=True)

    stop(layout, places, STOP_S, say)
