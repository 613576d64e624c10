"""`kalda cluster status`, `logs`, `down`: a cluster of processes on this host. `cluster.py` starts it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.common.failures import Failure, interruptible
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_json, print_json, print_table
from kalda.cli.common.session import json_option
from kalda.cli.common.times import Seconds

if TYPE_CHECKING:
    from kalda.cli.local.layout import ClusterLayout, NodePlace
    from kalda.cli.local.nodes import ClusterView

DIRECTORY_VARIABLE = "KALDA_CLUSTER_DIR"
DEFAULT_DIRECTORY = "kalda-cluster"
STOP_S = 30.0

directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=DIRECTORY_VARIABLE,
    default=DEFAULT_DIRECTORY,
    show_default=True,
    show_envvar=True,
    help="The directory with the nodes' configuration, data and logs.",
)


def complete_node(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the nodes in the directory of `--dir`, for shell completion."""
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
def failing() -> Iterator[None]:
    """Turn the exceptions of `kalda.cli.local` into a `Failure`."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.cli.local.layout import LayoutError
    from kalda.metadata.formatter import FormatError

    try:
        yield
    except (LayoutError, FormatError) as error:
        raise Failure(str(error)) from error
    except InvalidConfig as error:
        raise Failure(error.message) from error


def _load(directory: Path) -> ClusterLayout:
    from kalda.cli.local.layout import FILE, check_directory, load

    directory = check_directory(directory)
    layout = load(directory)
    if layout is None:
        raise Failure(f"there is no {directory / FILE}; name the cluster's directory by --dir or {DIRECTORY_VARIABLE}")
    return layout


def _chosen(layout: ClusterLayout, node_ids: tuple[int, ...]) -> list[NodePlace]:
    return [layout.place(node_id) for node_id in node_ids] or list(layout.nodes)


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the directory's lock: no other `up` or `down` starts or stops its nodes meanwhile. Raises `Failure`."""
    from kalda.cli.local.layout import FILE

    made = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "lock"
    with open(path, "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samefile(lock.fileno(), path):
                raise BlockingIOError  # the `finally` of another command removed the file, and a third made a new one
        except (BlockingIOError, FileNotFoundError):
            raise Failure(f"another kalda cluster up or down is running in {directory}; wait for its end") from None
        try:
            yield
        finally:
            if not (directory / FILE).exists():  # no cluster was made: leave nothing behind
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    for each in made:
                        each.rmdir()


# -- status


@click.command("status", cls=KaldaCommand)
@directory_option
@json_option
def status_command(directory: Path) -> None:
    """Show the state of the nodes of this host. Exits with 1 unless all of them serve.

    LAG is the number of records of the metadata log that a node has not fetched, OUT-OF-SYNC the number of its
    replicas that are not in the ISR.

    \b
    Examples:
      kalda cluster status --dir /tmp/trial
      until kalda cluster status > /dev/null; do sleep 1; done
    """
    with failing():
        from kalda.cli.local.nodes import describe_nodes

        layout = _load(directory)
        view = describe_nodes(layout)
    if is_json():
        print_json(_status_json(layout, view))
    else:
        _print_status(layout, view)
    sys.exit(0 if view.all_serve else 1)


def _status_json(layout: ClusterLayout, view: ClusterView) -> dict[str, object]:
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


def _print_status(layout: ClusterLayout, view: ClusterView) -> None:
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


@click.command("logs", cls=KaldaCommand)
@directory_option
@_nodes_option
@click.option("--follow", is_flag=True, help="Print new lines too, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="How many last lines of each log."
)
def logs_command(directory: Path, node_ids: tuple[int, ...], follow: bool, lines: int) -> None:
    """Show the last lines of the nodes' logs, sorted by time. The files are DIR/node-ID/node.log.

    \b
    Examples:
      kalda cluster logs --dir /tmp/trial --node 2 --lines 100
      kalda cluster logs --follow | grep -v INFO
    """
    with failing():
        from kalda.cli.local.log_lines import LogFollower, merged_tail
        from kalda.cli.local.nodes import process_of

        layout = _load(directory)
        places = _chosen(layout, node_ids)
    logs = {place.node_id: process_of(layout, place).log for place in places}
    show = line_printer(layout, named=len(logs) > 1)
    follower = LogFollower(logs)
    for line in merged_tail(logs, lines):
        show(line)
    if follow:
        with interruptible(), contextlib.suppress(KeyboardInterrupt):
            while True:
                for line in follower.poll():
                    show(line)


def line_printer(layout: ClusterLayout, *, named: bool = True) -> Callable[[Any], None]:
    """A function that prints a line; with `named`, after its node's id, in the node's colour on a terminal."""
    width = max(len(str(place.node_id)) for place in layout.nodes)
    colours = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
    order = {place.node_id: index for index, place in enumerate(layout.nodes)}

    def show(line: Any) -> None:
        node_id, text = line
        front = f"{node_id:>{width}} | " if named else ""
        click.echo(click.style(front, fg=colours[order[node_id] % len(colours)]) + text)

    return show


# -- down


@click.command("down", cls=KaldaCommand)
@directory_option
@_nodes_option
@click.option(
    "--timeout",
    type=Seconds(min=0),
    default=STOP_S,
    show_default=True,
    help="Seconds after which a node that has not stopped is killed.",
)
@json_option
def down_command(directory: Path, node_ids: tuple[int, ...], timeout: float) -> None:
    """Stop the nodes of this host, one after the other, each with a controlled shutdown. Their data is kept.

    \b
    Examples:
      kalda cluster down --dir /tmp/trial
      kalda cluster down --node 2          (the next `up` starts it again)
    """
    with failing():
        from kalda.cli.local.nodes import Stopped, stop

        layout = _load(directory)
        places = _chosen(layout, node_ids)

        def report(done: Stopped) -> None:
            if done.killed:
                click.echo(
                    f"kalda: node {done.node_id} did not stop in {timeout:g} s and was killed; it will recover its "
                    f"logs at the next start",
                    err=True,
                )
            elif not is_json():
                click.echo(f"Stopped node {done.node_id}.")

        with exclusive(layout.directory):
            stopped = stop(layout, places, timeout, report)
    if is_json():
        print_json([done._asdict() for done in stopped])
    elif not stopped:
        click.echo("Nothing to stop: none of these nodes runs.")
