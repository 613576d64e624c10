"""What all commands that ask a cluster have in common: where it is, how long to try, and JSON instead of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

if TYPE_CHECKING:
    from kalda.client.cluster import Cluster

P = ParamSpec("P")

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "KALDA_BOOTSTRAP_SERVER"

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def with_cluster(command: Callable[Concatenate[Cluster, P], None]) -> Callable[..., None]:
    """Give the command the options that say where the cluster is, and call it with that cluster."""

    @click.option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        envvar=BOOTSTRAP_VARIABLE,
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        help="Brokers to ask first.",
    )
    @click.option(
        "--request-timeout-ms",
        metavar="MS",
        type=click.IntRange(min=1),
        default=30_000,
        show_default=True,
        help="How long to try, in all, before giving up.",
    )
    @wraps(command)
    def run(bootstrap_server: str, request_timeout_ms: int, *args: P.args, **options: P.kwargs) -> None:
        with connect(bootstrap_server, request_timeout_ms) as cluster:
            command(cluster, *args, **options)

    return run


def connect(bootstrap_server: str, timeout_ms: int) -> Cluster:
    """The cluster's view. Nothing is sent yet."""
    from kalda.client.cluster import Cluster

    try:
        return Cluster(bootstrap_server, client_id="kalda-cli", timeout_ms=timeout_ms)
    except ValueError as error:
        raise click.UsageError(f"--bootstrap-server: {error}") from error


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict; the value may hold anything, = and commas too."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {text}: KEY=VALUE is expected")
        pairs[key.strip()] = value
    return pairs
