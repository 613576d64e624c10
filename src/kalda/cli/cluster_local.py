"""`kalda cluster up`, `status`, `logs`, `down`: a cluster of processes on this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.failures import Failure
from kalda.cli.output import Progress, print_json, print_table
from kalda.cli.session import json_option, parse_pairs

if TYPE_CHECKING:
    from kalda.cli.local.layout import Layout, Place
    from kalda.cli.local.overview import ClusterView

DIRECTORY_VARIABLE = "KALDA_CLUSTER_DIR"
DEFAULT_DIRECTORY = "kalda-cluster"
INTERRUPTED = 130
_STOP_S = 30.0

_directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=DIRECTORY_VARIABLE,
    default=DEFAULT_DIRECTORY,
    show_default=True,
    show_envvar=True,
    help="Where everything about the nodes is.",
)


def complete_node(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the nodes in the directory that the command line names."""
    del parameter
    from kalda.cli.local.layout import LayoutError, load

    given = ctx.params.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    try:
        layout = load(Path(given).absolute())
    except (LayoutError, OSError):
        return []
    ids = [str(place.node_id) for place in layout.nodes] if layout is not None else []
    return [node_id for node_id in ids if node_id.startswith(incomplete)]


_nodes_option = click.option(
    "--node",
    "node_ids",
    metavar="ID",
    type=int,
    multiple=True,
    shell_complete=complete_node,
    help="Only this node. May be repeated. [default: all]",
)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """What these modules raise, as failures of the command."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.cli.local.layout import LayoutError
    from kalda.metadata.formatter import FormatError

    try:
        yield
    except (LayoutError, FormatError) as error:
        raise Failure(str(error)) from error
    except InvalidConfig as error:
        raise Failure(error.message) from error


def _load(directory: Path) -> Layout:
    from kalda.cli.local.layout import FILE, check_directory, load

    directory = check_directory(directory)
    layout = load(directory)
    if layout is None:
        raise Failure(f"there is no {directory / FILE}: --dir or {DIRECTORY_VARIABLE} says where the cluster is")
    return layout


def _chosen(layout: Layout, node_ids: tuple[int, ...]) -> list[Place]:
    return [layout.place(node_id) for node_id in node_ids] or list(layout.nodes)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else starts or stops nodes of this directory meanwhile."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"another kalda cluster up or down is at work in {directory}; wait for it") from None
        yield


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a wait as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- up


@click.command("up")
@_directory_option
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
@click.option("--timeout", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds to wait.")
@click.option("--foreground", is_flag=True, help="Show the nodes' logs, and stop them with Ctrl-C.")
@json_option
def up_command(directory: Path, timeout: float, foreground: bool, as_json: bool, **wanted: Any) -> None:
    """Start a cluster of processes on this host, and return when all of them serve.

    What it chooses, ports and ids among it, is remembered in DIR: the next `up` starts the same cluster again, or
    those of its nodes that do not run. More --nodes than before adds brokers.

    Replicas are put on different racks first, and a rack is a host here: with the nodes of several hosts in a
    cluster, no two replicas of a partition share a host.

    \b
    Examples:
      kalda cluster up --nodes 3 --dir /tmp/trial
      kalda cluster up --override log.retention.hours=24
      kalda cluster up --host a.example.org --dir /srv/kalda            (a first host, one node a core)
      kalda cluster up --host b.example.org --dir /srv/kalda --bootstrap-controllers a.example.org:15002
    """
    from kalda.cli.local import starting
    from kalda.cli.local.layout import check_directory

    with _failing(), _interruptible():
        directory = check_directory(directory)
        started: list[Place] = []
        layout = None
        try:
            with _alone(directory):
                layout = _wanted_layout(directory, **wanted)
                for place in layout.nodes:
                    layout.config(place)
                layout = starting.move_from_taken_ports(layout, lambda text: click.echo(text, err=True))
                layout.save()
                starting.start_missing(layout, started)
                _wait(layout, timeout)
        except KeyboardInterrupt:
            if layout is not None:
                _stop(layout, started, "Interrupted: ")
            sys.exit(INTERRUPTED)
        _print_up(layout, as_json)
        if foreground:
            _stay(layout, started)


def _wanted_layout(
    directory: Path,
    nodes: int | None,
    controllers: int | None,
    overrides: tuple[str, ...],
    host: str | None,
    rack: str | None,
    port: int | None,
    bootstrap_controllers: str | None,
    first_id: int | None,
) -> Layout:
    """What the directory remembers, with what is asked for by these options, or a new layout."""
    from kalda.cli.local import joining
    from kalda.cli.local import layout as layouts

    changes = parse_pairs("--override", overrides)
    for name in changes:
        if name in layouts.FIXED:
            raise click.UsageError(f"--override {name}: this one follows from the nodes, and cannot be changed")
    known = layouts.load(directory)
    if known is not None:
        return _changed(known, nodes, controllers, changes, host, rack, port, bootstrap_controllers, first_id)
    count = nodes or len(os.sched_getaffinity(0))
    given: dict[str, Any] = {
        "host": host or "127.0.0.1",
        "rack": rack or socket.gethostname(),
        "overrides": changes,
        "first_port": port,
    }
    if bootstrap_controllers is None:
        voters = layouts.default_voters(count) if controllers is None else controllers
        if not 1 <= voters <= count:
            raise click.UsageError(f"--controllers {voters}: of {count} nodes, 1 to {count} can be controllers")
        return layouts.make(directory, count, voters, first_id=1 if first_id is None else first_id, **given)
    if (controllers or 0) > count:
        raise click.UsageError(f"--controllers {controllers}: there are {count} nodes")
    try:
        found = joining.ask_controllers(bootstrap_controllers)
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
        joined=[server.strip() for server in bootstrap_controllers.split(",")],
        elsewhere=len(found.node_ids),
        **given,
    )


def _changed(
    known: Layout,
    nodes: int | None,
    controllers: int | None,
    overrides: dict[str, str],
    host: str | None,
    rack: str | None,
    port: int | None,
    bootstrap_controllers: str | None,
    first_id: int | None,
) -> Layout:
    """A layout with data in it changes only where that is safe. Raises `click.UsageError` where it is not."""
    from dataclasses import replace

    voters = sum(place.controller_port is not None for place in known.nodes)
    joined = None if bootstrap_controllers is None else tuple(s.strip() for s in bootstrap_controllers.split(","))
    for option, asked, is_now in (
        ("--controllers", controllers, voters),
        ("--host", host, known.host),
        ("--rack", rack, known.rack),
        ("--port", port, known.nodes[0].port),
        ("--first-id", first_id, known.nodes[0].node_id),
        ("--bootstrap-controllers", joined, known.joined),
    ):
        if asked is not None and asked != is_now:
            shown = ",".join(is_now) or "of its own" if isinstance(is_now, tuple) else is_now
            raise click.UsageError(
                f"{option}: {known.directory} has a cluster already, with {shown}; leave the option out, or choose "
                f"another --dir"
            )
    layout = known.grown(nodes) if nodes is not None else known
    return replace(layout, overrides={**known.overrides, **overrides})


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
    show = _line_printer(layout)
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
        _stop(layout, started, "")
        sys.exit(0)
    raise Failure("all nodes have ended")


def _stop(layout: Layout, places: list[Place], why: str) -> None:
    from kalda.cli.local.stopping import Stopped, stop

    def say(done: Stopped) -> None:
        click.echo(f"{why}{'killed' if done.killed else 'stopped'} node {done.node_id}.", err=True)

    stop(layout, places, _STOP_S, say)


# -- status


@click.command("status")
@_directory_option
@json_option
def status_command(directory: Path, as_json: bool) -> None:
    """Show what the nodes of this host are doing. Exits with 1 unless all of them serve.

    LAG counts records of the metadata log that a node has not fetched; OUT-OF-SYNC its replicas that are not in
    the ISR.

    \b
    Examples:
      kalda cluster status --dir /tmp/trial
      until kalda cluster status > /dev/null; do sleep 1; done
    """
    with _failing():
        from kalda.cli.local.overview import look

        layout = _load(directory)
        view = look(layout)
    if as_json:
        print_json(_status_json(layout, view))
    else:
        _print_status(layout, view)
    sys.exit(0 if view.all_serve else 1)


def _status_json(layout: Layout, view: ClusterView) -> dict[str, object]:
    return {
        "cluster_id": layout.cluster_id,
        "directory": str(layout.directory),
        "bootstrap_servers": layout.bootstrap_servers,
        "bootstrap_controllers": layout.bootstrap_controllers,
        "brokers_in_service": view.brokers,
        "problem": view.problem,
        "nodes": [
            {
                "node_id": node.place.node_id,
                "roles": node.place.roles.split(","),
                "state": node.state,
                "pid": node.pid,
                "port": node.place.port,
                "controller_port": node.place.controller_port,
                "quorum": node.quorum,
                "metadata_lag": node.lag,
                "partitions_led": node.leads,
                "replicas_out_of_sync": node.out_of_sync,
                **node.usage._asdict(),
            }
            for node in view.nodes
        ],
    }


def _print_status(layout: Layout, view: ClusterView) -> None:
    brokers = "unknown" if view.brokers is None else view.brokers
    click.echo(f"Cluster:            {layout.cluster_id}, brokers in service: {brokers}")
    click.echo(f"Bootstrap servers:  {layout.bootstrap_servers}")
    if view.problem is not None:
        click.echo(f"Problem:            {view.problem}")
    process = ("NODE", "ROLES", "STATE", "PID", "PORT", "CONTROLLER")
    print_table(
        (*process, "QUORUM", "LAG", "LEADS", "OUT-OF-SYNC", "MEMORY-MB", "CPU-S", "UPTIME-S"),
        [
            (
                node.place.node_id,
                node.place.roles,
                node.state,
                node.pid,
                node.place.port,
                node.place.controller_port,
                node.quorum,
                node.lag,
                node.leads,
                node.out_of_sync,
                None if node.usage.memory_bytes is None else round(node.usage.memory_bytes / 2**20, 1),
                None if node.usage.cpu_seconds is None else round(node.usage.cpu_seconds, 1),
                None if node.usage.uptime_seconds is None else int(node.usage.uptime_seconds),
            )
            for node in view.nodes
        ],
    )


# -- logs


@click.command("logs")
@_directory_option
@_nodes_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Last lines of each.")
def logs_command(directory: Path, node_ids: tuple[int, ...], follow: bool, lines: int) -> None:
    """Show the last lines of the nodes' logs, by time; the files are DIR/node-ID/node.log.

    \b
    Examples:
      kalda cluster logs --dir /tmp/trial --node 2 --lines 100
      kalda cluster logs --follow | grep -v INFO
    """
    with _failing():
        from kalda.cli.local.log_lines import Follower, merged_tail
        from kalda.cli.local.starting import process_of

        layout = _load(directory)
        places = _chosen(layout, node_ids)
    logs = {place.node_id: process_of(layout, place).log for place in places}
    show = _line_printer(layout, named=len(logs) > 1)
    follower = Follower(logs)
    for line in merged_tail(logs, lines):
        show(line)
    if follow:
        with _interruptible(), contextlib.suppress(KeyboardInterrupt):
            while True:
                for line in follower.until_quiet():
                    show(line)


def _line_printer(layout: Layout, *, named: bool = True) -> Callable[[Any], None]:
    """Prints lines, with the node in front, in a colour of its own where a terminal shows it."""
    width = max(len(str(place.node_id)) for place in layout.nodes)
    colours = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
    order = {place.node_id: index for index, place in enumerate(layout.nodes)}

    def show(line: Any) -> None:
        node_id, text = line
        front = f"{node_id:>{width}} | " if named else ""
        click.echo(click.style(front, fg=colours[order[node_id] % len(colours)]) + text)

    return show


# -- down


@click.command("down")
@_directory_option
@_nodes_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=_STOP_S,
    show_default=True,
    help="Seconds that a node has to stop, before it is killed.",
)
@json_option
def down_command(directory: Path, node_ids: tuple[int, ...], timeout: float, as_json: bool) -> None:
    """Stop the nodes of this host, one after the other, each with a controlled shutdown. Their data stay.

    \b
    Examples:
      kalda cluster down --dir /tmp/trial
      kalda cluster down --node 2          (the next `up` starts it again)
    """
    with _failing():
        from kalda.cli.local.stopping import Stopped, stop

        layout = _load(directory)
        places = _chosen(layout, node_ids)

        def say(done: Stopped) -> None:
            if done.killed:
                click.echo(
                    f"kalda: node {done.node_id} did not stop in {timeout:g} s, and was killed; it recovers its logs "
                    f"at the next start",
                    err=True,
                )
            elif not as_json:
                click.echo(f"Stopped node {done.node_id}.")

        with _alone(layout.directory):
            stopped = stop(layout, places, timeout, say)
    if as_json:
        print_json([done._asdict() for done in stopped])
    elif not stopped:
        click.echo("Nothing to stop: none of these nodes runs.")
